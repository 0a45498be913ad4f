// SPDX-License-Identifier: Apache-2.0
#include "common/core/cuda/blas_math.h"

#include <algorithm>
#include <limits>
#include <string>

#include "common/core/cuda/bias_kernels.cuh"

namespace paceline::cuda {

namespace {

/// cuBLASLt asks for no more of any operand.
constexpr std::int64_t kFullAlignment = 256;
constexpr std::int64_t kBiasAlignment = 16;

std::int64_t alignment_of(const void* memory) {
  const auto address = reinterpret_cast<std::intptr_t>(memory);
  return memory == nullptr ? kFullAlignment
                           : std::min<std::int64_t>(address & -address, kFullAlignment);
}

cudaDataType_t type_of(Precision format) {
  switch (format) {
    case Precision::bf16:
      return CUDA_R_16BF;
    case Precision::fp16:
      return CUDA_R_16F;
    default:
      return CUDA_R_32F;
  }
}

Precision output_format(const Matmul& product) {
  return product.fp32_output != 0 ? Precision::fp32 : product.format;
}

cublasLtEpilogue_t fused_epilogue(Epilogue epilogue) {
  switch (epilogue) {
    case Epilogue::bias:
      return CUBLASLT_EPILOGUE_BIAS;
    case Epilogue::bias_relu:
      return CUBLASLT_EPILOGUE_RELU_BIAS;
    case Epilogue::bias_gelu:
      return CUBLASLT_EPILOGUE_GELU_BIAS;
    default:
      return CUBLASLT_EPILOGUE_DEFAULT;
  }
}

std::string described(const Matmul& p) {
  return "cuBLASLt: no algorithm for " + std::to_string(p.batch) + " products [" +
         std::to_string(p.rows) + ", " + std::to_string(p.inner) + "]·[" + std::to_string(p.inner) +
         ", " + std::to_string(p.columns) + "] in format " +
         std::to_string(static_cast<int>(p.format));
}

}  // namespace

/// cuBLASLt is column-major, so it computes Cᵀ = Bᵀ·Aᵀ: its first operand is our B, its rows are
/// our columns, and its bias along rows is ours along columns.
struct BlasMath::Plan {
  explicit Plan(const BlasLibrary& made_by) : library(made_by) {}
  ~Plan() {
    for (cublasLtMatrixLayout_t layout : {first, second, output}) {
      if (layout != nullptr) {
        (void)library.destroy_layout(layout);
      }
    }
    if (product != nullptr) {
      (void)library.destroy_product(product);
    }
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  template <typename T>
  void set(cublasLtMatmulDescAttributes_t attribute, const T& value) const {
    library.check(library.set_product(product, attribute, &value, sizeof value),
                  "describing a product");
  }

  const BlasLibrary& library;
  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t first = nullptr;
  cublasLtMatrixLayout_t second = nullptr;
  cublasLtMatrixLayout_t output = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
  bool fused = false;  ///< the epilogue runs with the product, not after it
};

BlasMath::BlasMath(const char* file, bool tf32, cudaStream_t stream)
    : library_(file), tf32_(tf32), stream_(stream), bias_(stream) {
  library_.check(library_.create(&handle_), "opening a device");
}

BlasMath::~BlasMath() {
  plans_.clear();
  (void)library_.destroy(handle_);
}

BlasMath::Key BlasMath::key_of(const Matmul& p) {
  return {static_cast<std::int64_t>(p.format),
          p.fp32_output,
          p.a_transposed,
          p.b_transposed,
          static_cast<std::int64_t>(p.epilogue),
          p.rows,
          p.columns,
          p.inner,
          p.a_stride,
          p.b_stride,
          p.c_stride,
          p.batch,
          p.a_step,
          p.b_step,
          p.c_step,
          alignment_of(p.a),
          alignment_of(p.b),
          alignment_of(p.c),
          alignment_of(p.bias),
          p.beta == 0.0F ? 0 : 1};
}

cublasLtMatrixLayout_t BlasMath::make_layout(cudaDataType_t type, bool transposed,
                                             std::int64_t rows, std::int64_t columns,
                                             std::int64_t stride, std::int64_t batch,
                                             std::int64_t step) const {
  cublasLtMatrixLayout_t layout = nullptr;
  const auto height = static_cast<std::uint64_t>(transposed ? rows : columns);
  const auto width = static_cast<std::uint64_t>(transposed ? columns : rows);
  library_.check(library_.create_layout(&layout, type, height, width, stride),
                 "describing a matrix");
  const auto count = static_cast<std::int32_t>(batch);
  library_.check(
      library_.set_layout(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count),
      "describing a batch");
  library_.check(
      library_.set_layout(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step, sizeof step),
      "describing a batch");
  return layout;
}

bool BlasMath::find_algorithm(const Matmul& p, Plan& plan, bool fused) const {
  const cublasLtEpilogue_t epilogue =
      fused ? fused_epilogue(p.epilogue) : CUBLASLT_EPILOGUE_DEFAULT;
  plan.set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
  plan.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER,
           fused && p.epilogue != Epilogue::none ? static_cast<const void*>(p.bias) : nullptr);

