// SPDX-License-Identifier: Apache-2.0
#include "ring/one_bit_adam.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/sync/reduction_order.h"

namespace paceline {

namespace {

std::unique_ptr<Codec> one_bit_codec() {
  CompressConfig compress;
  compress.method = "onebit";
  return make_codec(compress, "fp32");
}

std::vector<std::size_t> own_begins(const BucketPlan& plan, int world, int rank) {
  std::vector<std::size_t> begins{0};
  for (BucketId b = 0; b < plan.count(); ++b) {
    begins.push_back(begins.back() + ring_chunk(plan[b].size(), world, rank).size());
  }
  return begins;
}

/// Kingma & Ba's bound of Adam's update over the learning rate.
float adam_bound(const OptimizerSpec& spec) {
  const float rest = 1.0F - spec.beta1;
  const float root = std::sqrt(1.0F - spec.beta2);
  return rest > root ? rest / root : 1.0F;
}

}  // namespace

OneBitAdam::OneBitAdam(const ReducerPlace& place, ArenaOptimizer& optimizer)
    : config_(place.config),
      rank_(place.transport.rank()),
      world_(place.transport.size()),
      plan_(place.plan),
      collective_(place.collective),
      optimizer_(optimizer),
      codec_(one_bit_codec()),
      worker_error_(plan_.elements(), true),
      own_begin_(own_begins(plan_, world_, rank_)),
      server_error_(own_begin_.back(), true) {
  std::size_t largest = 0;
  for (BucketId b = 0; b < plan_.count(); ++b) {
    largest = std::max(largest, block_bytes(b));
  }
  blocks_ = place.transport.allocate(2 * static_cast<std::size_t>(world_) * largest);
}

std::size_t OneBitAdam::block_bytes(BucketId b) const {
  const std::size_t bytes = codec_->max_bytes(ring_chunk(plan_[b].size(), world_, 0).size());
  return (bytes + 7) / 8 * 8;
}

bool OneBitAdam::frozen(BucketId b) const {
  return optimizer_.updates(b) >= optimizer_.spec().freeze_step;
}

RunTimes OneBitAdam::step(BucketId b, std::span<float> weights, std::span<float> gradient,
                          const StepInfo& info) {
  const auto ranks = static_cast<std::size_t>(world_);
  const std::size_t block = block_bytes(b);
  CodecContext context{config_.seed, info.step, plan_[b].begin, rank_, 1.0F};
  mix(weights, optimizer_.elements().moment(0, plan_[b].begin, gradient.size()), gradient, info);
  encode_chunks(b, gradient, block, context);
  RunTimes times =
      collective_.all_to_all(blocks_->bytes().first(2 * ranks * block), DataType::i64, true);
  const Range own = ring_chunk(gradient.size(), world_, rank_);
  average_own_chunk(b, block, context, gradient.subspan(own.begin, own.size()));
  const std::span<std::byte> all = blocks_->bytes().first(ranks * block);
  times.end_ns = collective_.allgather(all, DataType::i64).end_ns;
  std::ranges::fill(gradient, 0.0F);
  Aggregate aggregate;
  for (int c = 0; c < world_; ++c) {
    const Range chunk = ring_chunk(gradient.size(), world_, c);
    codec_->decode_add(
        all.subspan(static_cast<std::size_t>(c) * block).first(codec_->max_bytes(chunk.size())),
        context, gradient.subspan(chunk.begin, chunk.size()), aggregate);
  }
  update(weights, gradient, b, info);
  return times;
}

void OneBitAdam::mix(std::span<const float> weights, std::span<const float> momentum,
                     std::span<float> gradient, const StepInfo& info) const {
  const OptimizerSpec& spec = optimizer_.spec();
  const auto global = static_cast<float>(std::max<std::int64_t>(info.global_samples, 1));
  const float share = static_cast<float>(info.samples) / global;
  const float keep = share * spec.beta1;
  const float rest = 1.0F - spec.beta1;
  const float decay = rest * share * spec.weight_decay;
  const float scale = rest / global;
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    gradient[i] = keep * momentum[i] + scale * gradient[i] + decay * weights[i];
  }
}

void OneBitAdam::encode_chunks(BucketId b, std::span<float> momentum, std::size_t block,
                               const CodecContext& context) {
  for (int c = 0; c < world_; ++c) {
    const Range chunk = ring_chunk(momentum.size(), world_, c);
    CodecContext of_chunk = context;
    of_chunk.begin = plan_[b].begin + chunk.begin;
    static_cast<void>(
        worker_error_.encode(*codec_, momentum.subspan(chunk.begin, chunk.size()), of_chunk,
                             blocks_->bytes().subspan(static_cast<std::size_t>(c) * block, block)));
  }
}

void OneBitAdam::average_own_chunk(BucketId b, std::size_t block, const CodecContext& context,
                                   std::span<float> sum) {
  const auto ranks = static_cast<std::size_t>(world_);
  std::ranges::fill(sum, 0.0F);
  Aggregate aggregate;
  for (std::size_t from = 0; from < ranks; ++from) {
    codec_->decode_add(
        blocks_->bytes().subspan((ranks + from) * block).first(codec_->max_bytes(sum.size())),
        context, sum, aggregate);
  }
  CodecContext of_chunk = context;
  of_chunk.begin = own_begin_[static_cast<std::size_t>(b)];
  static_cast<void>(server_error_.encode(
      *codec_, sum, of_chunk,
      blocks_->bytes().subspan(static_cast<std::size_t>(rank_) * block, block)));
}

void OneBitAdam::update(std::span<float> weights, std::span<const float> averaged, BucketId b,
                        const StepInfo& info) {
  const OptimizerSpec& spec = optimizer_.spec();
  const std::size_t begin = plan_[b].begin;
  const std::span<float> momentum = optimizer_.elements().moment(0, begin, weights.size());
  const std::span<const float> variance = optimizer_.elements().moment(1, begin, weights.size());
  const double correction =
      1.0 - std::pow(static_cast<double>(spec.beta2), static_cast<double>(spec.freeze_step));
  const auto inverse_root = static_cast<float>(1.0 / std::sqrt(correction));
  const float bound = adam_bound(spec);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    momentum[i] = averaged[i];
    const float ratio = averaged[i] / (std::sqrt(variance[i]) * inverse_root + spec.epsilon);
    weights[i] -= variance[i] > 0.0F ? info.lr * std::clamp(ratio, -bound, bound) : 0.0F;
  }
  optimizer_.count_update(b);
}

}  // namespace paceline
