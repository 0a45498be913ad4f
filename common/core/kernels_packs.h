// SPDX-License-Identifier: Apache-2.0
// How functors that a GPU's memory limits keep it busy: a lane moves packs of neighbouring
// elements, and loads those of several rows before it needs the first. By Little's law an H200 has
// to have 4.8 TB/s · 0.7 µs = 3.4 MB of loads on their way, 26 kB per multiprocessor; the constants
// here and the cuts of gpu_parts.h are chosen for that. See kernels.h for what a functor and T are.
#pragma once

#include <cstdint>

#include "common/core/kernels.h"

#if defined(__CUDA_ARCH__)
#define PACELINE_UNROLL _Pragma("unroll")
#define PACELINE_ROLLED _Pragma("unroll 1")
#else
#define PACELINE_UNROLL
#define PACELINE_ROLLED
#endif

namespace paceline::kernels {

/// Neighbouring columns that a lane sums: more would leave too few lanes, as the parts are few.
inline constexpr int kSumPack = 2;
/// Neighbouring elements that a lane changes, and rows of them that it loads ahead.
inline constexpr int kElementPack = 4;
inline constexpr int kElementRows = 4;

/// Rows that a lane which sums loads ahead from each of `arrays`, which is 1 or 2: 64 bytes per
/// column. For the lanes of cut_columns() that is 8 MB, twice what is needed, as a lane that adds
/// loads nothing meanwhile.
template <typename T>
[[nodiscard]] PACELINE_HD constexpr int rows_ahead(int arrays) noexcept {
  return 64 / (static_cast<int>(sizeof(T)) * arrays);
}

/// Bytes that one access moves at most, and elements of those.
inline constexpr int kAccessBytes = 16;
template <typename T>
inline constexpr int kAccessPack = kAccessBytes / static_cast<int>(sizeof(T));

/// N neighbouring elements that one access moves.
template <typename T, int N>
struct alignas(N * sizeof(T)) Pack {
  T at[N];
};

/// N where packs of N tile rows of `columns` elements in all of `memory` (null: not used), else 1.
template <int N, typename... T>
[[nodiscard]] PACELINE_HD int pack_width(std::int64_t columns, const T*... memory) noexcept {
  const bool aligned =
      ((reinterpret_cast<std::uintptr_t>(memory) % (N * sizeof(T)) == 0) && ... && true);
  return aligned && columns % N == 0 ? N : 1;
}

template <int N, typename T>
[[nodiscard]] PACELINE_HD Pack<T, N> load_pack(const T* from) {
  return *reinterpret_cast<const Pack<T, N>*>(from);
}

template <typename T, int N>
PACELINE_HD void store_pack(T* to, const Pack<T, N>& pack) {
  *reinterpret_cast<Pack<T, N>*>(to) = pack;
}

/// Rows that are loaded together: all that a group has place for, known when it is compiled.
template <int Rows>
struct WholeGroup {
  static constexpr int rows = Rows;
};
/// Or fewer, at least 1.
struct LastGroup {
  int rows;
};

/// visit(row, group) for groups of Rows rows, the last maybe of fewer, from `begin` to `end`.
template <int Rows, typename Visit>
PACELINE_HD void for_row_groups(std::int64_t begin, std::int64_t end, const Visit& visit) {
  std::int64_t row = begin;
  for (; row + Rows <= end; row += Rows) {
    visit(row, WholeGroup<Rows>{});
  }
  if (row < end) {
    visit(row, LastGroup{static_cast<int>(end - row)});
  }
}

/// The packs at `from`, `from` + stride, …; past the group's rows the last of them again, so that
/// no load waits for a branch.
template <typename T, int N, int Rows, typename Group>
PACELINE_HD void load_rows(const T* from, std::int64_t stride, Group group,
                           Pack<T, N> (&packs)[Rows]) {
  PACELINE_UNROLL
  for (int k = 0; k < Rows; ++k) {
    packs[k] = load_pack<N>(from + (k < group.rows ? k : group.rows - 1) * stride);
  }
}

/// Those of the group's rows.
template <typename T, int N, int Rows, typename Group>
PACELINE_HD void store_rows(T* to, std::int64_t stride, Group group,
                            const Pack<T, N> (&packs)[Rows]) {
  PACELINE_UNROLL
  for (int k = 0; k < Rows; ++k) {
    if (k < group.rows) {
      store_pack(to + k * stride, packs[k]);
    }
  }
}

}  // namespace paceline::kernels
