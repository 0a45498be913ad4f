// SPDX-License-Identifier: Apache-2.0
// Matrix products, convolutions, batch norms and pooling of the CUDA module: cuBLASLt and cuDNN,
// behind C's calling convention (see abi.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/core/precision.h"

namespace paceline::cuda {

struct MathOptions {
  std::int32_t tf32;  ///< fp32 products may run on tensor cores in TF32
  std::int32_t tune;  ///< cuDNN's proposals for a convolution are timed, the fastest is taken
  const char* blas_library;  ///< file of libcublasLt, 12 or 13; borrowed during the call
  const char* dnn_library;   ///< of libcudnn, 9; opened when first needed; null: never
};

enum class Epilogue : std::int32_t { none, bias, bias_relu, bias_gelu };

/// C[rows, columns] = epilogue(alpha·A·B + beta·C) for `batch` matrices, all row-major:
/// A is [rows, inner], or [inner, rows] if transposed; B is [inner, columns], or [columns, inner].
/// Sums are fp32.
struct Matmul {
  Precision format;  ///< of A, B and, unless fp32_output, of C
  std::int32_t fp32_output;
  std::int32_t a_transposed;
  std::int32_t b_transposed;
  Epilogue epilogue;
  std::int64_t rows;
  std::int64_t columns;
  std::int64_t inner;
  std::int64_t a_stride;  ///< elements between rows as stored; likewise below
  std::int64_t b_stride;
  std::int64_t c_stride;
  std::int64_t batch;
  std::int64_t a_step;  ///< elements between matrices of the batch
  std::int64_t b_step;
  std::int64_t c_step;
  float alpha;
  float beta;
  const void* a;
  const void* b;
  void* c;
  const float* bias;  ///< [columns], fp32; with an epilogue that has one. GELU is the tanh form
};

/// y[n, h, w, o] = Σ_{i, j, c} x[n, h·stride+i−padding, w·stride+j−padding, c]·filter[o, i, j, c],
/// square kernels. All tensors in `format`, NHWC, the filter OHWI; sums are fp32.
struct Convolution {
  Precision format;
  std::int32_t kernel;
  std::int32_t stride;
  std::int32_t padding;
  std::int64_t samples;
  std::int64_t height;  ///< of the input
  std::int64_t width;
  std::int64_t channels;
  std::int64_t outputs;
};

/// O = softmax(scale·Q·Kᵀ)·V in every head of every sequence; with `causal` a position sees itself
/// and those before it. Where tensors lie: qkv [samples, positions, 3, heads, width] (queries,
/// keys, values), out [samples, positions, heads, width], both in `format`; statistics [samples,
/// heads, positions], fp32, each the logarithm of its row's sum of exponentials. Sums are fp32.
struct Attention {
  Precision format;
  std::int32_t causal;
  std::int64_t samples;
  std::int64_t heads;
  std::int64_t positions;
  std::int64_t width;  ///< of a head
  float scale;
  std::int32_t
      equal_bits;  ///< equal calls give them; without, the gradient's sums are of any order
};

/// x̂ = (x − mean)·inverse over all samples and positions of a channel, inverse = 1/√(variance +
/// epsilon), y = act(gamma·x̂ + beta (+ addend)). Tensors in `format`, NHWC; gamma, beta, mean and
/// inverse [channels], fp32, as are their gradients and all sums.
struct BatchNorm {
  Precision format;
  std::int32_t relu;    ///< y = max(0, …)
  std::int32_t addend;  ///< whether there is one, shaped like y
  std::int32_t masks;   ///< the gradient counts dy only where y > 0; an infinite one may give NaN
  std::int64_t samples;
  std::int64_t height;
  std::int64_t width;
  std::int64_t channels;
  float epsilon;
};

enum class Pooling : std::int32_t { maximum, average };

/// y[n, r, q, c] = the maximum or mean of x over a window, whose rows begin at r·stride − padding
/// (columns likewise). Padding is in no maximum; a mean has none. Tensors in `format`, NHWC.
struct Pool {
  Precision format;
  Pooling kind;
  std::int64_t samples;
  std::int64_t height;  ///< of the input
  std::int64_t width;
  std::int64_t channels;
  std::int64_t rows;  ///< of the output
  std::int64_t columns;
  std::int64_t window_height;
  std::int64_t window_width;
  std::int64_t stride;
  std::int64_t padding;
};

/// A Math's workspace from its first product on.
inline constexpr std::size_t kProductWorkspace = std::size_t{32} << 20;
/// What computes a convolution and wants more is not taken.
inline constexpr std::size_t kMostConvolutionWorkspace = std::size_t{1} << 30;

/// The tensors of a batch norm or a pool begin at a multiple of so many bytes; gamma, beta, mean,
/// inverse and their gradients at one of sizeof(float).
inline constexpr std::size_t kLayerAlignment = 16;

/// Bytes that a layer and its gradient take of the workspace; of two gradients the more.
struct WorkspacePlan {
  std::size_t workspace;
  std::size_t gradient_workspace;
  std::uint32_t notes;  ///< of any engine, each as 1 << cudnnBackendNumericalNote_t
  std::int64_t slices;  ///< most that an engine splits a sum into, to add them at last; 1: none
};

/// A Math is made for the calling thread's current device and used by one thread at a time; work is
/// queued on `stream`, and its workspace is reused from call to call, so all calls of one Math take
/// the same stream. It remembers the plan of every shape that it has seen. Equal calls give equal
/// bits (but see Attention): neither atomic sums nor sums in 16 bits. When it tunes, the first call
/// for a convolution's shape waits for the stream, and another Math may choose another plan.
struct MathApi {
  int (*create)(void** math, const MathOptions* options, void* stream);
  int (*destroy)(void* math);
  int (*matmul)(void* math, const Matmul* product);
  int (*convolve)(void* math, const Convolution* shape, const void* x, const void* filter, void* y);
  int (*convolve_input_gradient)(void* math, const Convolution* shape, const void* dy,
                                 const void* filter, void* dx);
  /// d_filter is overwritten.
  int (*convolve_filter_gradient)(void* math, const Convolution* shape, const void* x,
                                  const void* dy, void* d_filter);
  /// Why attention of this shape, with its gradient for `training`, is not fused here: a line
  /// without a full stop, the Math's until the next call of this function; null where it is. The
  /// first call for a shape plans it, which takes seconds of the host.
  const char* (*attention_obstacle)(void* math, const Attention* shape, std::int32_t training);
  /// Nothing of [positions, positions] is kept. Fails where there is an obstacle.
  int (*attend)(void* math, const Attention* shape, const void* qkv, void* out, float* statistics);
  /// d_qkv, shaped like qkv, is overwritten; out and statistics are attend()'s.
  int (*attend_gradient)(void* math, const Attention* shape, const void* qkv, const void* out,
                         const float* statistics, const void* d_out, void* d_qkv);
  /// Plans both without a device: `device` is cuDNN's JSON of one's properties. Sets the bytes of
  /// workspace that each takes there.
  int (*plan_attention)(const MathOptions* options, const char* device, const Attention* shape,
                        WorkspacePlan* plan);
  /// As with attention: why a batch norm or pooling of this shape, with its gradient, is not
  /// computed here; the first call for a shape plans it.
  const char* (*norm_obstacle)(void* math, const BatchNorm* shape);
  const char* (*pool_obstacle)(void* math, const Pool* shape);
  /// Of a training batch: also sets its mean and inverse. `addend` is null where there is none.
  int (*normalise)(void* math, const BatchNorm* shape, const void* x, const void* addend,
                   const float* gamma, const float* beta, void* y, float* mean, float* inverse);
  /// dx, d_gamma and d_beta are overwritten, dx with the gradient through mean and inverse
  /// included. y is null where the gradient does not mask.
  int (*normalise_gradient)(void* math, const BatchNorm* shape, const void* x, const void* y,
                            const void* dy, const float* gamma, const float* mean,
                            const float* inverse, void* dx, float* d_gamma, float* d_beta);
  /// winners [n, rows, columns, channels]: of a maximum its place in the window, for the gradient,
  /// the first of equal ones; null for a mean.
  int (*pool)(void* math, const Pool* shape, const void* x, void* y, std::uint8_t* winners);
  int (*pool_gradient)(void* math, const Pool* shape, const void* dy, const std::uint8_t* winners,
                       void* dx);
  /// As plan_attention.
  int (*plan_norm)(const MathOptions* options, const char* device, const BatchNorm* shape,
                   WorkspacePlan* plan);
  int (*plan_pool)(const MathOptions* options, const char* device, const Pool* shape,
                   WorkspacePlan* plan);
  int (*plan_convolution)(const MathOptions* options, const char* device, const Convolution* shape,
                          WorkspacePlan* plan);
  std::size_t (*workspace_bytes)(const void* math);  ///< held now, which is the most so far
};

}  // namespace paceline::cuda
