// SPDX-License-Identifier: Apache-2.0
// What users get wrong, given to the program itself: one line that names the key or file, the value
// and what is allowed; status 2 for configuration, 1 for a failed run; nothing left behind.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <zlib.h>

#include <cstdint>
#include <list>

#include "tests/experiments/program.h"

namespace paceline::test {
namespace {

constexpr int kConfiguration = 2;
constexpr int kFailure = 1;

void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(text.find(part), std::string::npos) << "no '" << part << "' in: " << text;
  }
}

class BadInput : public ProgramTest {
 protected:
  /// The program refuses `arguments` in one line with all `parts`.
  void expect_refused(const std::vector<std::string>& arguments,
                      const std::vector<std::string>& parts,
                      const std::vector<std::string>& environment = {}) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(arguments, " ")));
    Program program(folder(), {arguments, environment});
    EXPECT_EQ(program.wait(), kConfiguration);
    EXPECT_EQ(program.out(), "");
    const std::string err = program.err();
    EXPECT_EQ(std::ranges::count(err, '\n'), 1) << err;
    expect_failed(program);
    expect_parts(err, parts);
  }
  void expect_train_refused(std::vector<std::string> more, const std::vector<std::string>& parts) {
    expect_refused(train(std::move(more)), parts);
  }
  /// Nothing may have been made for a run that was refused before it began.
  ~BadInput() override { EXPECT_TRUE(made_runs_ || !std::filesystem::exists(runs())); }

  bool made_runs_ = false;
};

TEST_F(BadInput, UnknownKeysAndBackendsAreAnsweredWithTheNearest) {
  expect_train_refused({"wrold=4"}, {"unknown key \"wrold\"", "did you mean 'world'?"});
  expect_train_refused({"train.btach=4"}, {"\"train.btach\"", "'train.batch'"});
  expect_train_refused({"frobnicate=1"}, {"\"frobnicate\"", "docs/configuration.md"});
  expect_train_refused({"--sync=rign"}, {"sync = \"rign\"", "'ring'", "single, ps, ring"});
  expect_train_refused({"sync="}, {"sync = \"\"", "must be one of"});
}

TEST_F(BadInput, ValuesOutOfRange) {
  expect_train_refused({"--world=0"}, {"world = 0", "from 1 to 1024"});
  expect_train_refused({"world=-3"}, {"world = -3", "from 1 to 1024"});
  expect_train_refused({"train.batch=0"}, {"train.batch = 0", "from 1 to"});
  expect_train_refused({"train.accumulate=0"}, {"train.accumulate = 0", "from 1 to"});
  expect_train_refused({"train.batch=many"}, {"train.batch = \"many\"", "an integer"});
  expect_train_refused({"optimizer.lr=nan"}, {"optimizer.lr = \"nan\"", "a number from 0"});
  expect_train_refused({"model=resnet"}, {"model = \"resnet\"", "softmax, mlp, cnn"});
  expect_train_refused({"comm.timeout=1ms"}, {"comm.timeout = \"1ms\"", "from 100ms"});
  expect_train_refused({"link.inter=fast"}, {"link.inter=\"fast\"", "RATE,LATENCY"});
  expect_train_refused({"fault.kill=9@start"}, {"fault.kill = \"9@start\"", "0 to 1"});
  expect_train_refused({"--world=2", "fault.slow_rank=2:4x"},
                       {"fault.slow_rank = \"2:4x\"", "rank 2", "0 to 1"});
  expect_train_refused({"fault.slow_rank=0:0.5x"}, {"fault.slow_rank = \"0:0.5x\"", "from 1 to"});
  expect_train_refused({"fault.jitter=cauchy:1"}, {"fault.jitter = \"cauchy:1\"", "lognormal"});
}

TEST_F(BadInput, AStepLongerThanTheEpoch) {
  expect_train_refused({"train.accumulate=4096"},
                       {"train.accumulate = 4096", "longer than the epoch"});
}

