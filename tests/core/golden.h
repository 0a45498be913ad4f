// SPDX-License-Identifier: Apache-2.0
// Reads the files that make_golden.py writes: lines of `name value...`.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/core/model.h"

namespace paceline::test {

using Golden = std::map<std::string, std::vector<double>>;

inline Golden read_golden(const std::string& name) {
  const std::string path = std::string(PACELINE_GOLDEN_DIR) + "/" + name + ".txt";
  std::ifstream file(path);
  Golden lines;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string key;
    words >> key;
    std::vector<double>& values = lines[key];
    for (double value = 0.0; words >> value;) {
      values.push_back(value);
    }
  }
  if (lines.empty()) {
    throw std::runtime_error(path + ": missing or empty");
  }
  return lines;
}

/// A tensor against its golden summary: stride, sum, norm, largest magnitude, every stride-th
/// element.
inline void expect_summary(std::span<const float> tensor, const std::vector<double>& expected,
                           double tolerance) {
  const auto stride = static_cast<std::size_t>(expected.at(0));
  if (expected.at(2) < 1e-9) {  // a bias that BatchNorm takes out again: rounding is left
    for (const float value : tensor) {
      ASSERT_NEAR(value, 0.0F, 1e-5F);
    }
    return;
  }
  const double top = expected.at(3);
  double sum = 0.0;
  double squares = 0.0;
  std::size_t compared = 0;
  for (std::size_t i = 0; i < tensor.size(); ++i) {
    const double value = static_cast<double>(tensor[i]);
    sum += value;
    squares += value * value;
    if (i % stride == 0) {
      ASSERT_NEAR(value, expected.at(4 + i / stride), tolerance * top) << "element " << i;
      ++compared;
    }
  }
  EXPECT_EQ(compared, expected.size() - 4);
  EXPECT_NEAR(std::sqrt(squares), expected.at(2), tolerance * expected.at(2));
  EXPECT_NEAR(sum, expected.at(1), tolerance * top * std::sqrt(static_cast<double>(tensor.size())));
}

inline void expect_gradients(const Model& model, std::span<const float> gradients,
                             const Golden& golden, double tolerance) {
  for (const Parameter& parameter : model.parameters()) {
    SCOPED_TRACE(parameter.name);
    expect_summary(gradients.subspan(parameter.range.begin, parameter.range.size()),
                   golden.at(parameter.name), tolerance);
  }
}

}  // namespace paceline::test
