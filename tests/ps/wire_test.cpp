// SPDX-License-Identifier: Apache-2.0
#include "ps/wire.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "ps/bytes.h"
#include "ps/job_description.h"
#include "ps/server_state.h"
#include "ps/state_blob.h"

namespace paceline {
namespace {

using Frame = std::array<std::byte, kHeaderBytes>;

Header full_header() {
  Header header;
  header.kind = MessageKind::weights;
  header.flags = kFlagStamped | kFlagPulled;
  header.worker = 0x01020304;
  header.server = 0x0a0b0c0d;
  header.key = 0x11223344;
  header.nonce = 0x8877665544332211;
  header.payload_bytes = 4096;
  header.sequence = 77;
  header.clock = 1U << 31;
  header.version = std::uint64_t{1} << 40;
  header.staleness = 3;
  header.samples = 64;
  header.lr = 0.125F;
  header.held_ns = 123456789;
  header.arrive_ns = -5;
  header.step = 12345;
  return header;
}

Frame encoded(const Header& header) {
  Frame frame;
  encode(header, frame);
  return frame;
}

TEST(Wire, EveryFieldSurvives) {
  const Header header = full_header();
  EXPECT_EQ(decode(encoded(header), header.payload_bytes), header);
}

TEST(Wire, IsLittleEndian) {
  const Frame frame = encoded(full_header());
  EXPECT_EQ(frame[0], std::byte{'P'});
  EXPECT_EQ(frame[1], std::byte{'C'});
  EXPECT_EQ(frame[12], std::byte{0x04}) << "low byte of `worker` first";
  EXPECT_EQ(frame[15], std::byte{0x01});
}

TEST(Wire, RefusesWhatIsNotAHeader) {
  const Frame good = encoded(full_header());
  const auto refuses = [&](const char* what, const std::function<void(Frame&)>& damage) {
    Frame frame = good;
    damage(frame);
    EXPECT_THROW(static_cast<void>(decode(frame, 4096)), WireError) << what;
  };
  refuses("magic", [](Frame& f) { f[3] ^= std::byte{1}; });
  refuses("version", [](Frame& f) { f[4] = std::byte{9}; });
  refuses("kind 0", [](Frame& f) { f[6] = std::byte{0}; });
  refuses("kind too large", [](Frame& f) { f[6] = std::byte{kMessageKinds + 1}; });
  refuses("element type", [](Frame& f) { f[7] = std::byte{7}; });
  refuses("unknown flag", [](Frame& f) { f[9] = std::byte{0x80}; });
  refuses("reserved bytes after flags", [](Frame& f) { f[11] = std::byte{1}; });
  refuses("reserved bytes after the rate", [](Frame& f) { f[85] = std::byte{1}; });
  refuses("reserved bytes at the end", [](Frame& f) { f[127] = std::byte{1}; });
  refuses("rate is NaN", [](Frame& f) {
    store_le(f.data() + 80, std::bit_cast<std::uint32_t>(std::numeric_limits<float>::quiet_NaN()));
  });
  refuses("announced length", [](Frame& f) { store_le(f.data() + 32, ~std::uint64_t{0}); });
  EXPECT_THROW(static_cast<void>(decode(std::span(good).first(127), 4096)), WireError);
  EXPECT_THROW(static_cast<void>(decode(good, 4095)), WireError);
}

TEST(Wire, ChecksLengthsByKind) {
  Header header;
  header.kind = MessageKind::push;
  header.payload_bytes = 6;
  EXPECT_THROW(static_cast<void>(decode(encoded(header), 6)), WireError) << "no whole floats";
  header.payload_bytes = kMaxPayloadBytes + 4;
  EXPECT_THROW(static_cast<void>(decode(encoded(header), header.payload_bytes)), WireError);
  header.kind = MessageKind::pull;
  header.payload_bytes = 8;
  EXPECT_THROW(static_cast<void>(decode(encoded(header), 8)), WireError) << "carries no payload";
}

JobDescription some_job() {
  JobDescription job;
  job.world = 3;
  job.servers = 2;
  job.rule = {Consistency::bounded_stale, 4};
  job.optimizer.kind = OptimizerKind::adam;
  job.optimizer.weight_decay = 0.25F;
  job.buckets = {10, 0, 1'000'000};
  return job;
}

TEST(JobDescription, SurvivesAndNamesTheFirstDifference) {
  const JobDescription job = some_job();
  EXPECT_FALSE(difference(job, decode_job(encode(job))));
  JobDescription other = job;
  other.world = 4;
  EXPECT_EQ(difference(job, other), "world is 4, here 3");
  other = job;
  other.optimizer.momentum = 0.5F;
  EXPECT_EQ(difference(job, other), "optimizer.momentum is 0.5, here 0");
  other = job;
  other.buckets[2] = 999'999;
  EXPECT_EQ(difference(job, other), "size of bucket 2 is 999999, here 1000000");
  other = job;
  other.format.compress.method = "topk";
  EXPECT_EQ(difference(job, decode_job(encode(other))), "compress.method is topk, here none");
  other = job;
  other.format.compress.density = 0.5;
  EXPECT_EQ(difference(job, decode_job(encode(other))), "compress.density is 0.5, here 0.01");
  other = job;
  other.format.wire = "bf16";
  EXPECT_EQ(difference(job, decode_job(encode(other))), "sync.wire is bf16, here fp32");
  other = job;
  other.format.seed = 7;
  EXPECT_EQ(difference(job, decode_job(encode(other))), "seed is 7, here 1");
}

TEST(JobDescription, RefusesTruncatedAndAbsurdOnes) {
  const auto bytes = encode(some_job());
  for (std::size_t n = 0; n < bytes.size(); ++n) {
    if (n < bytes.size() - 3 * 8 || (bytes.size() - n) % 8 != 0) {
      EXPECT_THROW(static_cast<void>(decode_job(std::span(bytes).first(n))), WireError) << n;
    }
  }
  JobDescription job = some_job();
  job.format.compress.density = 1.5;
  EXPECT_THROW(static_cast<void>(decode_job(encode(job))), WireError);
  job = some_job();
  job.format.compress.levels = 0;
  EXPECT_THROW(static_cast<void>(decode_job(encode(job))), WireError);
  job = some_job();
  job.format = {{.method = "topk"}, "fp16", 1};
  EXPECT_THROW(static_cast<void>(decode_job(encode(job))), WireError);
  auto huge = bytes;
  store_le(huge.data() + huge.size() - 8, std::uint64_t{1} << 60);
  EXPECT_THROW(static_cast<void>(decode_job(huge)), WireError);
}

TEST(StateBlob, SurvivesAndRefusesDamage) {
  StateBlobWriter writer;
  const std::vector<float> values{1.0F, -2.5F, 3.0F};
  writer.put("velocity", values);
  writer.put("version", -7);
  StateBlobReader reader(writer.bytes());
  std::vector<float> read(3);
  reader.get("velocity", read);
  EXPECT_EQ(read, values);
  EXPECT_EQ(reader.get("version"), -7);
  std::vector<float> short_by_one(2);
  EXPECT_THROW(reader.get("velocity", short_by_one), WireError);
  EXPECT_THROW(static_cast<void>(reader.get("velocity")), WireError) << "an array is no number";
  EXPECT_THROW(static_cast<void>(reader.get("moment")), WireError);
  const auto& bytes = writer.bytes();
  EXPECT_THROW(StateBlobReader(std::span(bytes).first(bytes.size() - 1)), WireError);
}

/// Random damage to random messages: a server answers each with an error or takes it, and goes on.
void survive_random_damage(const GradientFormat& format) {
  std::mt19937_64 random(20240501);
  const ServerIdentity identity{0, 1, 2, 42, {}, false, format};
  ServerState server(identity, make_policy(identity.rule));
  JobDescription job;
  job.world = 2;
  job.buckets = {100, 7};
  job.format = format;
  std::vector<Outgoing> out;
  Header hello;
  hello.nonce = 42;
  server.on_message(hello, Payload::copy_of(encode(job)), 0, out);
  ASSERT_EQ(out.at(0).header.kind, MessageKind::welcome);
  std::size_t taken = 0;
  std::size_t refused = 0;
  for (int i = 0; i < 30'000; ++i) {
    Header header;
    header.kind = static_cast<MessageKind>(1 + random() % kMessageKinds);
    header.nonce = random() % 8 == 0 ? random() : 42;
    header.worker = static_cast<std::uint32_t>(random() % 3);
    header.key = static_cast<std::uint32_t>(random() % 3);
    header.clock = random() % 3;
    header.version = random() % 3;
    header.samples = random() % 3;
    header.flags = format.codec() && random() % 8 != 0 ? kFlagEncoded : 0;
    if (header.kind == MessageKind::goodbye && random() % 512 != 0) {
      continue;  // else nobody is left soon
    }
    std::vector<std::byte> payload(random() % 4 == 0 ? random() % 500
                                                     : (header.key == 0 ? 400 : 28));
    for (std::byte& byte : payload) {
      byte = static_cast<std::byte>(random() % 251);
    }
    header.payload_bytes = payload.size();
    Frame frame = encoded(header);
    if (random() % 4 == 0) {
      frame[random() % frame.size()] ^= static_cast<std::byte>(1U << (random() % 8));
    }
    out.clear();
    try {
      const Header received = decode(frame, payload.size());
      server.on_message(received, Payload::copy_of(payload), i, out);
      ++taken;
    } catch (const WireError&) {
      ++refused;
    }
    for (const Outgoing& answer : out) {
      EXPECT_EQ(answer.header.payload_bytes, answer.payload.size());
    }
  }
  EXPECT_GT(taken, 1000U);
  EXPECT_GT(refused, 1000U);
}

TEST(Wire, AServerSurvivesRandomDamage) {
  survive_random_damage({});
}

TEST(Wire, AServerWithACodecSurvivesRandomDamage) {
  for (const char* method : {"topk", "threshold", "sign", "qsgd"}) {
    survive_random_damage({{.method = method, .density = 0.1}, "fp32", 1});
  }
}

}  // namespace
}  // namespace paceline
