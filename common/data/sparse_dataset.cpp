// SPDX-License-Identifier: Apache-2.0
#include "common/data/sparse_dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <ostream>

#include "common/base/error.h"
#include "common/core/logistic.h"
#include "common/core/random.h"
#include "common/data/read_file.h"

namespace paceline {

namespace {

constexpr std::size_t kHoldOut = 10;
constexpr float kWrongLabels = 0.05F;

class SparseDataset final : public Dataset {
 public:
  explicit SparseDataset(SparseRows rows) : rows_(std::move(rows)) {}

  [[nodiscard]] std::int64_t size() const noexcept override {
    return static_cast<std::int64_t>(rows_.labels.size());
  }
  [[nodiscard]] SampleShape shape() const noexcept override { return {1, 1, rows_.matrix.width}; }
  [[nodiscard]] int classes() const noexcept override { return 2; }
  [[nodiscard]] const SparseMatrix* sparse() const noexcept override { return &rows_.matrix; }
  void gather(std::span<const std::uint32_t> indices, std::span<float> /*inputs*/,
              std::span<std::int32_t> labels) const override {
    if (labels.size() != indices.size()) {
      throw Error(fmt::format("data set: {} indices gathered into {} labels", indices.size(),
                              labels.size()));
    }
    for (std::size_t i = 0; i < indices.size(); ++i) {
      if (indices[i] >= rows_.labels.size()) {
        throw Error(fmt::format("data set: index {} of {} samples", indices[i], size()));
      }
      labels[i] = rows_.labels[indices[i]];
    }
  }

 private:
  SparseRows rows_;
};

void append_row(SparseRows& to, const SparseRows& from, std::size_t row) {
  const auto columns = from.matrix.row_columns(row);
  const auto values = from.matrix.row_values(row);
  to.matrix.columns.insert(to.matrix.columns.end(), columns.begin(), columns.end());
  to.matrix.values.insert(to.matrix.values.end(), values.begin(), values.end());
  to.matrix.begins.push_back(to.matrix.columns.size());
  to.labels.push_back(from.labels[row]);
}

struct SplitRows {
  SparseRows train;
  SparseRows test;
};

SplitRows hold_out(const SparseRows& all) {
  SplitRows split;
  split.train.matrix.width = split.test.matrix.width = all.matrix.width;
  for (std::size_t row = 0; row < all.labels.size(); ++row) {
    append_row(row % kHoldOut == kHoldOut - 1 ? split.test : split.train, all, row);
  }
  return split;
}

SparseRows keep_first(SparseRows rows, std::int64_t limit) {
  const auto kept = static_cast<std::size_t>(limit);
  if (limit > 0 && kept < rows.labels.size()) {
    rows.labels.resize(kept);
    rows.matrix.begins.resize(kept + 1);
    rows.matrix.columns.resize(rows.matrix.begins.back());
    rows.matrix.values.resize(rows.matrix.begins.back());
  }
  return rows;
}

SparseRows read_libsvm(const std::string& path, std::int64_t limit) {
  const std::vector<std::uint8_t> bytes = read_data_file(path);
  SparseRows rows =
      parse_libsvm({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path, limit);
  if (rows.labels.empty() || rows.matrix.width == 0) {
    throw ConfigError(
        fmt::format("{}: holds no rows with features; expected LABEL INDEX:VALUE ...", path));
  }
  return rows;
}

}  // namespace

Datasets load_libsvm(const std::string& path, std::int64_t train_limit, std::int64_t test_limit) {
  const std::string test_path = path + ".t";
  std::error_code ignored;
  SplitRows rows;
  if (std::filesystem::exists(test_path, ignored)) {
    rows = {read_libsvm(path, train_limit), read_libsvm(test_path, test_limit)};
  } else {
    const SparseRows all = read_libsvm(path, 0);
    if (all.labels.size() < kHoldOut) {
      throw ConfigError(
          fmt::format("{}: {} rows; without {} every tenth row tests, so at least {} are needed",
                      path, all.labels.size(), test_path, kHoldOut));
    }
    rows = hold_out(all);
    rows.train = keep_first(std::move(rows.train), train_limit);
    rows.test = keep_first(std::move(rows.test), test_limit);
  }
  const std::int64_t width = std::max(rows.train.matrix.width, rows.test.matrix.width);
  rows.train.matrix.width = rows.test.matrix.width = width;
  return {std::make_unique<SparseDataset>(std::move(rows.train)),
          std::make_unique<SparseDataset>(std::move(rows.test))};
}

std::unique_ptr<Dataset> make_sparse(std::int64_t size, const SparseShape& shape,
                                     std::uint64_t seed, Split split) {
  if (size < 1 || shape.features < 1 || shape.features > kMostFeatures || shape.nonzeros < 1 ||
      shape.nonzeros > shape.features) {
    throw ConfigError(fmt::format(
        "sparse data: {} rows, data.features = {}, data.nonzeros = {}; at least 1 of each, at most "
        "{} features, and no more nonzeros than features",
        size, shape.features, shape.nonzeros, kMostFeatures));
  }
  SparseRows rows;
  rows.matrix.width = shape.features;
  const std::uint64_t hidden = stream_key(seed, "sparse hidden");
  const std::uint64_t key =
      stream_key(seed, split == Split::train ? "sparse train" : "sparse test");
  const auto draws = static_cast<std::uint64_t>(shape.nonzeros);
  const float value = 1.0F / std::sqrt(static_cast<float>(shape.nonzeros));
  std::vector<std::uint32_t> row;
  for (std::int64_t i = 0; i < size; ++i) {
    const std::uint64_t row_key = stream_key(key, static_cast<std::uint64_t>(i));
    row.clear();
    for (std::uint64_t k = 0; k < draws; ++k) {
      const auto u = static_cast<double>(uniform01(row_key, k));
      row.push_back(static_cast<std::uint32_t>(static_cast<double>(shape.features) * u * u * u));
    }
    std::ranges::sort(row);
    row.erase(std::unique(row.begin(), row.end()), row.end());
    float product = 0.0F;
    for (const std::uint32_t column : row) {
      product += uniform01(hidden, column) - 0.5F;
    }
    const bool wrong = uniform01(row_key, draws) < kWrongLabels;
    rows.matrix.columns.insert(rows.matrix.columns.end(), row.begin(), row.end());
    rows.matrix.values.resize(rows.matrix.columns.size(), value);
    rows.matrix.begins.push_back(rows.matrix.columns.size());
    rows.labels.push_back((product > 0.0F) != wrong ? 1 : 0);
  }
  return std::make_unique<SparseDataset>(std::move(rows));
}

void write_libsvm(const Dataset& data, std::ostream& out) {
  const SparseMatrix* matrix = data.sparse();
  if (matrix == nullptr) {
    throw ConfigError("only sparse data can be written in libsvm's format");
  }
  for (std::uint32_t row = 0; row < matrix->rows(); ++row) {
    std::int32_t label = 0;
    data.gather({&row, 1}, {}, {&label, 1});
    out << (label == 1 ? "+1" : "-1");
    const auto columns = matrix->row_columns(row);
    const auto values = matrix->row_values(row);
    for (std::size_t k = 0; k < columns.size(); ++k) {
      out << fmt::format(" {}:{}", columns[k] + 1, values[k]);
    }
    out << '\n';
  }
}

}  // namespace paceline
