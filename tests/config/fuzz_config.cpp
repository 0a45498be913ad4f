// SPDX-License-Identifier: Apache-2.0
// libFuzzer target: any text is either refused with a one-line ConfigError or gives a Config that
// prints to TOML and reads back the same.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "common/base/error.h"
#include "common/config/config_file.h"
#include "common/config/print.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    const std::string printed = paceline::to_toml(paceline::parse_config(text, "fuzz"));
    if (paceline::to_toml(paceline::parse_config(printed, "printed")) != printed) std::abort();
  } catch (const paceline::ConfigError& error) {
    if (std::string(error.what()).find('\n') != std::string::npos) std::abort();
  }
  try {
    (void)paceline::parse_compare(text, "fuzz");
  } catch (const paceline::ConfigError&) {
  }
  try {
    paceline::Config config;
    paceline::apply_override(config, text);
  } catch (const paceline::ConfigError&) {
  }
  return 0;
}
