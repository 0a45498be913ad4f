// SPDX-License-Identifier: Apache-2.0
// The arithmetic that vendor libraries lack, as named functors over raw pointers, and the loops
// that run them. g++ compiles them into loops; a CUDA build runs the same functors in kernels. No
// functor allocates, throws or knows where it runs.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#if defined(__CUDACC__)
#define PACELINE_HD __host__ __device__
#else
#define PACELINE_HD
#endif

namespace paceline::kernels {

/// The lanes that work on one row together; on the CPU one lane does it all. A row functor strides
/// over columns by size(), starting at lane(), and combines with the collectives below, which every
/// lane calls and which return the same on every lane.
struct SerialTeam {
  [[nodiscard]] PACELINE_HD std::int64_t lane() const noexcept { return 0; }
  [[nodiscard]] PACELINE_HD std::int64_t size() const noexcept { return 1; }
  [[nodiscard]] PACELINE_HD float sum(float value) const noexcept { return value; }
  [[nodiscard]] PACELINE_HD double sum(double value) const noexcept { return value; }
  [[nodiscard]] PACELINE_HD float max(float value) const noexcept { return value; }
  [[nodiscard]] PACELINE_HD std::int64_t min(std::int64_t value) const noexcept { return value; }
};

/// Runs f(i) for every i in [0, n). No call may need another's result.
template <typename F>
void for_each(std::int64_t n, F f) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    f(i);
  }
}

/// Runs f(team, row) for every row.
template <typename F>
void for_rows(std::int64_t rows, const F& f) {
  for (std::int64_t row = 0; row < rows; ++row) {
    f(SerialTeam{}, row);
  }
}

/// An array that f(i) reads, writes or changes at i alone, as the functor's own pointer. A functor
/// that lists all such arrays, operands(use) returning use(reads(a), …), is moved in packs on a GPU
/// (kernels_each.h).
template <typename Pointer, bool Reads, bool Writes>
struct Operand {
  static constexpr int kBytes = sizeof(*Pointer{});
  static constexpr int kReadBytes = Reads ? kBytes : 0;
  Pointer& memory;
};
template <typename T>
[[nodiscard]] PACELINE_HD Operand<const T*, true, false> reads(const T*& memory) {
  return {memory};
}
template <typename T>
[[nodiscard]] PACELINE_HD Operand<T*, false, true> writes(T*& memory) {
  return {memory};
}
template <typename T>
[[nodiscard]] PACELINE_HD Operand<T*, true, true> changes(T*& memory) {
  return {memory};
}
/// One that f(i) reads at i mod period; not the first that is listed.
template <typename T>
struct RepeatedOperand {
  static constexpr int kBytes = 16;  // does not decide how elements are moved
  static constexpr int kReadBytes = 0;
  const T*& memory;
  std::int64_t& period;
};
template <typename T>
[[nodiscard]] PACELINE_HD RepeatedOperand<T> repeats(const T*& memory, std::int64_t& period) {
  return {memory, period};
}

// Basic… functors take activations as T: float, or what stored.h stores in 16 bits.

/// out[i] = a[i] + scale·b[i]; out may be a.
template <typename T>
struct BasicAddScaled {
  const T* a;
  const T* b;
  T* out;
  float scale;
  PACELINE_HD void operator()(std::int64_t i) const {
    out[i] = static_cast<T>(static_cast<float>(a[i]) + scale * static_cast<float>(b[i]));
  }
  template <typename Use>
  PACELINE_HD auto operands(const Use& use) {
    return use(reads(a), reads(b), writes(out));
  }
};
using AddScaled = BasicAddScaled<float>;

/// values[i] *= factor.
struct Multiply {
  float* values;
  float factor;
  PACELINE_HD void operator()(std::int64_t i) const { values[i] *= factor; }
  template <typename Use>
  PACELINE_HD auto operands(const Use& use) {
    return use(changes(values));
  }
};

/// Columns handled together by the column functors: four AVX-512 vectors.
inline constexpr std::int64_t kColumnTile = 64;

/// Runs f(team, tile) for every tile of kColumnTile columns, the last one maybe narrower.
template <typename F>
void for_column_tiles(std::int64_t columns, const F& f) {
  for (std::int64_t tile = 0; tile * kColumnTile < columns; ++tile) {
    f(SerialTeam{}, tile);
  }
}

