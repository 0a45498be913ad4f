#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sparse Hogwild!: how samples/s grow with threads, and whether the loss stays.

Logistic regression on made-up sparse rows, the same samples in all runs, with 1 and with each of
--workers threads, one run after the other in every round. Ratios are within a round; median, smallest
and largest of the rounds. "copies" is what the machine itself allows: so many independent
single-worker runs at once, their samples/s added. Needs a Release build.

  experiments/benchmarks/sparse_hogwild.py                      2 threads, 7 rounds
  experiments/benchmarks/sparse_hogwild.py --workers 2 --workers 4 --batch 16
"""

import argparse
import pathlib
import subprocess
import tempfile

from runs import PROGRAM, finished, require, spread, stop_if_failed


def start(options, workers, folder):
    command = [options.program, "train", "--sync=hogwild", f"--world={workers}", "--quiet",
               "model=logistic", "data.name=sparse", f"data.features={options.features}",
               f"data.nonzeros={options.nonzeros}", "data.train_limit=50000",
               f"train.samples={options.samples}", f"train.batch={options.batch}",
               "optimizer.momentum=0", f"optimizer.lr={options.lr}", f"run.dir={folder}"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process, folder):
    """Samples/s and the loss on the test set."""
    output, _ = process.communicate()
    stop_if_failed(process.args, process.returncode, output)
    _, summary = finished(folder)
    return summary["samples_per_second"], summary["test_loss"]


def run(options, workers, copies=1):
    """Rate of all copies, loss of the last."""
    with tempfile.TemporaryDirectory() as folder:
        folders = [pathlib.Path(folder) / str(copy) for copy in range(copies)]
        started = [start(options, workers, place) for place in folders]
        results = [finish(process, place) for process, place in zip(started, folders)]
        return sum(rate for rate, _ in results), results[-1][1]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, action="append", help="default 2")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--features", type=int, default=50000)
    parser.add_argument("--nonzeros", type=int, default=50)
    parser.add_argument("--samples", type=int, default=3000000)
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--program", type=pathlib.Path, default=PROGRAM)
    options = parser.parse_args()
    require(options.program)
    counts = options.workers or [2]
    names = ["1"] + [name for n in counts for name in (str(n), f"{n} copies")]
    rates = {name: [] for name in names}
    losses = {name: [] for name in names}
    for _ in range(options.rounds):
        for name in names:
            copies = int(name.split()[0]) if name.endswith("copies") else 1
            rate, loss = run(options, 1 if copies > 1 else int(name), copies)
            rates[name].append(rate)
            losses[name].append(loss)
    print(f"batch {options.batch}, {options.nonzeros} of {options.features} features, "
          f"{options.samples} samples, {options.rounds} rounds")
    print(f"{'threads':>9} {'samples/s':>28} {'ratio to 1':>20} {'test loss':>26}")
    for name in names:
        ratios = [rate / one for rate, one in zip(rates[name], rates["1"])]
        print(f"{name:>9} {spread(rates[name], 0):>28} {spread(ratios, 2):>20} "
              f"{spread(losses[name], 4):>26}")


if __name__ == "__main__":
    main()
