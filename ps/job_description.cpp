// SPDX-License-Identifier: Apache-2.0
#include "ps/job_description.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <string_view>

#include "ps/bytes.h"

namespace paceline {

namespace {

constexpr std::uint64_t kMaxElements = std::uint64_t{1} << 40;
constexpr std::uint32_t kMaxMembers = 1U << 16;
constexpr std::uint32_t kMaxBound = 1U << 30;
constexpr std::uint32_t kMaxLevels = 32767;
constexpr std::array<std::string_view, 9> kMethods{"none", "topk", "randomk", "threshold", "onebit",
                                                   "sign", "qsgd", "fp16",    "bf16"};
constexpr std::array<std::string_view, 3> kWires{"fp32", "fp16", "bf16"};

template <typename E>
E get_enum(ByteReader& in, E last, std::string_view what) {
  const auto value = in.get<std::uint8_t>();
  if (value > static_cast<std::uint8_t>(last)) {
    throw WireError(fmt::format("hello: {} {} is unknown", what, value));
  }
  return static_cast<E>(value);
}

int get_count(ByteReader& in, std::uint32_t limit, std::string_view what) {
  const auto value = in.get<std::uint32_t>();
  if (value > limit) {
    throw WireError(fmt::format("hello: {} {} is over {}", what, value, limit));
  }
  return static_cast<int>(value);
}

template <std::size_t N>
void put_name(ByteWriter& out, const std::array<std::string_view, N>& names, std::string_view name,
              std::string_view what) {
  for (std::size_t i = 0; i < N; ++i) {
    if (names[i] == name) {
      return out.put(static_cast<std::uint8_t>(i));
    }
  }
  throw ConfigError(fmt::format("{}='{}': the parameter server does not know it", what, name));
}

template <std::size_t N>
std::string get_name(ByteReader& in, const std::array<std::string_view, N>& names,
                     std::string_view what) {
  const auto index = in.get<std::uint8_t>();
  if (index >= N) {
    throw WireError(fmt::format("hello: {} {} is unknown", what, index));
  }
  return std::string(names[index]);
}

void put_format(ByteWriter& out, const GradientFormat& format) {
  put_name(out, kMethods, format.compress.method, "compress.method");
  put_name(out, kWires, format.wire, "sync.wire");
  out.put(format.compress.density);
  out.put(format.compress.threshold);
  out.put(static_cast<std::uint32_t>(format.compress.levels));
  out.put(static_cast<std::uint8_t>(format.compress.error_feedback ? 1 : 0));
  out.put(format.seed);
}

/// A number over 0 and at most `most`.
double get_positive(ByteReader& in, double most, std::string_view what) {
  const double value = in.get_double();
  if (!(value > 0.0 && value <= most)) {
    throw WireError(fmt::format("hello: {} {} is not above 0 and up to {}", what, value, most));
  }
  return value;
}

GradientFormat get_format(ByteReader& in) {
  GradientFormat format;
  format.compress.method = get_name(in, kMethods, "compress.method");
  format.wire = get_name(in, kWires, "sync.wire");
  format.compress.density = get_positive(in, 1.0, "compress.density");
  format.compress.threshold = get_positive(in, 1e9, "compress.threshold");
  format.compress.levels = get_count(in, kMaxLevels, "compress.levels");
  format.compress.error_feedback = in.get<std::uint8_t>() != 0;
  format.seed = in.get<std::uint64_t>();
  if (format.compress.levels < 1 || (format.compress.method != "none" && format.wire != "fp32")) {
    throw WireError("hello: compress.levels is 0, or both compress and sync.wire are set");
  }
  return format;
}

DelayCompensation get_compensation(ByteReader& in) {
  DelayCompensation rule;
  rule.variant = get_enum(in, DelayCompensation::Variant::adaptive, "async.compensate");
  rule.lambda = in.get_float();
  rule.mean_square = in.get_float();
  const bool fits = std::isfinite(rule.lambda) && rule.lambda >= 0.0F && rule.mean_square >= 0.0F &&
                    rule.mean_square < 1.0F;
  if (!fits) {
    throw WireError(fmt::format("hello: async.lambda {} or async.mean_square {} is out of range",
                                rule.lambda, rule.mean_square));
  }
  return rule;
}

std::vector<TensorRange> get_tensors(ByteReader& in) {
  constexpr std::size_t kBytes = sizeof(std::uint64_t) + 1;
  const auto count = in.get<std::uint64_t>();
  if (count > in.left() / kBytes) {
    throw WireError(fmt::format("hello: {} tensors in {} bytes", count, in.left()));
  }
  std::vector<TensorRange> tensors(count);
  std::size_t at = 0;
  for (TensorRange& tensor : tensors) {
    const auto elements = in.get<std::uint64_t>();
    if (elements == 0 || elements > kMaxElements - at) {
      throw WireError(fmt::format("hello: a tensor of {} elements after {}", elements, at));
    }
    tensor.range = {at, at + elements};
    tensor.dimensions = in.get<std::uint8_t>() != 0 ? 2 : 1;
    at += elements;
  }
  return tensors;
}

float get_finite(ByteReader& in, std::string_view what) {
  const float value = in.get_float();
  if (!std::isfinite(value)) {
    throw WireError(fmt::format("hello: {} is not finite", what));
  }
  return value;
}

}  // namespace

std::vector<std::byte> encode(const JobDescription& job) {
  std::vector<std::byte> bytes;
  ByteWriter out(bytes);
  out.put(static_cast<std::uint32_t>(job.world));
  out.put(static_cast<std::uint32_t>(job.servers));
  out.put(static_cast<std::uint8_t>(job.rule.kind));
  out.put(static_cast<std::uint32_t>(job.rule.bound));
  out.put(static_cast<std::uint8_t>(job.rule.rate_by_staleness ? 1 : 0));
  out.put(static_cast<std::uint8_t>(job.rule.compensation.variant));
  out.put(job.rule.compensation.lambda);
  out.put(job.rule.compensation.mean_square);
  out.put(static_cast<std::uint8_t>(job.exact ? 1 : 0));
  out.put(static_cast<std::uint8_t>(job.optimizer.kind));
  out.put(static_cast<std::uint8_t>(job.optimizer.nesterov ? 1 : 0));
  for (const float value :
       {job.optimizer.momentum, job.optimizer.weight_decay, job.optimizer.beta1,
        job.optimizer.beta2, job.optimizer.epsilon, job.optimizer.trust, job.optimizer.clip_norm}) {
    out.put(value);
  }
  out.put(static_cast<std::uint8_t>(job.optimizer.skip_nonfinite ? 1 : 0));
  put_format(out, job.format);
  out.put(static_cast<std::uint64_t>(job.tensors.size()));
  for (const TensorRange& tensor : job.tensors) {
    out.put(static_cast<std::uint64_t>(tensor.range.size()));
    out.put(static_cast<std::uint8_t>(tensor.dimensions > 1 ? 1 : 0));
  }
  for (const std::size_t count : job.buckets) {
    out.put(static_cast<std::uint64_t>(count));
  }
  return bytes;
}

JobDescription decode_job(std::span<const std::byte> bytes) {
  ByteReader in(bytes);
  JobDescription job;
  job.world = get_count(in, kMaxMembers, "world");
  job.servers = get_count(in, kMaxMembers, "servers");
  job.rule.kind = get_enum(in, Consistency::asynchronous, "consistency");
  job.rule.bound = get_count(in, kMaxBound, "staleness bound");
  job.rule.rate_by_staleness = in.get<std::uint8_t>() != 0;
  job.rule.compensation = get_compensation(in);
  job.exact = in.get<std::uint8_t>() != 0;
  job.optimizer.kind = get_enum(in, OptimizerKind::lars, "optimizer");
  job.optimizer.nesterov = in.get<std::uint8_t>() != 0;
  job.optimizer.momentum = get_finite(in, "momentum");
  job.optimizer.weight_decay = get_finite(in, "weight decay");
  job.optimizer.beta1 = get_finite(in, "beta1");
  job.optimizer.beta2 = get_finite(in, "beta2");
  job.optimizer.epsilon = get_finite(in, "epsilon");
  job.optimizer.trust = get_finite(in, "trust");
  job.optimizer.clip_norm = get_finite(in, "clip norm");
  job.optimizer.skip_nonfinite = in.get<std::uint8_t>() != 0;
  job.format = get_format(in);
  job.tensors = get_tensors(in);
  if (job.world < 1 || job.servers < 1 || in.left() % sizeof(std::uint64_t) != 0) {
    throw WireError("hello: world and servers start at 1, bucket sizes are 8 bytes each");
  }
  std::uint64_t total = 0;
  job.buckets.reserve(in.left() / sizeof(std::uint64_t));
  while (in.left() > 0) {
    const auto count = in.get<std::uint64_t>();
    if (count > kMaxElements - total) {
      throw WireError(fmt::format("hello: more than {} elements", kMaxElements));
    }
    total += count;
    job.buckets.push_back(count);
  }
  if (!job.tensors.empty() && job.tensors.back().range.end != total) {
    throw WireError(fmt::format("hello: tensors of {} elements in buckets of {}",
                                job.tensors.back().range.end, total));
  }
  if (job.tensors.empty() && job.optimizer.kind == OptimizerKind::lars && total > 0) {
    throw WireError("hello: LARS needs the tensors");
  }
  return job;
}

std::optional<std::string> difference(const JobDescription& ours, const JobDescription& theirs) {
  std::optional<std::string> found;
  const auto compare = [&found](std::string_view name, const auto& here, const auto& there) {
    if (!found && here != there) {
      found = fmt::format("{} is {}, here {}", name, there, here);
    }
  };
  compare("world", ours.world, theirs.world);
  compare("ps.servers", ours.servers, theirs.servers);
  compare("ps.consistency", static_cast<int>(ours.rule.kind), static_cast<int>(theirs.rule.kind));
  compare("ps.staleness", ours.rule.bound, theirs.rule.bound);
  compare("async.rate by staleness", ours.rule.rate_by_staleness, theirs.rule.rate_by_staleness);
  compare("async.compensate", static_cast<int>(ours.rule.compensation.variant),
          static_cast<int>(theirs.rule.compensation.variant));
  compare("async.lambda", ours.rule.compensation.lambda, theirs.rule.compensation.lambda);
  compare("async.mean_square", ours.rule.compensation.mean_square,
          theirs.rule.compensation.mean_square);
  compare("sync.exact", ours.exact, theirs.exact);
  compare("optimizer.name", static_cast<int>(ours.optimizer.kind),
          static_cast<int>(theirs.optimizer.kind));
  compare("optimizer.nesterov", ours.optimizer.nesterov, theirs.optimizer.nesterov);
  compare("optimizer.momentum", ours.optimizer.momentum, theirs.optimizer.momentum);
  compare("optimizer.weight_decay", ours.optimizer.weight_decay, theirs.optimizer.weight_decay);
  compare("optimizer.beta1", ours.optimizer.beta1, theirs.optimizer.beta1);
  compare("optimizer.beta2", ours.optimizer.beta2, theirs.optimizer.beta2);
  compare("optimizer.epsilon", ours.optimizer.epsilon, theirs.optimizer.epsilon);
  compare("optimizer.trust", ours.optimizer.trust, theirs.optimizer.trust);
  compare("optimizer.clip_norm", ours.optimizer.clip_norm, theirs.optimizer.clip_norm);
  compare("loss scaling", ours.optimizer.skip_nonfinite, theirs.optimizer.skip_nonfinite);
  const CompressConfig& mine = ours.format.compress;
  const CompressConfig& other = theirs.format.compress;
  compare("compress.method", mine.method, other.method);
  compare("compress.density", mine.density, other.density);
  compare("compress.threshold", mine.threshold, other.threshold);
  compare("compress.levels", mine.levels, other.levels);
  compare("compress.error_feedback", mine.error_feedback, other.error_feedback);
  compare("sync.wire", ours.format.wire, theirs.format.wire);
  compare("seed", ours.format.seed, theirs.format.seed);
  compare("number of buckets", ours.buckets.size(), theirs.buckets.size());
  for (std::size_t b = 0; !found && b < ours.buckets.size(); ++b) {
    compare(fmt::format("size of bucket {}", b), ours.buckets[b], theirs.buckets[b]);
  }
  compare("number of tensors", ours.tensors.size(), theirs.tensors.size());
  for (std::size_t t = 0; !found && t < ours.tensors.size(); ++t) {
    compare(fmt::format("end of tensor {}", t), ours.tensors[t].range.end,
            theirs.tensors[t].range.end);
    compare(fmt::format("dimensions of tensor {} over 1", t), ours.tensors[t].dimensions > 1,
            theirs.tensors[t].dimensions > 1);
  }
  return found;
}

}  // namespace paceline