TEST_F(BadInput, CompressorsOutOfRange) {
  expect_train_refused({"compress=topk", "compress.density=0"},
                       {"compress.density = 0", "above 0 and up to 1"});
  expect_train_refused({"compress=topk", "compress.density=1.01"},
                       {"compress.density = 1.01", "above 0 and up to 1"});
  expect_train_refused({"compress=gzip"}, {"compress.method = \"gzip\"", "topk, randomk"});
  expect_train_refused({"compress=powersgd", "compress.rank=0"},
                       {"compress.rank = 0", "from 1 to"});
  expect_train_refused({"compress=qsgd", "compress.levels=0"},
                       {"compress.levels = 0", "from 1 to"});
  expect_train_refused({"--world=2", "compress=powersgd", "compress.rank=1024"},
                       {"compress.rank=1024", "1 to 10"});
}

TEST_F(BadInput, TechniquesThatExcludeEachOther) {
  expect_train_refused({"--world=2", "compress=topk", "sync.wire=fp16"},
                       {"sync.wire = \"fp16\"", "compress.method = \"topk\""});
  expect_train_refused({"--sync=single", "compress=sign"}, {"compress", "sign", "single"});
  expect_train_refused({"--sync=hogwild", "--world=2", "sync.wire=bf16"},
                       {"sync.wire", "bf16", "hogwild"});
  expect_train_refused({"precision=fp16", "precision.loss_scale=none"},
                       {"precision.loss_scale = \"none\"", "fp16", "auto, dynamic, fixed"});
}

TEST_F(BadInput, RulesForStaleGradients) {
  expect_train_refused({"--sync=ps", "ps.consistency=ssp", "ps.staleness=-1"},
                       {"ps.staleness = -1", "from 0 to"});
  expect_train_refused({"--sync=asgd", "async.compensate=constant", "async.lambda=-1"},
                       {"async.lambda = -1", "a number from 0"});
  expect_train_refused({"--sync=asgd", "async.compensate=adaptive", "async.mean_square=1"},
                       {"async.mean_square = 1", "a number from 0"});
  expect_train_refused({"--sync=asgd", "async.lambda=1"}, {"async.lambda = 1", "async.compensate"});
  expect_train_refused({"--sync=asgd", "async.rate=tau"}, {"async.rate = \"tau\"", "staleness"});
  expect_train_refused({"--sync=ring", "--world=2", "async.rate=staleness"},
                       {"async.rate=staleness", "sync=asgd"});
  expect_train_refused({"--sync=ps", "async.compensate=adaptive"},
                       {"async.compensate=adaptive", "ps.consistency=asp"});
  expect_train_refused({"--sync=asgd", "--world=2", "model=mlp", "norm=sync_batch"},
                       {"norm.kind = sync_batch with sync = asgd", "batch, group, layer"});
}

TEST_F(BadInput, SchedulesAndSharesThatDoNotFit) {
  expect_train_refused({"--world=2", "lr.warmup_steps=27"},
                       {"lr.warmup_steps = 27 is longer than the run", "20 steps"});
  expect_train_refused({"lr.scale=linear", "lr.schedule=cosine", "lr.min_lr=0.04"},
                       {"lr.min_lr = 0.04", "lr.scale = \"linear\""});
  expect_train_refused({"lr.base_batch=0"}, {"lr.base_batch = 0", "from 1 to"});
  expect_train_refused({"--world=2", "data.shares=1"}, {"data.shares = \"1\"", "each of the 2"});
  expect_train_refused({"--world=2", "data.shares=1,0"}, {"data.shares = \"1,0\"", "above 0"});
  expect_train_refused({"--world=2", "data.shares=1,many"}, {"data.shares = \"1,many\""});
  expect_train_refused({"--world=2", "data.shares=1000,1"},
                       {"data.shares: rank 1 would get none of the 200 samples"});
  expect_train_refused({"--world=2", "data.train_limit=1"},
                       {"data set: 1 samples", "at least one per rank (2)"});
}

