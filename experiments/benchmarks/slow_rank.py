#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What one slow worker costs all others.

Each way of synchronising runs with N workers of which the last takes --slow times as long a step
(fault.slow_rank), and with the N-1 healthy ones alone, on an emulated device. Compared are the steps/s
of all workers together, from steps.jsonl, over the time in which all of them train: every rank has an
equal share of the samples, so the healthy ones of an asynchronous way finish theirs first. Ratios are
within a round; median, smallest and largest of the rounds. Needs a Release build.

  experiments/benchmarks/slow_rank.py                       4 workers, the last one 8 times slower
  experiments/benchmarks/slow_rank.py --world 3 --slow 4 --only "ps asp" --rounds 7
"""

import argparse
import collections
import json
import pathlib
import tempfile

from runs import PROGRAM, finished, require, run, spread

WAYS = {
    "ring": ["--sync=ring"],
    "ps bsp": ["--sync=ps"],
    "ps ssp": ["--sync=ps", "ps.consistency=ssp", "ps.staleness=3"],
    "ps asp": ["--sync=ps", "ps.consistency=asp"],
    "asgd": ["--sync=asgd"],
}


def steps_per_second(options, way, world, slow):
    """Of all workers while all of them train, and whether the host kept the emulated pace."""
    with tempfile.TemporaryDirectory() as folder:
        command = [options.program, "train", *WAYS[way], f"--world={world}", "--quiet",
                   f"model={options.model}", "data.name=synthetic", "data.train_limit=6400",
                   "data.test_limit=100", f"train.batch={options.batch}",
                   f"train.samples={options.batch * world * options.steps}",
                   "optimizer.lr=0.01", "optimizer.momentum=0",
                   f"compute.emulate={options.emulate}", f"run.dir={folder}"]
        if slow > 1:
            command.append(f"fault.slow_rank={world - 1}:{slow}x")
        run(command)
        directory, summary = finished(folder)
        durations = collections.defaultdict(list)
        for line in (directory / "steps.jsonl").read_text().splitlines():
            step = json.loads(line)
            durations[step["rank"]].append(step["compute_s"] + step["exposed_comm_s"]
                                           + step["wait_s"])
    window = min(map(sum, durations.values()))
    steps = 0.0
    for own in durations.values():
        left = window
        for duration in own:
            steps += min(1.0, left / duration)
            left -= duration
            if left <= 0:
                break
    return steps / window, summary["host_bound"]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world", type=int, default=4)
    parser.add_argument("--slow", type=float, default=8, help="times a healthy worker's step")
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=40, help="of each worker")
    parser.add_argument("--emulate", default="40ms", help="a healthy worker's compute time")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", action="append", choices=list(WAYS))
    parser.add_argument("--program", type=pathlib.Path, default=PROGRAM)
    options = parser.parse_args()
    require(options.program)
    print(f"{options.world} workers, the last {options.slow:g} times slower, {options.emulate} a step; "
          f"steps/s of all, {options.rounds} rounds")
    print(f"{'':8} {'with it':>22} {f'{options.world - 1} healthy alone':>24} {'ratio':>20}")
    for way in options.only or WAYS:
        with_it, alone, bound = [], [], False
        for _ in range(options.rounds):
            for rates, world, slow in ((with_it, options.world, options.slow),
                                       (alone, options.world - 1, 1)):
                rate, late = steps_per_second(options, way, world, slow)
                rates.append(rate)
                bound = bound or late
        ratios = [a / b for a, b in zip(with_it, alone)]
        print(f"{way:8} {spread(with_it, 1):>22} {spread(alone, 1):>24} {spread(ratios, 2):>20}"
              f"{'  host-bound' if bound else ''}", flush=True)


if __name__ == "__main__":
    main()
