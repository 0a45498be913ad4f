// SPDX-License-Identifier: Apache-2.0
#include "common/core/gpu/gpu_trust_ratios.h"

#include <algorithm>

#include "common/base/error.h"

namespace paceline {

namespace {

using kernels::PieceRange;
using kernels::TensorPiece;
using kernels::TensorSquares;

constexpr std::string_view kRatiosName = "norms of tensors";

bool lies_in(std::span<const Range> ranges, std::size_t element) {
  return std::ranges::any_of(
      ranges, [&](const Range& range) { return range.begin <= element && element < range.end; });
}

}  // namespace

GpuTrustRatios::GpuTrustRatios(Gpu& gpu, GpuStream& stream, const OptimizerSpec& spec,
                               const BucketPlan& plan, const OwnRanges& own,
                               const TensorShares& shares)
    : gpu_(gpu),
      stream_(stream),
      spec_(spec),
      rank_(shares.rank),
      ranks_(shares.ranks),
      tensors_(plan.tensors().size()) {
  if (tensors_ == 0 && plan.elements() > 0) {
    throw Error("optimizer: LARS and LAMB need to know the tensors of the arena");
  }
  std::vector<TensorPiece> pieces;
  const std::vector<PieceRange> of_tensors = cut(plan, own, shares, pieces);
  pieces_ = static_cast<std::int64_t>(pieces.size());
  take_memory(pieces, of_tensors);
}

std::vector<PieceRange> GpuTrustRatios::cut(const BucketPlan& plan, const OwnRanges& own,
                                            const TensorShares& shares,
                                            std::vector<TensorPiece>& pieces) {
  const auto count = [&] { return static_cast<std::int64_t>(pieces.size()); };
  std::vector<PieceRange> of_tensors;
  std::size_t state = 0;  // where the bucket begins in a moment
  for (BucketId b = 0; b < plan.count(); ++b) {
    const std::vector<Range>& parts = own.at(static_cast<std::size_t>(b));
    PieceRange of_bucket{count(), 0};
    for (const TensorRange& tensor : plan.tensors_of(b)) {
      PieceRange of_tensor{count(), 0};
      std::size_t part_state = state;
      for (const Range& part : parts) {
        const std::size_t begin = std::max(part.begin, tensor.range.begin);
        const std::size_t end = std::min(part.end, tensor.range.end);
        for (std::size_t at = begin; at < end; at += kernels::kPieceElements) {
          const std::size_t size =
              std::min(end - at, static_cast<std::size_t>(kernels::kPieceElements));
          pieces.push_back({static_cast<std::int64_t>(at),
                            static_cast<std::int64_t>(part_state + at - part.begin),
                            static_cast<std::int32_t>(size),
                            static_cast<std::int32_t>(of_tensors.size()),
                            tensor.dimensions > 1 ? 1 : 0, lies_in(shares.counted, at) ? 1 : 0});
        }
        part_state += part.size();
      }
      of_tensor.end = count();
      of_tensors.push_back(of_tensor);
    }
    for (const Range& part : parts) {
      state += part.size();
    }
    of_bucket.end = count();
    of_buckets_.push_back(of_bucket);
  }
  return of_tensors;
}

void GpuTrustRatios::take_memory(const std::vector<TensorPiece>& pieces,
                                 const std::vector<PieceRange>& of_tensors) {
  const std::size_t piece_bytes = pieces.size() * sizeof(TensorPiece);
  const std::size_t range_bytes = of_tensors.size() * sizeof(PieceRange);
  const auto all = static_cast<std::size_t>(ranks_) * tensors_ * sizeof(TensorSquares);
  table_ = GpuMemory(gpu_, piece_bytes + range_bytes, kRatiosName);
  piece_squares_ = GpuMemory(gpu_, pieces.size() * sizeof(TensorSquares), kRatiosName);
  squares_ = GpuMemory(gpu_, all, kRatiosName);
  ratios_ = GpuMemory(gpu_, tensors_ * sizeof(float), kRatiosName);
  const cuda::Api& api = gpu_.api();
  void* const stream = stream_.native();
  gpu_.check(api.copy_to_device(table_.as(), pieces.data(), piece_bytes, stream), kRatiosName);
  gpu_.check(api.copy_to_device(ranges(), of_tensors.data(), range_bytes, stream), kRatiosName);
  gpu_.check(api.fill(squares_.as(), 0, all, stream), kRatiosName);
  stream_.synchronize();  // the tables are this function's caller's
}

kernels::TensorOperands GpuTrustRatios::operands(BucketId b, bool with_ratios) const {
  const std::int64_t first = of_buckets_.at(static_cast<std::size_t>(b)).begin;
  return {table_.as<TensorPiece>() + first, piece_squares_.as<TensorSquares>() + first,
          with_ratios ? ratios_.as<float>() : nullptr};
}

void GpuTrustRatios::square_pieces(std::span<const float> weights,
                                   std::span<const float> gradients) {
  gpu_.rows(pieces_,
            kernels::SquaresOfPieces{table_.as<TensorPiece>(), weights.data(), gradients.data(),
                                     piece_squares_.as<TensorSquares>()},
            stream_, kRatiosName);
}

void GpuTrustRatios::square_tensors() {
  const auto tensors = static_cast<std::int64_t>(tensors_);
  gpu_.rows(tensors,
            kernels::SquaresOfTensors{piece_squares_.as<TensorSquares>(), ranges(),
                                      squares() + rank_ * tensors},
            stream_, kRatiosName);
}

void GpuTrustRatios::find(float scale) {
  const auto tensors = static_cast<std::int64_t>(tensors_);
  gpu_.each(tensors,
            kernels::TrustRatios{squares(), ranks_, tensors, spec_.kind == OptimizerKind::lamb,
                                 static_cast<double>(scale), static_cast<double>(spec_.trust),
                                 static_cast<double>(spec_.weight_decay), ratios_.as<float>()},
            stream_, kRatiosName);
}

}  // namespace paceline
