// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <clocale>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>

#include "common/base/error.h"
#include "common/config/config_file.h"
#include "common/config/print.h"
#include "common/config/schema.h"
#include "common/config/validate.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;

constexpr std::array<std::string_view, 3> kBackends{"single", "ps", "ring"};

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no ConfigError";
}

std::string parse_message(std::string_view text) {
  return message_of([&] { (void)parse_config(text, "a.toml"); });
}

std::string override_message(std::string_view text) {
  return message_of([&] {
    Config config;
    apply_override(config, text);
  });
}

std::string validate_message(const std::function<void(Config&)>& change) {
  Config config;
  change(config);
  return message_of([&] { validate(config, {kBackends, {}}); });
}

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

/// A value of each key that is allowed and differs from the default.
void change_every_key(Config& config) {
  for (const Key& key : config_keys()) {
    RawValue value;
    switch (key.kind) {
      case KeyKind::boolean:
        value = value_as_toml(config, key) != "true";
        break;
      case KeyKind::integer:
        value = key.low + 11;
        break;
      case KeyKind::number:
        value = key.number.low + (0.1 + 0.2);  // no short decimal
        break;
      case KeyKind::text:
        value = std::string("a \"b\" \\ ü # ") + std::string(key.name);
        break;
      case KeyKind::choice:
        value = std::string(value_as_toml(config, key) == '"' + std::string(key.choices[0]) + '"'
                                ? key.choices[1]
                                : key.choices[0]);
        break;
      case KeyKind::size:
        value = key.low + 123'457;
        break;
      case KeyKind::duration:
        value = std::string("1500ms");
        break;
    }
    set_value(config, key, value, "");
  }
}

TEST(Schema, NamesAreUniqueAndDefaultsAreAllowed) {
  std::set<std::string_view> names;
  Config config;
  for (const Key& key : config_keys()) {
    EXPECT_TRUE(names.insert(key.name).second) << key.name;
    EXPECT_FALSE(key.help.empty()) << key.name;
    const std::string before = value_as_toml(config, key);
    (void)parse_config(std::string("\"") + std::string(key.name) + "\" = " + before, "default");
  }
}

TEST(Schema, EveryKeyHasItsOwnField) {
  for (const Key& key : config_keys()) {
    Config config;
    change_every_key(config);
    Config only;
    const std::string changed = value_as_toml(config, key);
    only = parse_config(std::string("\"") + std::string(key.name) + "\" = " + changed, "one");
    const auto keys = changed_keys(only);
    ASSERT_EQ(keys.size(), 1U) << key.name;
    EXPECT_EQ(keys[0], std::string(key.name) + "=" + changed);
  }
}

TEST(Print, RoundTripsEveryKey) {
  Config config;
  change_every_key(config);
  EXPECT_EQ(changed_keys(config).size(), config_keys().size());
  const std::string text = to_toml(config);
  EXPECT_EQ(to_toml(parse_config(text, "printed")), text);
  EXPECT_EQ(to_toml(parse_config(to_toml({}), "printed", config)), to_toml({}));
}

TEST(Print, CanonicalTextLeavesOutPlacesOnly) {
  Config config;
  Config other;
  other.run.dir = "elsewhere";
  other.run.name = "x";
  EXPECT_EQ(canonical_text(config), canonical_text(other));
  EXPECT_EQ(config_digest(config), config_digest(other));
  EXPECT_EQ(config_digest(config).size(), 64U);
  other.seed = 2;
  EXPECT_NE(canonical_text(config), canonical_text(other));
  EXPECT_NE(config_digest(config), config_digest(other));
}

TEST(Print, DocumentationNamesEveryKey) {
  const std::string docs = configuration_markdown();
  const std::string help = configuration_help({{"ring", "ring allreduce"}});
  for (const Key& key : config_keys()) {
    EXPECT_TRUE(has(docs, "| `" + std::string(key.name) + "` |")) << key.name;
    EXPECT_TRUE(has(help, key.name)) << key.name;
  }
  EXPECT_TRUE(has(help, "ring allreduce"));
  std::ifstream file(std::filesystem::path(PACELINE_SOURCE_DIR) / "docs" / "configuration.md");
  const std::string stored((std::istreambuf_iterator<char>(file)), {});
  EXPECT_EQ(stored, docs) << "regenerate: paceline keys --markdown > docs/configuration.md";
}

