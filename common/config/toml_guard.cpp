// SPDX-License-Identifier: Apache-2.0
#include "common/config/toml_guard.h"

#include <algorithm>

#include "common/config/value_text.h"

namespace paceline {
namespace {

/// Walks over TOML's tokens only as far as needed to tell where strings and comments are. Up to the
/// first syntax error it sees the same strings and comments as a parser.
class Scanner {
 public:
  explicit Scanner(std::string_view text) noexcept : text_(text) {}

  [[nodiscard]] std::optional<std::size_t> find() noexcept {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '#') {
        if (const auto bad = skip_comment()) return bad;
      } else if (c == '"' || c == '\'') {
        const bool multi_line = quotes(c) >= 3;
        if (const auto bad = multi_line ? skip_multi_line(c) : skip_string(c)) return bad;
      } else if (!ascii(c)) {
        return at_;
      } else {
        ++at_;
      }
    }
    return std::nullopt;
  }

 private:
  [[nodiscard]] static bool ascii(char c) noexcept { return static_cast<unsigned char>(c) < 0x80; }
  /// Quotes of this kind from here on, at most `most`.
  [[nodiscard]] std::size_t quotes(char quote, std::size_t most = 3) const noexcept {
    std::size_t count = 0;
    while (count < most && at_ + count < text_.size() && text_[at_ + count] == quote) ++count;
    return count;
  }
  /// Where [begin, at_) stops being valid UTF-8. Control characters are left to the parser.
  [[nodiscard]] std::optional<std::size_t> invalid_since(std::size_t begin) const noexcept {
    std::size_t i = begin;
    while (i < at_) {
      if (ascii(text_[i])) {
        ++i;
        continue;
      }
      const std::size_t length = utf8_length(text_.substr(i, at_ - i));
      if (length == 0) return i;
      i += length;
    }
    return std::nullopt;
  }

  std::optional<std::size_t> skip_comment() noexcept {
    const std::size_t begin = at_;
    at_ = std::min(text_.find('\n', at_), text_.size());
    return invalid_since(begin);
  }

  std::optional<std::size_t> skip_string(char quote) noexcept {
    const std::size_t begin = at_++;
    while (at_ < text_.size() && text_[at_] != quote && text_[at_] != '\n') {
      const bool escape = quote == '"' && text_[at_] == '\\' && at_ + 1 < text_.size();
      at_ += escape && text_[at_ + 1] != '\n' ? 2 : 1;
    }
    if (at_ < text_.size()) ++at_;
    return invalid_since(begin);
  }

  std::optional<std::size_t> skip_multi_line(char quote) noexcept {
    at_ += 3;
    while (at_ < text_.size() && quotes(quote) < 3) {
      if (!ascii(text_[at_])) return at_;
      const bool escape =
          quote == '"' && text_[at_] == '\\' && at_ + 1 < text_.size() && ascii(text_[at_ + 1]);
      at_ += escape ? 2 : 1;
    }
    at_ += quotes(quote, 5);  // two more quotes may belong to the text
    return std::nullopt;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace

std::optional<std::size_t> find_unsafe_byte(std::string_view text) noexcept {
  return Scanner(text).find();
}

}  // namespace paceline
