// SPDX-License-Identifier: Apache-2.0
#include "common/observe/compare_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <optional>
#include <string_view>

namespace paceline {
namespace {

struct Column {
  std::string heading;  ///< text and Markdown
  std::string csv_name;
  bool left = false;
  std::function<std::string(const Summary&)> shown;
  std::function<std::string(const Summary&)> exact;
};

std::string or_dash(const std::optional<double>& value, const char* pattern) {
  return value ? fmt::format(fmt::runtime(pattern), *value) : "-";
}
std::string or_empty(const std::optional<double>& value) {
  return value ? fmt::format("{}", *value) : "";
}
std::string label(const Summary& s) {
  return s.name.empty() ? s.backend : s.name;
}

/// A column of one double.
Column measured(std::string heading, std::string csv_name, double Summary::*field, double scale,
                const char* pattern) {
  return {std::move(heading), std::move(csv_name), false,
          [=](const Summary& s) {
            return s.failed ? "-" : fmt::format(fmt::runtime(pattern), s.*field * scale);
          },
          [=](const Summary& s) { return s.failed ? "" : fmt::format("{}", s.*field); }};
}

Column optional_column(std::string heading, std::string csv_name,
                       std::optional<double> Summary::*field, double scale, const char* pattern) {
  return {std::move(heading), std::move(csv_name), false,
          [=](const Summary& s) {
            const auto& value = s.*field;
            return or_dash(value ? std::optional(*value * scale) : std::nullopt, pattern);
          },
          [=](const Summary& s) { return or_empty(s.*field); }};
}

Column target_column(const std::vector<Summary>& summaries) {
  double target = 0.0;
  bool same = true;
  for (const Summary& s : summaries) {
    same = same && (target == 0.0 || s.target_accuracy == target);
    target = s.target_accuracy;
  }
  const std::string heading =
      same && target > 0.0 ? fmt::format("s to {:.4g}%", target * 100.0) : "s to target";
  return {heading, "time_to_target_s", false,
          [](const Summary& s) { return or_dash(s.time_to_target_s, "{:.1f}"); },
          [](const Summary& s) { return or_empty(s.time_to_target_s); }};
}

/// Waiting that is worth a name: over a twentieth of a step.
bool waits_much(const Summary& s) {
  return s.waited_for && s.wait_s > 0.05 * (s.compute_s + s.exposed_comm_s + s.wait_s);
}

Column culprit_column() {
  return {"waited for", "waited_for", false,
          [](const Summary& s) {
            return waits_much(s)
                       ? fmt::format("rank {} ({:.0f}%)", *s.waited_for, 100.0 * s.waited_for_share)
                       : "-";
          },
          [](const Summary& s) { return s.waited_for ? fmt::format("{}", *s.waited_for) : ""; }};
}

std::vector<Column> columns(const std::vector<Summary>& summaries, TableFormat format) {
  std::vector<Column> all;
  all.push_back({"run", "run", true, label, label});
  const bool named = std::ranges::any_of(
      summaries, [](const Summary& s) { return !s.name.empty() && s.name != s.backend; });
  const auto backend = [](const Summary& s) { return s.backend; };
  if (named) all.push_back({"backend", "backend", true, backend, backend});
  const auto workers = [](const Summary& s) { return fmt::format("{}", s.world_size); };
  all.push_back({"workers", "workers", false, workers, workers});
  all.push_back(
      measured("samples/s", "samples_per_second", &Summary::samples_per_second, 1, "{:.0f}"));
  all.push_back(optional_column("speed-up", "speedup", &Summary::speedup, 1, "{:.2f}"));
  all.push_back(optional_column("efficiency", "efficiency", &Summary::efficiency, 100, "{:.0f}%"));
  all.push_back(measured("compute ms", "compute_s", &Summary::compute_s, 1e3, "{:.1f}"));
  all.push_back(measured("exposed ms", "exposed_comm_s", &Summary::exposed_comm_s, 1e3, "{:.1f}"));
  all.push_back(measured("wait ms", "wait_s", &Summary::wait_s, 1e3, "{:.1f}"));
  const bool csv = format == TableFormat::csv;
  if (csv || std::ranges::any_of(summaries, waits_much)) all.push_back(culprit_column());
  if (csv) {
    all.push_back(measured("", "waited_for_share", &Summary::waited_for_share, 1, ""));
  }
  all.push_back(
      {"sent/step", "bytes_sent_per_rank", false,
       [](const Summary& s) { return s.failed ? "-" : human_bytes(s.bytes_sent_per_rank); },
       [](const Summary& s) { return s.failed ? "" : fmt::format("{}", s.bytes_sent_per_rank); }});
  all.push_back(measured("accuracy", "test_accuracy", &Summary::test_accuracy, 100, "{:.2f}%"));
  all.push_back(target_column(summaries));
  const auto note = [](const Summary& s) {
    return s.failed ? "FAILED" : s.host_bound ? "host-bound" : "";
  };
  if (std::ranges::any_of(summaries, [&](const Summary& s) { return *note(s) != '\0'; })) {
    all.push_back({"", "note", true, note, nullptr});
  }
  return all;
}

/// Columns that a terminal gives the text (UTF-8: continuation bytes take none).
std::size_t display_width(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

std::string padded(const std::string& text, std::size_t width, bool left) {
  const std::string space(width - std::min(width, display_width(text)), ' ');
  return left ? text + space : space + text;
}

std::string csv_cell(const std::string& text) {
  if (text.find_first_of(",\"\n\r") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) {
    quoted += c;
    if (c == '"') quoted += c;
  }
  return quoted + '"';
}

std::string markdown_cell(std::string text) {
  for (std::size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2) {
    text.insert(at, 1, '\\');
  }
  return text;
}

std::string csv(const std::vector<Summary>& summaries, std::vector<Column> all) {
  if (all.back().csv_name == "note") all.pop_back();
  all.push_back({"", "host_bound", true, nullptr, [](const Summary& s) {
                   return s.failed ? "failed" : s.host_bound ? "true" : "false";
                 }});
  std::string out;
  for (const Column& column : all) {
    if (!out.empty()) out += ',';
    out += column.csv_name;
  }
  out += '\n';
  for (const Summary& summary : summaries) {
    for (std::size_t c = 0; c < all.size(); ++c) {
      if (c > 0) out += ',';
      out += csv_cell(all[c].exact(summary));
    }
    out += '\n';
  }
  return out;
}

void append_row(std::string& out, const std::vector<std::string>& cells,
                const std::vector<Column>& all, const std::vector<std::size_t>& widths,
                bool markdown) {
  std::string row = markdown ? "|" : "";
  for (std::size_t c = 0; c < cells.size(); ++c) {
    if (markdown)
      row += ' ';
    else if (c > 0)
      row += "  ";
    row += padded(cells[c], widths[c], all[c].left);
    if (markdown) row += " |";
  }
  if (!markdown) row.erase(row.find_last_not_of(' ') + 1);
  out += row + '\n';
}

void append_rule(std::string& out, const std::vector<Column>& all,
                 const std::vector<std::size_t>& widths, bool markdown) {
  if (markdown) out += '|';
  for (std::size_t c = 0; c < all.size(); ++c) {
    if (!markdown && c > 0) out += "  ";
    if (markdown) out += all[c].left ? ':' : '-';
    out.append(widths[c], '-');
    if (markdown) out += all[c].left ? "-|" : ":|";
  }
  out += '\n';
}

}  // namespace

std::string human_bytes(double bytes) {
  constexpr std::array<std::string_view, 5> kUnits{"B", "kB", "MB", "GB", "TB"};
  std::size_t unit = 0;
  while (bytes >= 999.5 && unit + 1 < kUnits.size()) {
    bytes /= 1000.0;
    ++unit;
  }
  if (unit == 0) return fmt::format("{:.0f} B", bytes);
  return fmt::format("{:.{}f} {}", bytes, bytes < 9.995 ? 2 : bytes < 99.95 ? 1 : 0, kUnits[unit]);
}

std::string compare_table(const std::vector<Summary>& summaries, TableFormat format) {
  const std::vector<Column> all = columns(summaries, format);
  if (format == TableFormat::csv) return csv(summaries, all);
  const bool markdown = format == TableFormat::markdown;
  std::vector<std::vector<std::string>> rows(1);
  for (const Column& column : all) rows[0].push_back(column.heading);
  for (const Summary& summary : summaries) {
    std::vector<std::string>& row = rows.emplace_back();
    for (const Column& column : all) {
      row.push_back(markdown ? markdown_cell(column.shown(summary)) : column.shown(summary));
    }
  }
  std::vector<std::size_t> widths(all.size(), 1);
  for (const auto& row : rows) {
    for (std::size_t c = 0; c < row.size(); ++c)
      widths[c] = std::max(widths[c], display_width(row[c]));
  }
  std::string out;
  append_row(out, rows[0], all, widths, markdown);
  append_rule(out, all, widths, markdown);
  for (std::size_t r = 1; r < rows.size(); ++r) append_row(out, rows[r], all, widths, markdown);
  return out;
}

}  // namespace paceline
