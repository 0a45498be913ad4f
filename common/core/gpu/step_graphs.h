// SPDX-License-Identifier: Apache-2.0
// The CUDA graphs of training batches that come again and again.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <vector>

#include "common/base/error.h"
#include "common/core/gpu/gpu_context.h"
#include "common/core/gpu/gpu_graph.h"

namespace paceline {

/// All that a batch's queued work depends on by value: equal keys make equal work.
struct StepKey {
  std::int64_t samples = 0;
  float loss_scale = 1.0F;
  std::array<const void*, 4> addresses{};  ///< inputs, labels, weights, gradients
  std::vector<bool> cuts;                  ///< where cut() is called
  bool operator==(const StepKey&) const = default;
};

/// A batch's work is a chain of segments, between which others queue theirs. A key's first batch is
/// queued as ever: memory grows, libraries choose their algorithms. The second is recorded, a graph
/// for each segment, and the following ones launch these. Once memory has grown keys are recorded
/// anew. Used by the model's thread.
class StepGraphs {
 public:
  static constexpr std::size_t kMostKeys = 8;  ///< kept; the longest unused one is dropped

  explicit StepGraphs(std::shared_ptr<GpuContext> context) : context_(std::move(context)) {}

  /// One batch; where finish() does not come, what was recorded of it is dropped.
  class Batch {
   public:
    explicit Batch(StepGraphs& graphs) : graphs_(graphs) {}
    ~Batch() { graphs_.abandon(); }
    Batch(const Batch&) = delete;
    Batch& operator=(const Batch&) = delete;
    void finish() { graphs_.finish(); }

   private:
    StepGraphs& graphs_;
  };
  /// Without a key the batch is queued as ever.
  [[nodiscard]] Batch begin(const std::optional<StepKey>& key);

  /// work() queues a part of the current segment, unless the batch's graphs hold it. Outside of a
  /// batch it is called. Throws what it throws; an Error while it is recorded says so.
  template <typename Work>
  void queue(const Work& work) {
    if (mode_ == Mode::replay) {
      launch_next();
      return;
    }
    if (mode_ == Mode::record && !capture_) {
      capture_.emplace(context_->gpu());
    }
    try {
      work();
    } catch (const Error& error) {
      if (mode_ == Mode::record) {
        fail(error);
      }
      throw;
    }
  }
  /// The segment ends: what comes next on the stream comes after it.
  void cut();

  /// Batches that were launched as graphs.
  [[nodiscard]] std::int64_t replayed() const noexcept { return replayed_; }

 private:
  enum class Mode : std::uint8_t { plain, record, replay };
  struct Kept {
    StepKey key;
    std::vector<GpuGraph> segments;
    bool recorded = false;
  };
  /// What graphs' addresses are good for.
  struct Memory {
    std::uint64_t growths = 0;
    std::size_t of_products = 0;
    bool operator==(const Memory&) const = default;
  };

  [[nodiscard]] Memory memory() const noexcept {
    return {context_->growths(), context_->gpu().math_bytes()};
  }
  /// Drops all graphs if memory has grown since they were recorded.
  void drop_moved();
  void launch_next();
  [[noreturn]] void fail(const Error& error);
  void finish();
  void abandon() noexcept;

  std::shared_ptr<GpuContext> context_;
  std::list<Kept> kept_;  // the last used first, which is that of the batch at hand
  Memory memory_;
  Mode mode_ = Mode::plain;
  std::optional<GpuCapture> capture_;
  std::size_t next_ = 0;   // segment to launch
  bool launched_ = false;  // the current segment
  std::int64_t replayed_ = 0;
};

}  // namespace paceline
