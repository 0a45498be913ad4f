// SPDX-License-Identifier: Apache-2.0
// CIFAR-10's files, written here with few records; augmentation, which no world size may change;
// and made-up images of any shape.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>

#include "common/base/error.h"
#include "common/core/batch_memory.h"
#include "common/core/random.h"
#include "common/data/image_dataset.h"
#include "common/data/sampler.h"
#include "tests/support/temporary_folder.h"

namespace paceline {
namespace {

constexpr std::size_t kRecordBytes = 3073;
constexpr std::size_t kPixels = 3072;

std::uint8_t pixel(std::size_t record, std::size_t k) {
  return static_cast<std::uint8_t>(splitmix64(record * kPixels + k));
}

/// Records `first`, first + 1, …: label record % 10, pixels as above.
std::vector<std::uint8_t> records(std::size_t first, std::size_t count) {
  std::vector<std::uint8_t> bytes;
  for (std::size_t r = first; r < first + count; ++r) {
    bytes.push_back(static_cast<std::uint8_t>(r % 10));
    for (std::size_t k = 0; k < kPixels; ++k) {
      bytes.push_back(pixel(r, k));
    }
  }
  return bytes;
}

/// A folder with 2, 3, 4, 5, 6 training images and 2 of the test set; goes away with the test.
class Cifar10Files : public testing::Test {
 protected:
  Cifar10Files() {
    std::size_t first = 0;
    for (std::size_t i = 1; i <= 5; ++i) {
      write("data_batch_" + std::to_string(i) + ".bin", records(first, i + 1));
      first += i + 1;
    }
    write("test_batch.bin", records(100, 2));
  }

  [[nodiscard]] std::filesystem::path path(const std::string& name) const {
    return folder_.path() / name;
  }
  void write(const std::string& name, const std::vector<std::uint8_t>& bytes) const {
    std::ofstream file(path(name), std::ios::binary);
    file.write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
  }
  [[nodiscard]] std::unique_ptr<Dataset> load(Split split, std::int64_t limit = 0,
                                              const Augmentation& augmentation = {}) const {
    return load_cifar10(folder_.path().string(), split, limit, augmentation);
  }
  void expect_refusal(Split split, std::initializer_list<const char*> parts) const {
    try {
      static_cast<void>(load(split));
      ADD_FAILURE() << "was accepted";
    } catch (const ConfigError& error) {
      for (const char* part : parts) {
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
            << error.what() << " lacks " << part;
      }
    }
  }

