// SPDX-License-Identifier: Apache-2.0
// libFuzzer target: libsvm's text.
#include <cstdint>

#include "common/base/error.h"
#include "common/data/sparse_dataset.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    static_cast<void>(
        paceline::parse_libsvm({reinterpret_cast<const char*>(data), size}, "fuzz input"));
  } catch (const paceline::ConfigError&) {  // what a bad file is meant to end in
  }
  return 0;
}
