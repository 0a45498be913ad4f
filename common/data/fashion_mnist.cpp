// SPDX-License-Identifier: Apache-2.0
// Reads an idx pair from a folder, gzipped or plain.
#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>

#include "common/base/error.h"
#include "common/data/image_dataset.h"

namespace paceline {

namespace {

constexpr double kMean = 0.2860;
constexpr double kDeviation = 0.3530;
constexpr int kClasses = 10;
/// Far over any idx file that fits the format's uses here; stops a decompression bomb.
constexpr std::size_t kMaxFileBytes = std::size_t{1} << 30;
constexpr std::size_t kReadBytes = std::size_t{1} << 16;

struct GzClose {
  void operator()(gzFile_s* file) const noexcept { gzclose(file); }
};

/// The whole file, decompressed if it is gzipped.
std::vector<std::uint8_t> read_file(const std::string& path) {
  errno = 0;
  const std::unique_ptr<gzFile_s, GzClose> file(gzopen(path.c_str(), "rb"));
  if (!file) {
    throw ConfigError(
        fmt::format("{}: cannot open: {}", path, errno != 0 ? std::strerror(errno) : "no memory"));
  }
  std::vector<std::uint8_t> bytes;
  while (true) {
    const std::size_t had = bytes.size();
    bytes.resize(had + kReadBytes);
    const int got = gzread(file.get(), bytes.data() + had, static_cast<unsigned>(kReadBytes));
    int code = Z_OK;
    const char* message = gzerror(file.get(), &code);
    if (got < 0 || code == Z_BUF_ERROR) {
      throw ConfigError(fmt::format("{}: {} after {} bytes: {}", path,
                                    code == Z_BUF_ERROR ? "truncated" : "cannot read", had,
                                    code == Z_ERRNO ? std::strerror(errno) : message));
    }
    bytes.resize(had + static_cast<std::size_t>(got));
    if (got == 0) {
      return bytes;
    }
    if (bytes.size() > kMaxFileBytes) {
      throw ConfigError(fmt::format("{}: holds over {} bytes", path, kMaxFileBytes));
    }
  }
}

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
  IdxData images = parse_idx(read_file(image_path), image_path);
  IdxData labels = parse_idx(read_file(label_path), label_path);
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
