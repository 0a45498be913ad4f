// SPDX-License-Identifier: Apache-2.0
// Reads the files that make_golden.py writes: lines of `name value...`.
#pragma once

#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace paceline::test {

inline std::map<std::string, std::vector<double>> read_golden(const std::string& name) {
  const std::string path = std::string(PACELINE_GOLDEN_DIR) + "/" + name + ".txt";
  std::ifstream file(path);
  std::map<std::string, std::vector<double>> lines;
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

}  // namespace paceline::test
