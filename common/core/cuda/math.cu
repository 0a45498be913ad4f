// SPDX-License-Identifier: Apache-2.0
#include "common/core/cuda/math.h"

#include <memory>
#include <string>

#include "common/core/cuda/blas_math.h"
#include "common/core/cuda/dnn_attention.h"
#include "common/core/cuda/dnn_conv.h"
#include "common/core/cuda/dnn_norm.h"
#include "common/core/cuda/dnn_pool.h"

namespace paceline::cuda {

namespace {

/// cuDNN is opened by the first that it computes, so that models without any do without.
class Math {
 public:
  Math(const MathOptions& options, cudaStream_t stream)
      : tf32_(options.tf32 != 0),
        tune_(options.tune != 0),
        stream_(stream),
        dnn_file_(options.dnn_library != nullptr ? options.dnn_library : ""),
        workspace_(stream),
        blas_(options.blas_library, tf32_, stream) {}

  void matmul(const Matmul& product) { blas_.matmul(product, workspace_); }
  [[nodiscard]] DnnConv& convolutions() {
    if (convolutions_ == nullptr) {
      convolutions_ = std::make_unique<DnnConv>(dnn(), tf32_, tune_);
    }
    return *convolutions_;
  }
  [[nodiscard]] DnnAttention& attention() { return of_dnn(attention_); }
  [[nodiscard]] DnnNorm& norms() { return of_dnn(norms_); }
  [[nodiscard]] DnnPool& pools() { return of_dnn(pools_); }
  /// What ask() says, null where that is nothing; the Math's until the next call.
  template <typename Ask>
  [[nodiscard]] const char* obstacle(const Ask& ask) {
    const int status = guarded([&] { obstacle_ = ask(); });
    if (status != kSuccess) {
      const char* text = failure_text(status);
      obstacle_ = text != nullptr ? text : "status " + std::to_string(status);
    }
    return obstacle_.empty() ? nullptr : obstacle_.c_str();
  }
  [[nodiscard]] Workspace& workspace() noexcept { return workspace_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return workspace_.bytes() + blas_.bytes(); }

 private:
  const DnnHandle& dnn() {
    if (dnn_ == nullptr) {
      if (dnn_file_.empty()) {
        throw Failure{kNoLibrary, "no cuDNN was named"};
      }
      dnn_ = std::make_unique<DnnHandle>(dnn_file_.c_str(), stream_);
    }
    return *dnn_;
  }
  template <typename Part>
  Part& of_dnn(std::unique_ptr<Part>& part) {
    if (part == nullptr) {
      part = std::make_unique<Part>(dnn().library(), dnn().native());
    }
    return *part;
  }

