#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What observing costs: the same run with everything off and everything on, in turn.

Each round runs both, in alternating order, and takes the ratio of their training times (of the
slowest rank, evaluations and start-up left out). Prints the median ratio, its quartiles, smallest
and largest, and the same of a step's time. Also a control, off against off: what the machine's
noise alone gives: where that is over 1%, paceline_bench_observe, which times the recorder without
training, tells more. Needs a Release build.

  experiments/benchmarks/observe_overhead.py                 single and ring of 2, 11 rounds
  experiments/benchmarks/observe_overhead.py --rounds 5 --only single
"""

import argparse
import statistics
import tempfile

from runs import PROGRAM, finished, run

KINDS = ("steps", "trace", "tensorboard", "mllog", "csv")
CASES = {"single": ("single", 1), "ring2": ("ring", 2)}


def seconds_per_step(program, backend, workers, on, steps):
    switches = [f"observe.{kind}={'true' if on else 'false'}" for kind in KINDS]
    with tempfile.TemporaryDirectory() as folder:
        command = [program, "train", f"--sync={backend}", f"--world={workers}", "--quiet",
                   "model=mlp", "train.batch=64", f"train.samples={64 * workers * steps}",
                   "data.name=synthetic", "data.train_limit=6400", "data.test_limit=100", f"run.dir={folder}", *switches]
        run(command)
        _, summary = finished(folder)
        return summary["train_seconds"] / summary["steps"]


def show(name, ratios, microseconds):
    low, _, high = statistics.quantiles(ratios, n=4)
    print(f"{name:16} {statistics.median(ratios):8.4f} {low:8.4f} {high:8.4f} {min(ratios):8.4f} "
          f"{max(ratios):8.4f} {statistics.median(microseconds):10.1f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--only", action="append", choices=list(CASES))
    parser.add_argument("--program", default=PROGRAM, help="the built paceline")
    arguments = parser.parse_args()
    print(f"{'on / off':16} {'median':>8} {'quarter':>8} {'3/4':>8} {'min':>8} {'max':>8} "
          f"{'us a step':>10}")
    for name in arguments.only or CASES:
        backend, workers = CASES[name]
        ratios, extra, control, control_extra = [], [], [], []
        for turn in range(arguments.rounds):
            times = {}
            order = ("off", "on", "again") if turn % 2 == 0 else ("again", "on", "off")
            for which in order:
                times[which] = seconds_per_step(arguments.program, backend, workers,
                                                which == "on", arguments.steps)
            off = (times["off"] + times["again"]) / 2
            ratios.append(times["on"] / off)
            extra.append(1e6 * (times["on"] - off))
            control.append(times["again"] / times["off"])
            control_extra.append(1e6 * (times["again"] - times["off"]))
        show(name, ratios, extra)
        show(f"{name} off/off", control, control_extra)


if __name__ == "__main__":
    main()
