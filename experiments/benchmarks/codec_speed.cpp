// SPDX-License-Identifier: Apache-2.0
// Times the compressors on one core: GB/s of fp32 gradient that encode, decode_add and
// error feedback's encode take, each the best of several runs. Prints a table.
//   paceline_bench_codecs [SECONDS_PER_ROW]
#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "common/base/buffer.h"
#include "common/base/time.h"
#include "common/compress/error_feedback.h"

namespace paceline {
namespace {

/// Best GB/s of `bytes` per call within `budget_ns`; `prepare` before each call is not timed.
template <typename F, typename P>
double rate(std::size_t bytes, std::int64_t budget_ns, F call, P prepare) {
  prepare();
  call();
  std::int64_t best = INT64_MAX;
  const std::int64_t end = now_ns() + budget_ns;
  do {
    prepare();
    const std::int64_t begin = now_ns();
    call();
    best = std::min(best, now_ns() - begin);
  } while (now_ns() < end);
  return static_cast<double>(bytes) / static_cast<double>(best);
}

struct Arrays {
  explicit Arrays(std::size_t bytes)
      : gradient(bytes), sum(bytes), scratch(bytes), message(2 * bytes + 4096) {
    std::mt19937 engine(1);
    std::normal_distribution<float> normal(0.0F, 1e-3F);
    std::ranges::generate(gradient.as<float>(), [&] { return normal(engine); });
  }
  Buffer gradient;
  Buffer sum;
  Buffer scratch;
  Buffer message;
};

void run(const std::string& method, Arrays& arrays, std::int64_t budget_ns) {
  CompressConfig config;
  config.method = method;
  config.threshold = 2.5758e-3;  // of 1% of the elements
  const auto codec = make_codec(config, "fp32");
  const auto gradient = arrays.gradient.as<float>();
  const std::size_t bytes = gradient.size_bytes();
  const std::span out(arrays.message.data(), codec->max_bytes(gradient.size()));
  std::size_t length = 0;
  const auto nothing = [] {};
  const double encode = rate(
      bytes, budget_ns, [&] { length = codec->encode(gradient, {}, out); }, nothing);
  Aggregate aggregate;
  const double decode = rate(
      bytes, budget_ns,
      [&] {
        codec->decode_add(std::span<const std::byte>(out).first(length), {}, arrays.sum.as<float>(),
                          aggregate);
      },
      nothing);
  ErrorFeedback feedback(gradient.size(), true);
  std::int64_t step = 0;
  const double with_feedback = rate(
      bytes, budget_ns,
      [&] {
        static_cast<void>(
            feedback.encode(*codec, arrays.scratch.as<float>(), {.step = step++}, out));
      },
      [&] { std::ranges::copy(gradient, arrays.scratch.as<float>().begin()); });
  fmt::print("{:<10} {:>8.2f} {:>9.2f} {:>9.2f} {:>12.2f} {:>14.3f}\n", method,
             static_cast<double>(bytes) / (1 << 20), encode, decode, with_feedback,
             static_cast<double>(length) / static_cast<double>(bytes));
}

}  // namespace
}  // namespace paceline

int main(int argc, char** argv) {
  using namespace paceline;
  const double seconds_per_row = argc > 1 ? std::stod(argv[1]) : 0.6;
  const auto budget = static_cast<std::int64_t>(seconds_per_row / 3 * 1e9);
  fmt::print("{:<10} {:>8} {:>9} {:>9} {:>12} {:>14}\n", "codec", "MiB", "encode", "decode",
             "encode+ef", "message/input");
  fmt::print("{:<10} {:>8} {:>9} {:>9} {:>12}\n", "", "", "GB/s", "GB/s", "GB/s");
  for (const std::size_t mebibytes : {1U, 4U, 25U}) {
    Arrays arrays(mebibytes << 20U);
    for (const char* method :
         {"fp16", "bf16", "topk", "randomk", "threshold", "onebit", "sign", "qsgd"}) {
      run(method, arrays, budget);
    }
  }
}
