// SPDX-License-Identifier: Apache-2.0
// The idx reader on good, truncated, corrupted and hostile bytes and files.
#include <gtest/gtest.h>
#include <zlib.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "common/base/error.h"
#include "common/core/random.h"
#include "common/data/dataset.h"
#include "tests/data/idx_entry.h"
#include "tests/support/temporary_folder.h"

namespace paceline {
namespace {

using Bytes = std::vector<std::uint8_t>;

Bytes idx(const std::vector<std::uint32_t>& dims, const Bytes& values) {
  Bytes bytes{0, 0, 8, static_cast<std::uint8_t>(dims.size())};
  for (const std::uint32_t extent : dims) {
    for (int shift = 24; shift >= 0; shift -= 8) {
      bytes.push_back(static_cast<std::uint8_t>(extent >> shift));
    }
  }
  bytes.insert(bytes.end(), values.begin(), values.end());
  return bytes;
}

std::string refusal(const std::function<void()>& f) {
  try {
    f();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "nothing was thrown";
}

std::string parse_refusal(const Bytes& bytes) {
  return refusal([&] { static_cast<void>(parse_idx(bytes, "some/file")); });
}

void expect_all(const std::string& message, std::initializer_list<const char*> words) {
  for (const char* word : words) {
    EXPECT_NE(message.find(word), std::string::npos) << "'" << word << "' in: " << message;
  }
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
}

TEST(ParseIdx, ReadsExtentsAndValues) {
  const IdxData data = parse_idx(idx({2, 1, 3}, {1, 2, 3, 4, 5, 255}), "x");
  EXPECT_EQ(data.dims, (std::vector<std::uint32_t>{2, 1, 3}));
  EXPECT_EQ(data.values, (Bytes{1, 2, 3, 4, 5, 255}));
  EXPECT_TRUE(parse_idx(idx({0, 28, 28}, {}), "x").values.empty());
}

TEST(ParseIdx, NamesWhatIsWrong) {
  expect_all(parse_refusal({0, 0}), {"some/file", "truncated", "2 bytes"});
  expect_all(parse_refusal({0, 0, 9, 1, 0, 0, 0, 0}), {"some/file", "wrong magic 00000901"});
  expect_all(parse_refusal({0, 0, 8, 0}), {"some/file", "wrong magic"});
  expect_all(parse_refusal({0x1F, 0x8B, 8, 0, 0, 0}), {"wrong magic 1f8b0800"});
  expect_all(parse_refusal({0, 0, 8, 3, 0, 0, 0, 1}), {"truncated", "8 bytes", "16"});
  expect_all(parse_refusal(idx({2, 3}, {1, 2, 3, 4, 5})),
             {"truncated", "6 values (2x3)", "found 5"});
  expect_all(parse_refusal(idx({2, 2}, {1, 2, 3, 4, 5})),
             {"trailing bytes", "4 values (2x2)", "found 5"});
}

TEST(ParseIdx, ChecksExtentsBeforeTakingMemory) {
  const std::uint32_t huge = 0xFFFFFFFF;
  expect_all(parse_refusal(idx({huge}, {1})), {"truncated", "4294967295", "found 1"});
  expect_all(parse_refusal(idx({huge, huge, huge}, {1})), {"truncated", "over 2^64", "found 1"});
  // 2^32 · 2^32 wraps to 0 in 64 bits; so would 0 after an overflow.
  expect_all(parse_refusal(idx({1U << 31, 1U << 31, 4}, {})), {"over 2^64", "found 0"});
}

TEST(ParseIdx, SurvivesTruncatedCorruptedAndRandomBytes) {
  const Bytes good = idx({3, 4, 5}, Bytes(60, 7));
  ASSERT_TRUE(test::run_parse_idx(good));
  for (std::size_t n = 0; n < good.size(); ++n) {
    EXPECT_FALSE(test::run_parse_idx(std::span(good).first(n))) << n;
  }
  for (std::size_t at = 0; at < 16; ++at) {  // the header
    for (int value = 0; value < 256; ++value) {
      Bytes bad = good;
      bad[at] = static_cast<std::uint8_t>(value);
      EXPECT_EQ(test::run_parse_idx(bad), bad == good) << at << " " << value;
    }
  }
  for (std::uint64_t seed = 0; seed < 5000; ++seed) {
    Bytes random(splitmix64(seed) % 64);
    for (std::size_t i = 0; i < random.size(); ++i) {
      random[i] = static_cast<std::uint8_t>(splitmix64(seed * 64 + i) >> 17);
    }
    if (seed % 2 == 0 && random.size() >= 4) {
      random[0] = random[1] = 0;
      random[2] = 8;
      random[3] = static_cast<std::uint8_t>(random[3] % 5);
    }
    static_cast<void>(test::run_parse_idx(random));
  }
}

/// A folder of its own that goes away with the test.
class FashionMnistFiles : public testing::Test {
 protected:
  [[nodiscard]] std::filesystem::path path(const std::string& name) const {
    return folder_.path() / name;
  }
  void write(const std::string& name, const Bytes& bytes) const {
    std::ofstream file(path(name), std::ios::binary);
    file.write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
  }
  void write_gz(const std::string& name, const Bytes& bytes) const {
    gzFile file = gzopen(path(name).c_str(), "wb");
    ASSERT_NE(file, nullptr);
    ASSERT_EQ(gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size())),
              static_cast<int>(bytes.size()));
    ASSERT_EQ(gzclose(file), Z_OK);
  }
  [[nodiscard]] std::unique_ptr<Dataset> load(std::int64_t limit = 0) const {
    return load_fashion_mnist(folder_.path().string(), Split::train, limit);
  }
  [[nodiscard]] std::string load_refusal() const {
    return refusal([&] { static_cast<void>(load()); });
  }

