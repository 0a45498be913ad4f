// SPDX-License-Identifier: Apache-2.0
// libsvm's text format, good and bad, and made-up sparse rows.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <sstream>

#include "common/base/error.h"
#include "common/data/sparse_dataset.h"
#include "tests/support/temporary_folder.h"

namespace paceline {
namespace {

std::string refusal_of(std::string_view text) {
  try {
    static_cast<void>(parse_libsvm(text, "rows.svm"));
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Libsvm, ReadsLabelsRowsAndComments) {
  const SparseRows rows =
      parse_libsvm("+1 1:0.5 3:-2e-1 # a row\n\n-1\t2:+4\r\n0\n1 5:1", "rows.svm");
  EXPECT_EQ(rows.labels, (std::vector<std::uint8_t>{1, 0, 0, 1}));
  EXPECT_EQ(rows.matrix.begins, (std::vector<std::size_t>{0, 2, 3, 3, 4}));
  EXPECT_EQ(rows.matrix.columns, (std::vector<std::uint32_t>{0, 2, 1, 4}));
  EXPECT_EQ(rows.matrix.values, (std::vector<float>{0.5F, -0.2F, 4.0F, 1.0F}));
  EXPECT_EQ(rows.matrix.width, 5);
  EXPECT_EQ(parse_libsvm("1 1:1\n1 2:1\n", "rows.svm", 1).matrix.width, 1);
}

TEST(Libsvm, RefusesByLineAndText) {
  EXPECT_EQ(refusal_of("1 1:1\n1 0:1\n"),
            "rows.svm:2: \"0:1\": an index must be from 1 to 268435456");
  EXPECT_EQ(refusal_of("1 2:1 2:1"), "rows.svm:1: \"2:1\": indices must ascend, and 2 came before");
  EXPECT_EQ(refusal_of("1 7:1 3:1"), "rows.svm:1: \"3:1\": indices must ascend, and 7 came before");
  for (const char* text : {"1 -1:1", "1 268435457:1", "1 99999999999999999999:1", "1 :1"}) {
    EXPECT_NE(refusal_of(text), "accepted") << text;
  }
  for (const char* text : {"2 1:1", "x 1:1", "nan 1:1", "1:1", "+-1 1:1"}) {
    EXPECT_NE(refusal_of(text).find("a label must be -1, 0 or 1"), std::string::npos) << text;
  }
  for (const char* text : {"1 1:", "1 1:nan", "1 1:inf", "1 1:1e99", "1 1:1x"}) {
    EXPECT_NE(refusal_of(text).find("a value must be a finite number"), std::string::npos) << text;
  }
  for (const char* text : {"1 1", "1 1 :1", "1 a:1", "1 1.5:1"}) {
    EXPECT_NE(refusal_of(text).find("INDEX:VALUE"), std::string::npos) << text;
  }
}

/// A folder that goes away with the test.
class LibsvmFiles : public testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_.path() / name) << text;
    return (folder_.path() / name).string();
  }

 private:
  TemporaryFolder folder_;
};

TEST_F(LibsvmFiles, HoldOutEveryTenthRowOrHaveATestSet) {
  std::string text;
  for (int i = 1; i <= 25; ++i) {
    text += std::to_string(i % 2) + " " + std::to_string(i) + ":1\n";
  }
  const std::string path = write("rows", text);
  const Datasets split = load_libsvm(path, 0, 0);
  EXPECT_EQ(split.train->size(), 23);
  ASSERT_EQ(split.test->size(), 2);
  EXPECT_EQ(split.test->shape(), (SampleShape{1, 1, 25}));
  EXPECT_EQ(split.test->sparse()->row_columns(1)[0], 19U);
  EXPECT_EQ(load_libsvm(path, 5, 1).train->size(), 5);
  write("rows.t", "1 30:1\n");
  const Datasets whole = load_libsvm(path, 0, 0);
  EXPECT_EQ(whole.train->size(), 25);
  EXPECT_EQ(whole.test->size(), 1);
  EXPECT_EQ(whole.train->shape(), (SampleShape{1, 1, 30}));
}

TEST_F(LibsvmFiles, AreRefusedWithoutRows) {
  for (const char* text : {"", "# nothing\n", "1\n-1\n"}) {
    const std::string path = write("none", text);
    EXPECT_THROW(static_cast<void>(load_libsvm(path, 0, 0)), ConfigError) << text;
  }
  EXPECT_THROW(static_cast<void>(load_libsvm(write("few", "1 1:1\n"), 0, 0)), ConfigError);
  EXPECT_THROW(static_cast<void>(load_libsvm("/no/such/file", 0, 0)), ConfigError);
}

TEST(SparseRows, AreAFunctionOfSeedAndIndexAndReadBackFromText) {
  const SparseShape shape{200, 12};
  const auto small = make_sparse(50, shape, 7, Split::train);
  const auto large = make_sparse(120, shape, 7, Split::train);
  const auto other = make_sparse(50, shape, 8, Split::train);
  const SparseMatrix& matrix = *small->sparse();
  EXPECT_NE(other->sparse()->columns, matrix.columns);
  std::ostringstream text;
  write_libsvm(*small, text);
  const SparseRows read = parse_libsvm(text.str(), "written");
  std::vector<std::uint32_t> indices(50);
  std::iota(indices.begin(), indices.end(), 0U);
  std::vector<std::int32_t> labels(50);
  small->gather(indices, {}, labels);
  for (std::size_t row = 0; row < 50; ++row) {
    const auto columns = matrix.row_columns(row);
    EXPECT_TRUE(std::ranges::equal(columns, large->sparse()->row_columns(row)));
    EXPECT_TRUE(std::ranges::equal(columns, read.matrix.row_columns(row)));
    EXPECT_TRUE(std::ranges::equal(matrix.row_values(row), read.matrix.row_values(row)));
    EXPECT_TRUE(std::ranges::is_sorted(columns));
    EXPECT_LE(columns.size(), 12U);
    EXPECT_EQ(read.labels[row], labels[row]);
  }
  const auto ones = std::ranges::count(labels, 1);
  EXPECT_GT(ones, 5);
  EXPECT_LT(ones, 45);
  EXPECT_THROW(static_cast<void>(make_sparse(5, {10, 11}, 1, Split::train)), ConfigError);
  std::uint32_t past = 50;
  EXPECT_THROW(small->gather({&past, 1}, {}, std::span(labels).first(1)), Error);
}

}  // namespace
}  // namespace paceline
