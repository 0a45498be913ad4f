// SPDX-License-Identifier: Apache-2.0
// The transforms of winograd.cpp, from and to the tiles of images in NHWC. Included by it alone.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "common/core/model.h"

namespace paceline::winograd {

/// Floats of a vector register.
#ifdef __AVX512F__
inline constexpr std::int64_t kLanes = 16;
#else
inline constexpr std::int64_t kLanes = 8;
#endif
/// Positions of a transformed tile.
inline constexpr std::int64_t kPositions = 16;
/// Between the planes of two positions, so that they do not share a cache set.
inline constexpr std::int64_t kGap = 16;

using Vector = float __attribute__((vector_size(kLanes * sizeof(float))));

inline Vector load(const float* from) {
  Vector values;
  std::memcpy(&values, from, sizeof values);
  return values;
}

inline void store(float* to, Vector values) {
  std::memcpy(to, &values, sizeof values);
}

/// The planes of a block's transformed tiles: [16][tiles][channels], gaps between.
struct Planes {
  std::int64_t channels;
  std::int64_t stride;
  float* values;

  Planes(std::int64_t tiles, std::int64_t channels_, float* at)
      : channels(channels_), stride(tiles * channels_ + kGap), values(at) {}
  [[nodiscard]] static std::int64_t elements(std::int64_t tiles, std::int64_t channels) {
    return kPositions * (tiles * channels + kGap);
  }
  [[nodiscard]] float* tile(std::int64_t index) const { return values + index * channels; }
  [[nodiscard]] float* plane(std::int64_t position) const { return values + position * stride; }
};

/// Walks over the 2×2 tiles of a batch's outputs, samples outermost.
class TileCursor {
 public:
  explicit TileCursor(const SampleShape& output)
      : rows_((output.height + 1) / 2), columns_((output.width + 1) / 2) {}
  [[nodiscard]] std::int64_t per_sample() const { return rows_ * columns_; }
  void advance() {
    if (++column == columns_) {
      column = 0;
      if (++row == rows_) {
        row = 0;
        ++sample;
      }
    }
  }
  std::int64_t sample = 0;
  std::int64_t row = 0;
  std::int64_t column = 0;

 private:
  std::int64_t rows_;
  std::int64_t columns_;
};

/// Bᵀ·d·B of a 4×4 patch whose pixel (row, column) starts at pixel(row, column). Row by row, since
/// all 16 intermediate vectors at once do not fit into the registers.
template <typename Pixel>
void transform_patch(const Pixel& pixel, std::int64_t channels, float* out, std::int64_t stride) {
  for (std::int64_t c = 0; c < channels; c += kLanes) {
    const auto at = [&](int row, int column) { return load(pixel(row, column) + c); };
    const auto across = [&](int row, const auto& down) {
      const std::array<Vector, 4> t{down(0), down(1), down(2), down(3)};
      float* to = out + row * 4 * stride + c;
      store(to, t[0] - t[2]);
      store(to + stride, t[1] + t[2]);
      store(to + 2 * stride, t[2] - t[1]);
      store(to + 3 * stride, t[1] - t[3]);
    };
    across(0, [&](int column) { return at(0, column) - at(2, column); });
    across(1, [&](int column) { return at(1, column) + at(2, column); });
    across(2, [&](int column) { return at(2, column) - at(1, column); });
    across(3, [&](int column) { return at(1, column) - at(3, column); });
  }
}

/// The patch under an output tile, zeros where it reaches over the image's edge.
inline void transform_input(const float* image, const SampleShape& shape, std::int64_t top,
                            std::int64_t left, const float* zeros, float* out,
                            std::int64_t stride) {
  const std::int64_t channels = shape.channels;
  const std::int64_t row_elements = shape.width * channels;
  if (top >= 0 && left >= 0 && top + 4 <= shape.height && left + 4 <= shape.width) {
    const float* corner = image + top * row_elements + left * channels;
    transform_patch(
        [&](int row, int column) { return corner + row * row_elements + column * channels; },
        channels, out, stride);
    return;
  }
  std::array<std::array<const float*, 4>, 4> pixels;
  for (std::int64_t row = 0; row < 4; ++row) {
    const bool inside = top + row >= 0 && top + row < shape.height;
    for (std::int64_t column = 0; column < 4; ++column) {
      const bool there = inside && left + column >= 0 && left + column < shape.width;
      pixels[row][column] =
          there ? image + (top + row) * row_elements + (left + column) * channels : zeros;
    }
  }
  transform_patch([&](int row, int column) { return pixels[row][column]; }, channels, out, stride);
}

/// Where the four outputs of a tile start; null beyond the image's edge.
template <typename Value>
std::array<Value*, 4> tile_pixels(Value* image, const SampleShape& shape, std::int64_t top,
                                  std::int64_t left) {
  const bool right = left + 1 < shape.width;
  const bool below = top + 1 < shape.height;
  Value* first = image + (top * shape.width + left) * shape.channels;
  const std::int64_t row_elements = shape.width * shape.channels;
  return {first, right ? first + shape.channels : nullptr, below ? first + row_elements : nullptr,
          right && below ? first + row_elements + shape.channels : nullptr};
}

/// act(bias + Aᵀ·m·A).
inline void transform_output(const float* m, std::int64_t stride, const SampleShape& shape,
                             const std::array<float*, 4>& pixels, const float* bias, bool relu) {
  for (std::int64_t c = 0; c < shape.channels; c += kLanes) {
    std::array<Vector, 4> upper;
    std::array<Vector, 4> lower;
    for (std::size_t column = 0; column < 4; ++column) {
      const float* at = m + static_cast<std::int64_t>(column) * stride + c;
      const Vector middle = load(at + 4 * stride);
      const Vector next = load(at + 8 * stride);
      upper[column] = load(at) + middle + next;
      lower[column] = middle - next - load(at + 12 * stride);
    }
    const Vector zero{};
    const Vector shift = bias != nullptr ? load(bias + c) : zero;
    const auto put = [&](float* pixel, Vector value) {
      if (pixel != nullptr) {
        value += shift;
        store(pixel + c, relu ? (value > zero ? value : zero) : value);
      }
    };
    put(pixels[0], upper[0] + upper[1] + upper[2]);
    put(pixels[1], upper[1] - upper[2] - upper[3]);
    put(pixels[2], lower[0] + lower[1] + lower[2]);
    put(pixels[3], lower[1] - lower[2] - lower[3]);
  }
}

/// A·d·Aᵀ of a tile of output gradients.
inline void transform_gradient(const std::array<const float*, 4>& pixels, std::int64_t channels,
                               float* out, std::int64_t stride) {
  for (std::int64_t c = 0; c < channels; c += kLanes) {
    const auto at = [&](std::size_t pixel) {
      return pixels[pixel] != nullptr ? load(pixels[pixel] + c) : Vector{};
    };
    const Vector a = at(0);
    const Vector b = at(1);
    const Vector d = at(2);
    const Vector e = at(3);
    const auto across = [&](int row, Vector left, Vector right) {
      float* to = out + row * 4 * stride + c;
      store(to, left);
      store(to + stride, left + right);
      store(to + 2 * stride, left - right);
      store(to + 3 * stride, -right);
    };
    across(0, a, b);
    across(1, a + d, b + e);
    across(2, a - d, b - e);
    across(3, -d, -e);
  }
}

}  // namespace paceline::winograd