  static constexpr const char* kImages = "train-images-idx3-ubyte";
  static constexpr const char* kLabels = "train-labels-idx1-ubyte";
  const Bytes images_ = idx({3, 2, 2}, {0, 255, 51, 102, 1, 2, 3, 4, 5, 6, 7, 8});
  const Bytes labels_ = idx({3}, {9, 0, 4});

 private:
  TemporaryFolder folder_;
};

TEST_F(FashionMnistFiles, ArePlainOrGzipped) {
  write(kImages, images_);
  write_gz(std::string(kLabels) + ".gz", labels_);
  const auto data = load();
  EXPECT_EQ(data->size(), 3);
  EXPECT_EQ(data->shape(), (SampleShape{2, 2, 1}));
  EXPECT_EQ(data->classes(), 10);
  std::vector<float> x(8);
  std::vector<std::int32_t> y(2);
  const std::vector<std::uint32_t> indices{2, 0};
  data->gather(indices, x, y);
  EXPECT_EQ(y, (std::vector<std::int32_t>{4, 9}));
  EXPECT_FLOAT_EQ(x[4], -0.2860F / 0.3530F);
  EXPECT_FLOAT_EQ(x[5], (1.0F - 0.2860F) / 0.3530F);
  EXPECT_FLOAT_EQ(x[6], (0.2F - 0.2860F) / 0.3530F);
}

TEST_F(FashionMnistFiles, KeepTheFirstOfALimit) {
  write(kImages, images_);
  write(kLabels, labels_);
  EXPECT_EQ(load(2)->size(), 2);
  EXPECT_EQ(load(3)->size(), 3);
  EXPECT_EQ(load(99)->size(), 3);
}

TEST_F(FashionMnistFiles, RefuseIndicesAndSpansThatDoNotFit) {
  write(kImages, images_);
  write(kLabels, labels_);
  const auto data = load();
  std::vector<float> x(4);
  std::vector<std::int32_t> y(1);
  EXPECT_THROW(data->gather(std::vector<std::uint32_t>{3}, x, y), Error);
  EXPECT_THROW(data->gather(std::vector<std::uint32_t>{0, 1}, x, y), Error);
}

TEST_F(FashionMnistFiles, AreNamedWhenMissing) {
  expect_all(load_refusal(), {"train-images-idx3-ubyte", "no such file"});
  write(kImages, images_);
  expect_all(load_refusal(), {"train-labels-idx1-ubyte", "no such file"});
  expect_all(
      refusal([&] { static_cast<void>(load_fashion_mnist("/nonexistent/x", Split::test, 0)); }),
      {"/nonexistent/x/t10k-images-idx3-ubyte", "no such file"});
}

TEST_F(FashionMnistFiles, AreNamedWhenDamaged) {
  write(kLabels, labels_);
  write(kImages, Bytes(images_.begin(), images_.end() - 1));
  expect_all(load_refusal(), {path(kImages).c_str(), "truncated", "12 values (3x2x2)", "found 11"});
  write(kImages, idx({12}, Bytes(12, 1)));
  expect_all(load_refusal(), {path(kImages).c_str(), "1 dimensions, expected 3"});
  write(kImages, idx({0, 2, 2}, {}));
  expect_all(load_refusal(), {path(kImages).c_str(), "no pixels"});
  write(kImages, images_);
  write(kLabels, idx({2}, {1, 2}));
  expect_all(load_refusal(), {path(kLabels).c_str(), "2 labels, expected 3"});
  write(kLabels, idx({3}, {1, 10, 2}));
  expect_all(load_refusal(), {path(kLabels).c_str(), "label 10 at index 1", "0..9"});
}

TEST_F(FashionMnistFiles, AreNamedWhenTheGzipStreamIsCutOrCorrupt) {
  write(kLabels, labels_);
  Bytes pixels(std::size_t{3} * 100 * 100);
  for (std::size_t i = 0; i < pixels.size(); ++i) {
    pixels[i] = static_cast<std::uint8_t>(splitmix64(i));
  }
  const std::string name = std::string(kImages) + ".gz";
  write_gz(name, idx({3, 100, 100}, pixels));
  ASSERT_EQ(load()->size(), 3);
  const auto whole = std::filesystem::file_size(path(name));
  std::filesystem::resize_file(path(name), whole / 2);
  expect_all(load_refusal(), {path(name).c_str(), "truncated"});
  std::filesystem::resize_file(path(name), whole);  // the second half is zeros now
  expect_all(load_refusal(), {path(name).c_str()});
  EXPECT_NE(load_refusal(), "nothing was thrown");
}

TEST_F(FashionMnistFiles, HoldTheRealSetWhereItIsInstalled) {
  const std::string folder = "/usr/share/datasets/fashion-mnist";
  if (!std::filesystem::exists(folder)) {
    GTEST_SKIP() << "package dataset-fashion-mnist is not installed";
  }
  const auto train = load_fashion_mnist(folder, Split::train, 0);
  const auto test = load_fashion_mnist(folder, Split::test, 0);
  EXPECT_EQ(train->size(), 60000);
  EXPECT_EQ(test->size(), 10000);
  EXPECT_EQ(train->shape(), (SampleShape{28, 28, 1}));
  std::vector<std::uint32_t> all(60000);
  std::vector<float> x(all.size() * 784);
  std::vector<std::int32_t> y(all.size());
  for (std::uint32_t i = 0; i < all.size(); ++i) {
    all[i] = i;
  }
  train->gather(all, x, y);
  EXPECT_EQ(y[0], 9);  // an ankle boot
  double sum = 0.0;
  double squares = 0.0;
  for (const float value : x) {
    sum += static_cast<double>(value);
    squares += static_cast<double>(value) * static_cast<double>(value);
  }
  const auto n = static_cast<double>(x.size());
  EXPECT_NEAR(sum / n, 0.0, 1e-3);
  EXPECT_NEAR(squares / n, 1.0, 1e-3);
}

}  // namespace
}  // namespace paceline
