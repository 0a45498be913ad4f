// SPDX-License-Identifier: Apache-2.0
// The pools of a GPU (kernels_pool.h and kernels.h have the CPU's): unit = a place of the output or
// the input and neighbouring channels of it, so that few channels too fill a warp and every access
// moves a pack. What is compared or added stays in registers. See kernels.h for what a functor and
// T are, kernels_packs.h for how memory is kept busy.
#pragma once

#include <cmath>
#include <cstdint>

#include "common/core/kernels_packs.h"
#include "common/core/kernels_pool.h"

namespace paceline::kernels {

/// visit(first, group) for groups of at most Most from `begin` to `end`; few of them, so that the
/// loop is compiled once.
template <int Most, typename Visit>
PACELINE_HD void for_few(int begin, int end, const Visit& visit) {
  PACELINE_ROLLED
  for (int at = begin; at < end; at += Most) {
    visit(at, LastGroup{end - at < Most ? end - at : Most});
  }
}

/// Unit of tensors [samples, rows, columns, channels] whose units own `width` channels.
struct PlaceUnit {
  std::int64_t sample;
  std::int64_t row;
  std::int64_t column;
  std::int64_t channel;  ///< the first

  /// `strips`: units of a place.
  PACELINE_HD PlaceUnit(std::int64_t unit, std::int64_t rows, std::int64_t columns,
                        std::int64_t strips, int width) {
    const std::int64_t place = unit / strips;
    const std::int64_t line = place / columns;
    sample = line / rows;
    row = line % rows;
    column = place % columns;
    channel = unit % strips * width;
  }
  /// The first channel's place in such a tensor.
  [[nodiscard]] PACELINE_HD std::int64_t at(std::int64_t rows, std::int64_t columns,
                                            std::int64_t channels) const {
    return ((sample * rows + row) * columns + column) * channels + channel;
  }
};

/// WindowMaxForward for units of the output.
template <typename T>
struct WindowMax {
  const T* x;
  T* y;
  std::uint8_t* winner;
  WindowGeometry g;

  [[nodiscard]] PACELINE_HD int width() const {
    return pack_width<kAccessPack<T>>(g.channels, x, y, winner);
  }
  [[nodiscard]] std::int64_t units(std::int64_t samples) const {
    return samples * g.rows * g.columns * (g.channels / width());
  }
  PACELINE_HD void operator()(std::int64_t unit) const {
    constexpr int kPack = kAccessPack<T>;
    const bool packs = width() == kPack;
    const PlaceUnit at(unit, g.rows, g.columns, packs ? g.channels / kPack : g.channels,
                       packs ? kPack : 1);
    packs ? window<kPack>(at) : window<1>(at);
  }

 private:
  /// The part of a window that lies in the input, along one direction.
  struct Reach {
    int begin;
    int end;
    PACELINE_HD Reach(std::int64_t first, std::int64_t extent, std::int64_t kernel)
        : begin(first < 0 ? static_cast<int>(-first) : 0),
          end(static_cast<int>(first + kernel < extent ? kernel : extent - first)) {}
  };

  template <int N>
  PACELINE_HD void window(const PlaceUnit& to) const {
    constexpr int kAhead = 3;
    const std::int64_t top = to.row * g.stride - g.padding;
    const std::int64_t left = to.column * g.stride - g.padding;
    const Reach rows(top, g.height, g.kernel);
    const Reach columns(left, g.width, g.kernel);
    const std::int64_t origin =
        ((to.sample * g.height + top) * g.width + left) * g.channels + to.channel;
    const std::int64_t line = g.width * g.channels;
    const int kernel = static_cast<int>(g.kernel);

    auto best = load_pack<N>(x + origin + rows.begin * line + columns.begin * g.channels);
    Pack<std::uint8_t, N> place;
    for (int n = 0; n < N; ++n) {
      place.at[n] = static_cast<std::uint8_t>(rows.begin * kernel + columns.begin);
    }
    PACELINE_ROLLED
    for (int i = rows.begin; i < rows.end; ++i) {
      const std::int64_t row = origin + i * line;
      for_few<kAhead>(columns.begin, columns.end, [&](int j, LastGroup group) {
        Pack<T, N> value[kAhead];
        load_rows(x + row + j * g.channels, g.channels, group, value);
        PACELINE_UNROLL
        for (int k = 0; k < kAhead; ++k) {
          const auto own = static_cast<std::uint8_t>(i * kernel + j + k);
          for (int n = 0; n < N && k < group.rows; ++n) {
            const bool better = static_cast<float>(value[k].at[n]) > static_cast<float>(best.at[n]);
            best.at[n] = better ? value[k].at[n] : best.at[n];
            place.at[n] = better ? own : place.at[n];
          }
        }
      });
    }
    const std::int64_t at = to.at(g.rows, g.columns, g.channels);
    store_pack(y + at, best);
    store_pack(winner + at, place);
  }
};

/// Units of the input: dx = Σ dy of the windows whose winner the input is.
template <typename T>
struct WindowMaxGather {
  const std::uint8_t* winner;
  const T* dy;
  T* dx;
  WindowGeometry g;

