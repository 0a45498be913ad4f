// SPDX-License-Identifier: Apache-2.0
// 1-bit Adam (Tang et al. 2021) after its warm-up: the variance is frozen, the momentum travels
// with one bit per element, and both the worker that sends it and the rank that averages a chunk of
// it
// ("server") add what compression left out to their next message.
//
// Bucket of n elements, N ranks: every rank sends 2(N-1) messages of 8 + 8·ceil(ceil(n/N)/64)
// bytes.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "common/compress/codec.h"
#include "common/compress/error_feedback.h"
#include "common/core/arena_optimizer.h"
#include "ring/gradient_reducer.h"

namespace paceline {

/// One per rank; used by the communication thread. Collective as a GradientReducer is.
class OneBitAdam {
 public:
  /// `optimizer` (of kind onebit_adam) holds the moments and outlives this.
  OneBitAdam(const ReducerPlace& place, ArenaOptimizer& optimizer);

  /// Whether bucket b has had its updates of full Adam.
  [[nodiscard]] bool frozen(BucketId b) const;

  /// One update of bucket b from this rank's gradient sum, which is overwritten. The bias
  /// correction of the variance stays what it was when it froze. |update| is bounded as Adam's own
  /// is (Kingma & Ba 2015, section 2.1), since one bit gives elements of tiny variance a momentum
  /// too; those without any stay.
  RunTimes step(BucketId b, std::span<float> weights, std::span<float> gradient,
                const StepInfo& info);

  [[nodiscard]] std::size_t staging_bytes() const noexcept { return blocks_->bytes().size(); }
  [[nodiscard]] std::size_t residual_bytes() const noexcept {
    return worker_error_.bytes() + server_error_.bytes();
  }

 private:
  void mix(std::span<const float> weights, std::span<const float> momentum,
           std::span<float> gradient, const StepInfo& info) const;
  void encode_chunks(BucketId b, std::span<float> momentum, std::size_t block,
                     const CodecContext& context);
  void average_own_chunk(BucketId b, std::size_t block, const CodecContext& context,
                         std::span<float> sum);
  void update(std::span<float> weights, std::span<const float> averaged, BucketId b,
              const StepInfo& info);
  [[nodiscard]] std::size_t block_bytes(BucketId b) const;

  const Config& config_;
  int rank_;
  int world_;
  const BucketPlan& plan_;
  Collective& collective_;
  ArenaOptimizer& optimizer_;
  std::unique_ptr<Codec> codec_;
  ErrorFeedback worker_error_;
  std::vector<std::size_t> own_begin_;  ///< of each bucket's own chunk in server_error_
  ErrorFeedback server_error_;
  std::unique_ptr<CommBuffer> blocks_;
};

}  // namespace paceline
