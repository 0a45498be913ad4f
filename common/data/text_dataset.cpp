// SPDX-License-Identifier: Apache-2.0
#include "common/data/text_dataset.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/base/error.h"
#include "common/data/read_file.h"

namespace paceline {

namespace {

class TextDataset final : public Dataset {
 public:
  TextDataset(std::vector<std::uint8_t> bytes, std::size_t context)
      : bytes_(std::move(bytes)), context_(context) {}

  [[nodiscard]] std::int64_t size() const noexcept override {
    return static_cast<std::int64_t>((bytes_.size() - 1) / context_);
  }
  [[nodiscard]] SampleShape shape() const noexcept override {
    return {static_cast<std::int64_t>(context_), 1, 1};
  }
  [[nodiscard]] int classes() const noexcept override { return 256; }
  [[nodiscard]] std::int64_t labels_per_sample() const noexcept override {
    return static_cast<std::int64_t>(context_);
  }
  void gather(std::span<const std::uint32_t> indices, std::span<float> inputs,
              std::span<std::int32_t> labels) const override {
    if (inputs.size() != indices.size() * context_ || labels.size() != inputs.size()) {
      throw Error(fmt::format("text: {} indices gathered into {} inputs and {} labels",
                              indices.size(), inputs.size(), labels.size()));
    }
    for (std::size_t i = 0; i < indices.size(); ++i) {
      if (static_cast<std::int64_t>(indices[i]) >= size()) {
        throw Error(fmt::format("text: index {} of {} samples", indices[i], size()));
      }
      const auto window = std::span(bytes_).subspan(indices[i] * context_, context_ + 1);
      std::ranges::copy(window.first(context_),
                        inputs.begin() + static_cast<std::ptrdiff_t>(i * context_));
      std::ranges::copy(window.subspan(1),
                        labels.begin() + static_cast<std::ptrdiff_t>(i * context_));
    }
  }

 private:
  std::vector<std::uint8_t> bytes_;
  std::size_t context_;
};

}  // namespace

std::unique_ptr<Dataset> make_text_dataset(std::vector<std::uint8_t> bytes, std::int64_t context,
                                           const std::string& what) {
  if (bytes.empty()) {
    throw ConfigError(fmt::format("{}: is empty", what));
  }
  if (context < 1 || static_cast<std::int64_t>(bytes.size()) <= context) {
    throw ConfigError(fmt::format("data.context = {}: {} has {} bytes; allowed 1 to {}", context,
                                  what, bytes.size(), bytes.size() - 1));
  }
  return std::make_unique<TextDataset>(std::move(bytes), static_cast<std::size_t>(context));
}

Datasets load_text(const std::string& path, std::int64_t context, std::int64_t train_limit,
                   std::int64_t test_limit) {
  std::vector<std::uint8_t> bytes = read_data_file(path);
  if (bytes.empty()) {
    throw ConfigError(fmt::format("{}: is empty", path));
  }
  const auto make = [&](std::vector<std::uint8_t> part, std::int64_t limit, const char* what) {
    const auto kept = static_cast<std::size_t>(limit * context + 1);
    if (limit > 0 && kept < part.size()) {
      part.resize(kept);
    }
    return make_text_dataset(std::move(part), context, fmt::format("{} of {}", what, path));
  };
  const std::size_t train_bytes = bytes.size() - bytes.size() / 10;
  std::vector<std::uint8_t> last(bytes.begin() + static_cast<std::ptrdiff_t>(train_bytes),
                                 bytes.end());
  bytes.resize(train_bytes);
  Datasets sets;
  sets.train = make(std::move(bytes), train_limit, "the first nine tenths");
  sets.test = make(std::move(last), test_limit, "the last tenth");
  return sets;
}

}  // namespace paceline