TEST(Parse, AllSpellingsOfAKey) {
  for (const char* text : {"[train]\nbatch = 32", "train.batch = 32", "\"train.batch\" = 32"}) {
    EXPECT_EQ(parse_config(text, "a").train.batch, 32) << text;
  }
  const Config quoted = parse_config("sync = 'ps'\n'sync.exact' = true", "a");
  const Config table = parse_config("[sync]\nbackend = 'ps'\nexact = true", "a");
  EXPECT_EQ(to_toml(quoted), to_toml(table));
  EXPECT_EQ(quoted.sync, "ps");
  EXPECT_TRUE(quoted.sync_options.exact);
}

TEST(Parse, SizesAndDurations) {
  const Config config = parse_config(
      "bucket.size = '1.5MiB'\nring.chunk = 65536\nbucket.first_size = '1MB'\n"
      "comm.timeout = '2s'\ncompute.emulate = '50us'",
      "a");
  EXPECT_EQ(config.bucket.size, 1572864U);
  EXPECT_EQ(config.bucket.first_size, 1'000'000U);
  EXPECT_EQ(config.ring.chunk, 65536U);
  EXPECT_EQ(config.comm.timeout, 2s);
  EXPECT_EQ(config.compute.emulate, 50us);
  Config changed;
  apply_overrides(changed, std::vector<std::string>{"comm.timeout=1m", "compute.emulate=0",
                                                    "bucket.size=25MiB", "compute.emulate=1.5ms"});
  EXPECT_EQ(changed.comm.timeout, 60s);
  EXPECT_EQ(changed.compute.emulate, 1500us);
}

TEST(Parse, RefusesNamingKeyFileAndLine) {
  EXPECT_EQ(parse_message("seed = 1\n[train]\nbtach = 3"),
            "a.toml:3: unknown key \"train.btach\" (did you mean 'train.batch'?)");
  EXPECT_EQ(parse_message("world = 0"),
            "a.toml:1: world = 0 is not allowed: it must be an integer from 1 to 1024");
  EXPECT_TRUE(has(parse_message("world = -3"), "world = -3"));
  EXPECT_TRUE(has(parse_message("world = '4'"), "world = \"4\""));
  EXPECT_TRUE(has(parse_message("world = 2.5"), "world = 2.5"));
  EXPECT_TRUE(has(parse_message("sync.exact = 1"), "true or false"));
  EXPECT_TRUE(has(parse_message("model = 'vgg'"), "one of softmax, mlp, cnn"));
  EXPECT_TRUE(has(parse_message("seed = [1]"), "a.toml:1: seed must be"));
  EXPECT_TRUE(has(parse_message("seed = 1979-05-27"), "seed must be"));
  EXPECT_TRUE(has(parse_message("[seed]\nx = 1"), "not a table"));
  EXPECT_TRUE(has(parse_message("train = 3"), "train is a group of keys"));
  EXPECT_TRUE(has(parse_message("[trian]\nbatch = 1"), "a.toml:1: unknown key \"trian\""));
  EXPECT_TRUE(has(parse_message("optimizer.lr = nan"), "optimizer.lr = nan"));
  EXPECT_TRUE(has(parse_message("optimizer.momentum = 1"), "below 1"));
  EXPECT_TRUE(has(parse_message("comm.timeout = 30"), "comm.timeout = 30"));
  EXPECT_TRUE(has(parse_message("comm.timeout = '30'"), "such as 50us"));
  EXPECT_TRUE(has(parse_message("bucket.size = '1.3B'"), "bucket.size"));
  EXPECT_TRUE(has(parse_message("bucket.size = '9999999999GiB'"), "bucket.size"));
  EXPECT_TRUE(has(parse_message("data.path = 'a\\nb'"), "no ConfigError")) << "literal string";
  EXPECT_TRUE(has(parse_message("data.path = \"a\\nb\""), "without control characters"));
  EXPECT_TRUE(has(parse_message("[[run]]\nname = 'x'"), "paceline compare"));
}

