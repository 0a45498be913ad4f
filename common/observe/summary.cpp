// SPDX-License-Identifier: Apache-2.0
#include "common/observe/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "common/base/error.h"
#include "common/observe/files.h"

namespace paceline {
namespace {

using Json = nlohmann::ordered_json;
constexpr std::size_t kMostSummaryBytes = std::size_t{16} << 20;

/// Writes fields into JSON objects; its twin FieldReader has the same signature, so each field is
/// named once (describe()).
class FieldWriter {
 public:
  explicit FieldWriter(Json& json) : json_(json) {}
  template <typename T>
  void field(const char* name, const T& value) {
    json_[name] = value;
  }
  template <typename T>
  void field(const char* name, const std::optional<T>& value) {
    json_[name] = value ? Json(*value) : Json(nullptr);
  }
  template <typename T>
  void added(const char* name, const std::optional<T>& value) {
    field(name, value);
  }
  void maybe_nan(const char* name, double value) { json_[name] = value; }  // NaN dumps as null
  template <typename F>
  void object(const char* name, F&& describe_inner) {
    Json inner = Json::object();
    describe_inner(FieldWriter(inner));
    json_[name] = std::move(inner);
  }
  template <typename T, typename F>
  void list(const char* name, const std::vector<T>& values, F&& describe_item) {
    Json items = Json::array();
    for (const T& value : values) {
      Json item = Json::object();
      describe_item(FieldWriter(item), value);
      items.push_back(std::move(item));
    }
    json_[name] = std::move(items);
  }

 private:
  Json& json_;
};

class FieldReader {
 public:
  FieldReader(const Json& json, std::string source, std::string path)
      : json_(json), source_(std::move(source)), path_(std::move(path)) {
    if (!json_.is_object()) fail("", "an object");
  }
  void field(const char* name, std::string& value) {
    const Json& json = at(name);
    if (!json.is_string()) fail(name, "a text");
    value = json.get<std::string>();
  }
  void field(const char* name, bool& value) {
    const Json& json = at(name);
    if (!json.is_boolean()) fail(name, "true or false");
    value = json.get<bool>();
  }
  template <std::integral T>
  void field(const char* name, T& value) {
    const Json& json = at(name);
    const bool fits =
        json.is_number_unsigned() &&
        json.get<std::uint64_t>() <= static_cast<std::uint64_t>(std::numeric_limits<T>::max());
    if (!fits) fail(name, "a whole number that is not negative");
    value = static_cast<T>(json.get<std::uint64_t>());
  }
  template <std::size_t N>
  void field(const char* name, std::array<std::int64_t, N>& values) {
    const Json& json = at(name);
    const auto is_count = [](const Json& item) {
      return item.is_number_unsigned() && item.get<std::uint64_t>() <= std::uint64_t{1} << 62;
    };
    if (!json.is_array() || json.size() != N || !std::ranges::all_of(json, is_count)) {
      fail(name, fmt::format("a list of {} whole numbers that are not negative", N));
    }
    std::ranges::transform(json, values.begin(), [](const Json& item) {
      return static_cast<std::int64_t>(item.get<std::uint64_t>());
    });
  }
  void field(const char* name, double& value) {
    const Json& json = at(name);
    if (!json.is_number() || !std::isfinite(json.get<double>())) fail(name, "a number");
    value = json.get<double>();
  }
  template <typename T>
  void field(const char* name, std::optional<T>& value) {
    value.reset();
    if (!at(name).is_null()) field(name, value.emplace());
  }
  /// Runs of an earlier version lack it.
  template <typename T>
  void added(const char* name, std::optional<T>& value) {
    value.reset();
    if (json_.contains(name)) field(name, value);
  }
  void maybe_nan(const char* name, double& value) {
    if (at(name).is_null()) {
      value = std::numeric_limits<double>::quiet_NaN();
    } else {
      field(name, value);
    }
  }
  template <typename F>
  void object(const char* name, F&& describe_inner) {
    describe_inner(FieldReader(at(name), source_, path_ + name + "."));
  }
  template <typename T, typename F>
  void list(const char* name, std::vector<T>& values, F&& describe_item) {
    const Json& json = at(name);
    if (!json.is_array()) fail(name, "a list");
    values.clear();
    for (const Json& item : json) {
      describe_item(FieldReader(item, source_, fmt::format("{}{}.", path_, name)),
                    values.emplace_back());
    }
  }

 private:
  const Json& at(const char* name) const {
    const auto found = json_.find(name);
    if (found == json_.end()) {
      throw Error(fmt::format("{}: field {}{} is missing", source_, path_, name));
    }
    return *found;
  }
  [[noreturn]] void fail(const char* name, std::string_view wanted) const {
    std::string field = path_ + name;
    if (!field.empty() && field.back() == '.') field.pop_back();
    throw Error(field.empty() ? fmt::format("{}: must be {}", source_, wanted)
                              : fmt::format("{}: field {} must be {}", source_, field, wanted));
  }

