// SPDX-License-Identifier: Apache-2.0
// libFuzzer target: build with clang and -DPACELINE_FUZZ=ON, run paceline_fuzz_idx [corpus].
#include "tests/data/idx_entry.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static_cast<void>(paceline::test::run_parse_idx({data, size}));
  return 0;
}