/// Gradient of `y = relu(… + bias)` at the bias, for dy [rows, columns]:
///   dy <- dy where y > 0, else 0 (not without `y`);   bias[c] = Σ_rows dy[row, c].
/// Sums blocks of rows first, so that the rounding error does not grow with all rows.
struct BiasGradient {
  const float* y;  ///< the ReLU's output; null: no ReLU, or masked already
  float* dy;
  float* bias;
  std::int64_t rows;
  std::int64_t columns;

  template <typename Team>
  PACELINE_HD void operator()(const Team& team, std::int64_t tile) const {
    constexpr std::int64_t kBlock = 128;
    const std::int64_t first = tile * kColumnTile;
    const std::int64_t width = columns - first < kColumnTile ? columns - first : kColumnTile;
    float total[kColumnTile] = {};
    for (std::int64_t begin = 0; begin < rows; begin += kBlock) {
      const std::int64_t end = begin + kBlock < rows ? begin + kBlock : rows;
      if (width == kColumnTile) {
        block(team, begin, end, first, kColumnTile, total);
      } else {
        block(team, begin, end, first, width, total);
      }
    }
    for (std::int64_t c = team.lane(); c < width; c += team.size()) {
      bias[first + c] = total[c];
    }
  }

 private:
  template <typename Team>
  PACELINE_HD void block(const Team& team, std::int64_t begin, std::int64_t end, std::int64_t first,
                         std::int64_t width, float* total) const {
    float sum[kColumnTile] = {};
    for (std::int64_t row = begin; row < end; ++row) {
      float* d = dy + row * columns + first;
      if (y != nullptr) {
        const float* value = y + row * columns + first;
#pragma omp simd
        for (std::int64_t c = team.lane(); c < width; c += team.size()) {
          d[c] = value[c] > 0.0F ? d[c] : 0.0F;
          sum[c] += d[c];
        }
      } else {
#pragma omp simd
        for (std::int64_t c = team.lane(); c < width; c += team.size()) {
          sum[c] += d[c];
        }
      }
    }
    for (std::int64_t c = team.lane(); c < width; c += team.size()) {
      total[c] += sum[c];
    }
  }
};

/// Extents of one sample of a pooling input, NHWC; the output is height/2 × width/2 × channels.
struct PoolGeometry {
  std::int64_t height;
  std::int64_t width;
  std::int64_t channels;
};

/// Row r = (sample, output row) of 2×2 maximum pooling: y = the largest of four, winner = which one
/// (0..3 in row order, the first of equals).
struct MaxPoolForward {
  const float* x;
  float* y;
  std::uint8_t* winner;
  PoolGeometry in;

  template <typename Team>
  PACELINE_HD void operator()(const Team& team, std::int64_t row) const {
    const std::int64_t rows_out = in.height / 2;
    const std::int64_t line = in.width * in.channels;
    const float* top = x + ((row / rows_out) * in.height + (row % rows_out) * 2) * line;
    const std::int64_t columns = in.width / 2;
    for (std::int64_t column = 0; column < columns; ++column) {
      const float* a = top + column * 2 * in.channels;
      const std::int64_t to = (row * columns + column) * in.channels;
      window(team, a, a + line, y + to, winner + to);
    }
  }

 private:
  template <typename Team>
  PACELINE_HD void window(const Team& team, const float* upper, const float* lower, float* out,
                          std::uint8_t* which) const {
    const std::int64_t c_end = in.channels;
#pragma omp simd
    for (std::int64_t c = team.lane(); c < c_end; c += team.size()) {
      float best = upper[c];
      int index = 0;
      const float right = upper[c + c_end];
      index = right > best ? 1 : index;
      best = right > best ? right : best;
      const float below = lower[c];
      index = below > best ? 2 : index;
      best = below > best ? below : best;
      const float across = lower[c + c_end];
      index = across > best ? 3 : index;
      best = across > best ? across : best;
      out[c] = best;
      which[c] = static_cast<std::uint8_t>(index);
    }
  }
};

