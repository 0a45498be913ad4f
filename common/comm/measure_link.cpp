// SPDX-License-Identifier: Apache-2.0
#include "common/comm/measure_link.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "common/base/buffer.h"
#include "common/base/error.h"
#include "common/base/median.h"

namespace paceline {

namespace {

constexpr std::size_t kMostBytes = std::size_t{4} << 20;
constexpr double kMostSeconds = 0.5;
constexpr int kRoundTrips = 11;
constexpr int kTransfers = 3;

void send(Transport& transport, int peer, std::span<const std::byte> data,
          const Deadline& deadline) {
  transport.wait(transport.isend(peer, data), deadline);
}

void receive(Transport& transport, int peer, std::span<std::byte> data, const Deadline& deadline) {
  transport.wait(transport.irecv(peer, data, Arrival::copy()), deadline);
}

/// Time of one empty round trip after sending `data`, on the rank that sends first.
double timed_round(Transport& transport, int peer, std::span<const std::byte> data,
                   const Deadline& deadline) {
  const std::int64_t begin = now_ns();
  send(transport, peer, data, deadline);
  receive(transport, peer, {}, deadline);
  return seconds(now_ns() - begin);
}

LinkMeasurement drive(Transport& transport, int peer, std::span<const std::byte> data,
                      const Deadline& deadline) {
  const std::int64_t begin = now_ns();
  std::vector<double> round_trips;
  for (int i = 0; i < kRoundTrips; ++i) {
    round_trips.push_back(timed_round(transport, peer, {}, deadline));
  }
  LinkMeasurement result;
  result.round_trip_s = median(round_trips);
  double transfer_s = timed_round(transport, peer, data, deadline);
  for (int i = 1; i < kTransfers; ++i) {
    transfer_s = std::min(transfer_s, timed_round(transport, peer, data, deadline));
  }
  transfer_s -= *std::min_element(round_trips.begin(), round_trips.end());
  result.bytes_per_second = static_cast<double>(data.size()) / std::max(transfer_s, 1e-9);
  result.took_s = seconds(now_ns() - begin);
  return result;
}

}  // namespace

std::size_t measurement_bytes(double expected_bytes_per_second) noexcept {
  if (expected_bytes_per_second <= 0.0) {
    return kMostBytes;
  }
  const double wanted = expected_bytes_per_second * kMostSeconds / kTransfers;
  const auto pieces = static_cast<std::size_t>(std::min(wanted, static_cast<double>(kMostBytes)) /
                                               static_cast<double>(kNicPieceBytes));
  return std::max<std::size_t>(pieces, 1) * kNicPieceBytes;
}

LinkMeasurement measure_link(Transport& transport, int from, int to,
                             double expected_bytes_per_second, const Deadline& deadline) {
  const int self = transport.rank();
  if (from == to || (self != from && self != to)) {
    throw Error(
        fmt::format("rank {} cannot measure the link from rank {} to rank {}", self, from, to));
  }
  const Buffer data(measurement_bytes(expected_bytes_per_second));
  const std::span<std::byte> bytes{data.data(), data.size()};
  LinkMeasurement result;
  const auto result_bytes = std::as_writable_bytes(std::span(&result, 1));
  if (self == from) {
    result = drive(transport, to, bytes, deadline);
    send(transport, to, result_bytes, deadline);
    return result;
  }
  for (int i = 0; i < kRoundTrips + kTransfers; ++i) {
    receive(transport, from, i < kRoundTrips ? std::span<std::byte>{} : bytes, deadline);
    send(transport, from, {}, deadline);
  }
  receive(transport, from, result_bytes, deadline);
  return result;
}

}  // namespace paceline
