// SPDX-License-Identifier: Apache-2.0
// Reads an idx pair from a folder, gzipped or plain.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "common/base/error.h"
#include "common/data/image_dataset.h"
#include "common/data/read_file.h"

namespace paceline {

namespace {

constexpr double kMean = 0.2860;
constexpr double kDeviation = 0.3530;
constexpr int kClasses = 10;

/// `name`.gz, or else `name`, in `folder`.
std::string find_file(const std::string& folder, const std::string& name) {
  const std::filesystem::path plain = std::filesystem::path(folder) / name;
  const std::filesystem::path zipped = plain.string() + ".gz";
  std::error_code ignored;
  if (std::filesystem::exists(zipped, ignored)) {
    return zipped.string();
  }
  if (std::filesystem::exists(plain, ignored)) {
    return plain.string();
  }
  throw ConfigError(fmt::format("{}: no such file (nor without .gz)", zipped.string()));
}

void check_rank(const IdxData& data, std::size_t rank, const std::string& path, const char* what) {
  if (data.dims.size() != rank) {
    throw ConfigError(
        fmt::format("{}: {} have {} dimensions, expected {}", path, what, data.dims.size(), rank));
  }
}

}  // namespace

std::unique_ptr<Dataset> load_fashion_mnist(const std::string& folder, Split split,
                                            std::int64_t limit, const Augmentation& augmentation) {
  const std::string prefix = split == Split::train ? "train" : "t10k";
  const std::string image_path = find_file(folder, prefix + "-images-idx3-ubyte");
  const std::string label_path = find_file(folder, prefix + "-labels-idx1-ubyte");
  IdxData images = parse_idx(read_data_file(image_path), image_path);
  IdxData labels = parse_idx(read_data_file(label_path), label_path);
  check_rank(images, 3, image_path, "images");
  check_rank(labels, 1, label_path, "labels");
  const SampleShape shape{images.dims[1], images.dims[2], 1};
  if (images.dims[0] == 0 || shape.elements() == 0) {
    throw ConfigError(
        fmt::format("{}: holds no pixels ({})", image_path, fmt::join(images.dims, "x")));
  }
  if (labels.dims[0] != images.dims[0]) {
    throw ConfigError(fmt::format("{}: {} labels, expected {} as in {}", label_path, labels.dims[0],
                                  images.dims[0], image_path));
  }
  const auto bad = std::ranges::find_if(labels.values, [](int v) { return v >= kClasses; });
  if (bad != labels.values.end()) {
    throw ConfigError(fmt::format("{}: label {} at index {}, allowed 0..{}", label_path, *bad,
                                  bad - labels.values.begin(), kClasses - 1));
  }
  if (limit > 0 && limit < static_cast<std::int64_t>(labels.values.size())) {
    const auto keep = static_cast<std::size_t>(limit);
    labels.values.resize(keep);
    images.values.resize(keep * static_cast<std::size_t>(shape.elements()));
    images.values.shrink_to_fit();
  }
  return make_image_dataset(std::move(images.values), std::move(labels.values),
                            {shape, kClasses, {kMean}, {kDeviation}, augmentation});
}

}  // namespace paceline
