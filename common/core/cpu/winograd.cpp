// SPDX-License-Identifier: Apache-2.0
#include "common/core/cpu/winograd.h"

#include <algorithm>
#include <array>

#include "common/core/cpu/winograd_tiles.h"

namespace paceline::winograd {

namespace {

/// Output channels that one product covers.
constexpr std::int64_t kColumns = 16;
constexpr std::size_t kVectors = kColumns / kLanes;
/// Rows of a product: 12 of 16 vector registers hold sums, or of 32 (AVX-512).
constexpr int kRows = 12 / kVectors;

/// Tiles that are transformed, multiplied and transformed back together: few, so that both sides of
/// the products stay in the second-level cache; with many channels more, for which the transformed
/// weights have to be read again.
std::int64_t block_tiles(std::int64_t channels) {
  return channels <= 64 ? 24 : 96;
}

/// kColumns sums or factors in registers.
using Row = std::array<Vector, kVectors>;

Row load_row(const float* from) {
  Row row;
#pragma GCC unroll 2
  for (std::size_t i = 0; i < kVectors; ++i) {
    row[i] = load(from + static_cast<std::int64_t>(i) * kLanes);
  }
  return row;
}

void store_row(float* to, const Row& row) {
#pragma GCC unroll 2
  for (std::size_t i = 0; i < kVectors; ++i) {
    store(to + static_cast<std::int64_t>(i) * kLanes, row[i]);
  }
}

void add_scaled(Row& sums, float factor, const Row& row) {
#pragma GCC unroll 2
  for (std::size_t i = 0; i < kVectors; ++i) {
    sums[i] += factor * row[i];
  }
}

/// c [Rows, 16] = a [Rows, depth]·b [depth, 16].
template <int Rows>
void multiply_rows(const float* a, std::int64_t depth, const float* b, float* c,
                   std::int64_t c_stride) {
  std::array<Row, Rows> sums{};
#pragma GCC unroll 4
  for (std::int64_t k = 0; k < depth; ++k) {
    const Row factors = load_row(b + k * kColumns);
#pragma GCC unroll 12
    for (std::size_t r = 0; r < Rows; ++r) {
      add_scaled(sums[r], a[static_cast<std::int64_t>(r) * depth + k], factors);
    }
  }
#pragma GCC unroll 12
  for (std::size_t r = 0; r < Rows; ++r) {
    store_row(c + static_cast<std::int64_t>(r) * c_stride, sums[r]);
  }
}

/// The same for any number of rows.
void multiply(std::int64_t rows, const float* a, std::int64_t depth, const float* b, float* c,
              std::int64_t c_stride) {
  std::int64_t r = 0;
  for (; r + kRows <= rows; r += kRows) {
    multiply_rows<kRows>(a + r * depth, depth, b, c + r * c_stride, c_stride);
  }
  for (; r < rows; ++r) {
    multiply_rows<1>(a + r * depth, depth, b, c + r * c_stride, c_stride);
  }
}

/// c [Columns, 16] += aᵀ·b over `depth` rows of a and b.
template <int Columns>
void add_outer(const float* a, std::int64_t a_stride, const float* b, std::int64_t b_stride,
               std::int64_t depth, float* c) {
  std::array<Row, Columns> sums;
#pragma GCC unroll 12
  for (std::size_t r = 0; r < Columns; ++r) {
    sums[r] = load_row(c + static_cast<std::int64_t>(r) * kColumns);
  }
#pragma GCC unroll 4
  for (std::int64_t k = 0; k < depth; ++k) {
    const Row factors = load_row(b + k * b_stride);
#pragma GCC unroll 12
    for (std::size_t r = 0; r < Columns; ++r) {
      add_scaled(sums[r], a[k * a_stride + static_cast<std::int64_t>(r)], factors);
    }
  }
#pragma GCC unroll 12
  for (std::size_t r = 0; r < Columns; ++r) {
    store_row(c + static_cast<std::int64_t>(r) * kColumns, sums[r]);
  }
}

/// Transformed weights: [16][to / 16][from][16].
std::int64_t filter_index(std::int64_t position, std::int64_t from, std::int64_t to,
                          std::int64_t from_channels, std::int64_t to_channels) {
  return ((position * (to_channels / kColumns) + to / kColumns) * from_channels + from) * kColumns +
         to % kColumns;
}

using Filter = std::array<float, 9>;

/// visit(output, input, its 3×3 weights) of weights [outputs, inputs, 3, 3].
template <typename Weight, typename Visit>
void for_each_filter(Weight* weights, std::int64_t outputs, std::int64_t inputs,
                     const Visit& visit) {
  for (std::int64_t o = 0; o < outputs; ++o) {
    for (std::int64_t i = 0; i < inputs; ++i) {
      visit(o, i, weights + (o * inputs + i) * 9);
    }
  }
}

/// Position by position, `stride` apart.
void put_filter(const std::array<float, kPositions>& u, float* to, std::int64_t stride) {
  for (std::size_t position = 0; position < u.size(); ++position) {
    to[static_cast<std::int64_t>(position) * stride] = u[position];
  }
}

/// G·g·Gᵀ.
std::array<float, kPositions> transform_filter(const Filter& g) {
  const auto spread = [](float first, float second, float third) {
    const float sum = first + third;
    return std::array<float, 4>{first, 0.5F * (sum + second), 0.5F * (sum - second), third};
  };
  std::array<float, kPositions> out;
  std::array<std::array<float, 4>, 3> down;
  for (std::size_t column = 0; column < 3; ++column) {
    down[column] = spread(g[column], g[3 + column], g[6 + column]);
  }
  for (std::size_t row = 0; row < 4; ++row) {
    std::ranges::copy(spread(down[0][row], down[1][row], down[2][row]), out.begin() + row * 4);
  }
  return out;
}

/// Gᵀ·u·G.
Filter gather_filter(const std::array<float, kPositions>& u) {
  const auto gather = [](float a, float b, float c, float d) {
    return std::array<float, 3>{a + 0.5F * (b + c), 0.5F * (b - c), 0.5F * (b + c) + d};
  };
  Filter out;
  std::array<std::array<float, 3>, 4> down;
  for (std::size_t column = 0; column < 4; ++column) {
    down[column] = gather(u[column], u[4 + column], u[8 + column], u[12 + column]);
  }
  for (std::size_t row = 0; row < 3; ++row) {
    std::ranges::copy(gather(down[0][row], down[1][row], down[2][row], down[3][row]),
                      out.begin() + row * 3);
  }
  return out;
}

/// u [16][to / 16][from][16] += vᵀ·z at every position, over the block's tiles.
void add_products(const Planes& v, const Planes& z, std::int64_t tiles, float* u) {
  const std::int64_t from = v.channels;
  const std::int64_t to = z.channels;
  for (std::int64_t position = 0; position < kPositions; ++position) {
    for (std::int64_t column = 0; column < to; column += kColumns) {
      const float* a = v.plane(position);
      const float* b = z.plane(position) + column;
      float* c = u + filter_index(position, 0, column, from, to);
      std::int64_t row = 0;
      for (; row + kRows <= from; row += kRows) {
        add_outer<kRows>(a + row, from, b, to, tiles, c + row * kColumns);
      }
      for (; row + 4 <= from; row += 4) {
        add_outer<4>(a + row, from, b, to, tiles, c + row * kColumns);
      }
      for (; row < from; row += 2) {
        add_outer<2>(a + row, from, b, to, tiles, c + row * kColumns);
      }
    }
  }
}

/// The scratch of a call.
struct Block {
  std::int64_t tiles;  ///< at most
  float* zeros;        ///< a pixel of the input
  float* u;            ///< transformed weights, or their gradient
  Planes from;         ///< transformed inputs
  Planes to;           ///< transformed outputs, or their gradients