/// Row r = (sample, output row) of its gradient: dx at the winner is dy, else 0; with `after_relu`
/// only where y > 0. The last output row of a sample also clears an odd input's left-over row.
struct MaxPoolBackward {
  const float* y;
  const std::uint8_t* winner;
  const float* dy;
  float* dx;
  PoolGeometry in;
  bool after_relu;

  template <typename Team>
  PACELINE_HD void operator()(const Team& team, std::int64_t row) const {
    const std::int64_t rows_out = in.height / 2;
    const std::int64_t line = in.width * in.channels;
    float* top = dx + ((row / rows_out) * in.height + (row % rows_out) * 2) * line;
    const std::int64_t columns = in.width / 2;
    const float floor = after_relu ? 0.0F : -INFINITY;
    for (std::int64_t column = 0; column < columns; ++column) {
      const std::int64_t from = (row * columns + column) * in.channels;
      float* a = top + column * 2 * in.channels;
      window(team, y + from, winner + from, dy + from, a, a + line, floor);
    }
    if (in.width % 2 == 1) {
      clear(team, top + line - in.channels, in.channels);
      clear(team, top + 2 * line - in.channels, in.channels);
    }
    if (in.height % 2 == 1 && row % rows_out == rows_out - 1) {
      clear(team, top + 2 * line, line);
    }
  }

 private:
  template <typename Team>
  PACELINE_HD void window(const Team& team, const float* value, const std::uint8_t* which,
                          const float* d, float* upper, float* lower, float floor) const {
    const std::int64_t c_end = in.channels;
#pragma omp simd
    for (std::int64_t c = team.lane(); c < c_end; c += team.size()) {
      const float passed = value[c] > floor ? d[c] : 0.0F;
      const int index = which[c];
      upper[c] = index == 0 ? passed : 0.0F;
      upper[c + c_end] = index == 1 ? passed : 0.0F;
      lower[c] = index == 2 ? passed : 0.0F;
      lower[c + c_end] = index == 3 ? passed : 0.0F;
    }
  }

  template <typename Team>
  PACELINE_HD static void clear(const Team& team, float* values, std::int64_t n) {
    for (std::int64_t i = team.lane(); i < n; i += team.size()) {
      values[i] = 0.0F;
    }
  }
};

/// Row r of logits z [rows, classes]:
///   loss[r] = log(sum_j exp(z_j)) − z_label,  d_logits_j = scale·(softmax(z)_j − [j = label]),
///   correct[r] = 1 if the first largest logit is the label's.
/// Not-a-number logits give a not-a-number loss and count as wrong. d_logits may be null (forward
/// only) or the logits themselves.
template <typename T>
struct BasicSoftmaxCrossEntropy {
  const T* logits;
  const std::int32_t* labels;
  T* d_logits;
  float* loss;
  std::uint8_t* correct;
  std::int64_t classes;
  float scale = 1.0F;

  template <typename Team>
  PACELINE_HD void operator()(const Team& team, std::int64_t row) const {
    const T* z = logits + row * classes;
    const std::int64_t label = labels[row];
    const auto label_logit = static_cast<float>(z[label]);
    float top = -INFINITY;
    for (std::int64_t j = team.lane(); j < classes; j += team.size()) {
      const auto value = static_cast<float>(z[j]);
      top = value > top ? value : top;
    }
    top = team.max(top);
    std::int64_t best = classes;
    for (std::int64_t j = team.lane(); j < classes; j += team.size()) {
      best = static_cast<float>(z[j]) == top && j < best ? j : best;
    }
    best = team.min(best);
    float total = 0.0F;
    for (std::int64_t j = team.lane(); j < classes; j += team.size()) {
      total += std::exp(static_cast<float>(z[j]) - top);
    }
    total = team.sum(total);
    if (d_logits != nullptr) {
      T* d = d_logits + row * classes;
      for (std::int64_t j = team.lane(); j < classes; j += team.size()) {
        const float share = std::exp(static_cast<float>(z[j]) - top) / total;
        d[j] = static_cast<T>(scale * (share - (j == label ? 1.0F : 0.0F)));
      }
    }
    if (team.lane() == 0) {
      loss[row] = std::log(total) - (label_logit - top);
      correct[row] = best == label && total == total ? 1 : 0;
    }
  }
};
using SoftmaxCrossEntropy = BasicSoftmaxCrossEntropy<float>;

}  // namespace paceline::kernels
