// SPDX-License-Identifier: Apache-2.0
#include "experiments/commands.h"

namespace paceline {
void add_bench_command(CLI::App& /*program*/, Action& /*action*/) {}
}  // namespace paceline