  [[nodiscard]] PACELINE_HD int width() const {
    return pack_width<kAccessPack<T>>(g.channels, dy, dx, winner);
  }
  [[nodiscard]] std::int64_t units(std::int64_t samples) const {
    return samples * g.height * g.width * (g.channels / width());
  }
  PACELINE_HD void operator()(std::int64_t unit) const {
    constexpr int kPack = kAccessPack<T>;
    const bool packs = width() == kPack;
    const PlaceUnit at(unit, g.height, g.width, packs ? g.channels / kPack : g.channels,
                       packs ? kPack : 1);
    packs ? gather<kPack>(at) : gather<1>(at);
  }

 private:
  /// The windows that reach a place along one direction.
  struct Windows {
    int begin;
    int end;
    /// `at` is counted in the padded input.
    PACELINE_HD Windows(int at, int kernel, int stride, std::int64_t windows)
        : begin(at < kernel ? 0 : (at - kernel) / stride + 1),
          end(at / stride < windows ? at / stride + 1 : static_cast<int>(windows)) {}
  };

  template <int N>
  PACELINE_HD void gather(const PlaceUnit& to) const {
    constexpr int kAhead = 2;
    const int kernel = static_cast<int>(g.kernel);
    const int stride = static_cast<int>(g.stride);
    const int h = static_cast<int>(to.row + g.padding);
    const int w = static_cast<int>(to.column + g.padding);
    const Windows rows(h, kernel, stride, g.rows);
    const Windows columns(w, kernel, stride, g.columns);
    float total[N] = {};
    PACELINE_ROLLED
    for (int r = rows.begin; r < rows.end; ++r) {
      const std::int64_t line = (to.sample * g.rows + r) * g.columns * g.channels + to.channel;
      for_few<kAhead>(columns.begin, columns.end, [&](int q, LastGroup group) {
        const std::int64_t from = line + q * g.channels;
        Pack<std::uint8_t, N> won[kAhead];
        Pack<T, N> d[kAhead];
        load_rows(winner + from, g.channels, group, won);
        load_rows(dy + from, g.channels, group, d);
        PACELINE_UNROLL
        for (int k = 0; k < kAhead; ++k) {
          const int place = (h - r * stride) * kernel + w - (q + k) * stride;
          for (int n = 0; n < N && k < group.rows; ++n) {
            total[n] += won[k].at[n] == place ? static_cast<float>(d[k].at[n]) : 0.0F;
          }
        }
      });
    }
    Pack<T, N> sum;
    for (int n = 0; n < N; ++n) {
      sum.at[n] = static_cast<T>(total[n]);
    }
    store_pack(dx + to.at(g.height, g.width, g.channels), sum);
  }
};

/// Units of the input's 2×2 squares, those that an odd edge cuts included: MaxPoolBackward.
template <typename T>
struct MaxPoolSpread {
  const T* y;
  const std::uint8_t* winner;
  const T* dy;
  T* dx;
  PoolGeometry in;
  bool after_relu;

  [[nodiscard]] PACELINE_HD int width() const {
    return pack_width<kAccessPack<T>>(in.channels, y, winner, dy, dx);
  }
  [[nodiscard]] std::int64_t units(std::int64_t samples) const {
    return samples * squares(in.height) * squares(in.width) * (in.channels / width());
  }
  PACELINE_HD void operator()(std::int64_t unit) const {
    constexpr int kPack = kAccessPack<T>;
    const bool packs = width() == kPack;
    const PlaceUnit at(unit, squares(in.height), squares(in.width),
                       packs ? in.channels / kPack : in.channels, packs ? kPack : 1);
    packs ? spread<kPack>(at) : spread<1>(at);
  }

