// SPDX-License-Identifier: Apache-2.0
// What a transformer on a GPU needs besides kernels_transformer.h, cut so that a warp's lanes read
// neighbouring elements (see kernels.h for what a functor and T are). Rows are positions of
// sequences, one sequence after the other.
#pragma once

#include <cstdint>

#include "common/core/kernels.h"
#include "common/core/kernels_columns.h"

namespace paceline::kernels {

/// Tensors [sequences, positions, parts, heads, width] and [parts, sequences, heads, positions,
/// width]: `parts` maps of every position (query, key and value), as a product leaves them and as
/// the products of each head take them.
struct HeadLayout {
  std::int64_t sequences;
  std::int64_t positions;
  std::int64_t parts;
  std::int64_t heads;
  std::int64_t width;

  [[nodiscard]] PACELINE_HD std::int64_t elements() const noexcept {
    return sequences * positions * parts * heads * width;
  }
  /// Where element i of the first lies in the second.
  [[nodiscard]] PACELINE_HD std::int64_t apart(std::int64_t i) const noexcept {
    const std::int64_t in_row = i / width;
    const std::int64_t in_part = in_row / heads;
    const std::int64_t row = in_part / parts;
    const std::int64_t sequence = row / positions;
    const std::int64_t column = i - in_row * width;
    const std::int64_t head = in_row - in_part * heads;
    const std::int64_t part = in_part - row * parts;
    const std::int64_t position = row - sequence * positions;
    return (((part * sequences + sequence) * heads + head) * positions + position) * width + column;
  }
};

/// Moves an access's elements, or one.
template <typename T>
PACELINE_HD void move_elements(const T* from, T* to, int width) {
  if (width == kAccessPack<T>) {
    store_pack(to, load_pack<kAccessPack<T>>(from));
  } else {
    *to = *from;
  }
}

/// together -> apart.
template <typename T>
struct SplitHeads {
  const T* together;
  T* apart;
  HeadLayout layout;

  [[nodiscard]] PACELINE_HD int width() const {
    return pack_width<kAccessPack<T>>(layout.width, together, apart);
  }
  [[nodiscard]] std::int64_t units() const { return layout.elements() / width(); }
  PACELINE_HD void operator()(std::int64_t unit) const {
    const std::int64_t i = unit * width();
    move_elements(together + i, apart + layout.apart(i), width());
  }
};

/// apart -> together.
template <typename T>
struct JoinHeads {
  const T* apart;
  T* together;
  HeadLayout layout;

  [[nodiscard]] PACELINE_HD int width() const {
    return pack_width<kAccessPack<T>>(layout.width, together, apart);
  }
  [[nodiscard]] std::int64_t units() const { return layout.elements() / width(); }
  PACELINE_HD void operator()(std::int64_t unit) const {
    const std::int64_t i = unit * width();
    move_elements(apart + layout.apart(i), together + i, width());
  }
};

/// The row's token, of `vocabulary`, which are stored as numbers: in fp32, as bf16 has not all
/// beyond 256.
[[nodiscard]] PACELINE_HD inline std::int64_t token_of(const float* tokens, std::int64_t row,
                                                       std::int64_t vocabulary) {
  const auto token = static_cast<std::int64_t>(tokens[row]);
  return token < 0 ? 0 : (token < vocabulary ? token : vocabulary - 1);
}

/// Units of y [rows, width]: y = token[x[row]] + position[row mod positions].
template <typename T>
struct EmbedTokens {
  const float* x;
  const float* token;     ///< [vocabulary, width]
  const float* position;  ///< [positions, width]
  T* y;
  std::int64_t vocabulary;
  std::int64_t positions;
  std::int64_t width;

  [[nodiscard]] PACELINE_HD int own_width() const {
    return pack_width<kAccessPack<T>>(width, y, token, position);
  }
  [[nodiscard]] std::int64_t units(std::int64_t rows) const { return rows * (width / own_width()); }
  PACELINE_HD void operator()(std::int64_t unit) const {
    own_width() == kAccessPack<T> ? embed<kAccessPack<T>>(unit) : embed<1>(unit);
  }

