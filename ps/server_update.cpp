// SPDX-License-Identifier: Apache-2.0
// How ServerState sums what workers pushed and updates a key's weights.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "common/base/half.h"
#include "common/core/arena_optimizer.h"
#include "ps/fold.h"
#include "ps/server_key.h"

namespace paceline {

namespace {
/// Of an update by the mean over `samples`, at least one.
UpdateInfo update_info(std::uint64_t version, float lr, std::uint64_t samples) {
  return {static_cast<std::int64_t>(version), lr, 1.0F / static_cast<float>(samples)};
}
}  // namespace

/// Applies the held contributions as one update once no live worker's is missing.
void ServerState::fold_if_complete(Key& key, std::int64_t now_ns, std::vector<Outgoing>& out) {
  if (key.summed) {
    return apply_if_agreed(key);
  }
  std::vector<std::size_t> from;
  float lr = 0.0F;
  std::uint64_t samples = 0;
  for (std::size_t w = 0; w < key.workers.size(); ++w) {
    const WorkerOfKey& worker = key.workers[w];
    if (!worker.contributed) {
      if (counts(w)) {
        return;
      }
      continue;
    }
    lr = from.empty() ? worker.push.lr : lr;
    samples += worker.push.samples;
    from.push_back(w);
  }
  if (from.empty()) {
    return;
  }
  if (whole_gradient_) {
    key.lr = lr;
    key.samples = samples;
    return send_norms(key, from, now_ns, out);
  }
  update_from(key, from, lr, samples);
  end_round(key);
}

void ServerState::end_round(Key& key) {
  for (WorkerOfKey& worker : key.workers) {
    worker.contributed = false;
    worker.agreed = false;
    worker.gradient = {};
  }
}

void ServerState::apply_one(Key& key, std::size_t worker, const Decision& decision) {
  const Header& push = key.workers[worker].push;
  const float lr = push.lr * decision.scale;
  if (!decision.compensation.on()) {
    update_from(key, std::array{worker}, lr, push.samples);
  } else if (push.samples > 0) {
    update_compensated(key, worker, decision.compensation,
                       update_info(key.version, lr, push.samples));
  }
}

/// One update by the gradients that these workers pushed; decoded where a codec made them.
void ServerState::update_from(Key& key, std::span<const std::size_t> workers, float lr,
                              std::uint64_t samples) {
  if (samples == 0) {
    return;
  }
  const std::vector<Contribution> gradients = contributions(key, workers);
  const std::array whole{
      RangeUpdate{{0, key.range.elements()}, update_info(key.version, lr, samples)}};
  update(key, whole, [&](std::size_t begin, std::size_t count) {
    return sum_block(key, gradients, begin, count);
  });
}

/// By worker: what these pushed; their decoded sum in the first one's place where a codec made it.
std::vector<const float*> ServerState::contributions(const Key& key,
                                                     std::span<const std::size_t> workers) {
  std::vector<Contribution> gradients(key.workers.size(), nullptr);
  if (codec_) {
    sum_decoded(key, workers);
    gradients[workers.front()] = decoded_.data();
    return gradients;
  }
  for (const std::size_t w : workers) {
    gradients[w] = key.workers[w].gradient.floats().data();
  }
  return gradients;
}

/// decoded_ = the codec's sum of these workers' messages, in the order given.
void ServerState::sum_decoded(const Key& key, std::span<const std::size_t> workers) {
  decoded_.assign(key.range.elements(), 0.0F);
  Aggregate aggregate;
  for (const std::size_t w : workers) {
    const WorkerOfKey& worker = key.workers[w];
    codec_->decode_add(worker.gradient.bytes(),
                       identity_.format.context(worker.push.step, key.range.arena.begin,
                                                worker.push.samples, static_cast<int>(w)),
                       decoded_, aggregate);
  }
  codec_->finish(decoded_, aggregate);
}

/// Elements [begin, begin + count) of the workers' sum, in the common order.
std::span<const float> ServerState::sum_block(const Key& key, std::span<const float* const> workers,
                                              std::size_t begin, std::size_t count) {
  const auto given = [](Contribution worker) { return worker != nullptr; };
  if (!identity_.exact && std::ranges::count_if(workers, given) == 1) {
    return {*std::ranges::find_if(workers, given) + begin, count};
  }
  scratch_.resize(kGradientBlock);
  const std::span<float> sum = std::span(scratch_).first(count);
  if (identity_.exact) {
    exact_sum(key.range, workers, begin, sum);
  } else {
    ring_order_sum(key.range, workers, begin, sum);
  }
  return sum;
}

void ServerState::update(Key& key, std::span<const RangeUpdate> updates,
                         const GradientBlocks& gradient) {
  shard_->update(key.index, updates, gradient);
  key.short_weights = {};
  ++key.version;
}

/// One update by a worker's push, moved from the weights it was computed on to the newest ones.
void ServerState::update_compensated(Key& key, std::size_t worker, const DelayCompensation& rule,
                                     const UpdateInfo& info) {
  const float* sum = contributions(key, std::array{worker})[worker];
  const std::span<const float> now = shard_->weights(key.index);
  const std::array whole{RangeUpdate{{0, key.range.elements()}, info}};
  scratch_.resize(kGradientBlock);
  update(key, whole, [&](std::size_t begin, std::size_t count) -> std::span<const float> {
    const std::span<float> gradient = std::span(scratch_).first(count);
    StaleGradient stale{{sum + begin, count},
                        info.gradient_scale,
                        now.subspan(begin, count),
                        backup_block(key.workers[worker], begin, count),
                        {}};
    if (rule.variant == DelayCompensation::Variant::adaptive) {
      stale.mean_square = std::span(key.mean_square).subspan(begin, count);
    }
    compensate(rule, stale, gradient);
    return gradient;
  });
}

/// Elements [begin, begin + count) of what the worker computed on.
std::span<const float> ServerState::backup_block(const WorkerOfKey& worker, std::size_t begin,
                                                 std::size_t count) {
  const DataType type = identity_.format.weights();
  if (type == DataType::f32) {
    return worker.backup.floats().subspan(begin, count);
  }
  const std::span short_ones(
      reinterpret_cast<const std::uint16_t*>(worker.backup.bytes().data()) + begin, count);
  backup_.resize(kGradientBlock);
  const std::span<float> block = std::span(backup_).first(count);
  if (type == DataType::f16) {
    from_half(short_ones, 1.0F, block);
  } else {
    from_bfloat(short_ones, 1.0F, block);
  }
  return block;
}

/// First phase of an update that needs the whole gradient: keeps the sum, answers with its norms.
void ServerState::send_norms(Key& key, std::span<const std::size_t> workers, std::int64_t now_ns,
                             std::vector<Outgoing>& out) {
  const std::size_t n = key.range.elements();
  key.sum.resize(n);
  const std::vector<Contribution> gradients = contributions(key, workers);
  for_blocks({0, n}, [&](std::size_t begin, std::size_t count) {
    std::ranges::copy(sum_block(key, gradients, begin, count), key.sum.data() + begin);
  });
  std::vector<PartNorms> norms;
  for (const KeyPart& part : key.parts) {
    const auto of = [&part](std::span<const float> values) {
      return sum_of_squares(values.subspan(part.range.begin, part.range.size()));
    };
    norms.push_back({of(key.sum), part.layerwise ? of(shard_->weights(key.index)) : 0.0});
  }
  const Payload payload = Payload::copy_of(encode_norms(norms));
  for (const std::size_t w : workers) {
    WorkerOfKey& worker = key.workers[w];
    worker.gradient = {};
    worker.held_ns = now_ns - worker.arrived_ns;
    Header header = answer(MessageKind::norms, worker.push);
    header.samples = key.samples;
    header.payload_bytes = payload.size();
    out.push_back({static_cast<int>(w), header, payload, key.range.bucket});
  }
  key.summed = true;
}

void ServerState::on_apply(const Header& header, Payload payload, std::int64_t now_ns,
                           std::vector<Outgoing>& out) {
  Key& key = key_of(header);
  WorkerOfKey& worker = key.workers[header.worker];
  if (!key.summed || !worker.contributed || worker.agreed || header.clock != worker.clock) {
    throw WireError(fmt::format("rank {} sends factors of key {} at clock {} out of turn",
                                header.worker, header.key, header.clock));
  }
  static_cast<void>(decode_factors(payload.bytes(), key.parts.size()));
  if (!key.factors) {
    key.factors = header;
    key.factor_values = std::move(payload);
  } else if (key.factors->flags != header.flags ||
             !std::ranges::equal(key.factor_values.bytes(), payload.bytes())) {
    throw WireError(fmt::format("rank {} computed other factors for key {} than rank {}",
                                header.worker, header.key, key.factors->worker));
  }
  worker.agreed = true;
  settle(key, now_ns, out);
}

/// Second phase: once no live worker's factors are missing. A round whose workers all left without
/// any is dropped.
void ServerState::apply_if_agreed(Key& key) {
  for (std::size_t w = 0; w < key.workers.size(); ++w) {
    if (key.workers[w].contributed && !key.workers[w].agreed && counts(w)) {
      return;
    }
  }
  const bool skip = !key.factors || (key.factors->flags & kFlagSkipped) != 0;
  if (!skip && key.samples > 0) {
    update_by(key, decode_factors(key.factor_values.bytes(), key.parts.size()));
  }
  key.summed = false;
  key.factors.reset();
  key.factor_values = {};
  end_round(key);
}

void ServerState::update_by(Key& key, const KeyFactors& factors) {
  const bool lars = job_->optimizer.kind == OptimizerKind::lars;
  std::vector<RangeUpdate> updates;
  for (std::size_t p = 0; p < key.parts.size(); ++p) {
    const KeyPart& part = key.parts[p];
    UpdateInfo info = update_info(key.version, key.lr, key.samples);
    info.gradient_scale *= factors.gradient;
    if (lars) {
      info.gradient_scale *= factors.ratios[p];
      info.decay_scale = part.layerwise ? factors.ratios[p] : 0.0F;
    }
    updates.push_back({part.range, info});
  }
  update(key, updates, [&](std::size_t begin, std::size_t count) {
    return std::span<const float>(key.sum).subspan(begin, count);
  });
}

}  // namespace paceline