TEST_F(BadInput, BackendsThatMakeNoSense) {
  expect_train_refused({"--sync=ps", "ps.servers=0"}, {"ps.servers = 0", "from 1 to"});
  expect_train_refused({"--sync=sharded", "--world=2", "optimizer.name=onebit_adam"},
                       {"optimizer.name = onebit_adam", "not a shard", "sgd, adam"});
  expect_train_refused({"--sync=sharded", "--world=2", "ring.algorithm=tree"},
                       {"ring.algorithm = tree", "reduce-scatter", "auto, ring"});
  expect_train_refused({"--sync=hierarchical", "--world=4"},
                       {"topology.ranks_per_node = 0", "allowed"});
  expect_train_refused({"--sync=ps", "--rank=0", "--world=2"},
                       {"ps.placement = process", "allowed: colocated"});
  expect_train_refused({"--sync=hogwild", "--rank=0", "--world=2"},
                       {"sync = hogwild", "threads of one process"});
}

TEST_F(BadInput, SettingsOfAGpuAreCheckedWhereThereIsNone) {
  expect_train_refused(
      {"--sync=nccl", "--world=2", "device=cuda", "nccl.min_ctas=8", "nccl.max_ctas=4"},
      {"nccl.min_ctas = 8", "nccl.max_ctas = 4"});
  expect_train_refused(
      {"--sync=sharded", "--world=2", "device=cuda", "sync.exact=true", "cuda.collectives=nccl"},
      {"sync.exact = true and cuda.collectives = nccl with sync = sharded",
       "allowed: false, or cuda.collectives = host"});
  expect_train_refused({"--sync=ring", "--world=2", "device=cuda", "cuda.collectives=nccl"},
                       {"cuda.collectives = nccl with sync = ring", "allowed: auto"});
  expect_train_refused({"--sync=sharded", "--world=2", "cuda.collectives=host"},
                       {"cuda.collectives = host needs device = cuda"});
}

TEST_F(BadInput, ABenchmarkOfNccl) {
  const auto bench = [](const char* more) {
    return std::vector<std::string>{"bench", "allreduce", "--transport=nccl", more};
  };
  expect_refused(bench("--type=i64"), {"--type i64", "f32, f16, bf16"});
  expect_refused(bench("--algorithm=ring"), {"--algorithm ring", "auto", "NCCL_ALGO"});
  expect_refused(bench("--world=0"), {"--world 0", "1..256"});
  expect_refused(bench("--min=1x"), {"--min", "64KiB"});
  expect_refused(bench("--world=1"), {"--transport=nccl cannot be used here", "allowed: inproc"},
                 {"CUDA_VISIBLE_DEVICES=-1"});  // where there is a GPU, too
}

TEST_F(BadInput, OverridesAndFlags) {
  expect_train_refused({"nonsense"}, {"\"nonsense\"", "key=value"});
  expect_train_refused({"--nosuchflag"}, {"--nosuchflag", "--help"});
  expect_train_refused({"--world="}, {"--world", "--help"});
  expect_train_refused({"--rank=2", "--world=2"}, {"--rank=2", "from 0 to 1"});
  expect_train_refused({"--rank=0"}, {"--rank", "--world", "both are needed"});
  expect_train_refused({"--rank=0", "--world=2", "--hub=127.0.0.1:x"},
                       {"--hub", "x", "1 to 65535"});
  expect_refused({}, {"subcommand"});
}

TEST_F(BadInput, ConfigurationFiles) {
  const auto file = [this](const std::string& name, const std::string& text) {
    std::ofstream(folder() / name) << text;
    return (folder() / name).string();
  };
  const auto refused = [this](const std::string& path, const std::vector<std::string>& parts) {
    expect_train_refused({"--config", path}, parts);
  };
  const std::string missing = (folder() / "missing.toml").string();
  refused(missing, {missing, "No such file"});
  refused(folder().string(), {folder().string(), "is a directory"});
  refused(file("open.toml", "world = 2\n\n[train\nbatch = 3\n"), {"open.toml:3:", "']'"});
  refused(file("key.toml", "world = 2\n\n[train]\nbtach = 3\n"),
          {"key.toml:4:", "train.btach", "'train.batch'"});
  refused(file("value.toml", "world = 2\ntrain.batch = \"x\"\n"),
          {"value.toml:2:", "train.batch = \"x\"", "an integer from 1"});
  refused(file("runs.toml", "[[run]]\nname = \"a\"\n"), {"runs.toml:1:", "paceline compare"});
  expect_refused({"compare", missing, "--format=yaml"},
                 {"--format = \"yaml\"", "text, markdown and csv"});
  expect_refused({"compare", missing}, {missing, "No such file"});
  expect_refused({"compare", file("none.toml", "world = 2\n")}, {"none.toml", "[[run]]"});
  expect_refused({"compare", file("bad.toml", "[[run]]\nname = \"a\"\nworld = 0\n")},
                 {"bad.toml:3:", "world = 0", "from 1 to 1024"});
}