  Block(const Problem& p, float* scratch)
      : tiles(block_tiles(std::max(p.input.channels, p.output.channels))),
        zeros(scratch),
        u(zeros + p.input.channels),
        from(tiles, p.input.channels, u + kPositions * p.input.channels * p.output.channels),
        to(tiles, p.output.channels, from.values + Planes::elements(tiles, p.input.channels)) {
    std::fill_n(zeros, p.input.channels, 0.0F);
  }
};

/// `count` tiles of x from `tile` on, which moves on.
void transform_inputs(const Problem& p, const float* x, std::int64_t count, TileCursor& tile,
                      const Block& block) {
  for (std::int64_t t = 0; t < count; ++t, tile.advance()) {
    transform_input(x + tile.sample * p.input.elements(), p.input, 2 * tile.row - p.padding,
                    2 * tile.column - p.padding, block.zeros, block.from.tile(t),
                    block.from.stride);
  }
}

/// y = act(bias + x ⋆ u) with the block's transformed weights.
void correlate(const Problem& p, const float* x, const Block& block, const float* bias, bool relu,
               float* y) {
  const std::int64_t from = p.input.channels;
  const std::int64_t to = p.output.channels;
  TileCursor reader(p.output);
  TileCursor writer(p.output);
  for (std::int64_t left = p.samples * reader.per_sample(); left > 0; left -= block.tiles) {
    const std::int64_t count = std::min(left, block.tiles);
    transform_inputs(p, x, count, reader, block);
    for (std::int64_t position = 0; position < kPositions; ++position) {
      for (std::int64_t column = 0; column < to; column += kColumns) {
        multiply(count, block.from.plane(position), from,
                 block.u + filter_index(position, 0, column, from, to),
                 block.to.plane(position) + column, to);
      }
    }
    for (std::int64_t t = 0; t < count; ++t, writer.advance()) {
      transform_output(block.to.tile(t), block.to.stride, p.output,
                       tile_pixels(y + writer.sample * p.output.elements(), p.output,
                                   2 * writer.row, 2 * writer.column),
                       bias, relu);
    }
  }
}

}  // namespace

bool computes(const SampleShape& input, const ConvShape& conv) noexcept {
  return conv.kernel == 3 && conv.stride == 1 && conv.padding >= 0 && conv.padding <= 2 &&
         input.channels % kColumns == 0 && conv.outputs % kColumns == 0;
}

int vector_bits() noexcept {
  return static_cast<int>(sizeof(Vector)) * 8;
}

std::size_t scratch_elements(const SampleShape& input, std::int64_t outputs) noexcept {
  const std::int64_t most = std::max(input.channels, outputs);
  const std::int64_t tiles = block_tiles(most);
  return static_cast<std::size_t>(most + Planes::elements(tiles, input.channels) +
                                  Planes::elements(tiles, outputs) +
                                  kPositions * input.channels * outputs);
}

void forward(const Problem& problem, const float* x, const float* weights, const float* bias,
             bool relu, float* y, float* scratch) {
  const Block block(problem, scratch);
  const std::int64_t from = problem.input.channels;
  const std::int64_t to = problem.output.channels;
  for_each_filter(weights, to, from, [&](std::int64_t o, std::int64_t i, const float* g) {
    Filter filter;
    std::copy_n(g, filter.size(), filter.begin());
    put_filter(transform_filter(filter), block.u + filter_index(0, i, o, from, to), from * to);
  });
  correlate(problem, x, block, bias, relu, y);
}

/// A convolution of d_y with the weights turned by half a turn and their channels exchanged.
void input_gradient(const Problem& problem, const float* d_y, const float* weights, float* d_x,
                    float* scratch) {
  const Problem turned{problem.samples, problem.output, problem.input, 2 - problem.padding};
  const Block block(turned, scratch);
  const std::int64_t from = turned.input.channels;
  const std::int64_t to = turned.output.channels;
  for_each_filter(weights, from, to, [&](std::int64_t o, std::int64_t i, const float* g) {
    Filter filter;
    std::reverse_copy(g, g + filter.size(), filter.begin());
    put_filter(transform_filter(filter), block.u + filter_index(0, o, i, from, to), from * to);
  });
  correlate(turned, d_y, block, nullptr, false, d_x);
}

/// The adjoint of forward in its weights, transform by transform.
void weight_gradient(const Problem& p, const float* x, const float* d_y, float* d_weights,
                     float* scratch) {
  const Block block(p, scratch);
  const std::int64_t from = p.input.channels;
  const std::int64_t to = p.output.channels;
  std::fill_n(block.u, kPositions * from * to, 0.0F);
  TileCursor inputs(p.output);
  TileCursor gradients(p.output);
  for (std::int64_t left = p.samples * inputs.per_sample(); left > 0; left -= block.tiles) {
    const std::int64_t count = std::min(left, block.tiles);
    transform_inputs(p, x, count, inputs, block);
    for (std::int64_t t = 0; t < count; ++t, gradients.advance()) {
      transform_gradient(tile_pixels(d_y + gradients.sample * p.output.elements(), p.output,
                                     2 * gradients.row, 2 * gradients.column),
                         to, block.to.tile(t), block.to.stride);
    }
    add_products(block.from, block.to, count, block.u);
  }
  for_each_filter(d_weights, to, from, [&](std::int64_t o, std::int64_t i, float* g) {
    const float* first = block.u + filter_index(0, i, o, from, to);
    std::array<float, kPositions> sums;
    for (std::size_t position = 0; position < sums.size(); ++position) {
      sums[position] = first[static_cast<std::int64_t>(position) * from * to];
    }
    std::ranges::copy(gather_filter(sums), g);
  });
}

}  // namespace paceline::winograd