 private:
  TemporaryFolder folder_;
};

TEST_F(Cifar10Files, BecomeChannelsLastInTheFilesOrder) {
  const auto train = load(Split::train);
  EXPECT_EQ(train->size(), 20);
  EXPECT_EQ(train->shape(), (SampleShape{32, 32, 3}));
  EXPECT_EQ(train->classes(), 10);
  EXPECT_EQ(load(Split::train, 7)->size(), 7);
  const auto test = load(Split::test);
  EXPECT_EQ(test->size(), 2);
  const double mean[] = {0.4914, 0.4822, 0.4465};
  const double deviation[] = {0.2470, 0.2435, 0.2616};
  const std::vector<std::uint32_t> indices{19, 0, 8};
  std::vector<float> x(3 * kPixels);
  std::vector<std::int32_t> y(3);
  train->gather(indices, x, y);
  EXPECT_EQ(y, (std::vector<std::int32_t>{9, 0, 8}));
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t position = i % kPixels / 3;
    const std::size_t c = i % 3;
    const double byte = pixel(indices[i / kPixels], c * 1024 + position);
    ASSERT_NEAR(x[i], (byte / 255.0 - mean[c]) / deviation[c], 1e-5) << i;
  }
}

TEST_F(Cifar10Files, AreRefusedByName) {
  write("data_batch_3.bin", std::vector<std::uint8_t>(2 * kRecordBytes - 1));
  expect_refusal(Split::train,
                 {path("data_batch_3.bin").c_str(), "6145 bytes", "a multiple of 3073"});
  write("data_batch_3.bin", {});
  expect_refusal(Split::train, {path("data_batch_3.bin").c_str(), "0 bytes"});
  std::vector<std::uint8_t> bad = records(0, 4);
  bad[2 * kRecordBytes] = 10;
  write("data_batch_3.bin", bad);
  expect_refusal(Split::train, {path("data_batch_3.bin").c_str(), "label 10 in record 2", "0..9"});
  std::filesystem::remove(path("data_batch_3.bin"));
  expect_refusal(Split::train,
                 {path("data_batch_3.bin").c_str(), "No such file", "data_batch_5.bin"});
  std::filesystem::remove(path("test_batch.bin"));
  std::filesystem::create_directory(path("test_batch.bin"));
  expect_refusal(Split::test, {path("test_batch.bin").c_str(), "cannot open"});
}

using Images = std::map<std::pair<std::int64_t, std::uint32_t>, std::vector<float>>;

/// What all ranks see over two epochs, by epoch and sample.
Images seen(const Dataset& data, int world) {
  Images images;
  const auto width = static_cast<std::size_t>(data.shape().elements());
  for (int rank = 0; rank < world; ++rank) {
    BatchMemory memory(data, 4);
    Sampler sampler(data.size(), 2 * data.size(), 4, world, rank, 3);
    for (std::int64_t t = 0; t < sampler.steps(); ++t) {
      const SampleSlice slice = sampler.at(t);
      const Batch batch = memory.gather_training(slice.indices, slice.epoch);
      for (std::size_t i = 0; i < slice.indices.size(); ++i) {
        const auto image = batch.inputs.subspan(i * width, width);
        const bool fresh =
            images.try_emplace({slice.epoch, slice.indices[i]}, image.begin(), image.end()).second;
        EXPECT_TRUE(fresh) << "sample " << slice.indices[i] << " twice in an epoch";
      }
    }
  }
  return images;
}

TEST_F(Cifar10Files, AugmentTheSameWhateverTheWorldSize) {
  const auto data = load(Split::train, 0, {true, 5});
  const Images alone = seen(*data, 1);
  EXPECT_EQ(alone.size(), 40U);
  EXPECT_EQ(seen(*data, 2), alone);
  EXPECT_EQ(seen(*data, 4), alone);
  EXPECT_NE(seen(*load(Split::train, 0, {true, 6}), 1), alone);
  int changed = 0;
  for (std::uint32_t i = 0; i < 20; ++i) {
    changed += alone.at({0, i}) != alone.at({1, i}) ? 1 : 0;
  }
  EXPECT_GE(changed, 17);  // an epoch draws the last one's of 162 with chance 1/162
  const auto plain = load(Split::train);
  EXPECT_EQ(seen(*plain, 2).at({0, 3}), seen(*plain, 1).at({1, 3}));
}

/// Every augmented image is one of the 9·9·2 that the rule allows, found by trying them all.
TEST_F(Cifar10Files, AugmentByShiftsUpToFourAndMirrors) {
  const auto data = load(Split::train, 0, {true, 5});
  const auto plain = load(Split::train);
  std::vector<std::uint32_t> indices(20);
  std::vector<float> x(20 * kPixels);
  std::vector<float> original(x.size());
  std::vector<std::int32_t> y(20);
  for (std::uint32_t i = 0; i < 20; ++i) {
    indices[i] = i;
  }
  plain->gather(indices, original, y);
  const float black[] = {-0.4914F / 0.2470F, -0.4822F / 0.2435F, -0.4465F / 0.2616F};
  const auto matches = [&](std::size_t sample, int down, int right, bool mirror) {
    for (int p = 0; p < 1024; ++p) {
      const int h = p / 32 + down;
      const int w = (mirror ? 31 - p % 32 : p % 32) + right;
      const bool inside = h >= 0 && h < 32 && w >= 0 && w < 32;
      for (std::size_t c = 0; c < 3; ++c) {
        const float expected =
            inside ? original[sample * kPixels + static_cast<std::size_t>(h * 32 + w) * 3 + c]
                   : black[c];
        const float actual = x[sample * kPixels + static_cast<std::size_t>(p) * 3 + c];
        if (std::abs(expected - actual) > 1e-6F) return false;
      }
    }
    return true;
  };
  std::map<int, int> shifts;
  int mirrored = 0;
  for (std::int64_t epoch = 0; epoch < 5; ++epoch) {
    data->gather_training(indices, epoch, x, y);
    for (std::size_t sample = 0; sample < 20; ++sample) {
      int found = 0;
      for (int draw = 0; draw < 162; ++draw) {
        if (matches(sample, draw / 18 - 4, draw / 2 % 9 - 4, draw % 2 == 1)) {
          ++found;
          ++shifts[draw / 18 - 4];
          ++shifts[draw / 2 % 9 - 4];
          mirrored += draw % 2;
        }
      }
      ASSERT_EQ(found, 1) << "sample " << sample;
    }
  }
  EXPECT_EQ(shifts.size(), 9U);
  EXPECT_GT(mirrored, 30);  // of 100
  EXPECT_LT(mirrored, 70);
}

TEST(Images, EveryChannelHasItsOwnMeanAndDeviationOrAllHaveOne) {
  for (const std::int64_t channels : {1, 2, 3, 5}) {
    for (const bool shared : {true, false}) {
      ImageFormat format{{2, 3, channels}, 1, {}, {}, {}};
      for (std::int64_t c = 0; c < (shared ? 1 : channels); ++c) {
        format.mean.push_back(0.25 + 0.125 * static_cast<double>(c));
        format.deviation.push_back(0.5 + static_cast<double>(c));
      }
      std::vector<std::uint8_t> pixels(static_cast<std::size_t>(6 * channels));
      for (std::size_t k = 0; k < pixels.size(); ++k) {
        pixels[k] = pixel(7, k);
      }
      const auto images = make_image_dataset(pixels, {0}, format);
      std::vector<float> inputs(pixels.size());
      std::vector<std::int32_t> labels(1);
      images->gather(std::vector<std::uint32_t>{0}, inputs, labels);
      for (std::size_t k = 0; k < pixels.size(); ++k) {
        const std::size_t c = shared ? 0 : k % static_cast<std::size_t>(channels);
        const double x = static_cast<double>(pixels[k]) / 255.0;
        EXPECT_EQ(inputs[k], static_cast<float>((x - format.mean[c]) / format.deviation[c])) << k;
      }
    }
  }
}

TEST(Synthetic, HasAnyShapeAndManyClasses) {
  EXPECT_EQ(parse_image_shape("224x224x3"), (SampleShape{224, 224, 3}));
  EXPECT_EQ(parse_image_shape("1x7x20"), (SampleShape{1, 7, 20}));
  for (const char* bad : {"", "224", "224x224", "224x224x3x1", "0x1x1", "-1x2x3", "4097x1x1",
                          "4096x4096x2", "2 x2x2", "2x2x2 ", "axbxc", "x2x2", "2xx2"}) {
    EXPECT_THROW(static_cast<void>(parse_image_shape(bad)), ConfigError) << bad;
  }
  // Too large to be kept: made when gathered, and the same as of a set that is kept.
  const SampleShape shape{64, 64, 3};
  const auto large = make_synthetic(100'000'000, shape, 1000, 1, Split::train);
  const auto small = make_synthetic(5, shape, 1000, 1, Split::train);
  EXPECT_EQ(large->size(), 100'000'000);
  EXPECT_EQ(large->classes(), 1000);
  const std::vector<std::uint32_t> indices{4, 2};
  std::vector<float> x(2 * 12288);
  std::vector<float> same(x.size());
  std::vector<std::int32_t> y(2);
  std::vector<std::int32_t> same_y(2);
  large->gather(indices, x, y);
  small->gather(indices, same, same_y);
  EXPECT_EQ(x, same);
  EXPECT_EQ(y, same_y);
  std::vector<std::uint32_t> last{99'999'999};
  large->gather(last, std::span(x).first(12288), std::span(y).first(1));
  EXPECT_THROW(large->gather(std::vector<std::uint32_t>{100'000'000}, std::span(x).first(12288),
                             std::span(y).first(1)),
               Error);
}

}  // namespace
}  // namespace paceline