// ---- Dataset files

using Bytes = std::vector<std::uint8_t>;

Bytes idx(const std::vector<std::uint32_t>& extents) {
  Bytes bytes{0, 0, 8, static_cast<std::uint8_t>(extents.size())};
  std::size_t values = 1;
  for (const std::uint32_t extent : extents) {
    for (int shift = 24; shift >= 0; shift -= 8) {
      bytes.push_back(static_cast<std::uint8_t>(extent >> shift));
    }
    values *= extent;
  }
  for (std::size_t i = 0; i < values; ++i) bytes.push_back(static_cast<std::uint8_t>(i % 10));
  return bytes;
}

class BadDataset : public BadInput {
 protected:
  BadDataset() {
    std::filesystem::create_directory(data());
    for (const char* split : {"train", "t10k"}) {
      write(fmt::format("{}-images-idx3-ubyte", split), idx({20, 28, 28}));
      write(fmt::format("{}-labels-idx1-ubyte", split), idx({20}));
    }
  }
  [[nodiscard]] std::filesystem::path data() const { return folder() / "data"; }
  void write(const std::string& name, const Bytes& bytes) const {
    std::ofstream(data() / name, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
  }
  [[nodiscard]] std::vector<std::string> train_on_files() const {
    return train({"data.name=fashion-mnist", "data.path=" + data().string()});
  }
  void expect_file_refused(const std::string& name, const std::vector<std::string>& parts) {
    expect_refused(train_on_files(), parts);
    expect_refused(train_on_files(), {(data() / name).string() + ":"});
  }
};

TEST_F(BadDataset, TheWholeFilesAreFine) {
  made_runs_ = true;
  Program program(folder(), {train_on_files()});
  EXPECT_EQ(program.wait(), 0) << program.err();
  EXPECT_EQ(finished_runs(), 1);
}

TEST_F(BadDataset, SparseRows) {
  const auto libsvm = [&](const std::string& text) {
    write("rows.svm", Bytes(text.begin(), text.end()));
    return train({"model=logistic", "data.name=libsvm",
                  "data.path=" + (data() / "rows.svm").string(), "optimizer.momentum=0"});
  };
  expect_refused(libsvm("1 1:1\n-1 0:1\n"), {"rows.svm:2:", "\"0:1\"", "from 1 to"});
  expect_refused(libsvm("1 4:1 3:1\n"), {"rows.svm:1:", "\"3:1\"", "ascend, and 4 came before"});
  expect_refused(libsvm(""), {"rows.svm: holds no rows"});
  expect_train_refused({"model=logistic"}, {"model = logistic takes sparse rows", "has images"});
  expect_train_refused({"model=mlp", "data.name=sparse"},
                       {"model = mlp takes images", "data.name = sparse has sparse rows"});
  expect_train_refused({"model=logistic", "data.name=libsvm"}, {"needs data.path"});
  expect_train_refused({"--sync=hogwild", "model=logistic", "data.name=sparse"},
                       {"optimizer.momentum", "sparse updates"});
  expect_train_refused({"model=logistic", "data.name=sparse", "data.features=3", "data.nonzeros=4"},
                       {"data.nonzeros = 4", "data.features = 3"});
}

TEST_F(BadDataset, Text) {
  const auto text = [&](const std::string& bytes, const std::string& context) {
    write("text", Bytes(bytes.begin(), bytes.end()));
    return train({"model=gpt", "data.name=text", "data.path=" + (data() / "text").string(),
                  "data.context=" + context});
  };
  expect_refused(text("", "4"), {"text: is empty"});
  expect_refused(text(std::string(50, 'x'), "5"),
                 {"data.context = 5", "the last tenth of", "has 5 bytes", "allowed 1 to 4"});
  expect_train_refused({"model=gpt", "data.name=text"}, {"needs data.path"});
  expect_train_refused({"model=gpt"}, {"model = gpt takes text", "has images"});
  expect_train_refused({"model=gpt", "data.name=text", "data.path=/x", "gpt.heads=3"},
                       {"gpt.heads = 3", "divide"});
  expect_train_refused({"data.context=7"}, {"data.context = 7", "data.name = text"});
}

TEST_F(BadDataset, MissingFolderAndFile) {
  expect_train_refused({"data.name=fashion-mnist", "data.path=/no/such/folder"},
                       {"/no/such/folder/train-images-idx3-ubyte.gz", "no such file"});
  std::filesystem::remove(data() / "t10k-labels-idx1-ubyte");
  expect_file_refused("t10k-labels-idx1-ubyte.gz", {"no such file"});
}

TEST_F(BadDataset, Truncated) {
  const std::string name = "train-images-idx3-ubyte";
  Bytes bytes = idx({20, 28, 28});
  bytes.resize(bytes.size() - 1);
  write(name, bytes);
  expect_file_refused(name, {"truncated", "15680 values", "found 15679"});
  bytes.resize(10);
  write(name, bytes);
  expect_file_refused(name, {"truncated", "10 bytes", "16"});
  write(name, {});
  expect_file_refused(name, {"truncated", "0 bytes"});
}

TEST_F(BadDataset, TruncatedWhileZipped) {
  const std::string name = "t10k-images-idx3-ubyte.gz";
  const Bytes bytes = idx({20, 28, 28});
  gzFile zipped = gzopen((data() / name).c_str(), "wb");
  ASSERT_EQ(gzwrite(zipped, bytes.data(), static_cast<unsigned>(bytes.size())),
            static_cast<int>(bytes.size()));
  ASSERT_EQ(gzclose(zipped), Z_OK);
  std::filesystem::resize_file(data() / name, std::filesystem::file_size(data() / name) / 2);
  expect_file_refused(name, {"truncated"});
}

TEST_F(BadDataset, WrongMagicAndContents) {
  const std::string name = "train-labels-idx1-ubyte";
  Bytes bytes = idx({20});
  bytes[2] = 9;
  write(name, bytes);
  expect_file_refused(name, {"wrong magic 00000901", "000008NN"});
  write(name, idx({19}));
  expect_file_refused(name, {"19 labels", "expected 20"});
  bytes = idx({20});
  bytes.back() = 77;
  write(name, bytes);
  expect_file_refused(name, {"label 77 at index 19", "allowed 0..9"});
}

// ---- Places

TEST_F(BadInput, ARunFolderThatCannotBeMade) {
  std::ofstream(folder() / "file") << "in the way";
  const std::string below = (folder() / "file" / "runs").string();
  expect_train_refused({"run.dir=" + below}, {"run.dir = \"" + below, "Not a directory"});
  expect_train_refused({"run.dir=/proc/nowhere"}, {"run.dir = \"/proc/nowhere\""});
  expect_train_refused({"run.dir="}, {"run.dir = \"\"", "a folder"});
}

/// A TCP socket that listens on a free port.
class Listener {
 public:
  Listener() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* any = reinterpret_cast<sockaddr*>(&address);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(socket_.get(), any, size), 0);
    EXPECT_EQ(listen(socket_.get(), 1), 0);
    EXPECT_EQ(getsockname(socket_.get(), any, &size), 0);
    endpoint_ = fmt::format("127.0.0.1:{}", ntohs(address.sin_port));
  }
  void close() { socket_.reset(); }
  [[nodiscard]] const std::string& endpoint() const { return endpoint_; }

 private:
  FileDescriptor socket_;
  std::string endpoint_;
};