 private:
  template <int N>
  PACELINE_HD void embed(std::int64_t unit) const {
    const std::int64_t strips = width / N;
    const std::int64_t row = unit / strips;
    const std::int64_t column = unit % strips * N;
    const auto place = load_pack<N>(position + row % positions * width + column);
    const auto word = load_pack<N>(token + token_of(x, row, vocabulary) * width + column);
    Pack<T, N> sum;
    for (int n = 0; n < N; ++n) {
      sum.at[n] = static_cast<T>(word.at[n] + place.at[n]);
    }
    store_pack(y + row * width + column, sum);
  }
};

/// Columns of a tile, a lane each.
inline constexpr std::int64_t kLaneColumns = 32;

/// Row = (token, tile of kLaneColumns columns): d_token = head + Σ dy of the rows that have the
/// token. Each element has one lane, which adds the rows in their order, so that no sum depends on
/// who comes first.
template <typename T>
struct TokenGradient {
  const float* x;
  const T* dy;        ///< [rows, width]
  const float* head;  ///< what else there is of the gradient, shaped like it
  float* d_token;     ///< [vocabulary, width]
  std::int64_t rows;
  std::int64_t vocabulary;
  std::int64_t width;

  [[nodiscard]] PACELINE_HD std::int64_t tiles() const noexcept {
    return (width + kLaneColumns - 1) / kLaneColumns;
  }
  template <typename Team>
  PACELINE_HD void operator()(const Team& team, std::int64_t unit) const {
    const std::int64_t token = unit / tiles();
    const std::int64_t first = unit % tiles() * kLaneColumns;
    const std::int64_t last = first + kLaneColumns < width ? first + kLaneColumns : width;
    for (std::int64_t c = first + team.lane(); c < last; c += team.size()) {
      double total = 0.0;
      for (std::int64_t row = 0; row < rows; ++row) {
        if (token_of(x, row, vocabulary) == token) {
          total += static_cast<double>(static_cast<float>(dy[row * width + c]));
        }
      }
      const std::int64_t at = token * width + c;
      d_token[at] = static_cast<float>(static_cast<double>(head[at]) + total);
    }
  }
};

/// Element i of [positions, width]: Σ dy over the sequences, in their order.
template <typename T>
struct PositionGradient {
  const T* dy;
  float* d_position;
  std::int64_t sequences;
  std::int64_t elements;  ///< positions·width

  PACELINE_HD void operator()(std::int64_t i) const {
    double total = 0.0;
    for (std::int64_t s = 0; s < sequences; ++s) {
      total += static_cast<double>(static_cast<float>(dy[s * elements + i]));
    }
    d_position[i] = static_cast<float>(total);
  }
};

/// Of every part of the rows and column, with x̂ = (x − mean)·inverse of the row's own statistics:
/// sum_dy = Σ dy, sum_dy_x = Σ dy·x̂. One slab; NormParameterGradient adds the parts.
template <typename T>
struct RowNormColumnSums {
  const T* x;
  const T* dy;
  const float* mean;  ///< [rows], as inverse
  const float* inverse;
  double* sum_dy;  ///< [part, column]
  double* sum_dy_x;
  ColumnParts cut;

  [[nodiscard]] PACELINE_HD int width() const { return pack_width<kSumPack>(cut.columns, x, dy); }
  [[nodiscard]] std::int64_t units() const { return cut.units(width()); }
  PACELINE_HD void operator()(std::int64_t unit) const {
    width() == kSumPack ? strip<kSumPack>(unit) : strip<1>(unit);
  }

 private:
  template <int N>
  PACELINE_HD void strip(std::int64_t unit) const {
    constexpr int kAhead = rows_ahead<T>(2);
    const ColumnStrip part = cut.strip(unit, N);
    double total[N] = {};
    double total_x[N] = {};
    for_row_groups<kAhead>(part.begin, part.end, [&](std::int64_t row, auto group) {
      const std::int64_t at = row * cut.columns + part.first;
      Pack<T, N> value[kAhead];
      Pack<T, N> d[kAhead];
      Pack<float, 1> center[kAhead];
      Pack<float, 1> scale[kAhead];
      load_rows(x + at, cut.columns, group, value);
      load_rows(dy + at, cut.columns, group, d);
      load_rows(mean + row, 1, group, center);
      load_rows(inverse + row, 1, group, scale);
      PACELINE_UNROLL
      for (int k = 0; k < kAhead; ++k) {
        for (int n = 0; n < N && k < group.rows; ++n) {
          const auto gradient = static_cast<float>(d[k].at[n]);
          const float centered = static_cast<float>(value[k].at[n]) - center[k].at[0];
          total[n] += static_cast<double>(gradient);
          total_x[n] += static_cast<double>(gradient * (centered * scale[k].at[0]));
        }
      }
    });
    for (int n = 0; n < N; ++n) {
      sum_dy[part.place * cut.columns + part.first + n] = total[n];
      sum_dy_x[part.place * cut.columns + part.first + n] = total_x[n];
    }
  }
};

}  // namespace paceline::kernels
