// SPDX-License-Identifier: Apache-2.0
// CIFAR-10's binary version (Krizhevsky 2009): records of a label and 32×32 pixels in planes of
// red, green and blue.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "common/base/error.h"
#include "common/data/image_dataset.h"

namespace paceline {

namespace {

constexpr std::size_t kSide = 32;
constexpr std::size_t kPlane = kSide * kSide;
constexpr std::size_t kChannels = 3;
constexpr std::size_t kRecord = 1 + kChannels * kPlane;
constexpr int kCifarClasses = 10;
constexpr std::size_t kMostCifarBytes = std::size_t{1}
                                        << 30;  // of a file; the real ones have 30 MB
// Of the training set.
constexpr double kMeans[] = {0.4914, 0.4822, 0.4465};
constexpr double kDeviations[] = {0.2470, 0.2435, 0.2616};

std::vector<std::uint8_t> read_records(const std::string& path) {
  std::error_code error;
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  std::ifstream file;
  if (!error) {
    errno = 0;
    file.open(path, std::ios::binary);
  }
  if (error || !file) {
    throw ConfigError(fmt::format(
        "{}: cannot open: {}; data.name = cifar10 needs data_batch_1.bin to data_batch_5.bin and "
        "test_batch.bin (CIFAR-10's binary version) in data.path",
        path, error ? error.message() : std::strerror(errno)));
  }
  if (size == 0 || size % kRecord != 0 || size > kMostCifarBytes) {
    throw ConfigError(fmt::format(
        "{}: holds {} bytes, expected a multiple of {} (a label and 3072 pixels per image) above 0 "
        "and up to {}",
        path, size, kRecord, kMostCifarBytes));
  }
  std::vector<std::uint8_t> bytes(size);
  file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(size));
  if (file.gcount() != static_cast<std::streamsize>(size)) {
    throw ConfigError(
        fmt::format("{}: ends after {} of {} bytes", path, file.gcount(), bytes.size()));
  }
  return bytes;
}

/// Appends the images of a file, channels last.
void append(const std::string& path, std::vector<std::uint8_t>& pixels,
            std::vector<std::uint8_t>& labels) {
  const std::vector<std::uint8_t> bytes = read_records(path);
  for (std::size_t at = 0; at < bytes.size(); at += kRecord) {
    const std::uint8_t label = bytes[at];
    if (label >= kCifarClasses) {
      throw ConfigError(fmt::format("{}: label {} in record {}, allowed 0..{}", path, label,
                                    at / kRecord, kCifarClasses - 1));
    }
    labels.push_back(label);
    const std::uint8_t* planes = bytes.data() + at + 1;
    for (std::size_t p = 0; p < kPlane; ++p) {
      for (std::size_t c = 0; c < kChannels; ++c) {
        pixels.push_back(planes[c * kPlane + p]);
      }
    }
  }
}

}  // namespace

std::unique_ptr<Dataset> load_cifar10(const std::string& folder, Split split, std::int64_t limit,
                                      const Augmentation& augmentation) {
  std::vector<std::string> names{"test_batch.bin"};
  if (split == Split::train) {
    names.clear();
    for (int i = 1; i <= 5; ++i) {
      names.push_back(fmt::format("data_batch_{}.bin", i));
    }
  }
  std::vector<std::uint8_t> pixels;
  std::vector<std::uint8_t> labels;
  for (const std::string& name : names) {
    append((std::filesystem::path(folder) / name).string(), pixels, labels);
  }
  if (limit > 0 && limit < static_cast<std::int64_t>(labels.size())) {
    labels.resize(static_cast<std::size_t>(limit));
    pixels.resize(labels.size() * kChannels * kPlane);
  }
  pixels.shrink_to_fit();
  return make_image_dataset(std::move(pixels), std::move(labels),
                            {{kSide, kSide, kChannels},
                             kCifarClasses,
                             {std::begin(kMeans), std::end(kMeans)},
                             {std::begin(kDeviations), std::end(kDeviations)},
                             augmentation});
}

}  // namespace paceline
