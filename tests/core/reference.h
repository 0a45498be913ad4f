// SPDX-License-Identifier: Apache-2.0
// The layers once more, written down naively and in any floating type, for tests: what they compute
// is read off the equation, with none of the core's code. Activations are NHWC.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "common/core/model.h"

namespace paceline::reference {

template <typename T>
using Tensor = std::vector<T>;

inline std::size_t index(std::int64_t i) {
  return static_cast<std::size_t>(i);
}

/// x [n, h, w, c] -> [n, out]; weight [out, c·h·w] in channels-first columns, then bias [out].
template <typename T>
Tensor<T> linear(const Tensor<T>& x, SampleShape in, std::int64_t out,
                 std::span<const T> parameters) {
  const std::int64_t n = static_cast<std::int64_t>(x.size()) / in.elements();
  Tensor<T> y(index(n * out));
  for (std::int64_t s = 0; s < n; ++s) {
    for (std::int64_t o = 0; o < out; ++o) {
      T sum = parameters[index(out * in.elements() + o)];
      for (std::int64_t c = 0; c < in.channels; ++c) {
        for (std::int64_t h = 0; h < in.height; ++h) {
          for (std::int64_t w = 0; w < in.width; ++w) {
            const std::int64_t column = (c * in.height + h) * in.width + w;
            sum += parameters[index(o * in.elements() + column)] *
                   x[index(((s * in.height + h) * in.width + w) * in.channels + c)];
          }
        }
      }
      y[index(s * out + o)] = sum;
    }
  }
  return y;
}

/// weight [out, c, 3, 3], then bias [out].
template <typename T>
Tensor<T> conv2d(const Tensor<T>& x, SampleShape in, std::int64_t out,
                 std::span<const T> parameters) {
  const std::int64_t n = static_cast<std::int64_t>(x.size()) / in.elements();
  const std::int64_t rows = in.height - 2;
  const std::int64_t columns = in.width - 2;
  Tensor<T> y(index(n * rows * columns * out));
  for (std::int64_t s = 0; s < n; ++s) {
    for (std::int64_t h = 0; h < rows; ++h) {
      for (std::int64_t w = 0; w < columns; ++w) {
        for (std::int64_t o = 0; o < out; ++o) {
          T sum = parameters[index(out * in.channels * 9 + o)];
          for (std::int64_t c = 0; c < in.channels; ++c) {
            for (std::int64_t k = 0; k < 9; ++k) {
              const std::int64_t from =
                  ((s * in.height + h + k / 3) * in.width + w + k % 3) * in.channels + c;
              sum += parameters[index((o * in.channels + c) * 9 + k)] * x[index(from)];
            }
          }
          y[index(((s * rows + h) * columns + w) * out + o)] = sum;
        }
      }
    }
  }
  return y;
}

/// Square windows over an image, with zeros around it.
struct Windows {
  SampleShape in;
  std::int64_t kernel;
  std::int64_t stride;
  std::int64_t padding;
  [[nodiscard]] std::int64_t rows() const {
    return (in.height + 2 * padding - kernel) / stride + 1;
  }
  [[nodiscard]] std::int64_t columns() const {
    return (in.width + 2 * padding - kernel) / stride + 1;
  }
  /// Calls f(output position, input position, i·kernel + j) for all that lies in the image, the
  /// positions counted over all samples.
  template <typename F>
  void visit(std::int64_t samples, const F& f) const {
    for (std::int64_t to = 0; to < samples * rows() * columns(); ++to) {
      const std::int64_t s = to / (rows() * columns());
      const std::int64_t top = to / columns() % rows() * stride - padding;
      const std::int64_t left = to % columns() * stride - padding;
      for (std::int64_t k = 0; k < kernel * kernel; ++k) {
        const std::int64_t h = top + k / kernel;
        const std::int64_t w = left + k % kernel;
        if (h >= 0 && h < in.height && w >= 0 && w < in.width) {
          f(to, (s * in.height + h) * in.width + w, k);
        }
      }
    }
  }
};

/// weight [out, c, kernel, kernel], no bias.
template <typename T>
Tensor<T> window_conv2d(const Tensor<T>& x, const Windows& windows, std::int64_t out,
                        std::span<const T> weight) {
  const std::int64_t n = static_cast<std::int64_t>(x.size()) / windows.in.elements();
  const std::int64_t channels = windows.in.channels;
  const std::int64_t places = windows.kernel * windows.kernel;
  Tensor<T> y(index(n * windows.rows() * windows.columns() * out));
  windows.visit(n, [&](std::int64_t to, std::int64_t from, std::int64_t place) {
    for (std::int64_t o = 0; o < out; ++o) {
      for (std::int64_t c = 0; c < channels; ++c) {
        y[index(to * out + o)] +=
            weight[index((o * channels + c) * places + place)] * x[index(from * channels + c)];
      }
    }
  });
  return y;
}

template <typename T>
Tensor<T> window_max(const Tensor<T>& x, const Windows& windows) {
  const std::int64_t n = static_cast<std::int64_t>(x.size()) / windows.in.elements();
  const std::int64_t channels = windows.in.channels;
  Tensor<T> y(index(n * windows.rows() * windows.columns() * channels), T{-1e30});
  windows.visit(n, [&](std::int64_t to, std::int64_t from, std::int64_t) {
    for (std::int64_t c = 0; c < channels; ++c) {
      y[index(to * channels + c)] =
          std::max(y[index(to * channels + c)], x[index(from * channels + c)]);
    }
  });
  return y;
}

template <typename T>
Tensor<T> relu(Tensor<T> x) {
  for (T& value : x) {
    value = std::max(value, T{0});
  }
  return x;
}

template <typename T>
Tensor<T> max_pool(const Tensor<T>& x, SampleShape in) {
  const std::int64_t n = static_cast<std::int64_t>(x.size()) / in.elements();
  const std::int64_t rows = in.height / 2;
  const std::int64_t columns = in.width / 2;
  Tensor<T> y;
  y.reserve(index(n * rows * columns * in.channels));
  for (std::int64_t s = 0; s < n; ++s) {
    for (std::int64_t h = 0; h < rows; ++h) {
      for (std::int64_t w = 0; w < columns; ++w) {
        for (std::int64_t c = 0; c < in.channels; ++c) {
          const auto at = [&](std::int64_t i, std::int64_t j) {
            return x[index(((s * in.height + 2 * h + i) * in.width + 2 * w + j) * in.channels + c)];
          };
          y.push_back(std::max({at(0, 0), at(0, 1), at(1, 0), at(1, 1)}));
        }
      }
    }
  }
  return y;
}

/// γ·(x − mean)/√(variance + 1e-5) + β with mean and variance over the elements of x that `same`
/// says belong together: same(sample, channel) numbers their set. γ [c], then β [c].
template <typename T, typename Same>
Tensor<T> norm(const Tensor<T>& x, SampleShape in, std::span<const T> parameters,
               const Same& same) {
  const std::int64_t per_sample = in.elements();
  std::vector<std::vector<std::size_t>> sets;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::int64_t element = static_cast<std::int64_t>(i);
    const std::size_t set = index(same(element / per_sample, element % in.channels));
    sets.resize(std::max(sets.size(), set + 1));
    sets[set].push_back(i);
  }
  Tensor<T> y(x.size());
  for (const auto& set : sets) {
    T mean{0};
    for (const std::size_t i : set) {
      mean += x[i] / static_cast<T>(set.size());
    }
    T variance{0};
    for (const std::size_t i : set) {
      variance += (x[i] - mean) * (x[i] - mean) / static_cast<T>(set.size());
    }
    for (const std::size_t i : set) {
      const std::size_t c = i % index(in.channels);
      y[i] = parameters[c] * (x[i] - mean) / std::sqrt(variance + T{1e-5}) +
             parameters[index(in.channels) + c];
    }
  }
  return y;
}

