// SPDX-License-Identifier: Apache-2.0
// A text as windows of bytes.
#include <gtest/gtest.h>

#include <fstream>

#include "common/base/error.h"
#include "common/data/text_dataset.h"
#include "tests/support/temporary_folder.h"

namespace paceline {
namespace {

std::vector<std::uint8_t> bytes_up_to(int n) {
  std::vector<std::uint8_t> bytes;
  for (int i = 0; i < n; ++i) bytes.push_back(static_cast<std::uint8_t>(i));
  return bytes;
}

TEST(Text, PredictsTheNextByteOfWindowsSideBySide) {
  const auto text = make_text_dataset(bytes_up_to(14), 4, "text");
  EXPECT_EQ(text->size(), 3);  // byte 13 would need a label
  EXPECT_EQ(text->shape(), (SampleShape{4, 1, 1}));
  EXPECT_EQ(text->labels_per_sample(), 4);
  EXPECT_EQ(text->classes(), 256);
  const std::vector<std::uint32_t> indices{2, 0};
  std::vector<float> inputs(8);
  std::vector<std::int32_t> labels(8);
  text->gather(indices, inputs, labels);
  EXPECT_EQ(inputs, (std::vector<float>{8, 9, 10, 11, 0, 1, 2, 3}));
  EXPECT_EQ(labels, (std::vector<std::int32_t>{9, 10, 11, 12, 1, 2, 3, 4}));
  const std::vector<std::uint32_t> past{3};
  EXPECT_THROW(text->gather(past, std::span(inputs).first(4), std::span(labels).first(4)), Error);
  EXPECT_THROW(text->gather(indices, inputs, std::span(labels).first(2)), Error);
}

TEST(Text, ContextAndBytesMustFit) {
  EXPECT_EQ(make_text_dataset(bytes_up_to(5), 4, "text")->size(), 1);
  for (const int bytes : {0, 1, 4}) {
    EXPECT_THROW(static_cast<void>(make_text_dataset(bytes_up_to(bytes), 4, "text")), ConfigError);
  }
  EXPECT_THROW(static_cast<void>(make_text_dataset(bytes_up_to(5), 0, "text")), ConfigError);
}

TEST(Text, TheLastTenthOfAFileTests) {
  const TemporaryFolder folder;
  const std::string path = (folder.path() / "text").string();
  std::ofstream(path) << std::string(180, 'a') + std::string(20, 'b');
  const Datasets text = load_text(path, 10, 0, 0);
  EXPECT_EQ(text.train->size(), 17);
  EXPECT_EQ(load_text(path, 10, 3, 0).train->size(), 3);
  EXPECT_EQ(text.test->size(), 1);
  std::vector<float> inputs(10);
  std::vector<std::int32_t> labels(10);
  const std::uint32_t first = 0;
  text.test->gather({&first, 1}, inputs, labels);
  EXPECT_EQ(inputs[0], 'b');
  EXPECT_THROW(static_cast<void>(load_text(path, 20, 0, 0)), ConfigError);
  std::ofstream(path, std::ios::trunc).close();
  EXPECT_THROW(static_cast<void>(load_text(path, 10, 0, 0)), ConfigError);
}

}  // namespace
}  // namespace paceline
