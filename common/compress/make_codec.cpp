// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "common/base/error.h"
#include "common/compress/codec.h"
#include "common/compress/families.h"

namespace paceline {

namespace {

std::unique_ptr<Codec> wire_codec(std::string_view wire) {
  if (wire == "fp32") {
    return nullptr;
  }
  if (wire == "fp16") {
    return make_half_codec();
  }
  if (wire == "bf16") {
    return make_bfloat_codec();
  }
  throw ConfigError(fmt::format("sync.wire='{}': allowed are fp32, bf16, fp16", wire));
}

std::unique_ptr<Codec> method_codec(const CompressConfig& compress) {
  if (compress.method == "topk") {
    return make_topk_codec(compress.density);
  }
  if (compress.method == "randomk") {
    return make_randomk_codec(compress.density, !compress.error_feedback);
  }
  if (compress.method == "threshold") {
    return make_threshold_codec(compress.threshold);
  }
  if (compress.method == "onebit") {
    return make_onebit_codec();
  }
  if (compress.method == "sign") {
    return make_sign_codec();
  }
  if (compress.method == "qsgd") {
    return make_qsgd_codec(compress.levels);
  }
  if (compress.method == "fp16") {
    return make_half_codec();
  }
  if (compress.method == "bf16") {
    return make_bfloat_codec();
  }
  throw ConfigError(fmt::format(
      "compress.method='{}': allowed are none, topk, randomk, threshold, onebit, sign, qsgd, "
      "powersgd, fp16, bf16",
      compress.method));
}

}  // namespace

std::unique_ptr<Codec> make_codec(const CompressConfig& compress, std::string_view wire) {
  if (compress.method == "none" || compress.method == "powersgd") {
    return wire_codec(wire);
  }
  if (wire != "fp32") {
    throw ConfigError(
        fmt::format("sync.wire='{}': with compress.method='{}' the compressor decides what "
                    "travels; allowed: fp32",
                    wire, compress.method));
  }
  return method_codec(compress);
}

}  // namespace paceline
