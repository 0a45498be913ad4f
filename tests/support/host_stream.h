// SPDX-License-Identifier: Apache-2.0
// Streams and events of a GPU's double: every stream is a thread that works off its queue, so what
// is queued on two streams really runs at any time, and an ordering that the code under test
// forgot shows as wrong values and to ThreadSanitizer as a race.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "common/base/time.h"

namespace paceline::test {

/// What an event stands for once recorded: reached or not, and when by the host's clock. Before the
/// first record it is reached.
class HostPoint {
 public:
  void reach() {
    const std::lock_guard lock(mutex_);
    reached_ = true;
    reached_ns_ = now_ns();
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return reached_; });
  }
  [[nodiscard]] bool reached() {
    const std::lock_guard lock(mutex_);
    return reached_;
  }
  [[nodiscard]] std::int64_t reached_ns() {
    const std::lock_guard lock(mutex_);
    return reached_ns_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool reached_ = false;
  std::int64_t reached_ns_ = 0;
};

class HostEvent {
 public:
  void set(std::shared_ptr<HostPoint> point) {
    const std::lock_guard lock(mutex_);
    point_ = std::move(point);
  }
  /// Null: never recorded.
  [[nodiscard]] std::shared_ptr<HostPoint> point() {
    const std::lock_guard lock(mutex_);
    return point_;
  }

 private:
  std::mutex mutex_;
  std::shared_ptr<HostPoint> point_;
};

class HostStream {
 public:
  HostStream() : thread_([this] { loop(); }) {}
  ~HostStream() {
    queue({});
    thread_.join();
  }
  HostStream(const HostStream&) = delete;
  HostStream& operator=(const HostStream&) = delete;

  /// Runs after all that was queued before. An empty function ends the thread.
  void queue(std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
    arrived_.notify_one();
  }
  /// While a thread records what it queues here, no other may queue anything.
  void capture(bool on) { capturing_ = on; }
  [[nodiscard]] bool capturing() const { return capturing_; }
  /// Whether all that was queued is done.
  [[nodiscard]] bool idle() {
    const std::lock_guard lock(mutex_);
    return queue_.empty() && !working_;
  }
  void record(HostEvent& event) {
    auto point = std::make_shared<HostPoint>();
    event.set(point);
    queue([point] { point->reach(); });
  }
  void wait(HostEvent& event) {
    if (auto point = event.point()) {
      queue([point] { point->wait(); });
    }
  }

 private:
  void loop() {
    for (;;) {
      std::unique_lock lock(mutex_);
      arrived_.wait(lock, [&] { return !queue_.empty(); });
      const std::function<void()> work = std::move(queue_.front());
      queue_.pop_front();
      working_ = true;
      lock.unlock();
      if (!work) {
        return;
      }
      work();
      lock.lock();
      working_ = false;
    }
  }

  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<std::function<void()>> queue_;
  bool working_ = false;
  std::atomic<bool> capturing_ = false;
  std::thread thread_;
};

}  // namespace paceline::test
