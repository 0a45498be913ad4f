// SPDX-License-Identifier: Apache-2.0
// Runs one function per rank, each rank a thread of this process with its own Transport.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/base/abort.h"
#include "common/comm/communicator.h"
#include "common/comm/transport.h"

namespace paceline {

inline constexpr Nanoseconds kTestTimeout = std::chrono::seconds(20);

struct RankContext {
  Transport& transport;
  Communicator& workers;
  AbortToken& abort;
  [[nodiscard]] int rank() const { return transport.rank(); }
  [[nodiscard]] int size() const { return transport.size(); }
};

struct RankOptions {
  TransportOptions transport;
  int ranks_per_node = 0;
  std::string inter = "none";
  std::string intra = "none";
};

/// Runs `body` on `world` threads; returns what each rank threw (empty: nothing).
inline std::vector<std::string> run_ranks_caught(int world, const RankOptions& options,
                                                 const std::function<void(RankContext&)>& body) {
  AbortToken abort;
  auto communicators = make_thread_communicators(world, kTestTimeout.count(), abort);
  std::vector<std::string> errors(static_cast<std::size_t>(world));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back(
        [&, rank, workers = std::move(communicators[static_cast<std::size_t>(rank)])]() mutable {
          try {
            const Topology topology(world, options.ranks_per_node, 0);
            std::unique_ptr<NicFabric> fabric;
            if (options.inter != "none" || options.intra != "none") {
              fabric =
                  NicFabric::join(*workers, topology.nodes(), parse_link("inter", options.inter),
                                  parse_link("intra", options.intra));
            }
            const auto transport =
                make_transport(options.transport, *workers, topology, fabric.get(), abort);
            RankContext context{*transport, *workers, abort};
            body(context);
          } catch (const std::exception& error) {
            errors[static_cast<std::size_t>(rank)] = error.what();
          }
          workers.reset();
        });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return errors;
}

/// Likewise, and expects that no rank throws.
inline void run_ranks(int world, const RankOptions& options,
                      const std::function<void(RankContext&)>& body) {
  const std::vector<std::string> errors = run_ranks_caught(world, options, body);
  for (std::size_t rank = 0; rank < errors.size(); ++rank) {
    EXPECT_EQ(errors[rank], "") << "rank " << rank;
  }
}

/// Element j on rank r is j·stride + r (small integers, exact in f32).
inline constexpr std::size_t kStride = 3;
template <typename T>
void fill_pattern(std::span<T> values, int rank) {
  for (std::size_t j = 0; j < values.size(); ++j) {
    values[j] = static_cast<T>((j % 100'000) * kStride + static_cast<std::size_t>(rank));
  }
}

/// Bytes whose value depends on position and rank.
inline std::byte pattern_byte(std::size_t j, int rank) {
  return static_cast<std::byte>((j * kStride + (j >> 8) + static_cast<std::size_t>(rank)) & 0xff);
}
inline void fill_bytes(std::span<std::byte> bytes, int rank) {
  for (std::size_t j = 0; j < bytes.size(); ++j) {
    bytes[j] = pattern_byte(j, rank);
  }
}
/// Index of the first byte that is not `rank`'s pattern, -1 if none.
inline std::ptrdiff_t first_wrong(std::span<const std::byte> bytes, int rank) {
  for (std::size_t j = 0; j < bytes.size(); ++j) {
    if (bytes[j] != pattern_byte(j, rank)) {
      return static_cast<std::ptrdiff_t>(j);
    }
  }
  return -1;
}

}  // namespace paceline
