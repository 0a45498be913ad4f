// SPDX-License-Identifier: Apache-2.0
// The codecs by family, for make_codec. Formats: codec.h.
#pragma once

#include <memory>

#include "common/compress/codec.h"

namespace paceline {

[[nodiscard]] std::unique_ptr<Codec> make_half_codec();
[[nodiscard]] std::unique_ptr<Codec> make_bfloat_codec();
[[nodiscard]] std::unique_ptr<Codec> make_topk_codec(double density);
/// `unbiased`: decodes values·n/k.
[[nodiscard]] std::unique_ptr<Codec> make_randomk_codec(double density, bool unbiased);
[[nodiscard]] std::unique_ptr<Codec> make_threshold_codec(double threshold);
[[nodiscard]] std::unique_ptr<Codec> make_onebit_codec();
[[nodiscard]] std::unique_ptr<Codec> make_sign_codec();
[[nodiscard]] std::unique_ptr<Codec> make_qsgd_codec(int levels);

}  // namespace paceline
