// SPDX-License-Identifier: Apache-2.0
#include "common/core/cuda/dnn_attention.h"

#include <limits>

namespace paceline::cuda {

namespace {

constexpr std::size_t kOldest = 91002;        // 9.10.0 and 9.10.1 compute wrong attention
constexpr std::size_t kAnyPositions = 91501;  // before, gradients want whole tiles of keys
constexpr std::int64_t kTile = 128;           // keys
constexpr std::int64_t kWidthStep = 8;        // elements of a head
/// The compute capabilities on which cuDNN's gradient adds in one order, given a graph without sums
/// of dQ in memory: NVIDIA's Transformer Engine takes no cuDNN below when asked for determinism,
/// and beyond only chosen engines have one.
constexpr int kOrderedFirst = 900;
constexpr int kOrderedEnd = 1000;
constexpr float kMasked = -std::numeric_limits<float>::infinity();
constexpr float kOne = 1.0F;

/// Numbers of the tensors that are bound to memory, and of values.
enum Number : std::int64_t {
  kQuery = 1,
  kKey,
  kValue,
  kOut,
  kStatistics,
  kOutGradient,
  kQueryGradient,
  kKeyGradient,
  kValueGradient,
  kRowSums,
  kQuerySums,
  kScale,
  kMask,
  kUnit
};

/// The shapes of one attention's tensors.
struct Extents {
  DnnExtent packed;  ///< queries, keys or values within qkv: [samples, heads, positions, width]
  DnnExtent apart;   ///< out, likewise
  DnnExtent scores;  ///< [samples, heads, positions, positions]
  DnnExtent rows;    ///< one fp32 for each row of the scores

