// SPDX-License-Identifier: Apache-2.0
// The text format of libsvm's tools.
#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <optional>

#include "common/base/error.h"
#include "common/core/logistic.h"
#include "common/data/sparse_dataset.h"

namespace paceline {

namespace {

constexpr std::string_view kBlanks = " \t\r\v\f";

/// Takes the next word off `line`; empty at its end.
std::string_view next_word(std::string_view& line) {
  line.remove_prefix(std::min(line.find_first_not_of(kBlanks), line.size()));
  const std::string_view word = line.substr(0, std::min(line.find_first_of(kBlanks), line.size()));
  line.remove_prefix(word.size());
  return word;
}

/// All of `word` as a finite number; "+1" too.
std::optional<float> finite_number(std::string_view word) {
  if (word.size() > 1 && word[0] == '+' && word[1] != '-') {
    word.remove_prefix(1);
  }
  float value = 0.0F;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  const bool whole = error == std::errc() && end == word.data() + word.size();
  return whole && std::isfinite(value) ? std::optional(value) : std::nullopt;
}

class LibsvmParser {
 public:
  explicit LibsvmParser(std::string_view what) : what_(what) {}

  void line(std::string_view text) {
    ++line_;
    text = text.substr(0, text.find('#'));
    const std::string_view label = next_word(text);
    if (label.empty()) {
      return;
    }
    rows_.labels.push_back(label_of(label));
    std::int64_t last = 0;
    for (std::string_view word = next_word(text); !word.empty(); word = next_word(text)) {
      last = feature(word, last);
    }
    rows_.matrix.width = std::max(rows_.matrix.width, last);
    rows_.matrix.begins.push_back(rows_.matrix.columns.size());
  }

  SparseRows& rows() noexcept { return rows_; }

 private:
  [[noreturn]] void fail(std::string_view word, const std::string& allowed) const {
    throw ConfigError(fmt::format("{}:{}: \"{}\": {}", what_, line_, word.substr(0, 40), allowed));
  }

  [[nodiscard]] std::uint8_t label_of(std::string_view word) const {
    const std::optional<float> label = finite_number(word);
    if (!label || (*label != 1.0F && *label != 0.0F && *label != -1.0F)) {
      fail(word, "a label must be -1, 0 or 1");
    }
    return *label == 1.0F ? 1 : 0;
  }

  /// Its index.
  std::int64_t feature(std::string_view word, std::int64_t last) {
    const std::size_t colon = word.find(':');
    std::int64_t index = 0;
    const char* const index_end = word.data() + std::min(colon, word.size());
    const auto [end, error] = std::from_chars(word.data(), index_end, index);
    if (colon == std::string_view::npos || error != std::errc() || end != index_end) {
      fail(word, "a feature must be INDEX:VALUE");
    }
    if (index < 1 || index > kMostFeatures) {
      fail(word, fmt::format("an index must be from 1 to {}", kMostFeatures));
    }
    if (index <= last) {
      fail(word, fmt::format("indices must ascend, and {} came before", last));
    }
    const std::optional<float> value = finite_number(word.substr(colon + 1));
    if (!value) {
      fail(word, "a value must be a finite number");
    }
    rows_.matrix.columns.push_back(static_cast<std::uint32_t>(index - 1));
    rows_.matrix.values.push_back(*value);
    return index;
  }

  std::string_view what_;
  std::int64_t line_ = 0;
  SparseRows rows_;
};

}  // namespace

SparseRows parse_libsvm(std::string_view text, std::string_view what, std::int64_t limit) {
  LibsvmParser parser(what);
  while (!text.empty() &&
         (limit == 0 || static_cast<std::int64_t>(parser.rows().labels.size()) < limit)) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    parser.line(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return std::move(parser.rows());
}

}  // namespace paceline
