#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How much communication overlap hides, on an emulated device and network card.

For each link rate: a run with sync.overlap=false says how long a step's transfers take; the emulated
device's step is set to --ratio times that. Then runs without overlap, with it, and with it but
without sync.priority. hidden = 1 - time the training thread was blocked (waiting for the other rank
included) / time of the transfers without overlap. Median, smallest and largest of the rounds. Without
overlap something is hidden too: the next forward waits for each bucket only when it reads it.
Rows whose ranks could not keep the emulated pace are marked host-bound. Needs a Release build.

  experiments/benchmarks/overlap.py                        ring of 2, 1 and 0.5 Gbit/s, 5 rounds
  experiments/benchmarks/overlap.py --ratio 1 --ratio 2 --rate 250mbit
  experiments/benchmarks/overlap.py --backend ps --bucket 512KiB
"""

import argparse
import statistics
import tempfile

from runs import PROGRAM, finished, run, spread


def timed_run(options, rate, emulate_s, overlap, priority=True):
    """Blocked seconds of a step, seconds of its transfers, and whether the host kept pace."""
    with tempfile.TemporaryDirectory() as folder:
        command = [options.program, "train", f"--sync={options.backend}", "--world=2", "--quiet",
                   f"model={options.model}", f"train.batch={options.batch}",
                   f"train.samples={2 * options.batch * options.steps}", "data.name=synthetic",
                   "data.train_limit=6400", "data.test_limit=100", "topology.ranks_per_node=1",
                   f"link.inter={rate},50us", f"bucket.size={options.bucket}",
                   f"bucket.first_size={options.bucket}",
                   f"compute.emulate={round(emulate_s * 1e6)}us",
                   f"sync.overlap={str(overlap).lower()}",
                   f"sync.priority={str(priority).lower()}", f"run.dir={folder}"]
        run(command)
        _, summary = finished(folder)
        return (summary["exposed_comm_s"] + summary["wait_s"], summary["communication_s"],
                summary["host_bound"])


def measure(options, rate, ratio):
    transfers = statistics.median(timed_run(options, rate, options.floor / 1e3, False)[1]
                                  for _ in range(3))
    emulate_s = max(options.floor / 1e3, ratio * transfers)
    columns = {"off": [], "on": [], "in order": []}
    bound = False
    for _ in range(options.rounds):
        for name, hidden in columns.items():
            blocked, _, late = timed_run(options, rate, emulate_s, name != "off", name == "on")
            hidden.append(1 - blocked / transfers)
            bound = bound or late
    cells = " ".join(f"{spread(hidden, 0, 100):>16}" for hidden in columns.values())
    print(f"{rate:>9} {1e3 * transfers:12.1f} {1e3 * emulate_s:8.1f} {emulate_s / transfers:6.2f} "
          f"{cells}{'  host-bound' if bound else ''}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="ring")
    parser.add_argument("--model", default="cnn")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--bucket", default="512KiB")
    parser.add_argument("--rate", action="append", help="of the link; default 1gbit and 500mbit")
    parser.add_argument("--ratio", action="append", type=float,
                        help="compute over communication; default 1 and 2")
    parser.add_argument("--floor", type=float, default=40, help="shortest emulated step, ms")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--program", default=PROGRAM, help="the built paceline")
    options = parser.parse_args()
    print("% of the transfers' time that compute hid")
    print(f"{'link':>9} {'transfers ms':>12} {'step ms':>8} {'ratio':>6} {'no overlap':>16} "
          f"{'overlap':>16} {'without priority':>16}")
    for rate in options.rate or ("1gbit", "500mbit"):
        for ratio in options.ratio or (1.0, 2.0):
            measure(options, rate, ratio)


if __name__ == "__main__":
    main()
