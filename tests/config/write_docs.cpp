// SPDX-License-Identifier: Apache-2.0
// Writes docs/configuration.md from the table of keys: write_config_docs FILE.
#include <cstdio>
#include <fstream>

#include "common/config/print.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: write_config_docs FILE\n", stderr);
    return 2;
  }
  std::ofstream out(argv[1]);
  out << paceline::configuration_markdown();
  return out.flush() ? 0 : 1;
}
