// SPDX-License-Identifier: Apache-2.0
// When a server applies a push and when it answers it: the consistency model, apart from the
// server.
#pragma once

#include <cstdint>
#include <memory>

#include "common/sync/synchronizer.h"
#include "ps/delay_compensation.h"

namespace paceline {

/// What a server does with a push.
struct Decision {
  enum class Action : std::uint8_t {
    hold,    ///< keep it until every live worker's push of this round is there, then apply their
             ///< mean over samples as one update
    apply,   ///< apply it at once, learning rate times `scale`
    reject,  ///< drop it and answer with the newest weights
  };
  Action action = Action::hold;
  float scale = 1.0F;
  DelayCompensation compensation{};  ///< of `apply`; where the server's PsRule has one too, since
                                     ///< it then keeps what workers compute on
};

/// Stateless; a server asks it from its own thread. async/ adds policies here, not servers.
class ApplyPolicy {
 public:
  ApplyPolicy() = default;
  virtual ~ApplyPolicy() = default;
  ApplyPolicy(const ApplyPolicy&) = delete;
  ApplyPolicy& operator=(const ApplyPolicy&) = delete;

  /// A push of `worker`, computed on weights of version `based_on`, meets weights of version
  /// `current`; current − based_on is its staleness.
  [[nodiscard]] virtual Decision on_push(int worker, std::uint64_t based_on,
                                         std::uint64_t current) const = 0;
  /// May `worker`, after `clock` pushes, read and go on, while the slowest live worker has made
  /// `slowest`?
  [[nodiscard]] virtual bool may_pull(int worker, std::uint64_t clock,
                                      std::uint64_t slowest) const = 0;
};

/// The three classical rules: BSP (Valiant 1990), SSP with bound s (Ho et al. 2013), ASP; and what
/// those whose updates can be stale do about it.
struct PsRule {
  Consistency kind = Consistency::synchronous;
  int bound = 0;  ///< of bounded_stale: a worker is at most this many steps ahead of the slowest
  bool rate_by_staleness = false;    ///< learning rate / max(staleness, 1) (Zhang et al. 2016)
  DelayCompensation compensation{};  ///< DC-ASGD
};

/// Whether each update is of one push of every live worker: BSP, or SSP with bound 0.
[[nodiscard]] constexpr bool waits_for_all(const PsRule& rule) noexcept {
  return rule.kind == Consistency::synchronous ||
         (rule.kind == Consistency::bounded_stale && rule.bound == 0);
}

/// SSP with bound 0 is BSP.
[[nodiscard]] std::unique_ptr<ApplyPolicy> make_policy(const PsRule& rule);

}  // namespace paceline
