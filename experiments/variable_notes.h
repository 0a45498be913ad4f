// SPDX-License-Identifier: Apache-2.0
// What the environment variables of NCCL, OpenMP and the other libraries do to a run, for
// `paceline doctor`.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace paceline {

struct VariableNote {
  std::string name;
  std::string value;
  std::string meaning;  ///< what the variable does
  std::string warning;  ///< empty: nothing to warn of
};

/// The note on one variable that is set. A name that is not known says so; for NCCL_* it also names
/// the nearest known one.
[[nodiscard]] VariableNote explain_variable(std::string_view name, std::string_view value);

/// Notes on every NCCL_* variable and on those of the others that are known, by name.
[[nodiscard]] std::vector<VariableNote> explain_variables(
    const std::map<std::string, std::string>& variables);

}  // namespace paceline
