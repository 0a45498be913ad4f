// SPDX-License-Identifier: Apache-2.0
#include "ps/apply_policy.h"

#include <algorithm>

namespace paceline {

namespace {

class BulkSynchronous final : public ApplyPolicy {
 public:
  [[nodiscard]] Decision on_push(int /*worker*/, std::uint64_t /*based_on*/,
                                 std::uint64_t /*current*/) const override {
    return {};
  }
  [[nodiscard]] bool may_pull(int /*worker*/, std::uint64_t clock,
                              std::uint64_t slowest) const override {
    return clock <= slowest;
  }
};

/// Every push at once; how far ahead a worker may run is the derived rule's.
class Immediate : public ApplyPolicy {
 public:
  explicit Immediate(const PsRule& rule) : rule_(rule) {}
  [[nodiscard]] Decision on_push(int /*worker*/, std::uint64_t based_on,
                                 std::uint64_t current) const override {
    const std::uint64_t staleness = std::max<std::uint64_t>(current - based_on, 1);
    return {Decision::Action::apply,
            rule_.rate_by_staleness ? 1.0F / static_cast<float>(staleness) : 1.0F,
            rule_.compensation};
  }

 private:
  PsRule rule_;
};

class StaleSynchronous final : public Immediate {
 public:
  explicit StaleSynchronous(const PsRule& rule)
      : Immediate(rule), bound_(static_cast<std::uint64_t>(rule.bound)) {}
  [[nodiscard]] bool may_pull(int /*worker*/, std::uint64_t clock,
                              std::uint64_t slowest) const override {
    return clock <= slowest || clock - slowest <= bound_;
  }

 private:
  std::uint64_t bound_;
};

class Asynchronous final : public Immediate {
 public:
  using Immediate::Immediate;
  [[nodiscard]] bool may_pull(int /*worker*/, std::uint64_t /*clock*/,
                              std::uint64_t /*slowest*/) const override {
    return true;
  }
};

}  // namespace

std::unique_ptr<ApplyPolicy> make_policy(const PsRule& rule) {
  switch (rule.kind) {
    case Consistency::asynchronous:
      return std::make_unique<Asynchronous>(rule);
    case Consistency::bounded_stale:
      if (rule.bound > 0) {
        return std::make_unique<StaleSynchronous>(rule);
      }
      break;
    case Consistency::synchronous:
      break;
  }
  return std::make_unique<BulkSynchronous>();
}

}  // namespace paceline
