// SPDX-License-Identifier: Apache-2.0
#include "common/comm/communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <utility>

#include "common/base/abort.h"
#include "common/base/error.h"
#include "common/base/time.h"

namespace paceline {

namespace {

std::string to_bytes(std::span<const double> values) {
  std::string bytes(values.size_bytes(), '\0');
  std::memcpy(bytes.data(), values.data(), values.size_bytes());
  return bytes;
}

template <typename Combine>
std::vector<double> combine(Communicator& communicator, std::span<const double> values,
                            Combine&& combine_two) {
  const std::vector<std::string> all = communicator.allgather(to_bytes(values));
  std::vector<double> result(values.size());
  std::vector<double> next(values.size());
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].size() != values.size_bytes()) {
      throw Error(fmt::format("rank {} sent {} bytes to a collective of {} bytes", rank,
                              all[rank].size(), values.size_bytes()));
    }
    std::memcpy(next.data(), all[rank].data(), values.size_bytes());
    for (std::size_t i = 0; i < result.size(); ++i) {
      result[i] = rank == 0 ? next[i] : combine_two(result[i], next[i]);
    }
  }
  return result;
}

/// State that the members of a thread group share. Two generations of blobs alternate, so a fast
/// member may start the next round while a slow one still reads this one's result.
struct ThreadGroup {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::string> incoming;
  std::vector<std::string> result;
  std::vector<bool> present;
  std::vector<bool> gone;
  int arrived = 0;
  std::uint64_t round = 0;
};

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<ThreadGroup> group, int rank, Nanoseconds timeout,
                     AbortToken& abort)
      : group_(std::move(group)), rank_(rank), timeout_(timeout), abort_(abort) {}

  ~ThreadCommunicator() override {
    const std::scoped_lock lock(group_->mutex);
    group_->gone[static_cast<std::size_t>(rank_)] = true;
    group_->changed.notify_all();
  }

  [[nodiscard]] int rank() const noexcept override { return rank_; }
  [[nodiscard]] int size() const noexcept override {
    return static_cast<int>(group_->incoming.size());
  }

  [[nodiscard]] std::vector<std::string> allgather(std::string blob) override {
    std::unique_lock lock(group_->mutex);
    const std::uint64_t round = group_->round;
    group_->incoming[static_cast<std::size_t>(rank_)] = std::move(blob);
    group_->present[static_cast<std::size_t>(rank_)] = true;
    if (++group_->arrived == size()) {
      group_->result =
          std::exchange(group_->incoming, std::vector<std::string>(group_->gone.size()));
      std::fill(group_->present.begin(), group_->present.end(), false);
      group_->arrived = 0;
      ++group_->round;
      group_->changed.notify_all();
      return group_->result;
    }
    const Deadline deadline = Deadline::after(timeout_);
    while (group_->round == round) {
      group_->changed.wait_for(lock, kAbortPollInterval);
      if (group_->round == round) {
        abort_.check();
        check_missing(deadline);
      }
    }
    return group_->result;
  }

 private:
  void check_missing(const Deadline& deadline) const {
    for (std::size_t peer = 0; peer < group_->gone.size(); ++peer) {
      if (group_->present[peer]) {
        continue;
      }
      if (group_->gone[peer]) {
        throw PeerLost(fmt::format("rank {} ended while rank {} waited for it", peer, rank_));
      }
      if (deadline.passed()) {
        throw TimeoutError(fmt::format("rank {} did not reach the collective within {:.1f} s", peer,
                                       seconds(timeout_.count())));
      }
    }
  }

  std::shared_ptr<ThreadGroup> group_;
  int rank_;
  Nanoseconds timeout_;
  AbortToken& abort_;
};

}  // namespace

std::string Communicator::broadcast(int root, std::string blob) {
  return allgather(rank() == root ? std::move(blob) : std::string{})
      .at(static_cast<std::size_t>(root));
}

std::vector<double> Communicator::sum(std::span<const double> values) {
  return combine(*this, values, [](double a, double b) { return a + b; });
}

std::vector<double> Communicator::max(std::span<const double> values) {
  return combine(*this, values, [](double a, double b) { return std::max(a, b); });
}

std::vector<std::unique_ptr<Communicator>> make_thread_communicators(int size,
                                                                     std::int64_t timeout_ns,
                                                                     AbortToken& abort) {
  auto group = std::make_shared<ThreadGroup>();
  const auto members = static_cast<std::size_t>(size);
  group->incoming.resize(members);
  group->present.resize(members);
  group->gone.resize(members);
  std::vector<std::unique_ptr<Communicator>> communicators;
  for (int rank = 0; rank < size; ++rank) {
    communicators.push_back(
        std::make_unique<ThreadCommunicator>(group, rank, Nanoseconds(timeout_ns), abort));
  }
  return communicators;
}

}  // namespace paceline