  const Json& json_;
  std::string source_;
  std::string path_;
};

template <typename Visitor, typename Link>
void describe_link(Visitor&& visitor, Link& link) {
  visitor.field("requested", link.requested);
  visitor.object("measured", [&](auto&& measured) {
    measured.field("bits_per_second", link.measured_bits_per_second);
    measured.field("round_trip_s", link.measured_round_trip_s);
  });
}

template <typename Visitor, typename S>
void describe_measurements(Visitor& visitor, S& s) {
  visitor.field("train_seconds", s.train_seconds);
  visitor.field("samples_per_second", s.samples_per_second);
  visitor.field("speedup", s.speedup);
  visitor.field("efficiency", s.efficiency);
  visitor.field("compute_s", s.compute_s);
  visitor.field("exposed_comm_s", s.exposed_comm_s);
  visitor.field("wait_s", s.wait_s);
  visitor.field("waited_for", s.waited_for);
  visitor.field("waited_for_share", s.waited_for_share);
  visitor.field("communication_s", s.communication_s);
  visitor.field("bytes_sent_per_rank", s.bytes_sent_per_rank);
  visitor.object("staleness", [&](auto&& staleness) {
    staleness.field("mean", s.staleness_mean);
    staleness.field("max", s.staleness_max);
    staleness.field("histogram", s.staleness_histogram);
  });
  visitor.field("skipped_steps", s.skipped_steps);
  visitor.field("test_accuracy", s.test_accuracy);
  visitor.maybe_nan("test_loss", s.test_loss);
  visitor.maybe_nan("final_train_loss", s.final_train_loss);
  visitor.field("target_accuracy", s.target_accuracy);
  visitor.field("time_to_target_s", s.time_to_target_s);
  visitor.field("weights_sha256", s.weights_sha256);
}

template <typename Visitor, typename S>
void describe(Visitor& visitor, S& s) {
  visitor.field("schema_version", s.schema_version);
  visitor.field("name", s.name);
  visitor.field("backend", s.backend);
  visitor.field("model", s.model);
  visitor.field("world_size", s.world_size);
  visitor.field("servers", s.servers);
  visitor.field("seed", s.seed);
  visitor.field("steps", s.steps);
  visitor.field("samples", s.samples);
  describe_measurements(visitor, s);
  visitor.field("peak_rss_bytes", s.peak_rss_bytes);
  visitor.added("peak_device_bytes", s.peak_device_bytes);
  visitor.added("graph_batches", s.graph_batches);
  visitor.added("collectives", s.collectives);
  visitor.object("link", [&](auto&& link) {
    link.object("inter", [&](auto&& one) { describe_link(one, s.link_inter); });
    link.object("intra", [&](auto&& one) { describe_link(one, s.link_intra); });
  });
  visitor.field("host_bound", s.host_bound);
  visitor.field("late_fraction", s.late_fraction);
  visitor.object("memory_bytes", [&](auto&& memory) {
    memory.field("weights", s.memory.weights);
    memory.field("gradients", s.memory.gradients);
    memory.field("optimizer", s.memory.optimizer);
    memory.field("activations", s.memory.activations);
    memory.field("staging", s.memory.staging);
    memory.field("residual", s.memory.residual);
  });
  visitor.list("evaluations", s.evaluations, [](auto&& item, auto& evaluation) {
    item.field("samples_trained", evaluation.samples_trained);
    item.field("train_seconds", evaluation.train_seconds);
    item.field("accuracy", evaluation.accuracy);
    item.maybe_nan("loss", evaluation.loss);
  });
}

}  // namespace

std::string summary_to_json(const Summary& summary) {
  Json json = Json::object();
  FieldWriter writer(json);
  describe(writer, summary);
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Summary summary_from_json(std::string_view text, std::string_view source) {
  const Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded()) throw Error(fmt::format("{}: not valid JSON", source));
  Summary summary;
  int version = 0;
  FieldReader reader(json, std::string(source), "");
  reader.field("schema_version", version);
  if (version != kSummarySchemaVersion) {
    throw Error(fmt::format("{}: schema_version {} is not the supported {}", source, version,
                            kSummarySchemaVersion));
  }
  describe(reader, summary);
  return summary;
}

Summary load_summary(const std::filesystem::path& file) {
  return summary_from_json(read_text_file(file, kMostSummaryBytes), file.string());
}

void set_speedups(std::vector<Summary>& summaries) {
  const auto single = std::ranges::find(summaries, "single", &Summary::backend);
  const bool known = single != summaries.end() && single->samples_per_second > 0.0;
  const double base = known ? single->samples_per_second : 0.0;
  for (Summary& summary : summaries) {
    summary.speedup.reset();
    summary.efficiency.reset();
    if (!known || summary.failed) continue;
    summary.speedup = summary.samples_per_second / base;
    summary.efficiency = *summary.speedup / summary.world_size;
  }
}

}  // namespace paceline
