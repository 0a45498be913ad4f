// SPDX-License-Identifier: Apache-2.0
#include "tests/support/host_layers.h"

#include <cmath>
#include <vector>

#include "tests/support/host_elements.h"

namespace paceline::test {

namespace {

/// y = act(…) of one element, without its rounding.
double normalised(const cuda::BatchNorm& s, double value, double addend) {
  const double sum = value + addend;
  return s.relu != 0 && sum < 0.0 ? 0.0 : sum;
}

/// Calls visit(output element, input element, place in the window) for all that a window reaches.
template <typename Visit>
void for_each_place(const cuda::Pool& s, Visit visit) {
  for (std::int64_t out = 0; out < s.samples * s.rows * s.columns; ++out) {
    const std::int64_t n = out / (s.rows * s.columns);
    const std::int64_t top = out / s.columns % s.rows * s.stride - s.padding;
    const std::int64_t left = out % s.columns * s.stride - s.padding;
    for (std::int64_t place = 0; place < s.window_height * s.window_width; ++place) {
      const std::int64_t h = top + place / s.window_width;
      const std::int64_t w = left + place % s.window_width;
      if (h < 0 || h >= s.height || w < 0 || w >= s.width) {
        continue;
      }
      for (std::int64_t c = 0; c < s.channels; ++c) {
        visit(out * s.channels + c, ((n * s.height + h) * s.width + w) * s.channels + c, place);
      }
    }
  }
}

std::int64_t pooled_elements(const cuda::Pool& s) {
  return s.samples * s.rows * s.columns * s.channels;
}

double share_of(const cuda::Pool& s) {
  return 1.0 / static_cast<double>(s.window_height * s.window_width);
}

}  // namespace

const char* host_norm_obstacle(const cuda::BatchNorm& s) {
  if (s.addend != 0 && s.relu == 0) {
    return "the double adds to a norm before a ReLU only";
  }
  const std::int64_t step = s.format == Precision::fp32 ? 4 : 8;
  return s.channels % step != 0 ? "the double wants whole 16 bytes of channels" : nullptr;
}

std::atomic<std::int64_t>& host_layer_calls() {
  static std::atomic<std::int64_t> calls = 0;
  return calls;
}

void host_normalise(const cuda::BatchNorm& s, const void* x, const void* addend, const float* gamma,
                    const float* beta, void* y, float* mean, float* inverse) {
  ++host_layer_calls();
  const Elements in(x, s.format);
  const Elements more(addend, s.format);
  const Elements out(y, s.format);
  const std::int64_t rows = s.samples * s.height * s.width;
  for (std::int64_t c = 0; c < s.channels; ++c) {
    double sum = 0.0;
    for (std::int64_t row = 0; row < rows; ++row) {
      sum += in.get(row * s.channels + c);
    }
    const double center = sum / static_cast<double>(rows);
    double squares = 0.0;
    for (std::int64_t row = 0; row < rows; ++row) {
      const double distance = in.get(row * s.channels + c) - center;
      squares += distance * distance;
    }
    const double scale =
        1.0 / std::sqrt(squares / static_cast<double>(rows) + static_cast<double>(s.epsilon));
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t at = row * s.channels + c;
      const double value = static_cast<double>(gamma[c]) * (in.get(at) - center) * scale +
                           static_cast<double>(beta[c]);
      out.set(at, normalised(s, value, s.addend != 0 ? more.get(at) : 0.0));
    }
    mean[c] = static_cast<float>(center);
    inverse[c] = static_cast<float>(scale);
  }
}

/// dx = gamma·inverse·(dy − Σ dy/n − x̂·Σ dy·x̂/n) with dy masked.
void host_normalise_gradient(const cuda::BatchNorm& s, const void* x, const void* y, const void* dy,
                             const float* gamma, const float* mean, const float* inverse, void* dx,
                             float* d_gamma, float* d_beta) {
  ++host_layer_calls();
  const Elements in(x, s.format);
  const Elements out(y, s.format);
  const Elements d_out(dy, s.format);
  const Elements d_in(dx, s.format);
  const std::int64_t rows = s.samples * s.height * s.width;
  const auto count = static_cast<double>(rows);
  for (std::int64_t c = 0; c < s.channels; ++c) {
    const auto scale = static_cast<double>(inverse[c]);
    const auto hat = [&](std::int64_t at) {
      return (in.get(at) - static_cast<double>(mean[c])) * scale;
    };
    const auto masked = [&](std::int64_t at) {
      return s.masks == 0 || out.get(at) > 0.0 ? d_out.get(at) : 0.0;
    };
    double plain = 0.0;
    double weighted = 0.0;
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t at = row * s.channels + c;
      plain += masked(at);
      weighted += masked(at) * hat(at);
    }
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t at = row * s.channels + c;
      d_in.set(at, static_cast<double>(gamma[c]) * scale *
                       (masked(at) - plain / count - hat(at) * weighted / count));
    }
    d_gamma[c] = static_cast<float>(weighted);
    d_beta[c] = static_cast<float>(plain);
  }
}

void host_pool(const cuda::Pool& s, const void* x, void* y, std::uint8_t* winners) {
  ++host_layer_calls();
  const Elements in(x, s.format);
  const bool maximum = s.kind == cuda::Pooling::maximum;
  std::vector<double> best = zeros(pooled_elements(s));
  std::vector<bool> seen(best.size());
  for_each_place(s, [&](std::int64_t out, std::int64_t from, std::int64_t place) {
    const double value = in.get(from);
    if (!maximum) {
      element(best, out) += value * share_of(s);
    } else if (!seen[static_cast<std::size_t>(out)] || value > element(best, out)) {
      seen[static_cast<std::size_t>(out)] = true;
      element(best, out) = value;
      winners[out] = static_cast<std::uint8_t>(place);
    }
  });
  store(best, Elements(y, s.format));
}

void host_pool_gradient(const cuda::Pool& s, const void* dy, const std::uint8_t* winners,
                        void* dx) {
  ++host_layer_calls();
  const Elements d_out(dy, s.format);
  const bool maximum = s.kind == cuda::Pooling::maximum;
  std::vector<double> d = zeros(s.samples * s.height * s.width * s.channels);
  for_each_place(s, [&](std::int64_t out, std::int64_t from, std::int64_t place) {
    if (!maximum) {
      element(d, from) += d_out.get(out) * share_of(s);
    } else if (winners[out] == place) {
      element(d, from) += d_out.get(out);
    }
  });
  store(d, Elements(dx, s.format));
}

}  // namespace paceline::test
