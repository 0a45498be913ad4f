// SPDX-License-Identifier: Apache-2.0
#include "tests/support/host_nccl_parts.h"

#include <algorithm>
#include <cstring>

#include "common/base/half.h"

namespace paceline::test {

namespace {

std::size_t bytes_of(Precision format) {
  return format == Precision::fp32 ? sizeof(float) : sizeof(std::uint16_t);
}

float load(const void* memory, std::size_t i, Precision format) {
  if (format == Precision::fp32) {
    return static_cast<const float*>(memory)[i];
  }
  const std::uint16_t bits = static_cast<const std::uint16_t*>(memory)[i];
  return format == Precision::fp16 ? from_half(bits) : from_bfloat(bits);
}

void store(void* memory, std::size_t i, Precision format, float value) {
  if (format == Precision::fp32) {
    static_cast<float*>(memory)[i] = value;
  } else {
    static_cast<std::uint16_t*>(memory)[i] =
        format == Precision::fp16 ? to_half(value) : to_bfloat(value);
  }
}

/// Elements [begin, begin + count) of all ranks' `from`.
std::vector<float> summed(const NcclParts& parts, std::size_t begin, std::size_t count) {
  const NcclPart& first = parts.front();
  std::vector<float> total(count);
  for (std::size_t i = 0; i < count; ++i) {
    for (const NcclPart& part : parts) {
      total[i] += load(part.from, begin + i, part.format);
    }
    if (first.sum == cuda::NcclSum::average) {
      total[i] /= static_cast<float>(parts.size());
    }
  }
  return total;
}

void write(const NcclPart& part, const std::vector<float>& values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    store(part.to, i, part.format, values[i]);
  }
}

void reduce(const NcclParts& parts) {
  const NcclPart& first = parts.front();
  if (first.kind == NcclKind::all_reduce) {
    const std::vector<float> total = summed(parts, 0, first.count);
    for (const NcclPart& part : parts) {
      write(part, total);
    }
    return;
  }
  std::vector<std::vector<float>> totals;
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    totals.push_back(summed(parts, rank * first.count, first.count));
  }
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    write(parts[rank], totals[rank]);
  }
}

void copy(const NcclParts& parts) {
  const NcclPart& first = parts.front();
  const std::size_t bytes = first.count * bytes_of(first.format);
  for (const NcclPart& part : parts) {
    if (first.kind == NcclKind::broadcast) {
      std::memmove(part.to, parts[static_cast<std::size_t>(first.root)].from, bytes);
      continue;
    }
    for (std::size_t rank = 0; rank < parts.size(); ++rank) {
      std::memmove(static_cast<char*>(part.to) + rank * bytes, parts[rank].from, bytes);
    }
  }
}

void sum_up_doubles(const NcclParts& parts) {
  std::vector<double> total(parts.front().count);
  for (const NcclPart& part : parts) {
    for (std::size_t i = 0; i < total.size(); ++i) {
      total[i] += static_cast<const double*>(part.from)[i];
    }
  }
  for (const NcclPart& part : parts) {
    std::ranges::copy(total, static_cast<double*>(part.to));
  }
}

}  // namespace

bool match(const NcclParts& parts) {
  return std::ranges::all_of(parts,
                             [&](const NcclPart& part) { return part.matches(parts.front()); });
}

void carry_out(const NcclParts& parts) {
  const NcclKind kind = parts.front().kind;
  if (kind == NcclKind::doubles) {
    sum_up_doubles(parts);
  } else {
    kind == NcclKind::all_reduce || kind == NcclKind::reduce_scatter ? reduce(parts) : copy(parts);
  }
}

}  // namespace paceline::test
