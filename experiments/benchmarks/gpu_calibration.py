#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How far apart the CPU's own runs of gpu_check's trajectories are, right ones and wrong ones.

What gpu_trajectories.py allows a GPU rests on this. Prints the largest difference over all steps and
over the first three; the asynchronous backends' ratios of losses. No GPU result.

  experiments/benchmarks/gpu_calibration.py                full sizes, all models: some minutes
  experiments/benchmarks/gpu_calibration.py --tiny --models cnn gpt --seeds 1
"""

import argparse
import os
import pathlib
import subprocess
import tempfile

import gpu_trajectories as trajectories
from gpu_session import Done
from gpu_text import write_text
from runs import PROGRAM, require

OTHER_SET = {"DNNL_MAX_CPU_ISA": "SSE41", "ONEDNN_MAX_CPU_ISA": "SSE41"}


class Runs:
    """Losses of runs of one program, by rank."""

    def __init__(self, program, folder):
        self.program = program
        self.folder = folder
        self.count = 0

    def losses(self, keys, sync="single", world=1, environment=None):
        self.count += 1
        folder = self.folder / f"run{self.count}"
        command = [self.program, "train", f"--sync={sync}", f"--world={world}", "--quiet", *keys,
                   "observe.trace=false", f"run.dir={folder}"]
        done = subprocess.run(command, env={**os.environ, **(environment or {})},
                              capture_output=True, text=True, check=False)
        if done.returncode == 2:  # the CPU's gpt has no 16 bits
            return None
        if done.returncode != 0:
            raise SystemExit(done.stderr)
        return trajectories.losses(Done("", "", folder, 0))


def show(name, expected, found):
    if found is None:
        print(f"  {name:34} not on the CPU")
        return
    worst, early = (trajectories.difference(expected, found, steps)
                    for steps in (len(expected[0]), trajectories.EARLY_STEPS))
    print(f"  {name:34} {worst:8.1e}  early {early:8.1e}", flush=True)


def calibrate(runs, plan, model, seed):
    batch = trajectories.model_keys(plan, model, plan.tiny)[1]
    rate = trajectories.learning_rate(plan, model)
    base = [*trajectories.training_keys(plan, model, 1), f"seed={seed}"]
    keys = [*base, "optimizer.momentum=0.9"]
    expected = runs.losses(keys)
    print(f"{model}, batch {batch}, lr {rate:g}, seed {seed}: {expected[0][0]:.3f} to "
          f"{expected[0][-1]:.3f}")
    show("right: other instruction set", expected, runs.losses(keys, environment=OTHER_SET))
    if model != "resnet20":  # whose statistics are of a micro-batch
        show("right: two micro-batches", expected, runs.losses(
            [*keys, f"train.batch={batch // 2}", "train.accumulate=2"]))
    for precision in ("bf16", "fp16"):
        show(f"right: {precision}", expected, runs.losses(
            [*keys, f"precision.compute={precision}", "precision.initial_scale=1024"]))
    show("wrong: no momentum", expected, runs.losses([*base, "optimizer.momentum=0"]))
    show("wrong: momentum 0.8", expected, runs.losses([*base, "optimizer.momentum=0.8"]))
    show("wrong: gradient twice", expected, runs.losses([*keys, f"optimizer.lr={2 * rate}"]))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=pathlib.Path, default=PROGRAM)
    parser.add_argument("--tiny", action="store_true", help="the sizes of gpu_check --device cpu")
    parser.add_argument("--models", nargs="*", default=["mlp", "cnn", "resnet20", "gpt"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--repeats", type=int, default=4, help="of asynchronous runs")
    options = parser.parse_args()
    require(options.program)
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        plan = trajectories.Plan(options.program, "cpu", 0, folder, folder / "text.txt",
                                 options.tiny)
        write_text(plan.text)
        runs = Runs(options.program, folder)
        for model in options.models:
            for seed in options.seeds:
                calibrate(runs, plan, model, seed)
        for sync in ("asgd", "hogwild"):
            ratios = [trajectories.quarters(rank) for _ in range(options.repeats) for rank in
                      runs.losses(trajectories.asynchronous_keys(plan, 2), sync, 2).values()]
            if ratios:
                print(f"{sync}: last quarter over first {min(ratios):.3f}..{max(ratios):.3f}")


if __name__ == "__main__":
    main()