TEST_F(BadInput, APortInUse) {
  const Listener other;
  expect_train_refused({"--rank=0", "--world=2", "--hub=" + other.endpoint()},
                       {"--hub", other.endpoint(), "Address already in use", "a free port"});
}

TEST_F(BadInput, AnAddressOfAnotherMachine) {
  made_runs_ = true;
  expect_train_refused({"comm.host=192.0.2.1"}, {"comm.host", "192.0.2.1", "of this machine"});
}

// ---- Ranks started by hand

class StartedByHand : public BadInput {
 protected:
  StartedByHand() {
    made_runs_ = true;
    Listener probe;
    hub_ = probe.endpoint();
    probe.close();
  }
  void start(int rank, int world, const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments =
        train({fmt::format("--rank={}", rank), fmt::format("--world={}", world), "--hub=" + hub_,
               "comm.timeout=10s"});
    std::ranges::copy(more, std::back_inserter(arguments));
    programs_.emplace_back(folder(), ProgramOptions{arguments});
  }
  void start_by_variables(int rank, int world) {
    programs_.emplace_back(folder(), ProgramOptions{train({"comm.timeout=10s"}),
                                                    {fmt::format("PACELINE_RANK={}", rank),
                                                     fmt::format("PACELINE_WORLD={}", world),
                                                     "PACELINE_HUB=" + hub_}});
  }
  /// All end with status 2; together they write one line.
  void expect_all_refused(const std::vector<std::string>& parts) {
    std::vector<std::string> errors;
    for (Program& program : programs_) {
      EXPECT_EQ(program.wait(), kConfiguration);
      std::ranges::move(program.errors(), std::back_inserter(errors));
      expect_nothing_left(program);
    }
    ASSERT_EQ(errors.size(), 1U) << fmt::format("{}", fmt::join(errors, "\n"));
    expect_parts(errors[0], parts);
  }

