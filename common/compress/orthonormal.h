// SPDX-License-Identifier: Apache-2.0
// The small dense algebra of PowerSGD: tall matrices of few columns, each column contiguous.
#pragma once

#include <cstddef>
#include <span>

namespace paceline::compress {

/// Makes `count` columns of `rows` floats orthonormal by modified Gram-Schmidt, done twice, in
/// double. A column that depends on those before it (to 1e-6 of its length), or is zero, becomes
/// zero.
void orthonormalise(std::span<float> columns, std::size_t rows);

/// p[k][i] = Σ_j m[i][j]·q[k][j] for a row-major m [rows, columns].
void times(std::span<const float> m, std::size_t columns, std::span<const float> q,
           std::span<float> p);
/// q[k][j] = Σ_i m[i][j]·p[k][i].
void transposed_times(std::span<const float> m, std::size_t columns, std::span<const float> p,
                      std::span<float> q);
/// m[i][j] += factor·Σ_k p[k][i]·q[k][j].
void add_outer(std::span<const float> p, std::span<const float> q, std::size_t columns,
               float factor, std::span<float> m);

}  // namespace paceline::compress