 private:
  [[nodiscard]] PACELINE_HD static std::int64_t squares(std::int64_t extent) {
    return (extent + 1) / 2;
  }
  template <int N>
  PACELINE_HD void spread(const PlaceUnit& square) const {
    const std::int64_t rows = in.height / 2;
    const std::int64_t columns = in.width / 2;
    const float floor = after_relu ? 0.0F : -INFINITY;
    const auto zero = static_cast<T>(0.0F);
    Pack<T, N> passed;
    Pack<std::uint8_t, N> which;
    if (square.row < rows && square.column < columns) {
      const std::int64_t from = square.at(rows, columns, in.channels);
      const auto value = load_pack<N>(y + from);
      passed = load_pack<N>(dy + from);
      which = load_pack<N>(winner + from);
      for (int n = 0; n < N; ++n) {
        passed.at[n] = static_cast<float>(value.at[n]) > floor ? passed.at[n] : zero;
      }
    } else {
      for (int n = 0; n < N; ++n) {
        passed.at[n] = zero;
        which.at[n] = 0;
      }
    }
    PACELINE_UNROLL
    for (int k = 0; k < 4; ++k) {
      PlaceUnit to = square;
      to.row = square.row * 2 + k / 2;
      to.column = square.column * 2 + k % 2;
      Pack<T, N> out;
      for (int n = 0; n < N; ++n) {
        out.at[n] = which.at[n] == k ? passed.at[n] : zero;
      }
      if (to.row < in.height && to.column < in.width) {
        store_pack(dx + to.at(in.height, in.width, in.channels), out);
      }
    }
  }
};

/// Unit = (sample, channels): y = Σ_positions x / positions.
template <typename T>
struct ChannelAverage {
  const T* x;
  T* y;
  std::int64_t positions;
  std::int64_t channels;

  [[nodiscard]] PACELINE_HD int width() const { return pack_width<kSumPack>(channels, x, y); }
  [[nodiscard]] std::int64_t units(std::int64_t samples) const {
    return samples * (channels / width());
  }
  PACELINE_HD void operator()(std::int64_t unit) const {
    width() == kSumPack ? average<kSumPack>(unit) : average<1>(unit);
  }

 private:
  template <int N>
  PACELINE_HD void average(std::int64_t unit) const {
    constexpr int kAhead = 8;
    const std::int64_t strips = channels / N;
    const std::int64_t sample = unit / strips;
    const std::int64_t first = unit % strips * N;
    const T* from = x + sample * positions * channels + first;
    float total[N] = {};
    for_row_groups<kAhead>(0, positions, [&](std::int64_t position, auto group) {
      Pack<T, N> value[kAhead];
      load_rows(from + position * channels, channels, group, value);
      PACELINE_UNROLL
      for (int k = 0; k < kAhead; ++k) {
        for (int n = 0; n < N && k < group.rows; ++n) {
          total[n] += static_cast<float>(value[k].at[n]);
        }
      }
    });
    Pack<T, N> mean;
    for (int n = 0; n < N; ++n) {
      mean.at[n] = static_cast<T>(total[n] / static_cast<float>(positions));
    }
    store_pack(y + sample * channels + first, mean);
  }
};

/// Unit = (sample, position, channels): dx = dy[sample, channel] / positions.
template <typename T>
struct ChannelAverageGradient {
  const T* dy;
  T* dx;
  std::int64_t positions;
  std::int64_t channels;

  [[nodiscard]] PACELINE_HD int width() const {
    return pack_width<kAccessPack<T>>(channels, dy, dx);
  }
  [[nodiscard]] std::int64_t units(std::int64_t samples) const {
    return samples * positions * (channels / width());
  }
  PACELINE_HD void operator()(std::int64_t unit) const {
    width() == kAccessPack<T> ? spread<kAccessPack<T>>(unit) : spread<1>(unit);
  }

 private:
  template <int N>
  PACELINE_HD void spread(std::int64_t unit) const {
    const std::int64_t strips = channels / N;
    const std::int64_t place = unit / strips;
    const std::int64_t first = unit % strips * N;
    auto d = load_pack<N>(dy + place / positions * channels + first);
    for (int n = 0; n < N; ++n) {
      d.at[n] = static_cast<T>(static_cast<float>(d.at[n]) / static_cast<float>(positions));
    }
    store_pack(dx + place * channels + first, d);
  }
};

}  // namespace paceline::kernels