  explicit Extents(const Attention& a)
      : packed{{a.samples, a.heads, a.positions, a.width},
               {a.positions * 3 * a.heads * a.width, a.width, 3 * a.heads * a.width, 1}},
        apart{{a.samples, a.heads, a.positions, a.width},
              {a.positions * a.heads * a.width, a.width, a.heads * a.width, 1}},
        scores(DnnExtent::dense(a.samples, a.heads, a.positions, a.positions)),
        rows(DnnExtent::dense(a.samples, a.heads, a.positions, 1)) {}
};

/// scores, and -infinity where a position comes later than the row's.
DnnGraph::Tensor masked(DnnGraph& graph, const Attention& shape, const Extents& extents,
                        DnnGraph::Tensor scores) {
  if (shape.causal == 0) {
    return scores;
  }
  const DnnGraph::Tensor row = graph.places(scores, 2, extents.scores);
  const DnnGraph::Tensor column = graph.places(scores, 3, extents.scores);
  const DnnGraph::Tensor seen =
      graph.pointwise(CUDNN_POINTWISE_CMP_GE, row, column, extents.scores, CUDNN_DATA_BOOLEAN);
  return graph.select(seen, scores, graph.value(kMask), extents.scores);
}

/// S = scale·Q·Kᵀ, P = exp(S − max)/Σ, O = P·V, statistics = max + log Σ.
DnnPlan plan_forward(const DnnLibrary& library, const DnnTarget& target, const Attention& shape) {
  const Extents extents(shape);
  const cudnnDataType_t type = dnn_type(shape.format);
  DnnGraph graph(library);
  const auto query = graph.tensor(kQuery, type, extents.packed);
  const auto key = graph.tensor(kKey, type, extents.packed.transposed());
  const auto value = graph.tensor(kValue, type, extents.packed);
  const auto out = graph.tensor(kOut, type, extents.apart);
  const auto statistics = graph.tensor(kStatistics, CUDNN_DATA_FLOAT, extents.rows);

  const auto products = graph.multiply(query, key, extents.scores);
  const auto scaled =
      graph.pointwise(CUDNN_POINTWISE_MUL, products, graph.value(kScale), extents.scores);
  const auto scores = masked(graph, shape, extents, scaled);
  const auto largest = graph.reduce(CUDNN_REDUCE_TENSOR_MAX, scores, extents.rows);
  const auto below = graph.pointwise(CUDNN_POINTWISE_SUB, scores, largest, extents.scores);
  const auto powers = graph.pointwise(CUDNN_POINTWISE_EXP, below, extents.scores);
  const auto sum = graph.reduce(CUDNN_REDUCE_TENSOR_ADD, powers, extents.rows);
  const auto logarithm = graph.pointwise(CUDNN_POINTWISE_LOG, sum, extents.rows);
  graph.pointwise_into(CUDNN_POINTWISE_ADD, largest, logarithm, statistics);
  const auto shares = graph.pointwise(CUDNN_POINTWISE_DIV, powers, sum, extents.scores, type);
  graph.multiply_into(shares, value, out);
  return graph.plan(target, "planning attention");
}

/// r = Σ dO·O of each row, P = exp(S − statistics), dV = Pᵀ·dO, dS = scale·P·(dO·Vᵀ − r),
/// dK = dSᵀ·Q, dQ = dS·K. Parts of dQ are added up in memory, in any order; for equal bits dS goes
/// there instead, which takes [positions, positions] of workspace.
DnnPlan plan_backward(const DnnLibrary& library, const DnnTarget& target, const Attention& shape) {
  if (shape.equal_bits != 0 &&
      (target.capability() < kOrderedFirst || target.capability() >= kOrderedEnd)) {
    throw not_supported(
        "cuDNN's gradient of attention gives equal bits for equal calls on GPUs of compute "
        "capability 9 only");
  }
  const Extents extents(shape);
  const cudnnDataType_t type = dnn_type(shape.format);
  DnnGraph graph(library);
  const auto query = graph.tensor(kQuery, type, extents.packed);
  const auto key = graph.tensor(kKey, type, extents.packed.transposed());
  const auto value = graph.tensor(kValue, type, extents.packed.transposed());
  const auto out = graph.tensor(kOut, type, extents.apart);
  const auto d_out = graph.tensor(kOutGradient, type, extents.apart);
  const auto statistics = graph.tensor(kStatistics, CUDNN_DATA_FLOAT, extents.rows);
  const auto row_sums = graph.tensor(kRowSums, CUDNN_DATA_FLOAT, extents.rows);
  const auto scale = graph.value(kScale);

  const DnnExtent dense =
      DnnExtent::dense(shape.samples, shape.heads, shape.positions, shape.width);
  const auto both = graph.pointwise(CUDNN_POINTWISE_MUL, d_out, out, dense);
  const auto summed = graph.reduce(CUDNN_REDUCE_TENSOR_ADD, both, extents.rows);
  graph.pointwise_into(CUDNN_POINTWISE_MUL, summed, graph.value(kUnit), row_sums);

  const auto products = graph.multiply(query, key, extents.scores);
  const auto scaled = graph.pointwise(CUDNN_POINTWISE_MUL, products, scale, extents.scores);
  const auto below = graph.pointwise(CUDNN_POINTWISE_SUB, scaled, statistics, extents.scores);
  const auto shares =
      graph.pointwise(CUDNN_POINTWISE_EXP, masked(graph, shape, extents, below), extents.scores);
  graph.multiply_into(graph.reshape(shares, extents.scores.transposed(), type), d_out,
                      graph.tensor(kValueGradient, type, extents.packed));

  const auto d_shares = graph.multiply(d_out, value, extents.scores);
  const auto centred = graph.pointwise(CUDNN_POINTWISE_SUB, d_shares, row_sums, extents.scores);
  const auto weighted = graph.pointwise(CUDNN_POINTWISE_MUL, centred, shares, extents.scores);
  const auto d_scores = graph.pointwise(CUDNN_POINTWISE_MUL, weighted, scale, extents.scores);
  graph.multiply_into(graph.reshape(d_scores, extents.scores.transposed(), type), query,
                      graph.tensor(kKeyGradient, type, extents.packed));
  const auto keys = graph.reshape(key, extents.packed, type);
  const auto d_query = graph.tensor(kQueryGradient, type, extents.packed);
  if (shape.equal_bits != 0) {
    graph.multiply_into(d_scores, keys, d_query);
  } else {
    const auto sums = graph.tensor(kQuerySums, CUDNN_DATA_FLOAT, dense);
    graph.multiply_into(d_scores, keys, sums);
    graph.pointwise_into(CUDNN_POINTWISE_IDENTITY, sums, nullptr, d_query);
  }
  return graph.plan(target, "planning attention's gradient");
}

/// Where queries, keys or values begin in qkv.
template <typename Byte>
Byte* part(Byte* qkv, const Attention& shape, std::int64_t which) {
  return qkv + which * shape.heads * shape.width * 2;
}

/// What the gradient takes of the workspace besides its plan: fp32 of every row, then dQ's sums.
struct Sums {
  std::size_t rows;
  std::size_t queries;
  explicit Sums(const Attention& shape)
      : rows(padded(shape.samples * shape.heads * shape.positions)),
        queries(shape.equal_bits != 0
                    ? 0
                    : padded(shape.samples * shape.heads * shape.positions * shape.width)) {}
  [[nodiscard]] std::size_t bytes() const noexcept { return rows + queries; }

