// SPDX-License-Identifier: Apache-2.0
// Features that are mostly zero, and gradients that are.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace paceline {

/// Rows of features in compressed form: row r holds (columns[k], values[k]) for k in
/// [begins[r], begins[r + 1]), columns ascending and below `width`.
struct SparseMatrix {
  std::int64_t width = 0;
  std::vector<std::size_t> begins{0};
  std::vector<std::uint32_t> columns;
  std::vector<float> values;

  [[nodiscard]] std::size_t rows() const noexcept { return begins.size() - 1; }
  [[nodiscard]] std::span<const std::uint32_t> row_columns(std::size_t row) const {
    return std::span(columns).subspan(begins[row], begins[row + 1] - begins[row]);
  }
  [[nodiscard]] std::span<const float> row_values(std::size_t row) const {
    return std::span(values).subspan(begins[row], begins[row + 1] - begins[row]);
  }
};

/// Sums at scattered indices below a fixed bound, read back in ascending order. Adding takes
/// constant time, reading time in proportion to the indices that came (and 1/4096 of the bound).
class SparseSum {
 public:
  explicit SparseSum(std::size_t bound)
      : sums_(bound), present_(bound / 64 + 1), groups_(bound / 4096 + 1) {}

  void add(std::size_t index, float value) noexcept {
    sums_[index] += value;
    present_[index / 64] |= std::uint64_t{1} << index % 64;
    groups_[index / 4096] |= std::uint64_t{1} << index / 64 % 64;
  }

  /// Appends what was added since the last call.
  void take(std::vector<std::uint32_t>& indices, std::vector<float>& values) {
    for_each_bit(groups_, 0, groups_.size(), [&](std::size_t word) {
      for_each_bit(present_, word, word + 1, [&](std::size_t index) {
        indices.push_back(static_cast<std::uint32_t>(index));
        values.push_back(std::exchange(sums_[index], 0.0F));
      });
    });
  }

  [[nodiscard]] std::size_t bytes() const noexcept {
    return sums_.size() * sizeof(float) +
           (present_.size() + groups_.size()) * sizeof(std::uint64_t);
  }

 private:
  /// Calls f with the place of every bit set in words [begin, end), and clears them.
  template <typename F>
  static void for_each_bit(std::vector<std::uint64_t>& words, std::size_t begin, std::size_t end,
                           const F& f) {
    for (std::size_t w = begin; w < end; ++w) {
      for (std::uint64_t left = std::exchange(words[w], 0); left != 0; left &= left - 1) {
        f(w * 64 + static_cast<std::size_t>(std::countr_zero(left)));
      }
    }
  }

  std::vector<float> sums_;
  std::vector<std::uint64_t> present_;  // a bit per index
  std::vector<std::uint64_t> groups_;   // a bit per word of present_
};

/// A batch's rows of a matrix that outlives it; no copy.
struct SparseBatch {
  const SparseMatrix* matrix = nullptr;
  std::span<const std::uint32_t> rows;
};

/// A gradient of the arena by its elements that are not zero by construction: elements[k],
/// ascending, has values[k].
struct SparseGradient {
  std::span<const std::uint32_t> elements;
  std::span<const float> values;
};

}  // namespace paceline
