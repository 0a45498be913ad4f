// SPDX-License-Identifier: Apache-2.0
// Sparse rows with two classes: libsvm's text format, and made-up rows.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/core/sparse.h"
#include "common/data/dataset.h"

namespace paceline {

struct SparseRows {
  SparseMatrix matrix;
  std::vector<std::uint8_t> labels;  ///< 0 or 1, one for each row
};

/// Parses libsvm's format, a row on each line: LABEL INDEX:VALUE ...; labels −1 or 0, and 1;
/// indices from 1, ascending; what follows '#' and empty lines are left out. The width is the
/// largest index. `limit` > 0 stops after so many rows. Throws ConfigError naming `what`, the line,
/// the text and what is allowed. Memory is in proportion to `text`.
[[nodiscard]] SparseRows parse_libsvm(std::string_view text, std::string_view what,
                                      std::int64_t limit = 0);

/// The format that parse_libsvm reads, labels as −1 and +1, values so that they read back equal.
void write_libsvm(const Dataset& data, std::ostream& out);

/// `path` (plain or gzipped) is the training set and `path`.t the test set; where there is none,
/// every tenth row of `path`. Limits > 0 keep the first so many rows. Both get the larger width.
/// Throws ConfigError as above, for an unreadable file, and for one without rows.
[[nodiscard]] Datasets load_libsvm(const std::string& path, std::int64_t train_limit,
                                   std::int64_t test_limit);

struct SparseShape {
  std::int64_t features = 50000;
  std::int64_t nonzeros = 50;
};

/// Learnable made-up rows, a function of (seed, split, index) alone. A row draws `nonzeros`
/// features, popular ones far more often as words in text are (feature f in proportion to
/// f^(−2/3)); those drawn twice count once; each has the value 1/√nonzeros. The label is the sign
/// of a hidden weight vector's product with the row, wrong in 5% of the rows. Throws ConfigError
/// for a size below 1 and for more nonzeros than features.
[[nodiscard]] std::unique_ptr<Dataset> make_sparse(std::int64_t size, const SparseShape& shape,
                                                   std::uint64_t seed, Split split);

}  // namespace paceline