/// Summed over samples.
template <typename T>
T cross_entropy(const Tensor<T>& logits, std::span<const std::int32_t> labels) {
  const std::size_t classes = logits.size() / labels.size();
  T loss{0};
  for (std::size_t s = 0; s < labels.size(); ++s) {
    const T* row = logits.data() + s * classes;
    const T top = *std::max_element(row, row + classes);
    T total{0};
    for (std::size_t j = 0; j < classes; ++j) {
      total += std::exp(row[j] - top);
    }
    loss += std::log(total) + top - row[index(labels[s])];
  }
  return loss;
}

/// Loss of the models of make_model; `parameters` is the whole arena (last layer first).
template <typename T>
T model_loss(std::string_view name, SampleShape in, std::int64_t classes, const Tensor<T>& x,
             std::span<const std::int32_t> labels, std::span<const T> parameters) {
  std::size_t end = parameters.size();
  const auto take = [&](std::int64_t fan_in, std::int64_t out) {
    const std::size_t count = index((fan_in + 1) * out);
    end -= count;
    return parameters.subspan(end, count);
  };
  if (name == "softmax") {
    return cross_entropy(linear(x, in, classes, take(in.elements(), classes)), labels);
  }
  if (name == "mlp") {
    auto y = relu(linear(x, in, 512, take(in.elements(), 512)));
    y = relu(linear(y, {1, 1, 512}, 512, take(512, 512)));
    return cross_entropy(linear(y, {1, 1, 512}, classes, take(512, classes)), labels);
  }
  if (name == "resmlp") {
    const SampleShape wide{1, 1, 256};
    auto y = relu(linear(x, in, 256, take(in.elements(), 256)));
    for (int block = 0; block < 3; ++block) {
      const auto branch = relu(linear(y, wide, 256, take(256, 256)));
      std::transform(y.begin(), y.end(), branch.begin(), y.begin(), std::plus<>());
    }
    return cross_entropy(linear(y, wide, classes, take(256, classes)), labels);
  }
  const SampleShape first{in.height - 2, in.width - 2, 32};
  const SampleShape second{in.height - 4, in.width - 4, 64};
  const SampleShape pooled{second.height / 2, second.width / 2, 64};
  auto y = relu(conv2d(x, in, 32, take(in.channels * 9, 32)));
  y = relu(conv2d(y, first, 64, take(32 * 9, 64)));
  y = relu(linear(max_pool(y, second), pooled, 128, take(pooled.elements(), 128)));
  return cross_entropy(linear(y, {1, 1, 128}, classes, take(128, classes)), labels);
}

}  // namespace paceline::reference
