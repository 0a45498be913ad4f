// SPDX-License-Identifier: Apache-2.0
// LARS and LAMB over pieces of tensors, the trust ratios in memory (kernels_tensors.h finds them):
// row functors for a GPU, element by element the rules of optimizer_rules.h.
#pragma once

#include <cstdint>
#include <utility>

#include "common/core/kernels_tensors.h"
#include "common/core/optimizer_rules.h"

namespace paceline::kernels {

[[nodiscard]] PACELINE_HD inline UpdateOperands operands_of(const UpdateOperands& arena,
                                                            const TensorPiece& piece) {
  UpdateOperands own = arena;
  own.in += piece.begin;
  own.out += piece.begin;
  own.gradient += piece.begin;
  own.moment1 = arena.moment1 != nullptr ? arena.moment1 + piece.state : nullptr;
  own.moment2 = arena.moment2 != nullptr ? arena.moment2 + piece.state : nullptr;
  return own;
}

/// LARS: `rule`, one of SGD's over the arena, with the tensor's ratio on gradient and decay.
template <typename Rule>
struct LarsPieces {
  Rule rule;

  template <typename Team>
  PACELINE_HD void operator()(const Team& team, std::int64_t row) const {
    const TensorPiece piece = rule.at.tensors.pieces[row];
    Rule own = rule;
    own.at = operands_of(rule.at, piece);
    if (piece.scaled != 0) {
      const float ratio = rule.at.tensors.ratios[piece.tensor];
      own.scale = rule.scale * ratio;
      own.decay = rule.decay * ratio;
    } else {
      own.decay = 0.0F;
    }
    for (std::int64_t i = team.lane(); i < piece.count; i += team.size()) {
      own(i);
    }
  }
};

/// LAMB's first half: the moments advance, directions take the gradients' place (operand `out`),
/// and squares become the pieces' Σ w² and Σ u².
struct LambDirectionPieces {
  Adam adam;

  template <typename Team>
  PACELINE_HD void operator()(const Team& team, std::int64_t row) const {
    const TensorPiece piece = adam.at.tensors.pieces[row];
    LambDirection own{adam, adam.at.out + piece.begin};
    own.adam.at = operands_of(adam.at, piece);
    own.adam.decay = piece.scaled != 0 ? adam.decay : 0.0F;
    TensorSquares squares;
    for (std::int64_t i = team.lane(); i < piece.count; i += team.size()) {
      own(i);
      if (piece.counts != 0) {
        squares.add(own.adam.at.in[i], own.direction[i]);
      }
    }
    write_sum(team, squares, adam.at.tensors.squares[row]);
  }
};

/// LAMB's second half: w <- w − lr·ratio·u, the directions being the gradient operand.
struct LambMovePieces {
  UpdateOperands at;
  float lr;

  template <typename Team>
  PACELINE_HD void operator()(const Team& team, std::int64_t row) const {
    const TensorPiece piece = at.tensors.pieces[row];
    const UpdateOperands own = operands_of(at, piece);
    const float rate = lr * (piece.scaled != 0 ? at.tensors.ratios[piece.tensor] : 1.0F);
    for (std::int64_t i = team.lane(); i < piece.count; i += team.size()) {
      own.out[i] = own.in[i] - rate * own.gradient[i];
    }
  }
};

/// Calls run(functor) with the one that `spec` asks for, LARS or LAMB; of LAMB the first half where
/// there are no ratios yet.
template <typename Run>
void with_tensor_rule(const UpdateOperands& at, const OptimizerSpec& spec, const UpdateInfo& info,
                      Run&& run) {
  if (spec.kind != OptimizerKind::lamb) {
    with_sgd_rule(at, spec, info,
                  [&]<typename Rule>(const Rule& rule) { run(LarsPieces<Rule>{rule}); });
  } else if (at.tensors.ratios == nullptr) {
    UpdateInfo unit = info;
    unit.lr = 1.0F;
    run(LambDirectionPieces{adam_rule(at, spec, unit)});
  } else {
    run(LambMovePieces{at, info.lr});
  }
}

/// A functor that does nothing where *squares (null: it always does) is inf or NaN.
template <typename F>
struct UnlessNotFinite {
  F functor;
  const float* squares;

  /// See kernels_each.h.
  [[nodiscard]] PACELINE_HD bool idle() const {
    return squares != nullptr && !std::isfinite(*squares);
  }
  PACELINE_HD void operator()(std::int64_t i) const {
    if (!idle()) {
      functor(i);
    }
  }
  template <typename Use>
  PACELINE_HD auto operands(const Use& use) {
    squares = nullptr;  // idle() has been asked
    return functor.operands(use);
  }
  template <typename Team>
  PACELINE_HD void operator()(const Team& team, std::int64_t row) const {
    if (!idle()) {
      functor(team, row);
    }
  }
};

/// with_update_rule and with_tensor_rule, the functor guarded by at.squares.
template <typename Run>
void with_guarded_update_rule(const UpdateOperands& at, const OptimizerSpec& spec,
                              const UpdateInfo& info, Run&& run) {
  with_update_rule(at, spec, info, [&]<typename Rule>(const Rule& rule) {
    run(UnlessNotFinite<Rule>{rule, at.squares});
  });
}
template <typename Run>
void with_guarded_tensor_rule(const UpdateOperands& at, const OptimizerSpec& spec,
                              const UpdateInfo& info, Run&& run) {
  with_tensor_rule(at, spec, info, [&]<typename Rule>(const Rule& rule) {
    run(UnlessNotFinite<Rule>{rule, at.squares});
  });
}

}  // namespace paceline::kernels
