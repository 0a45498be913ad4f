// SPDX-License-Identifier: Apache-2.0
// Logistic regression against its textbook form in double.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/base/error.h"
#include "common/core/logistic.h"
#include "tests/core/inputs.h"

namespace paceline {
namespace {

constexpr std::size_t kFeatures = 6;

/// Four rows; features 1 and 5 come twice, 4 never, the third row has none.
struct Rows {
  SparseMatrix matrix{kFeatures, {0, 3, 5, 5, 6}, {0, 1, 5, 1, 5, 3}, {0.5F, -1, 2, 3, 1, -40}};
  std::vector<std::int32_t> labels{1, 0, 1, 1};
  std::vector<std::uint32_t> order{3, 0, 2, 1};

  [[nodiscard]] std::vector<std::int32_t> ordered_labels() const {
    std::vector<std::int32_t> ordered;
    for (const std::uint32_t row : order) ordered.push_back(labels[row]);
    return ordered;
  }
};

double textbook_loss(const Rows& rows, const std::vector<double>& weights) {
  double loss = 0.0;
  for (std::size_t row = 0; row < rows.labels.size(); ++row) {
    double logit = weights[kFeatures];
    for (std::size_t k = rows.matrix.begins[row]; k < rows.matrix.begins[row + 1]; ++k) {
      logit += weights[rows.matrix.columns[k]] * static_cast<double>(rows.matrix.values[k]);
    }
    loss += std::log1p(std::exp(rows.labels[row] == 1 ? -logit : logit));
  }
  return loss;
}

TEST(Logistic, LossAndGradientAreTheTextbooks) {
  const Rows rows;
  const std::vector<std::int32_t> labels = rows.ordered_labels();
  const auto model = make_model("logistic", {1, 1, kFeatures}, 2);
  ASSERT_EQ(model->parameter_elements(), kFeatures + 1);
  const std::vector<float> weights{0.3F, -0.2F, 5, 0.1F, 9, 0.4F, -0.05F};
  std::vector<float> gradients(kFeatures + 1, std::nanf(""));
  const Batch batch{{}, labels, 4, 2.0F, {&rows.matrix, rows.order}};
  const BatchResult result = model->train_batch(batch, weights, gradients, nullptr);
  std::vector<double> exact(weights.begin(), weights.end());
  EXPECT_NEAR(result.loss_sum, textbook_loss(rows, exact), 1e-5);
  EXPECT_EQ(result.correct, 2);  // logits 1.1, -0.25, -0.05, -4.05
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const double kept = exact[i];
    exact[i] = kept + 1e-6;
    const double above = textbook_loss(rows, exact);
    exact[i] = kept - 1e-6;
    const double below = textbook_loss(rows, exact);
    exact[i] = kept;
    EXPECT_NEAR(gradients[i], 2.0 * (above - below) / 2e-6, 1e-4) << i;  // loss scale 2
  }
  EXPECT_EQ(gradients[2], 0.0F);
  EXPECT_EQ(gradients[4], 0.0F);

  std::vector<float> summed(kFeatures + 1);
  static_cast<void>(model->train_batch(batch, weights, {}, nullptr));
  const SparseGradient sparse = model->sparse_gradient();
  EXPECT_TRUE(std::ranges::equal(sparse.elements, std::vector<std::uint32_t>{0, 1, 3, 5, 6}));
  for (std::size_t k = 0; k < sparse.elements.size(); ++k) {
    summed[sparse.elements[k]] += sparse.values[k];
  }
  EXPECT_EQ(summed, gradients);
  EXPECT_EQ(model->evaluate_batch(batch, weights).loss_sum, result.loss_sum);
}

TEST(SparseSum, GivesEachIndexOnceInOrder) {
  constexpr std::size_t kBound = 10000;  // several groups
  SparseSum sum(kBound);
  std::vector<std::uint32_t> indices;
  std::vector<float> values;
  for (const float round : {1.0F, 2.0F}) {  // the second starts from nothing
    for (const std::size_t index : {9999U, 0U, 63U, 64U, 4096U, 4095U, 0U, 8191U}) {
      sum.add(index, round);
    }
    indices.clear();
    values.clear();
    sum.take(indices, values);
    EXPECT_EQ(indices, (std::vector<std::uint32_t>{0, 63, 64, 4095, 4096, 8191, 9999}));
    EXPECT_EQ(values, (std::vector<float>{2 * round, round, round, round, round, round, round}));
  }
}

TEST(Logistic, LargeLogitsStayFinite) {
  const SparseMatrix matrix{1, {0, 1, 2}, {0, 0}, {1e30F, -1e30F}};
  const std::vector<std::int32_t> labels{0, 0};
  const std::vector<std::uint32_t> order{0, 1};
  const auto model = make_model("logistic", {1, 1, 1}, 2);
  std::vector<float> gradients(2);
  const std::vector<float> weights{1.0F, 0.0F};
  const BatchResult result =
      model->train_batch({{}, labels, 2, 1.0F, {&matrix, order}}, weights, gradients, nullptr);
  EXPECT_FLOAT_EQ(static_cast<float>(result.loss_sum), 1e30F);
  EXPECT_EQ(gradients[1], 1.0F);
}

TEST(Logistic, RefusesWhatItCannotTake) {
  const Rows rows;
  const auto model = make_model("logistic", {1, 1, kFeatures}, 2);
  const std::vector<float> weights(kFeatures + 1);
  std::vector<float> gradients(kFeatures + 1);
  std::vector<std::int32_t> labels = rows.ordered_labels();
  const auto train = [&](const SparseBatch& sparse, std::span<float> to) {
    return model->train_batch({{}, labels, 4, 1.0F, sparse}, weights, to, nullptr);
  };
  EXPECT_THROW(train({}, gradients), Error);
  EXPECT_THROW(train({&rows.matrix, std::span(rows.order).first(3)}, gradients), Error);
  EXPECT_THROW(train({&rows.matrix, rows.order}, std::span(gradients).first(2)), Error);
  const std::vector<std::uint32_t> past{0, 1, 2, 4};
  EXPECT_THROW(train({&rows.matrix, past}, gradients), Error);
  labels[1] = 2;
  EXPECT_THROW(train({&rows.matrix, rows.order}, gradients), Error);
  EXPECT_THROW(static_cast<void>(make_model("logistic", {1, 1, 4}, 3)), ConfigError);
  EXPECT_THROW(
      static_cast<void>(make_model("logistic", {1, 1, 4}, 2, {.precision = Precision::bf16})),
      ConfigError);
}

}  // namespace
}  // namespace paceline