  bool tf32_;
  bool tune_;
  cudaStream_t stream_;
  std::string dnn_file_;
  Workspace workspace_;
  BlasMath blas_;
  std::unique_ptr<DnnHandle> dnn_;
  std::unique_ptr<DnnConv> convolutions_;
  std::unique_ptr<DnnAttention> attention_;
  std::unique_ptr<DnnNorm> norms_;
  std::unique_ptr<DnnPool> pools_;
  std::string obstacle_;
};

Math& math_of(void* math) {
  return *static_cast<Math*>(math);
}

int create(void** made, const MathOptions* options, void* stream) {
  *made = nullptr;
  return guarded([&] {
    *made = std::make_unique<Math>(*options, static_cast<cudaStream_t>(stream)).release();
  });
}

int destroy(void* math) {
  return guarded([&] { std::unique_ptr<Math>(static_cast<Math*>(math)).reset(); });
}

int matmul(void* math, const Matmul* product) {
  return guarded([&] { math_of(math).matmul(*product); });
}

int convolve(void* math, const Convolution* shape, const void* x, const void* filter, void* y) {
  return guarded([&] {
    Math& used = math_of(math);
    used.convolutions().forward(*shape, x, filter, y, used.workspace());
  });
}

int convolve_input_gradient(void* math, const Convolution* shape, const void* dy,
                            const void* filter, void* dx) {
  return guarded([&] {
    Math& used = math_of(math);
    used.convolutions().input_gradient(*shape, dy, filter, dx, used.workspace());
  });
}

int convolve_filter_gradient(void* math, const Convolution* shape, const void* x, const void* dy,
                             void* d_filter) {
  return guarded([&] {
    Math& used = math_of(math);
    used.convolutions().filter_gradient(*shape, x, dy, d_filter, used.workspace());
  });
}

const char* attention_obstacle(void* math, const Attention* shape, std::int32_t training) {
  Math& used = math_of(math);
  return used.obstacle([&] { return used.attention().obstacle(*shape, training != 0); });
}

int attend(void* math, const Attention* shape, const void* qkv, void* out, float* statistics) {
  return guarded([&] {
    Math& used = math_of(math);
    used.attention().forward(*shape, qkv, out, statistics, used.workspace());
  });
}

int attend_gradient(void* math, const Attention* shape, const void* qkv, const void* out,
                    const float* statistics, const void* d_out, void* d_qkv) {
  return guarded([&] {
    Math& used = math_of(math);
    used.attention().backward(*shape, qkv, out, statistics, d_out, d_qkv, used.workspace());
  });
}

const char* norm_obstacle(void* math, const BatchNorm* shape) {
  Math& used = math_of(math);
  return used.obstacle([&] { return used.norms().obstacle(*shape); });
}

const char* pool_obstacle(void* math, const Pool* shape) {
  Math& used = math_of(math);
  return used.obstacle([&] { return used.pools().obstacle(*shape); });
}

int normalise(void* math, const BatchNorm* shape, const void* x, const void* addend,
              const float* gamma, const float* beta, void* y, float* mean, float* inverse) {
  return guarded([&] {
    Math& used = math_of(math);
    used.norms().forward(*shape, x, addend, gamma, beta, y, mean, inverse, used.workspace());
  });
}

int normalise_gradient(void* math, const BatchNorm* shape, const void* x, const void* y,
                       const void* dy, const float* gamma, const float* mean, const float* inverse,
                       void* dx, float* d_gamma, float* d_beta) {
  return guarded([&] {
    Math& used = math_of(math);
    used.norms().backward(*shape, x, y, dy, gamma, mean, inverse, dx, d_gamma, d_beta,
                          used.workspace());
  });
}

int pool(void* math, const Pool* shape, const void* x, void* y, std::uint8_t* winners) {
  return guarded([&] {
    Math& used = math_of(math);
    used.pools().forward(*shape, x, y, winners, used.workspace());
  });
}

int pool_gradient(void* math, const Pool* shape, const void* dy, const std::uint8_t* winners,
                  void* dx) {
  return guarded([&] {
    Math& used = math_of(math);
    used.pools().backward(*shape, dy, winners, dx, used.workspace());
  });
}

/// Part: what computes the shape.
template <typename Part, typename Shape>
int plan_with(const MathOptions* options, const char* device, const Shape* shape,
              WorkspacePlan* plan) {
  *plan = {};
  return guarded([&] {
    const DnnLibrary library(options->dnn_library);
    *plan = Part::planned(library, DnnTarget(library, device), *shape);
  });
}

int plan_convolution(const MathOptions* options, const char* device, const Convolution* shape,
                     WorkspacePlan* plan) {
  *plan = {};
  return guarded([&] {
    const DnnLibrary library(options->dnn_library);
    *plan = DnnConv::planned(library, DnnTarget(library, device), *shape, options->tf32 != 0);
  });
}

std::size_t workspace_bytes(const void* math) {
  return static_cast<const Math*>(math)->bytes();
}

}  // namespace

constinit const MathApi kMathApi{create,
                                 destroy,
                                 matmul,
                                 convolve,
                                 convolve_input_gradient,
                                 convolve_filter_gradient,
                                 attention_obstacle,
                                 attend,
                                 attend_gradient,
                                 plan_with<DnnAttention, Attention>,
                                 norm_obstacle,
                                 pool_obstacle,
                                 normalise,
                                 normalise_gradient,
                                 pool,
                                 pool_gradient,
                                 plan_with<DnnNorm, BatchNorm>,
                                 plan_with<DnnPool, Pool>,
                                 plan_convolution,
                                 workspace_bytes};

}  // namespace paceline::cuda
