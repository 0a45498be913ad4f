// SPDX-License-Identifier: Apache-2.0
// Functors of one element run over packs of neighbours, as a GPU's memory demands (kernels_packs.h
// says why): a functor that lists its operands (kernels.h) is copied, its pointers moved to packs
// in registers. The packs are loaded before its first element and stored after its last, so
// operands may be the same memory; the arithmetic is the functor's own.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "common/core/kernels.h"
#include "common/core/kernels_packs.h"

namespace paceline::kernels {

/// Bytes that a thread has on their way: 64 kB in 2048 threads, twice what a multiprocessor needs,
/// as threads also compute, store and start.
inline constexpr int kAheadBytes = 32;

/// How the elements of a functor with these operands are moved.
template <typename... Operands>
struct PackShape {
  /// Elements of a pack: one access of the narrowest operand.
  static constexpr int kWidth = kAccessBytes / std::min({Operands::kBytes...});
  /// Packs that a thread loads from each operand before it needs the first.
  static constexpr int kAhead =
      std::max(1, kAheadBytes / (kWidth * (0 + ... + Operands::kReadBytes)));
};

/// Makes a PackShape of a functor's operands.
struct AsPackShape {
  template <typename... Operands>
  PACELINE_HD PackShape<Operands...> operator()(const Operands&... /*types*/) const {
    return {};
  }
};

template <typename F>
concept HasOperands = requires(F f) {
  f.operands(AsPackShape{});
};

template <HasOperands F>
using PackShapeOf = decltype(std::declval<F&>().operands(AsPackShape{}));

/// Elements [0, n) as whole packs of all operands and the elements before and behind them.
struct PackCut {
  std::int64_t head = 0;
  std::int64_t packs = 0;
};

/// Elements of an operand before the first pack of N.
template <int N, typename T, bool Reads, bool Writes>
[[nodiscard]] PACELINE_HD std::int64_t before_packs(const Operand<T*, Reads, Writes>& operand) {
  const auto past = reinterpret_cast<std::uintptr_t>(operand.memory) / sizeof(T) % N;
  return static_cast<std::int64_t>((N - past) % N);
}

template <int N, typename T, bool Reads, bool Writes>
[[nodiscard]] PACELINE_HD bool in_packs(const Operand<T*, Reads, Writes>& operand,
                                        std::int64_t head) {
  return reinterpret_cast<std::uintptr_t>(operand.memory + head) % (N * sizeof(T)) == 0;
}
template <int N, typename T>
[[nodiscard]] PACELINE_HD bool in_packs(const RepeatedOperand<T>& operand, std::int64_t head) {
  return head == 0 && pack_width<N>(operand.period, operand.memory) == N;
}

/// No packs where the operands' alignments differ, the functor lists none, or its by_element() says
/// that f(i) takes others than elements i.
template <typename F>
[[nodiscard]] PACELINE_HD PackCut cut_packs([[maybe_unused]] F f, [[maybe_unused]] std::int64_t n) {
  if constexpr (HasOperands<F>) {
    constexpr int kWidth = PackShapeOf<F>::kWidth;
    if constexpr (requires { f.by_element(); }) {
      if (!f.by_element()) {
        return {};
      }
    }
    return f.operands([n](const auto& first, const auto&... rest) -> PackCut {
      const std::int64_t head = before_packs<kWidth>(first);
      const bool aligned =
          in_packs<kWidth>(first, head) && (in_packs<kWidth>(rest, head) && ... && true);
      return aligned && head < n ? PackCut{head, (n - head) / kWidth} : PackCut{};
    });
  } else {
    return {};
  }
}

/// Packs that a thread handles together: their numbers, the first beginning at element `head`. One
/// may occur twice: both are loaded before either is stored.
template <int Packs>
struct PackPlaces {
  std::int64_t head;
  std::int64_t at[Packs];
};

/// Pack `place` of those at `memory`, in a form that the compiler sees to be aligned.
template <int N, typename T>
[[nodiscard]] PACELINE_HD T* at_pack(T* memory, std::int64_t place) {
  using Whole =
      std::conditional_t<std::is_const_v<T>, const Pack<std::remove_const_t<T>, N>, Pack<T, N>>;
  return reinterpret_cast<Whole*>(memory)[place].at;
}

/// What a thread holds of an operand: its packs one after the other.
template <typename T, int N, int Packs>
using HeldPacks = Pack<std::remove_const_t<T>, N * Packs>;

template <int N, int Packs, typename T>
PACELINE_HD void load_held(const T* memory, const PackPlaces<Packs>& places,
                           HeldPacks<T, N, Packs>& held) {
  PACELINE_UNROLL
  for (int k = 0; k < Packs; ++k) {
    store_pack(held.at + k * N, load_pack<N>(at_pack<N>(memory + places.head, places.at[k])));
  }
}

template <int N, int Packs, typename T>
PACELINE_HD void store_held(T* memory, const PackPlaces<Packs>& places,
                            const HeldPacks<T, N, Packs>& held) {
  PACELINE_UNROLL
  for (int k = 0; k < Packs; ++k) {
    store_pack(at_pack<N>(memory + places.head, places.at[k]), load_pack<N>(held.at + k * N));
  }
}

/// `own` over its packs once all operands are held.
template <int N, int Packs, typename F>
PACELINE_HD void run_held(const F& own, const PackPlaces<Packs>& /*places*/) {
  PACELINE_UNROLL
  for (int n = 0; n < N * Packs; ++n) {
    own(n);
  }
}
template <int N, int Packs, typename F, typename T, typename... Rest>
PACELINE_HD void run_held(F& own, const PackPlaces<Packs>& places,
                          const RepeatedOperand<T>& operand, const Rest&... rest) {
  PackPlaces<Packs> within = places;
  PACELINE_UNROLL
  for (int k = 0; k < Packs; ++k) {
    within.at[k] %= operand.period / N;
  }
  HeldPacks<T, N, Packs> held;
  load_held<N>(operand.memory, within, held);
  operand.memory = held.at;
  operand.period = N * Packs;
  run_held<N>(own, places, rest...);
}
template <int N, int Packs, typename F, typename T, bool Reads, bool Writes, typename... Rest>
PACELINE_HD void run_held(F& own, const PackPlaces<Packs>& places,
                          const Operand<T*, Reads, Writes>& operand, const Rest&... rest) {
  T* const memory = operand.memory;
  HeldPacks<T, N, Packs> held;
  if constexpr (Reads) {
    load_held<N>(memory, places, held);
  }
  operand.memory = held.at;
  run_held<N>(own, places, rest...);
  if constexpr (Writes) {
    store_held<N>(memory, places, held);
  }
}

/// One of the threads that run a functor together.
struct EachThread {
  std::int64_t block;
  std::int64_t blocks;
  int thread;
  int threads;  ///< of a block

