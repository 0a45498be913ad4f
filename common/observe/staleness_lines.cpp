// SPDX-License-Identifier: Apache-2.0
#include "common/observe/staleness_lines.h"

#include <fmt/format.h>

#include <numeric>

namespace paceline {

namespace {

std::string shares(const std::array<std::int64_t, Staleness::kBins>& histogram) {
  const auto all =
      static_cast<double>(std::accumulate(histogram.begin(), histogram.end(), std::int64_t{0}));
  std::string text;
  for (std::size_t bin = 0; bin < histogram.size(); ++bin) {
    if (histogram[bin] == 0) {
      continue;
    }
    const double percent = 100.0 * static_cast<double>(histogram[bin]) / all;
    text += fmt::format("{}{}{} {}", text.empty() ? "" : ", ", bin,
                        bin + 1 == histogram.size() ? "+" : "",
                        percent < 0.5 ? "<1%" : fmt::format("{:.0f}%", percent));
  }
  return text;
}

}  // namespace

std::string staleness_lines(const std::vector<Summary>& summaries) {
  std::string lines;
  for (const Summary& summary : summaries) {
    if (!summary.failed && summary.staleness_max > 0) {
      lines += fmt::format("{}: staleness mean {:.2f}, max {}; {}\n", summary.name,
                           summary.staleness_mean, summary.staleness_max,
                           shares(summary.staleness_histogram));
    }
  }
  return lines;
}

}  // namespace paceline
