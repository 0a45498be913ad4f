# SPDX-License-Identifier: Apache-2.0
"""gpu_check: in which order checks run, and the time that each may count on."""

import time

from gpu_session import LEAST_TIME_S

# Names and their seconds, the most valuable first. A name stands for itself and for all below it
# that no longer name covers. Seconds are guesses until a GPU has run them; what is judged from
# other checks' figures takes none.
ORDER = (
    ("doctor", 1),
    ("cuda_test", 34),
    ("trajectories.mlp.fp32", 4),
    ("trajectories.cnn.fp32", 4),
    ("speed.resnet50.bf16.256", 8),
    ("speed.pytorch.resnet50", 28),
    ("speed.resnet50.bf16.256.ratio", 0),
    ("speed.optimizer", 4),
    ("trajectories.resnet20.fp32", 6),
    ("trajectories.gpt.fp32", 4),
    ("speed.gpt", 6),
    ("speed.pytorch.gpt", 12),
    ("speed.gpt.ratio", 0),
    ("nccl.busbw", 6),
    ("nccl.hidden", 10),
    ("trajectories.nccl", 5),
    ("nccl.lost_rank", 14),
    ("sanitizer.memcheck.mlp", 10),
    ("speed.resnet50.bf16.64", 5),
    ("speed.resnet50.fp16.256", 7),
    ("speed.resnet50.fp16.64", 5),
    ("speed.resnet50.bf16.64.ratio", 0),
    ("speed.resnet50.fp16.256.ratio", 0),
    ("speed.resnet50.fp16.64.ratio", 0),
    ("speed.seam", 30),
    ("trajectories.cnn.bf16", 3),
    ("trajectories.resnet20.bf16", 4),
    ("trajectories.gpt.bf16", 3),
    ("trajectories.cnn.graphs", 3),
    ("cuda_test.rest", 10),
    ("trajectories.ring", 4),
    ("trajectories.ps", 4),
    ("sanitizer.racecheck.mlp", 10),
    ("speed.resnet50.bf16.64.graphs", 5),
    ("speed.resnet50.bf16.256.cudnn_norm", 8),
    ("speed.resnet50.bf16.256.cudnn_pool", 8),
    ("speed.resnet50.bf16.256.untuned", 8),
    ("speed.resnet50.bf16.512", 10),
    ("speed.resnet50.fp16.512", 10),
    ("speed.pytorch.resnet50.late", 18),
    ("speed.resnet50.bf16.512.ratio", 0),
    ("trajectories.cnn.fp16", 3),
    ("trajectories.resnet20.fp16", 4),
    ("trajectories.gpt.fp16", 3),
    ("trajectories", 4),
    ("sanitizer", 14),
    ("speed", 8),
)
UNKNOWN_S = 5.0


def place_of(name):
    """(index in ORDER, seconds) of the longest name that covers this one."""
    covering = [(len(prefix), index, seconds) for index, (prefix, seconds) in enumerate(ORDER)
                if name == prefix or name.startswith(prefix + ".")]
    if not covering:
        return len(ORDER), UNKNOWN_S
    _, index, seconds = max(covering)
    return index, float(seconds)


def in_order(checks):
    """The checks as they run; each learns what is planned for it."""
    for check in checks:
        check.planned_s = 0.0 if check.skip or not check.commands else place_of(check.name)[1]
    return sorted(checks, key=lambda check: place_of(check.name)[0])


class Pace:
    """Shares a budget: what is planned for later checks is not another's to spend.

    While all keep to the plan, each has its time; what one leaves, any later one may use up to its
    own limit. Checks that the budget has no room for come to run on what was left.
    """

    def __init__(self, checks, budget_s):
        self.end = 0.0
        self.later = {}  # id of a check -> planned for those after it that have a place
        spent = 0.0
        placed = []
        for check in checks:
            if spent + check.planned_s <= budget_s:
                spent += check.planned_s
                placed.append(check)
        kept = spent
        at = {id(check) for check in placed}
        for check in checks:
            if id(check) in at:
                kept -= check.planned_s
            self.later[id(check)] = max(kept, 0.0)
        self.placed = at

    def start(self, end):
        """`end`: of the budget, by the monotonic clock."""
        self.end = end

    def end_of(self, check):
        """When the check has to be over."""
        own = time.monotonic() + max(check.planned_s, LEAST_TIME_S)
        if id(check) not in self.placed:
            own = 0.0
        return min(self.end, max(self.end - self.later[id(check)], own))


def describe(checks, budget_s):
    """Lines of the plan."""
    pace = Pace(checks, budget_s)
    yield f"{'seconds':>7} {'by':>6} {'limit':>6}  check"
    spent = 0.0
    for check in checks:
        if check.skip:
            yield f"{'-':>7} {'-':>6} {'-':>6}  {check.name}  (skipped: {check.skip})"
        elif id(check) in pace.placed:
            spent += check.planned_s
            limit = f"{check.limit_s:6.0f}" if check.commands else f"{'-':>6}"
            yield f"{check.planned_s:7.0f} {spent:6.0f} {limit}  {check.name}"
        else:
            yield (f"{check.planned_s:7.0f} {'later':>6} {check.limit_s:6.0f}  {check.name}")
    yield f"{spent:.0f} of {budget_s:.0f} s are planned; \"later\" runs on what others leave"
