// SPDX-License-Identifier: Apache-2.0
#include "common/observe/event_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <chrono>
#include <system_error>

#include "common/base/error.h"

namespace paceline {

namespace {

constexpr std::array<std::uint32_t, 256> make_crc_table() {
  constexpr std::uint32_t kReversedPolynomial = 0x82F63B78U;
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1U) ^ ((crc & 1U) != 0 ? kReversedPolynomial : 0U);
    }
    table[byte] = crc;
  }
  return table;
}

constexpr auto kCrcTable = make_crc_table();

/// Little-endian, whatever the machine.
template <typename T>
void append_fixed(std::string& out, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    out += static_cast<char>(static_cast<unsigned char>(value >> (8 * i)));
  }
}

// ---- protobuf: a field is its number and wire type, then its value

enum WireType : std::uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void append_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80U; value >>= 7U) {
    out += static_cast<char>(static_cast<unsigned char>(value | 0x80U));
  }
  out += static_cast<char>(static_cast<unsigned char>(value));
}
void append_tag(std::string& out, unsigned field, WireType type) {
  append_varint(out, (field << 3U) | type);
}
void append_int(std::string& out, unsigned field, std::int64_t value) {
  append_tag(out, field, kVarint);
  append_varint(out, static_cast<std::uint64_t>(value));
}
void append_double(std::string& out, unsigned field, double value) {
  append_tag(out, field, kFixed64);
  append_fixed(out, std::bit_cast<std::uint64_t>(value));
}
void append_float(std::string& out, unsigned field, float value) {
  append_tag(out, field, kFixed32);
  append_fixed(out, std::bit_cast<std::uint32_t>(value));
}
void append_bytes(std::string& out, unsigned field, std::string_view bytes) {
  append_tag(out, field, kBytes);
  append_varint(out, bytes.size());
  out += bytes;
}

std::size_t varint_length(std::uint64_t value) {
  std::size_t length = 1;
  for (; value >= 0x80U; value >>= 7U) ++length;
  return length;
}

void append_value(std::string& out, const Scalar& scalar) {
  constexpr std::size_t kSimpleValue = 1 + sizeof(float);
  const std::size_t size = 1 + varint_length(scalar.tag.size()) + scalar.tag.size() + kSimpleValue;
  append_tag(out, 1, kBytes);
  append_varint(out, size);
  append_bytes(out, 1, scalar.tag);
  append_float(out, 2, scalar.value);
}

double wall_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::filesystem::path event_path(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    throw Error(fmt::format("cannot make {}: {}", folder.string(), error.message()));
  }
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0 || host[0] == '\0') host = {"localhost"};
  return folder / fmt::format("events.out.tfevents.{:010}.{}",
                              static_cast<std::int64_t>(wall_time()), host.data());
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) noexcept {
  std::uint32_t crc = 0xFFFFFFFFU;
  for (const char c : bytes) {
    crc = (crc >> 8U) ^ kCrcTable[(crc ^ static_cast<unsigned char>(c)) & 0xFFU];
  }
  return crc ^ 0xFFFFFFFFU;
}

std::uint32_t masked_crc32c(std::string_view bytes) noexcept {
  return std::rotr(crc32c(bytes), 15) + 0xa282ead8U;
}

EventFile::EventFile(const std::filesystem::path& folder) : file_(event_path(folder)) {
  append_double(event_, 1, wall_time());
  append_bytes(event_, 3, "brain.Event:2");
  append_record();
}

void EventFile::add(std::int64_t step, std::span<const Scalar> scalars) {
  summary_.clear();
  for (const Scalar& scalar : scalars) append_value(summary_, scalar);
  event_.clear();
  append_double(event_, 1, wall_time());
  append_int(event_, 2, step);
  append_bytes(event_, 5, summary_);
  append_record();
}

void EventFile::append_record() {
  std::string& out = file_.buffer();
  const std::size_t begin = out.size();
  append_fixed(out, static_cast<std::uint64_t>(event_.size()));
  append_fixed(out, masked_crc32c(std::string_view(out).substr(begin)));
  out += event_;
  append_fixed(out, masked_crc32c(event_));
  file_.written();
}

}  // namespace paceline
