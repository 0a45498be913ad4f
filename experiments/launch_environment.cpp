// SPDX-License-Identifier: Apache-2.0
#include "experiments/launch_environment.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <limits>
#include <span>

#include "common/base/error.h"

extern char** environ;

namespace paceline {

namespace {

/// A value and the name of the flag or variable that gave it.
struct Named {
  std::string name;
  std::string value;
};

ConfigError refused(const Named& named, std::string_view allowed) {
  return ConfigError(fmt::format("{}={} is not allowed: it must be {}", named.name,
                                 named.value.substr(0, 80), allowed));
}

int number(const Named& named, int low, int high, const std::string& high_text) {
  int value = 0;
  const char* const end = named.value.data() + named.value.size();
  const auto [stop, error] = std::from_chars(named.value.data(), end, value);
  if (error != std::errc{} || stop != end || value < low || value > high) {
    throw refused(named, fmt::format("an integer from {} to {}", low, high_text));
  }
  return value;
}

class Variables {
 public:
  explicit Variables(const EnvironmentMap& environment) : environment_(environment) {}
  /// Empty variables count as unset.
  [[nodiscard]] std::optional<Named> get(std::string_view name) const {
    const auto found = environment_.find(std::string(name));
    if (found == environment_.end() || found->second.empty()) {
      return std::nullopt;
    }
    return Named{found->first, found->second};
  }
  [[nodiscard]] std::string text(std::string_view name) const {
    const auto found = get(name);
    return found ? found->value : std::string{};
  }