  [[nodiscard]] PACELINE_HD std::int64_t first() const noexcept { return block * threads + thread; }
  [[nodiscard]] PACELINE_HD std::int64_t all() const noexcept { return blocks * threads; }
};

/// Threads that `n` elements need: all packs are moved at once, elements alone can be strided over.
template <typename F>
[[nodiscard]] std::int64_t threads_for(std::int64_t n, const PackCut& cut) {
  if constexpr (HasOperands<F>) {
    constexpr int kAhead = PackShapeOf<F>::kAhead;
    return cut.packs > 0 ? (cut.packs + kAhead - 1) / kAhead : n;
  } else {
    return n;
  }
}

/// The thread's packs; its block's lie together.
template <typename F>
PACELINE_HD void run_packs(const F& f, const PackCut& cut, const EachThread& thread) {
  constexpr int kAhead = PackShapeOf<F>::kAhead;
  const std::int64_t first = thread.block * thread.threads * kAhead + thread.thread;
  if (first >= cut.packs) {
    return;
  }
  PackPlaces<kAhead> places{cut.head, {}};
  PACELINE_UNROLL
  for (int k = 0; k < kAhead; ++k) {
    const std::int64_t pack = first + k * thread.threads;
    places.at[k] = pack < cut.packs ? pack : first;
  }
  F own = f;
  own.operands(
      [&](const auto&... operand) { run_held<PackShapeOf<F>::kWidth>(own, places, operand...); });
}

/// What the thread does of f(0) … f(n − 1), cut by cut_packs(). A functor that may leave all
/// elements as they are says so with idle(), as packs that it does not write must not be stored.
template <typename F>
PACELINE_HD void run_share(const F& f, std::int64_t n, const PackCut& cut,
                           const EachThread& thread) {
  if constexpr (requires { f.idle(); }) {
    if (f.idle()) {
      return;
    }
  }
  if constexpr (HasOperands<F>) {
    const std::int64_t packed = cut.packs * PackShapeOf<F>::kWidth;
    run_packs(f, cut, thread);
    PACELINE_ROLLED
    for (std::int64_t i = thread.first(); i < n - packed; i += thread.all()) {
      f(i < cut.head ? i : i + packed);
    }
  } else {
    PACELINE_ROLLED
    for (std::int64_t i = thread.first(); i < n; i += thread.all()) {
      f(i);
    }
  }
}

/// for_each in the packs of a GPU, one of its threads after the other.
template <typename F>
void for_each_in_packs(std::int64_t n, const F& f) {
  if constexpr (HasOperands<F>) {
    constexpr int kThreads = 8;
    const PackCut cut = cut_packs(f, n);
    const std::int64_t blocks = (threads_for<F>(n, cut) + kThreads - 1) / kThreads;
    for (std::int64_t block = 0; block < blocks; ++block) {
      for (int thread = 0; thread < kThreads; ++thread) {
        run_share(f, n, cut, {block, blocks, thread, kThreads});
      }
    }
  } else {
    for_each(n, f);
  }
}

}  // namespace paceline::kernels
