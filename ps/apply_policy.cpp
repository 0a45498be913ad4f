// SPDX-License-Identifier: Apache-2.0
#include "ps/apply_policy.h"

namespace paceline {

namespace {

class BulkSynchronous final : public ApplyPolicy {
 public:
  [[nodiscard]] Decision on_push(int /*worker*/, std::uint64_t /*based_on*/,
                                 std::uint64_t /*current*/) const override {
    return {Decision::Action::hold, 1.0F};
  }
  [[nodiscard]] bool may_pull(int /*worker*/, std::uint64_t clock,
                              std::uint64_t slowest) const override {
    return clock <= slowest;
  }
};

class StaleSynchronous final : public ApplyPolicy {
 public:
  explicit StaleSynchronous(std::uint64_t bound) : bound_(bound) {}
  [[nodiscard]] Decision on_push(int /*worker*/, std::uint64_t /*based_on*/,
                                 std::uint64_t /*current*/) const override {
    return {Decision::Action::apply, 1.0F};
  }
  [[nodiscard]] bool may_pull(int /*worker*/, std::uint64_t clock,
                              std::uint64_t slowest) const override {
    return clock <= slowest || clock - slowest <= bound_;
  }

 private:
  std::uint64_t bound_;
};

class Asynchronous final : public ApplyPolicy {
 public:
  [[nodiscard]] Decision on_push(int /*worker*/, std::uint64_t /*based_on*/,
                                 std::uint64_t /*current*/) const override {
    return {Decision::Action::apply, 1.0F};
  }
  [[nodiscard]] bool may_pull(int /*worker*/, std::uint64_t /*clock*/,
                              std::uint64_t /*slowest*/) const override {
    return true;
  }
};

}  // namespace

std::unique_ptr<ApplyPolicy> make_policy(const PsRule& rule) {
  switch (rule.kind) {
    case Consistency::asynchronous:
      return std::make_unique<Asynchronous>();
    case Consistency::bounded_stale:
      if (rule.bound > 0) {
        return std::make_unique<StaleSynchronous>(static_cast<std::uint64_t>(rule.bound));
      }
      break;
    case Consistency::synchronous:
      break;
  }
  return std::make_unique<BulkSynchronous>();
}

}  // namespace paceline