 private:
  const EnvironmentMap& environment_;
};

constexpr int kMaxWorld = 1024;

/// The names under which a launcher gives its numbers.
struct Names {
  LaunchSource source;
  std::string_view rank;
  std::string_view world;
  std::string_view local_rank;
};
constexpr std::array<Names, 5> kLaunchers{{
    {LaunchSource::paceline, "PACELINE_RANK", "PACELINE_WORLD", "PACELINE_LOCAL_RANK"},
    {LaunchSource::torchrun, "RANK", "WORLD_SIZE", "LOCAL_RANK"},
    {LaunchSource::open_mpi, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK"},
    {LaunchSource::slurm, "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"},
    {LaunchSource::pmi, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"},
}};

/// An sbatch script's own shell also has SLURM_PROCID; a task of srun has a step as well.
bool is_slurm_task(const Variables& variables) {
  return variables.get("SLURM_STEP_ID") && variables.get("SLURM_PROCID") &&
         variables.get("SLURM_NTASKS") && variables.text("SLURM_NTASKS") != "1";
}

bool applies(const Names& names, const Variables& variables) {
  if (names.source == LaunchSource::slurm) {
    return is_slurm_task(variables);
  }
  // Either half counts: a pair of which one is missing is a mistake worth telling. RANK alone is
  // too common a word to mean torchrun.
  const bool rank = variables.get(names.rank).has_value();
  const bool world = variables.get(names.world).has_value();
  return names.source == LaunchSource::paceline ? rank || world : rank && world;
}

void set_numbers(LaunchEnvironment& launch, const std::optional<Named>& rank,
                 std::string_view rank_name, const std::optional<Named>& world,
                 std::string_view world_name, const std::optional<Named>& local_rank) {
  if (!rank || !world) {
    const Named& given = rank ? *rank : *world;
    throw ConfigError(fmt::format("{} is set ({}) but {} is not: both are needed", given.name,
                                  given.value.substr(0, 80), rank ? world_name : rank_name));
  }
  launch.world = number(*world, 1, kMaxWorld, std::to_string(kMaxWorld));
  const std::string below = fmt::format("{} ({}={})", launch.world - 1, world->name, launch.world);
  launch.rank = number(*rank, 0, launch.world - 1, below);
  launch.local_rank = local_rank ? number(*local_rank, 0, launch.world - 1, below) : launch.rank;
}

std::uint16_t port_number(const Named& named) {
  constexpr int kHighest = std::numeric_limits<std::uint16_t>::max();
  return static_cast<std::uint16_t>(number(named, 1, kHighest, std::to_string(kHighest)));
}

void set_hub(LaunchEnvironment& launch, const Named& hub) {
  const std::string& text = hub.value;
  constexpr std::string_view kAllowed = "HOST:PORT, [IPV6]:PORT or HOST";
  std::string port;
  if (text.starts_with('[')) {
    const std::size_t end = text.find(']');
    if (end == std::string::npos) {
      throw refused(hub, kAllowed);
    }
    launch.hub_host = text.substr(1, end - 1);
    port = text.substr(end + 1);
  } else {
    const std::size_t colon = text.find(':');
    if (colon != std::string::npos && text.find(':', colon + 1) != std::string::npos) {
      launch.hub_host = text;  // an IPv6 address alone
    } else {
      launch.hub_host = text.substr(0, colon);
      port = colon == std::string::npos ? "" : text.substr(colon);
    }
  }
  if (launch.hub_host.empty() || (!port.empty() && !port.starts_with(':'))) {
    throw refused(hub, kAllowed);
  }
  if (!port.empty()) {
    launch.hub_port = port_number({hub.name, port.substr(1)});
  }
}

/// All ranks of the job run on this node, as far as its launcher says how many do.
bool on_one_node(LaunchSource source, int world, const Variables& variables) {
  const std::string local = source == LaunchSource::open_mpi
                                ? variables.text("OMPI_COMM_WORLD_LOCAL_SIZE")
                                : variables.text("MPI_LOCALNRANKS");
  return local.empty() || local == std::to_string(world);
}

void find_hub(LaunchEnvironment& launch, const Variables& variables) {
  if (const auto hub = variables.get("PACELINE_HUB")) {
    set_hub(launch, *hub);
    return;
  }
  const auto address = variables.get("MASTER_ADDR");
  if (address) {
    launch.hub_host = address->value;
    if (const auto port = variables.get("MASTER_PORT")) {
      launch.hub_port = port_number(*port);
      // torchrun's agent may keep a store of its own at MASTER_PORT.
      if (variables.text("TORCHELASTIC_USE_AGENT_STORE") == "True") {
        constexpr std::uint16_t kHighest = std::numeric_limits<std::uint16_t>::max();
        launch.hub_port = static_cast<std::uint16_t>(
            launch.hub_port == kHighest ? kHighest - 1 : launch.hub_port + 1);
      }
    }
    return;
  }
  if (launch.source == LaunchSource::slurm) {
    if (const auto nodes = variables.get("SLURM_STEP_NODELIST")) {
      launch.hub_host = first_slurm_host(nodes->value);
    }
  } else if ((launch.source == LaunchSource::open_mpi || launch.source == LaunchSource::pmi) &&
             !on_one_node(launch.source, launch.world, variables)) {
    throw ConfigError(fmt::format(
        "{} started ranks on several nodes, but MASTER_ADDR is not set: it must be the address of "
        "rank 0's node (or PACELINE_HUB=HOST:PORT)",
        name_of(launch.source)));
  }
}

/// FNV-1a over what tells one job from another.
std::uint64_t job_nonce(const LaunchEnvironment& launch, const Variables& variables) {
  constexpr std::uint64_t kBasis = 0xcbf29ce484222325;
  constexpr std::uint64_t kPrime = 0x100000001b3;
  // Not the world size: a rank with another one belongs here, and the hub tells it so.
  std::string text = fmt::format("{} {}", launch.hub_host, launch.hub_port);
  constexpr std::array<std::string_view, 7> kJobNames{
      "PACELINE_JOB_ID", "TORCHELASTIC_RUN_ID", "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid",
      "SLURM_JOB_ID",    "SLURM_STEP_ID",       "PMI_JOBID"};
  for (const std::string_view name : kJobNames) {
    text += ' ' + variables.text(name);
  }
  std::uint64_t hash = kBasis;
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * kPrime;
  }
  return hash;
}

std::optional<Named> named(std::string_view name, const std::optional<std::string>& value) {
  return value ? std::optional(Named{std::string(name), *value}) : std::nullopt;
}

}  // namespace

std::string_view name_of(LaunchSource source) {
  switch (source) {
    case LaunchSource::flags:
      return "own flags";
    case LaunchSource::paceline:
      return "PACELINE_* variables";
    case LaunchSource::torchrun:
      return "torchrun";
    case LaunchSource::open_mpi:
      return "Open MPI";
    case LaunchSource::slurm:
      return "Slurm";
    case LaunchSource::pmi:
      return "PMI";
    case LaunchSource::none:
      break;
  }
  return "nothing";
}

LaunchEnvironment detect_launch(const EnvironmentMap& environment, const LaunchFlags& flags) {
  const Variables variables(environment);
  LaunchEnvironment launch;
  if (flags.rank || flags.hub) {
    launch.source = LaunchSource::flags;
    const Named missing{"--hub", flags.hub.value_or("")};
    if (!flags.rank) {
      throw ConfigError(fmt::format("--hub is set ({}) but --rank is not: both are needed",
                                    missing.value.substr(0, 80)));
    }
    set_numbers(launch, named("--rank", flags.rank), "--rank", named("--world", flags.world),
                "--world", named("--local-rank", flags.local_rank));
    if (flags.hub) {
      set_hub(launch, missing);
    } else {
      find_hub(launch, variables);
    }
    launch.nonce = job_nonce(launch, variables);
    return launch;
  }
  for (const Names& names : kLaunchers) {
    if (applies(names, variables)) {
      launch.source = names.source;
      set_numbers(launch, variables.get(names.rank), names.rank, variables.get(names.world),
                  names.world, variables.get(names.local_rank));
      find_hub(launch, variables);
      launch.nonce = job_nonce(launch, variables);
      break;
    }
  }
  return launch;
}

EnvironmentMap current_environment() {
  EnvironmentMap result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::size_t equals = text.find('=');
    if (equals != std::string_view::npos) {
      result.emplace(text.substr(0, equals), text.substr(equals + 1));
    }
  }
  return result;
}

std::string first_slurm_host(std::string_view list) {
  // prefix[03-05,9]suffix,other: the first host is prefix, the first number, suffix.
  const std::size_t end = list.find_first_of("[,");
  std::string host(list.substr(0, end));
  if (end != std::string_view::npos && list[end] == '[') {
    const std::size_t close = list.find(']', end);
    if (close == std::string_view::npos) {
      throw refused({"SLURM_STEP_NODELIST", std::string(list)}, "a list such as node[01-04],login");
    }
    const std::string_view numbers = list.substr(end + 1, close - end - 1);
    host += numbers.substr(0, numbers.find_first_of("-,"));
    const std::string_view rest = list.substr(close + 1);
    host += rest.substr(0, rest.find(','));
  }
  if (host.empty() || host.find_first_of("[]") != std::string::npos) {
    throw refused({"SLURM_STEP_NODELIST", std::string(list)}, "a list such as node[01-04],login");
  }
  return host;
}

}  // namespace paceline