  cublasLtMatmulPreference_t preference = nullptr;
  library_.check(library_.create_preference(&preference), "choosing an algorithm");
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    return library_.set_preference(preference, attribute, &value, sizeof value);
  };
  const auto alignment = [](const void* memory) {
    return static_cast<std::uint32_t>(alignment_of(memory));
  };
  // No partial sums in 16 bits, and none whose order changes from run to run.
  const std::uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
  for (const cublasStatus_t set :
       {prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{kProductWorkspace}),
        prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions),
        prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(p.b)),
        prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(p.a)),
        prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment(p.c)),
        prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(p.c))}) {
    status = status == CUBLAS_STATUS_SUCCESS ? set : status;
  }
  cublasLtMatmulHeuristicResult_t best{};
  int found = 0;
  if (status == CUBLAS_STATUS_SUCCESS) {
    status = library_.heuristic(handle_, plan.product, plan.first, plan.second, plan.output,
                                plan.output, preference, 1, &best, &found);
  }
  (void)library_.destroy_preference(preference);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED ||
      (status == CUBLAS_STATUS_SUCCESS && (found == 0 || best.state != CUBLAS_STATUS_SUCCESS))) {
    return false;
  }
  library_.check(status, "choosing an algorithm");
  plan.algorithm = best.algo;
  plan.fused = fused && p.epilogue != Epilogue::none;
  return true;
}

std::unique_ptr<BlasMath::Plan> BlasMath::make_plan(const Matmul& p) const {
  if (p.batch > std::numeric_limits<std::int32_t>::max()) {
    throw Failure{kBlasStatus + static_cast<int>(CUBLAS_STATUS_INVALID_VALUE),
                  "more matrices in a batch than cuBLASLt counts"};
  }
  auto plan = std::make_unique<Plan>(library_);
  const bool fast = p.format == Precision::fp32 && tf32_;
  library_.check(
      library_.create_product(&plan->product,
                              fast ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F),
      "describing a product");
  plan->set(CUBLASLT_MATMUL_DESC_TRANSA, p.b_transposed != 0 ? CUBLAS_OP_T : CUBLAS_OP_N);
  plan->set(CUBLASLT_MATMUL_DESC_TRANSB, p.a_transposed != 0 ? CUBLAS_OP_T : CUBLAS_OP_N);
  const cudaDataType_t type = type_of(p.format);
  plan->first =
      make_layout(type, p.b_transposed != 0, p.inner, p.columns, p.b_stride, p.batch, p.b_step);
  plan->second =
      make_layout(type, p.a_transposed != 0, p.rows, p.inner, p.a_stride, p.batch, p.a_step);
  plan->output = make_layout(type_of(output_format(p)), false, p.rows, p.columns, p.c_stride,
                             p.batch, p.c_step);
  if (!find_algorithm(p, *plan, true) && !find_algorithm(p, *plan, false)) {
    throw Failure{kBlasStatus + static_cast<int>(CUBLAS_STATUS_NOT_SUPPORTED), described(p)};
  }
  return plan;
}

BlasMath::Plan& BlasMath::plan_for(const Matmul& p) {
  std::unique_ptr<Plan>& plan = plans_[key_of(p)];
  if (plan == nullptr) {
    plan = make_plan(p);
  }
  return *plan;
}

const void* BlasMath::bias_for(const Matmul& p) {
  const Precision format = output_format(p);
  if (format == Precision::fp32 && alignment_of(p.bias) >= kBiasAlignment) {
    return p.bias;
  }
  void* rounded = bias_.get(static_cast<std::size_t>(p.columns) * sizeof(float));
  check_runtime(round_bias(p.bias, rounded, format, p.columns, stream_));
  return rounded;
}

void BlasMath::matmul(const Matmul& given, Workspace& workspace) {
  Matmul p = given;
  if (p.rows <= 0 || p.columns <= 0 || p.batch <= 0) {
    return;
  }
  const void* bias = p.epilogue != Epilogue::none ? bias_for(p) : nullptr;
  p.bias = static_cast<const float*>(bias);
  Plan& plan = plan_for(p);
  if (plan.fused) {
    plan.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  }
  library_.check(library_.matmul(handle_, plan.product, &p.alpha, p.b, plan.first, p.a, plan.second,
                                 &p.beta, p.c, plan.output, p.c, plan.output, &plan.algorithm,
                                 workspace.get(kProductWorkspace), kProductWorkspace, stream_),
                 "a product");
  if (p.epilogue != Epilogue::none && !plan.fused) {
    check_runtime(finish_product(given, stream_));
  }
}

}  // namespace paceline::cuda
