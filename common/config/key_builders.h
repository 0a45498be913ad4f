// SPDX-License-Identifier: Apache-2.0
// How rows of the table of keys are written, and the parts that it is made of.
#pragma once

#include <cstdint>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "common/config/schema.h"

namespace paceline::keys {

// Where a key's value lives: a member of Config, or of one of its groups.

template <auto Member>
auto& top(Config& config) {
  return config.*Member;
}
template <auto Group, auto Member>
auto& in(Config& config) {
  return config.*Group.*Member;
}

inline Key boolean(std::string_view name, KeyField field, std::string_view help) {
  return {name, KeyKind::boolean, field, 0, 0, {}, {}, help};
}
inline Key integer(std::string_view name, KeyField field, std::int64_t low, std::int64_t high,
                   std::string_view help) {
  return {name, KeyKind::integer, field, low, high, {}, {}, help};
}
inline Key number(std::string_view name, KeyField field, NumberBounds bounds,
                  std::string_view help) {
  return {name, KeyKind::number, field, 0, 0, bounds, {}, help};
}
inline Key text(std::string_view name, KeyField field, std::string_view help) {
  return {name, KeyKind::text, field, 0, 0, {}, {}, help};
}
inline Key choice(std::string_view name, KeyField field, std::vector<std::string_view> choices,
                  std::string_view help) {
  return {name, KeyKind::choice, field, 0, 0, {}, std::move(choices), help};
}
inline Key size(std::string_view name, KeyField field, std::int64_t low, std::int64_t high,
                std::string_view help) {
  return {name, KeyKind::size, field, low, high, {}, {}, help};
}
inline Key duration(std::string_view name, KeyField field, Nanoseconds low, Nanoseconds high,
                    std::string_view help) {
  return {name, KeyKind::duration, field, low.count(), high.count(), {}, {}, help};
}

inline constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
inline constexpr std::int64_t kGiB = std::int64_t{1} << 30;
inline constexpr std::int64_t kBillion = 1'000'000'000;
inline constexpr std::int64_t kTrillion = 1'000 * kBillion;

// Each appends its keys, in the order in which they are printed.

void add_general(std::vector<Key>& keys);
void add_model(std::vector<Key>& keys);
void add_training(std::vector<Key>& keys);
void add_technique(std::vector<Key>& keys);
void add_communication(std::vector<Key>& keys);
void add_machine(std::vector<Key>& keys);

}  // namespace paceline::keys