 private:
  std::string hub_;
  std::list<Program> programs_;
};

TEST_F(StartedByHand, TwoRanksWithTheSameNumber) {
  start(0, 3);
  start(1, 3);
  start(1, 3);
  expect_all_refused({"rank 1 joined twice", "a number of its own"});
}

TEST_F(StartedByHand, TwoRanksWithTheSameNumberFromVariables) {
  start_by_variables(0, 3);
  start_by_variables(2, 3);
  start_by_variables(2, 3);
  expect_all_refused({"rank 2 joined twice", "a number of its own"});
}

TEST_F(StartedByHand, RanksThatDisagreeOnTheWorldSize) {
  start(0, 2);
  start(1, 3);
  expect_all_refused({"rank 1 expects 3 ranks", "the job has 2"});
}

TEST_F(StartedByHand, RanksWithDifferentConfigurations) {
  start(0, 2);
  start(1, 2, {"seed=7"});
  expect_all_refused({"rank 1 runs another configuration"});
}

// ---- A loss that is not finite

class NotANumber : public BadInput, public testing::WithParamInterface<std::string> {
 protected:
  NotANumber() { made_runs_ = true; }
  [[nodiscard]] std::vector<std::string> diverge() const {
    return train({"--sync=" + GetParam(), "--world=2", "model=mlp", "optimizer.lr=1e6"});
  }
};

TEST_P(NotANumber, StopsTheRunAndNamesStepAndRank) {
  Program program(folder(), {diverge()});
  EXPECT_EQ(program.wait(), kFailure);
  expect_failed(program);
  const std::string err = program.err();
  expect_parts(err, {"paceline: rank ", " failed: ", "optimizer.lr", "train.on_nan=continue"});
  const std::string_view before = "the loss is ";
  std::istringstream found(err.substr(std::min(err.find(before) + before.size(), err.size())));
  std::string loss;
  std::string word;
  std::int64_t step = -1;
  found >> loss >> word >> word >> step;  // "nan at step 2: lower ..."
  EXPECT_TRUE(loss == "nan" || loss == "inf") << err;
  EXPECT_GE(step, 0) << err;
}

TEST_P(NotANumber, GoesOnWhereThatIsAskedFor) {
  std::vector<std::string> arguments = diverge();
  arguments.emplace_back("train.on_nan=continue");
  Program program(folder(), {arguments});
  EXPECT_EQ(program.wait(), 0) << program.err();
  EXPECT_EQ(finished_runs(), 1);
}

INSTANTIATE_TEST_SUITE_P(Backends, NotANumber, testing::Values("ring", "ps", "asgd", "hogwild"),
                         [](const auto& backend) { return backend.param; });

}  // namespace
}  // namespace paceline::test
