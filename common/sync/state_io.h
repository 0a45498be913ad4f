// SPDX-License-Identifier: Apache-2.0
// Named arrays in and out of a checkpoint. Who implements them decides the file format.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace paceline {

class StateWriter {
 public:
  StateWriter() = default;
  virtual ~StateWriter() = default;
  StateWriter(const StateWriter&) = delete;
  StateWriter& operator=(const StateWriter&) = delete;
  /// Copies `values`; names are unique within one checkpoint and rank.
  virtual void put(std::string_view name, std::span<const float> values) = 0;
  virtual void put(std::string_view name, std::int64_t value) = 0;
};

class StateReader {
 public:
  StateReader() = default;
  virtual ~StateReader() = default;
  StateReader(const StateReader&) = delete;
  StateReader& operator=(const StateReader&) = delete;
  /// Fills `values`; throws Error naming the array when it is missing or of another length.
  virtual void get(std::string_view name, std::span<float> values) = 0;
  [[nodiscard]] virtual std::int64_t get(std::string_view name) = 0;
};

}  // namespace paceline