 private:
  static std::size_t padded(std::int64_t floats) {
    constexpr std::size_t kStep = 256;
    const std::size_t bytes = static_cast<std::size_t>(floats) * sizeof(float);
    return (bytes + kStep - 1) / kStep * kStep;
  }
};

void bind_mask(const Attention& shape, std::vector<DnnBinding>& bindings) {
  if (shape.causal != 0) {
    bindings.push_back({kMask, &kMasked});
  }
}

/// What cuDNN would not say, or not rightly.
void refuse_known(std::size_t version, const Attention& shape) {
  if (shape.format == Precision::fp32) {
    throw not_supported("cuDNN fuses attention in bf16 and fp16");
  }
  if (version < kOldest) {
    throw not_supported("cuDNN " + std::to_string(version) + " is too old to fuse attention, " +
                        std::to_string(kOldest) + " is needed");
  }
  if (shape.width % kWidthStep != 0) {
    throw not_supported("heads of " + std::to_string(shape.width) +
                        " channels, cuDNN wants a multiple of " + std::to_string(kWidthStep));
  }
  if (shape.positions < 2) {
    throw not_supported("a sequence of one position");
  }
  if (version < kAnyPositions && shape.positions % kTile != 0) {
    throw not_supported(std::to_string(shape.positions) + " positions, before " +
                        std::to_string(kAnyPositions) + " cuDNN wants a multiple of " +
                        std::to_string(kTile));
  }
}

}  // namespace

WorkspacePlan DnnAttention::planned(const DnnLibrary& library, const DnnTarget& target,
                                    const Attention& shape) {
  refuse_known(library.get_version(), shape);
  const DnnPlan forward = plan_forward(library, target, shape);
  const DnnPlan backward = plan_backward(library, target, shape);
  const DnnTraits both = forward.traits().with(backward.traits());
  const std::size_t gradient = backward.bytes() + Sums(shape).bytes();  // more is refused
  return {forward.bytes(), gradient, both.notes, both.slices};
}

DnnAttention::DnnAttention(const DnnLibrary& library, cudnnHandle_t handle)
    : library_(library), handle_(handle), target_(handle) {}

DnnAttention::Plans::Key DnnAttention::key_of(const Attention& shape, bool gradient) {
  return {static_cast<std::int64_t>(shape.format),
          shape.causal,
          shape.samples,
          shape.heads,
          shape.positions,
          shape.width,
          gradient ? 1 : 0,
          gradient ? shape.equal_bits : 0};
}

DnnPlan DnnAttention::make_plan(const Attention& shape, bool gradient) const {
  refuse_known(library_.get_version(), shape);
  return gradient ? plan_backward(library_, target_, shape)
                  : plan_forward(library_, target_, shape);
}

const std::string& DnnAttention::obstacle(const Attention& shape, bool training) {
  const auto of = [&](bool gradient) -> const std::string& {
    return plans_.obstacle(key_of(shape, gradient), [&] { return make_plan(shape, gradient); });
  };
  if (training && !of(true).empty()) {
    return of(true);
  }
  return of(false);
}

const DnnPlan& DnnAttention::plan_for(const Attention& shape, bool gradient) {
  return plans_.plan(key_of(shape, gradient), [&] { return make_plan(shape, gradient); });
}

void DnnAttention::forward(const Attention& shape, const void* qkv, void* out, float* statistics,
                           Workspace& workspace) {
  const DnnPlan& plan = plan_for(shape, false);
  const auto* bytes = static_cast<const std::byte*>(qkv);
  std::vector<DnnBinding> bindings{{kQuery, part(bytes, shape, 0)}, {kKey, part(bytes, shape, 1)},
                                   {kValue, part(bytes, shape, 2)}, {kOut, out},
                                   {kStatistics, statistics},       {kScale, &shape.scale}};
  bind_mask(shape, bindings);
  plan.run(handle_, bindings, workspace.get(plan.bytes()));
}

void DnnAttention::backward(const Attention& shape, const void* qkv, const void* out,
                            const float* statistics, const void* d_out, void* d_qkv,
                            Workspace& workspace) {
  const DnnPlan& plan = plan_for(shape, true);
  const Sums sums(shape);
  auto* const row_sums = static_cast<std::byte*>(workspace.get(sums.bytes() + plan.bytes()));
  const auto* bytes = static_cast<const std::byte*>(qkv);
  auto* const gradient = static_cast<std::byte*>(d_qkv);
  std::vector<DnnBinding> bindings{{kQuery, part(bytes, shape, 0)},
                                   {kKey, part(bytes, shape, 1)},
                                   {kValue, part(bytes, shape, 2)},
                                   {kOut, out},
                                   {kStatistics, statistics},
                                   {kOutGradient, d_out},
                                   {kQueryGradient, part(gradient, shape, 0)},
                                   {kKeyGradient, part(gradient, shape, 1)},
                                   {kValueGradient, part(gradient, shape, 2)},
                                   {kRowSums, row_sums},
                                   {kScale, &shape.scale},
                                   {kUnit, &kOne}};
  bind_mask(shape, bindings);
  if (shape.equal_bits == 0) {
    bindings.push_back({kQuerySums, row_sums + sums.rows});
  }
  plan.run(handle_, bindings, row_sums + sums.bytes());
}

}  // namespace paceline::cuda
