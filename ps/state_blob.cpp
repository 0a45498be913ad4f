// SPDX-License-Identifier: Apache-2.0
#include "ps/state_blob.h"

#include <fmt/format.h>

#include <cstring>

#include "ps/bytes.h"

namespace paceline {

namespace {

constexpr std::uint8_t kFloats = 0;
constexpr std::uint8_t kInteger = 1;

// Entry: type (1 byte), name length (2), length of the data in bytes (8), name, data.
void put_entry(std::vector<std::byte>& bytes, std::uint8_t type, std::string_view name,
               std::span<const std::byte> data) {
  ByteWriter out(bytes);
  out.put(type);
  out.put(static_cast<std::uint16_t>(name.size()));
  out.put(static_cast<std::uint64_t>(data.size()));
  out.put_bytes(std::as_bytes(std::span(name.data(), name.size())));
  out.put_bytes(data);
}

}  // namespace

void StateBlobWriter::put(std::string_view name, std::span<const float> values) {
  put_entry(bytes_, kFloats, name, std::as_bytes(values));
}

void StateBlobWriter::put(std::string_view name, std::int64_t value) {
  std::vector<std::byte> data;
  ByteWriter(data).put(static_cast<std::uint64_t>(value));
  put_entry(bytes_, kInteger, name, data);
}

StateBlobReader::StateBlobReader(std::span<const std::byte> bytes) {
  ByteReader in(bytes);
  while (in.left() > 0) {
    const auto type = in.get<std::uint8_t>();
    const auto name_bytes = in.get<std::uint16_t>();
    const auto data_bytes = in.get<std::uint64_t>();
    const auto name = in.take(name_bytes);
    const auto data = in.take(data_bytes);
    const std::size_t unit = type == kInteger ? sizeof(std::uint64_t) : sizeof(float);
    if (type > kInteger || (type == kInteger ? data.size() != unit : data.size() % unit != 0)) {
      throw WireError("state: an entry of unknown type or wrong length");
    }
    entries_[std::string(reinterpret_cast<const char*>(name.data()), name.size())] = {
        data, type == kInteger};
  }
}

const StateBlobReader::Array& StateBlobReader::find(std::string_view name, bool is_integer) const {
  const auto entry = entries_.find(name);
  if (entry == entries_.end() || entry->second.is_integer != is_integer) {
    throw WireError(fmt::format("state: no {} '{}'", is_integer ? "number" : "array", name));
  }
  return entry->second;
}

void StateBlobReader::get(std::string_view name, std::span<float> values) {
  const Array& array = find(name, false);
  if (array.bytes.size() != values.size_bytes()) {
    throw WireError(fmt::format("state: '{}' has {} bytes, want {}", name, array.bytes.size(),
                                values.size_bytes()));
  }
  std::memcpy(values.data(), array.bytes.data(), array.bytes.size());
}

std::int64_t StateBlobReader::get(std::string_view name) {
  return integer(name);
}

std::int64_t StateBlobReader::integer(std::string_view name) const {
  return static_cast<std::int64_t>(load_le<std::uint64_t>(find(name, true).bytes.data()));
}

std::vector<float> StateBlobReader::floats(std::string_view name) const {
  const Array& array = find(name, false);
  std::vector<float> values(array.bytes.size() / sizeof(float));
  std::memcpy(values.data(), array.bytes.data(), array.bytes.size());
  return values;
}

}  // namespace paceline
