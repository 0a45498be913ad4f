// SPDX-License-Identifier: Apache-2.0
// A rank's checkpoint in memory.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/sync/state_io.h"

namespace paceline::testing {

class Checkpoint final : public StateWriter, public StateReader {
 public:
  void put(std::string_view name, std::span<const float> values) override {
    EXPECT_TRUE(arrays_.emplace(name, std::vector<float>(values.begin(), values.end())).second);
  }
  void put(std::string_view name, std::int64_t value) override {
    EXPECT_TRUE(numbers_.emplace(name, value).second);
  }
  void get(std::string_view name, std::span<float> values) override {
    std::ranges::copy(arrays_.at(std::string(name)), values.begin());
  }
  std::int64_t get(std::string_view name) override { return numbers_.at(std::string(name)); }

 private:
  std::map<std::string, std::vector<float>> arrays_;
  std::map<std::string, std::int64_t> numbers_;
};

}  // namespace paceline::testing
