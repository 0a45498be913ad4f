// SPDX-License-Identifier: Apache-2.0
// A text, byte by byte, for models that predict the next one.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/data/dataset.h"

namespace paceline {

/// Samples of `context` bytes each, one after the other: sample i's inputs are the bytes from
/// i·context on (as floats, shape {context, 1, 1}), its labels the bytes that follow each of them;
/// 256 classes. `what` names the text in errors. Throws ConfigError where it is empty or holds no
/// more than `context` bytes.
[[nodiscard]] std::unique_ptr<Dataset> make_text_dataset(std::vector<std::uint8_t> bytes,
                                                         std::int64_t context,
                                                         const std::string& what);

/// The first nine tenths of the file (plain or gzipped) are the training set, the rest the test
/// set. Limits > 0 keep the first so many samples.
[[nodiscard]] Datasets load_text(const std::string& path, std::int64_t context,
                                 std::int64_t train_limit, std::int64_t test_limit);

}  // namespace paceline
