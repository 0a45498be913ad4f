// SPDX-License-Identifier: Apache-2.0
#include "common/comm/reduce.h"

#include <cstdint>
#include <cstring>

#include "common/base/half.h"

namespace paceline {

namespace {

template <typename T>
void add(std::byte* dst_bytes, const std::byte* src_bytes, std::size_t bytes) noexcept {
  auto* __restrict dst = reinterpret_cast<T*>(dst_bytes);
  const auto* __restrict src = reinterpret_cast<const T*>(src_bytes);
  const std::size_t count = bytes / sizeof(T);
  for (std::size_t i = 0; i < count; ++i) {
    dst[i] = dst[i] + src[i];
  }
}

}  // namespace

void add_elements(std::byte* dst, const std::byte* src, std::size_t bytes, DataType type) noexcept {
  switch (type) {
    case DataType::f32:
      add<float>(dst, src, bytes);
      break;
    case DataType::i64:
      add<std::uint64_t>(dst, src, bytes);
      break;
    case DataType::f16:
      add_half(reinterpret_cast<std::uint16_t*>(dst), reinterpret_cast<const std::uint16_t*>(src),
               bytes / 2);
      break;
    case DataType::bf16:
      add_bfloat(reinterpret_cast<std::uint16_t*>(dst), reinterpret_cast<const std::uint16_t*>(src),
                 bytes / 2);
      break;
  }
}

void apply_arrival(const Arrival& arrival, std::byte* dst, const std::byte* src,
                   std::size_t bytes) noexcept {
  if (bytes == 0) {
    return;
  }
  if (arrival.add) {
    add_elements(dst, src, bytes, arrival.type);
  } else {
    std::memcpy(dst, src, bytes);
  }
}

}  // namespace paceline
