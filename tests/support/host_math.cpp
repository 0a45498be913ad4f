// SPDX-License-Identifier: Apache-2.0
#include "tests/support/host_math.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/support/host_elements.h"

namespace paceline::test {

namespace {

double finished(const cuda::Matmul& p, double value, std::int64_t column) {
  if (p.epilogue == cuda::Epilogue::none) {
    return value;
  }
  value += static_cast<double>(p.bias[column]);
  if (p.epilogue == cuda::Epilogue::bias_relu) {
    return value > 0.0 ? value : 0.0;
  }
  if (p.epilogue == cuda::Epilogue::bias_gelu) {
    const double u = 0.7978845608028654 * (value + 0.044715 * value * value * value);
    return 0.5 * value * (1.0 + std::tanh(u));
  }
  return value;
}

/// Calls visit(input element, filter element, output element) for every product of a convolution.
template <typename Visit>
void for_each_product(const cuda::Convolution& s, Visit visit) {
  const std::int64_t rows = (s.height + 2 * s.padding - s.kernel) / s.stride + 1;
  const std::int64_t columns = (s.width + 2 * s.padding - s.kernel) / s.stride + 1;
  for (std::int64_t place = 0; place < s.samples * rows * columns; ++place) {
    const std::int64_t n = place / (rows * columns);
    const std::int64_t top = place / columns % rows * s.stride - s.padding;
    const std::int64_t left = place % columns * s.stride - s.padding;
    for (std::int64_t i = std::max<std::int64_t>(0, -top); i < s.kernel && top + i < s.height;
         ++i) {
      for (std::int64_t j = std::max<std::int64_t>(0, -left); j < s.kernel && left + j < s.width;
           ++j) {
        const std::int64_t x = ((n * s.height + top + i) * s.width + left + j) * s.channels;
        for (std::int64_t o = 0; o < s.outputs; ++o) {
          const std::int64_t filter = ((o * s.kernel + i) * s.kernel + j) * s.channels;
          for (std::int64_t c = 0; c < s.channels; ++c) {
            visit(x + c, filter + c, place * s.outputs + o);
          }
        }
      }
    }
  }
}

std::int64_t outputs_of(const cuda::Convolution& s) {
  const std::int64_t rows = (s.height + 2 * s.padding - s.kernel) / s.stride + 1;
  const std::int64_t columns = (s.width + 2 * s.padding - s.kernel) / s.stride + 1;
  return s.samples * rows * columns * s.outputs;
}

}  // namespace

void host_matmul(const cuda::Matmul& p) {
  const Elements a(p.a, p.format);
  const Elements b(p.b, p.format);
  const Elements c(p.c, p.fp32_output != 0 ? Precision::fp32 : p.format);
  for (std::int64_t m = 0; m < p.batch; ++m) {
    for (std::int64_t row = 0; row < p.rows; ++row) {
      for (std::int64_t column = 0; column < p.columns; ++column) {
        double sum = 0.0;
        for (std::int64_t k = 0; k < p.inner; ++k) {
          const std::int64_t in_a =
              p.a_transposed != 0 ? k * p.a_stride + row : row * p.a_stride + k;
          const std::int64_t in_b =
              p.b_transposed != 0 ? column * p.b_stride + k : k * p.b_stride + column;
          sum += a.get(m * p.a_step + in_a) * b.get(m * p.b_step + in_b);
        }
        const std::int64_t in_c = m * p.c_step + row * p.c_stride + column;
        sum *= static_cast<double>(p.alpha);
        if (p.beta != 0.0F) {
          sum += static_cast<double>(p.beta) * c.get(in_c);
        }
        c.set(in_c, finished(p, sum, column));
      }
    }
  }
}

void host_convolve(const cuda::Convolution& shape, const void* x, const void* filter, void* y) {
  const Elements in(x, shape.format);
  const Elements weights(filter, shape.format);
  std::vector<double> sums = zeros(outputs_of(shape));
  for_each_product(shape, [&](std::int64_t i, std::int64_t f, std::int64_t o) {
    element(sums, o) += in.get(i) * weights.get(f);
  });
  store(sums, Elements(y, shape.format));
}

void host_input_gradient(const cuda::Convolution& shape, const void* dy, const void* filter,
                         void* dx) {
  const Elements out(dy, shape.format);
  const Elements weights(filter, shape.format);
  std::vector<double> sums = zeros(shape.samples * shape.height * shape.width * shape.channels);
  for_each_product(shape, [&](std::int64_t i, std::int64_t f, std::int64_t o) {
    element(sums, i) += out.get(o) * weights.get(f);
  });
  store(sums, Elements(dx, shape.format));
}

void host_filter_gradient(const cuda::Convolution& shape, const void* x, const void* dy,
                          void* d_filter) {
  const Elements in(x, shape.format);
  const Elements out(dy, shape.format);
  std::vector<double> sums = zeros(shape.outputs * shape.kernel * shape.kernel * shape.channels);
  for_each_product(shape, [&](std::int64_t i, std::int64_t f, std::int64_t o) {
    element(sums, f) += in.get(i) * out.get(o);
  });
  store(sums, Elements(d_filter, shape.format));
}

namespace {

/// Element `column` of query, key or value (part 0, 1, 2) at a position of a head.
struct HeadPlaces {
  const cuda::Attention& a;
  std::int64_t sample;
  std::int64_t head;
  [[nodiscard]] std::int64_t qkv(int part, std::int64_t position, std::int64_t column) const {
    return (((sample * a.positions + position) * 3 + part) * a.heads + head) * a.width + column;
  }
  [[nodiscard]] std::int64_t out(std::int64_t position, std::int64_t column) const {
    return ((sample * a.positions + position) * a.heads + head) * a.width + column;
  }
  [[nodiscard]] std::int64_t row(std::int64_t position) const {
    return (sample * a.heads + head) * a.positions + position;
  }
  /// How many positions, from the first, one sees.
  [[nodiscard]] std::int64_t seen(std::int64_t position) const {
    return a.causal != 0 ? position + 1 : a.positions;
  }
};

template <typename Visit>
void for_each_head(const cuda::Attention& a, Visit visit) {
  for (std::int64_t sample = 0; sample < a.samples; ++sample) {
    for (std::int64_t head = 0; head < a.heads; ++head) {
      visit(HeadPlaces{a, sample, head});
    }
  }
}

/// scale·q·k of two positions.
double attention_score(const HeadPlaces& at, const Elements& qkv, std::int64_t query,
                       std::int64_t key) {
  double sum = 0.0;
  for (std::int64_t c = 0; c < at.a.width; ++c) {
    sum += qkv.get(at.qkv(0, query, c)) * qkv.get(at.qkv(1, key, c));
  }
  return sum * static_cast<double>(at.a.scale);
}

}  // namespace

void host_attention(const cuda::Attention& shape, const void* qkv, void* out, float* statistics) {
  const Elements in(qkv, shape.format);
  const Elements to(out, shape.format);
  for_each_head(shape, [&](const HeadPlaces& at) {
    for (std::int64_t query = 0; query < shape.positions; ++query) {
      std::vector<double> mixed = zeros(shape.width);
      double total = 0.0;
      for (std::int64_t key = 0; key < at.seen(query); ++key) {
        const double power = std::exp(attention_score(at, in, query, key));
        total += power;
        for (std::int64_t c = 0; c < shape.width; ++c) {
          element(mixed, c) += power * in.get(at.qkv(2, key, c));
        }
      }
      for (std::int64_t c = 0; c < shape.width; ++c) {
        to.set(at.out(query, c), element(mixed, c) / total);
      }
      statistics[at.row(query)] = static_cast<float>(std::log(total));
    }
  });
}

/// dO/dS by what changes when the weight of one key grows: P·(dO·v − dO·o).
void host_attention_gradient(const cuda::Attention& shape, const void* qkv, const void* out,
                             const float* statistics, const void* d_out, void* d_qkv) {
  const Elements in(qkv, shape.format);
  const Elements o(out, shape.format);
  const Elements d_o(d_out, shape.format);
  std::vector<double> d = zeros(shape.samples * shape.positions * 3 * shape.heads * shape.width);
  for_each_head(shape, [&](const HeadPlaces& at) {
    for (std::int64_t query = 0; query < shape.positions; ++query) {
      for (std::int64_t key = 0; key < at.seen(query); ++key) {
        const double share = std::exp(attention_score(at, in, query, key) -
                                      static_cast<double>(statistics[at.row(query)]));
        double gain = 0.0;
        for (std::int64_t c = 0; c < shape.width; ++c) {
          const double d_c = d_o.get(at.out(query, c));
          gain += d_c * (in.get(at.qkv(2, key, c)) - o.get(at.out(query, c)));
          element(d, at.qkv(2, key, c)) += share * d_c;
        }
        const double d_score = share * gain * static_cast<double>(shape.scale);
        for (std::int64_t c = 0; c < shape.width; ++c) {
          element(d, at.qkv(0, query, c)) += d_score * in.get(at.qkv(1, key, c));
          element(d, at.qkv(1, key, c)) += d_score * in.get(at.qkv(0, query, c));
        }
      }
    }
  });
  store(d, Elements(d_qkv, shape.format));
}

}  // namespace paceline::test
