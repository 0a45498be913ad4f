// SPDX-License-Identifier: Apache-2.0
// libFuzzer: any bytes as messages to a server that knows its job. Build with clang and
// -DPACELINE_FUZZ=ON; input: records of a header frame, a payload length (2 bytes) and the payload;
// the last byte chooses the codec.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "ps/bytes.h"
#include "ps/client_state.h"
#include "ps/job_description.h"
#include "ps/paced_link.h"
#include "ps/server_state.h"

namespace {

using namespace paceline;

constexpr std::uint64_t kNonce = 1;

GradientFormat make_format(std::uint8_t choice) {
  const std::array methods{"none", "topk", "randomk", "threshold", "onebit", "sign", "qsgd"};
  GradientFormat format;
  format.compress.method = methods[choice % methods.size()];
  format.compress.density = 0.5;
  format.wire = choice == 0xFF && format.compress.method == "none" ? "fp16" : "fp32";
  return format;
}

ServerState make_server(const GradientFormat& format) {
  const ServerIdentity identity{0, 1, 2, kNonce, {Consistency::bounded_stale, 1}, false, format};
  return {identity, make_policy(identity.rule)};
}

/// Sets the nonce, which no fuzzer guesses.
std::vector<std::byte> with_nonce(std::span<const std::byte> frame) {
  std::vector<std::byte> result(frame.begin(), frame.end());
  store_le(result.data() + 24, kNonce);
  return result;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::span<const std::byte> input(reinterpret_cast<const std::byte*>(data), size);
  const GradientFormat format = make_format(size == 0 ? 0 : data[size - 1]);
  ServerState server = make_server(format);
  JobDescription job;
  job.world = 2;
  job.rule = {Consistency::bounded_stale, 1};
  job.buckets = {3, 5};
  job.format = format;
  const Partition partition(BucketPlan(job.buckets), 1);
  ClientState client(0, kNonce, partition);
  ArrivalQueue arrivals;
  std::vector<Outgoing> out;
  const auto bytes = encode(job);
  server.on_message(client.to_server(MessageKind::hello, 0, bytes.size()), Payload::copy_of(bytes),
                    0, out);
  while (input.size() > kHeaderBytes + 2) {
    const auto frame = with_nonce(input.first(kHeaderBytes));
    const std::size_t length = std::min<std::size_t>(load_le<std::uint16_t>(&input[kHeaderBytes]),
                                                     input.size() - kHeaderBytes - 2);
    const auto payload = input.subspan(kHeaderBytes + 2, length);
    input = input.subspan(kHeaderBytes + 2 + length);
    out.clear();
    try {
      const Header header = decode(frame, payload.size());
      arrivals.put({static_cast<int>(header.worker % 2), header, Payload::copy_of(payload)});
      while (auto message = arrivals.next(1'000'000)) {
        server.on_message(message->header, std::move(message->payload), 0, out);
      }
      client.on_answer(0, header, Payload::copy_of(payload));
    } catch (const Error&) {
      continue;
    }
    for (const Outgoing& answer : out) {
      if (answer.header.payload_bytes != answer.payload.size() ||
          answer.header.version > std::uint64_t{1} << 63) {
        std::abort();
      }
    }
  }
  try {
    static_cast<void>(decode_job({reinterpret_cast<const std::byte*>(data), size}));
  } catch (const Error&) {
    return 0;
  }
  return 0;
}
