// SPDX-License-Identifier: Apache-2.0
// The table of `paceline compare`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/observe/summary.h"

namespace paceline {

enum class TableFormat : std::uint8_t { text, markdown, csv };

/// One row per summary, in order: run, workers, samples/s, speed-up and efficiency against single,
/// compute / exposed communication / wait per step, the rank that was waited for with its share of
/// all ranks' wait (where waiting is over 5% of some run's step), bytes sent per rank and step,
/// test accuracy, time to the target accuracy, and "host-bound" where the ranks could not keep the
/// emulated device's pace or "FAILED" (CSV: host_bound is true, false or failed). Unknown values
/// are "-" (empty in CSV). CSV has plain numbers in SI units; text and Markdown round for reading.
/// Ends with a newline.
[[nodiscard]] std::string compare_table(const std::vector<Summary>& summaries, TableFormat format);

/// "1.5 MB", "312 B" (powers of 1000).
[[nodiscard]] std::string human_bytes(double bytes);

}  // namespace paceline