TEST(Parse, RefusesAKeyGivenTwice) {
  EXPECT_EQ(parse_message("'train.batch' = 3\n[train]\nbatch = 4"),
            "a.toml:3: train.batch is given twice");
  EXPECT_TRUE(has(parse_message("sync = 'ring'\n'sync.backend' = 'ps'"), "sync is given twice"));
}

TEST(Parse, SyntaxErrorsGiveLineAndColumn) {
  EXPECT_EQ(parse_message("seed = 1\nworld =").substr(0, 11), "a.toml:2:8:");
  for (const char* text :
       {"a", "[", "[[", "= 3", "x = \"", "x = 1 y", "\xff", "[a]\n[a]", "x=1\nx=2",
        "seed = 99999999999999999999", "world = 1e999", "sync = 'ring'\nsync.x = 1"}) {
    EXPECT_TRUE(has(parse_message(text), "a.toml:")) << text << ": " << parse_message(text);
    EXPECT_EQ(parse_message(text).find('\n'), std::string::npos) << text;
  }
  std::string deep = "x = ";
  for (int i = 0; i < 100'000; ++i) deep += '[';
  EXPECT_TRUE(has(parse_message(deep), "a.toml:1:"));
}

TEST(Parse, CharactersOutsideAscii) {
  EXPECT_EQ(
      parse_config(
          "\xef\xbb\xbf# gr\xc3\xbc\xc3\x9f\nrun.name = \"\xc3\x8f \\\"\xc3\x8f\" # \xe2\x82\xac\n"
          "data.path = '\xc3\x8f'",
          "a")
          .run.name,
      "\xc3\x8f \"\xc3\x8f");
  for (const char* text : {"sync \xc3\x8f", "\xcc\xaa", "x = 1\n s = \"\"\"\\\n\xc2\xa7\"\"\"\n",
                           "# \xff", "run.name = \"\xc3\"", "'''\xc3\x8f'''", "x=\"a\n\xc3\x8f\"",
                           "x = ''''''\xc3\x8f", "\"\\\xc3\x8f\"\xc3\x8f"}) {
    EXPECT_TRUE(has(parse_message(text), "outside ASCII")) << text << ": " << parse_message(text);
  }
  EXPECT_EQ(parse_message("seed = 1\nx \xc3\x8f").substr(0, 11), "a.toml:2:3:");
}

TEST(Parse, FilesThatCannotBeRead) {
  const auto message = message_of([] { (void)load_config("/nonexistent/x.toml"); });
  EXPECT_TRUE(has(message, "/nonexistent/x.toml")) << message;
  EXPECT_TRUE(has(message, "No such file")) << message;
  EXPECT_TRUE(has(message_of([] { (void)load_config("/tmp"); }), "directory"));
  EXPECT_TRUE(has(parse_message(std::string((1 << 20) + 1, '#')), "at most"));
}

TEST(Override, SetsAndRefuses) {
  Config config;
  apply_overrides(config,
                  std::vector<std::string>{"sync=ps", "ps.servers=2", "optimizer.lr=1e-3",
                                           "data.path=/a=b c", "run.name=", "sync.exact=true"});
  EXPECT_EQ(config.sync, "ps");
  EXPECT_EQ(config.ps.servers, 2);
  EXPECT_DOUBLE_EQ(config.optimizer.lr, 1e-3);
  EXPECT_EQ(config.data.path, "/a=b c");
  EXPECT_TRUE(config.sync_options.exact);
  EXPECT_TRUE(has(override_message("wrold=2"), "did you mean 'world'?"));
  EXPECT_TRUE(has(override_message("batch=2"), "did you mean 'train.batch'?"));
  EXPECT_TRUE(has(override_message("world"), "key=value"));
  EXPECT_TRUE(has(override_message("=3"), "unknown key \"\""));
  for (const char* text : {"world=", "world= 4", "world=+4", "world=0x4", "world=4 ", "world=4.0",
                           "world=99999999999999999999", "optimizer.lr=0,05", "optimizer.lr=inf",
                           "sync.exact=yes", "compute.emulate=-1ms", "compute.emulate=12",
                           "bucket.size=25 Mb", "run.name=\x01", "run.name=\xff", "seed=-1"}) {
    EXPECT_TRUE(has(override_message(text), "is not allowed: it must be")) << text;
  }
}

TEST(Override, SwitchesMayBeOnAndOff) {
  Config config;
  apply_override(config, "sync.overlap=off");
  EXPECT_FALSE(config.sync_options.overlap);
  apply_override(config, "sync.overlap=on");
  EXPECT_TRUE(config.sync_options.overlap);
  EXPECT_TRUE(has(override_message("sync.overlap=maybe"), "true or false"));
}

TEST(Override, IndependentOfTheLocale) {
  const char* const changed = std::setlocale(LC_ALL, "de_DE.UTF-8");
  Config config;
  apply_override(config, "optimizer.lr=0.25");
  EXPECT_DOUBLE_EQ(config.optimizer.lr, 0.25);
  EXPECT_TRUE(has(to_toml(config), "lr = 0.25\n"));
  if (changed != nullptr) std::setlocale(LC_ALL, "C");
}

TEST(Validate, CrossFieldRules) {
  Config config;
  validate(config, {kBackends, {}});
  EXPECT_TRUE(has(validate_message([](Config& c) { c.sync = "rnig"; }), "did you mean 'ring'?"));
  EXPECT_TRUE(
      has(validate_message([](Config& c) { c.sync = "xyzzy"; }), "one of single, ps, ring"));
  const auto warmup = validate_message([](Config& c) {
    c.train.samples = 129;
    c.lr.warmup_steps = 4;
  });
  EXPECT_TRUE(has(warmup, "lr.warmup_steps = 4")) << warmup;
  EXPECT_TRUE(has(warmup, "make 3 steps")) << warmup;
  EXPECT_TRUE(has(validate_message([](Config& c) {
                    c.lr.schedule = "cosine";
                    c.lr.min_lr = 1;
                  }),
                  "lr.min_lr = 1"));
  EXPECT_TRUE(has(validate_message([](Config& c) {
                    c.optimizer.nesterov = true;
                    c.optimizer.name = "adam";
                  }),
                  "optimizer.nesterov"));
  EXPECT_TRUE(
      has(validate_message([](Config& c) { c.fault.kill = "2@last"; }), "members are 0 to 1"));
  EXPECT_TRUE(has(validate_message([](Config& c) { c.run.name = "a/b"; }), "run.name"));
  EXPECT_TRUE(has(validate_message([](Config& c) { c.run.dir.clear(); }), "run.dir"));
  EXPECT_TRUE(has(validate_message([](Config& c) { c.comm.host.clear(); }), "comm.host"));
}

TEST(Validate, SettingsOfTheGpuNeedIt) {
  Config config;
  const ValidationRules rules{kBackends, {}};
  config.cuda.device = 1;
  config.ps.device = "cuda";
  validate(config, rules);
  config.device = "cuda";
  validate(config, rules);
  config.device = config.ps.device = "cpu";
  EXPECT_EQ(message_of([&] { validate(config, rules); }),
            "cuda.device = 1 needs device = cuda or ps.device = cuda");
  config.cuda.device = -1;
  config.cuda.attention = "products";
  EXPECT_EQ(message_of([&] { validate(config, rules); }),
            "cuda.attention = products needs device = cuda");
  config.cuda.attention = "auto";
  config.cuda.tune = true;
  EXPECT_EQ(message_of([&] { validate(config, rules); }), "cuda.tune = true needs device = cuda");
  config.cuda.tune = false;
  config.cuda.norm = "auto";
  EXPECT_EQ(message_of([&] { validate(config, rules); }), "cuda.norm = auto needs device = cuda");
  config.cuda.norm = "own";
  config.cuda.pool = "cudnn";
  EXPECT_EQ(message_of([&] { validate(config, rules); }), "cuda.pool = cudnn needs device = cuda");
  config.cuda.pool = "own";
  config.cuda.graph = true;
  EXPECT_EQ(message_of([&] { validate(config, rules); }), "cuda.graph = true needs device = cuda");
  config.device = "cuda";
  validate(config, rules);
  config.norm.kind = "sync_batch";
  EXPECT_EQ(
      message_of([&] { validate(config, rules); }),
      "cuda.graph = true with norm.kind = sync_batch: statistics are summed over the ranks in "
      "the midst of a step; allowed: false, or another norm.kind");
  config.cuda.graph = false;
  config.cuda.norm = "auto";
  validate(config, rules);
  config.cuda.norm = "cudnn";
  EXPECT_EQ(message_of([&] { validate(config, rules); }),
            "cuda.norm = cudnn with norm.kind = sync_batch: cuDNN's batch norm does not give its "
            "sums to be added over the ranks; allowed: own, auto, or norm.kind = batch");
  config.norm.kind = "group";
  EXPECT_EQ(message_of([&] { validate(config, rules); }),
            "cuda.norm = cudnn computes norm.kind = batch alone, not group; allowed: own, auto");
  config.norm.kind = "batch";
  validate(config, rules);
}

TEST(Validate, LinksGoToTheCallersParser) {
  Config config;
  config.link.inter = "fast";
  const auto check = [](std::string_view key, std::string_view text) {
    if (text != "none") throw ConfigError(std::string(key) + " = " + std::string(text));
  };
  EXPECT_EQ(message_of([&] { validate(config, {kBackends, check}); }), "link.inter = fast");
}

TEST(Validate, Faults) {
  Config config;
  config.fault.kill = "1@last";  // the server
  validate(config, {kBackends, {}});
  EXPECT_TRUE(has(validate_message([](Config& c) { c.fault.stop = "1@lunch"; }), "fault.stop ="));
}

constexpr std::string_view kCompare = R"(
name = "quick"
world = 4
train.samples = 1000

[[run]]
name = "single"
sync = "single"
world = 1

[[run]]
name = "ps"
sync = "ps"
"sync.exact" = true
"ps.servers" = 2
ps.placement = "colocated"
)";

TEST(Compare, RunsAreBasePlusOverrides) {
  const std::vector<std::string> overrides{"train.samples=500"};
  const CompareFile file = parse_compare(kCompare, "dir/q.toml", overrides);
  EXPECT_EQ(file.name, "quick");
  ASSERT_EQ(file.runs.size(), 2U);
  EXPECT_EQ(file.runs[0].name, "single");
  EXPECT_EQ(file.runs[0].config.world, 1);
  EXPECT_EQ(file.runs[1].config.world, 4);
  EXPECT_EQ(file.runs[1].config.ps.servers, 2);
  EXPECT_EQ(file.runs[1].config.ps.placement, "colocated");
  EXPECT_TRUE(file.runs[1].config.sync_options.exact);
  EXPECT_EQ(file.runs[1].config.train.samples, 500);
  EXPECT_EQ(file.runs[1].config.run.name, "ps");
  EXPECT_EQ(parse_compare("[[run]]\nname='a'", "dir/q.toml").name, "q");
  EXPECT_EQ(
      parse_compare("run = [{name = 'a', \"ps.servers\" = 3}]", "q").runs[0].config.ps.servers, 3);
}

TEST(Compare, Refuses) {
  const auto message = [](std::string_view text) {
    return message_of([&] { (void)parse_compare(text, "c.toml"); });
  };
  EXPECT_TRUE(has(message("world = 2"), "no [[run]] table"));
  EXPECT_TRUE(has(message("run = []"), "[[run]]"));
  EXPECT_TRUE(has(message("run = [1]"), "[[run]]"));
  EXPECT_TRUE(has(message("[run]\ndir = 'x'"), "quoted"));
  EXPECT_EQ(message("[[run]]\nname='a'\n[[run]]\nname='a'"),
            "c.toml:3: two runs are named 'a'; names must differ");
  EXPECT_TRUE(has(message("[[run]]\nsync='a'"), "c.toml:1: a run needs a name"));
  EXPECT_TRUE(has(message("[[run]]\nname='a/b'"), "c.toml:2: name of a run"));
  EXPECT_TRUE(has(message("[[run]]\nname='..'"), "name of a run"));
  EXPECT_TRUE(has(message("[[run]]\nname=3"), "name of a run"));
  EXPECT_TRUE(has(message("[[run]]\nname='a'\nwrold=3"), "c.toml:3: unknown key \"wrold\""));
}

}  // namespace
}  // namespace paceline
