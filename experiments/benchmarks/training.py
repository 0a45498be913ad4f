#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Paceline against PyTorch: samples/s of the same models, in turn in one run.

MLP and CNN train on Fashion-MNIST, ResNet-20 on made-up images of CIFAR's shape.

Prints one line per pairing: median samples/s of both, the median of the pairwise ratios, and their
spread. Needs Debian's python3-torch with libopenblas0-pthread, and a Release build.

  experiments/benchmarks/training.py                      all pairings, 5 rounds
  experiments/benchmarks/training.py --only cnn --rounds 3
  experiments/benchmarks/training.py --only resnet20 --set compute.winograd=false
"""

import argparse
import json
import os
import statistics
import tempfile

from runs import PROGRAM, ROOT, finished, run

PEER = ROOT / "experiments/benchmarks/train_peer.py"

# name: (model, our backend, workers, the peer's mode, target ratio)
PAIRINGS = {
    "cnn": ("cnn", "single", 1, "single", 1.2),
    "mlp": ("mlp", "single", 1, "single", 1.0),
    "cnn-ring2": ("cnn", "ring", 2, "ddp-gloo", 1.4),
    "mlp-ring2": ("mlp", "ring", 2, "ddp-gloo", 2.0),
    "resnet20": ("resnet20", "single", 1, "single", 1.2),
    "resnet20-ring2": ("resnet20", "ring", 2, "ddp-gloo", 1.4),
    "gpt": ("gpt", "single", 1, "single", 1.0),
    "cnn-hogwild2": ("cnn", "hogwild", 2, "hogwild", 1.2),
}
BATCH = 64
STEPS = {"cnn": 120, "mlp": 900, "resnet20": 30, "gpt": 10}
DATA = {"resnet20": ["data.name=synthetic", "data.shape=32x32x3", "data.train_limit=4000",
                     "data.test_limit=100"],
        "gpt": ["data.name=text", "data.path=/usr/share/common-licenses/GPL-3"]}


# OpenBLAS takes a processor that is newer than itself for one of 2004 (it says "Prescott"), which
# costs PyTorch two thirds of its speed. So the peer gets the fastest of these kernels; "" is
# OpenBLAS's own choice.
KERNELS = ("", "HASWELL", "SKYLAKEX", "ZEN")


def environment(kernel=""):
    """Both sides run without the kernel pins that some machines set for OpenBLAS."""
    kept = dict(os.environ)
    for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
        kept.pop(name, None)
    if kernel:
        kept["OPENBLAS_CORETYPE"] = kernel
    kept["OMP_NUM_THREADS"] = "1"
    return kept


def ours(program, model, backend, workers, settings):
    samples = BATCH * workers * STEPS[model]
    with tempfile.TemporaryDirectory() as folder:
        run([program, "train", f"--sync={backend}", f"--world={workers}", "--quiet",
             f"model={model}", f"train.batch={BATCH}", f"train.samples={samples}",
             f"run.dir={folder}", *DATA.get(model, []), *settings], environment())
        return finished(folder)[1]["samples_per_second"]


def peers(model, mode, workers, kernel):
    out = run(["/usr/bin/python3", PEER, "--mode", mode, "--model", model, "--world",
               str(workers), "--batch", str(BATCH), "--steps", str(STEPS[model])], environment(kernel))
    return json.loads(out.strip().splitlines()[-1])["samples_per_second"]


def fastest_kernel(model):
    rates = {}
    for kernel in KERNELS:
        try:
            rates[kernel] = peers(model, "single", 1, kernel)
        except SystemExit:  # this processor lacks the kernel's instructions
            continue
    if not rates:
        peers(model, "single", 1, "")  # says why
    best = max(rates, key=rates.get)
    print(f"# {model}: PyTorch's OpenBLAS kernels, samples/s: " +
          ", ".join(f"{name or 'its choice'} {rate:.0f}" for name, rate in rates.items()),
          flush=True)
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", action="append", choices=list(PAIRINGS))
    parser.add_argument("--program", default=PROGRAM, help="the built paceline")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE",
                        help="of every run of paceline")
    arguments = parser.parse_args()
    print(f"{'pairing':14} {'paceline':>10} {'pytorch':>10} {'ratio':>7} {'min':>6} {'max':>6} "
          f"{'target':>7}")
    kernels = {}
    for name in arguments.only or PAIRINGS:
        model, backend, workers, mode, target = PAIRINGS[name]
        if model not in kernels:
            kernels[model] = fastest_kernel(model)
        mine, theirs = [], []
        for _ in range(arguments.rounds):
            mine.append(ours(arguments.program, model, backend, workers, arguments.set))
            theirs.append(peers(model, mode, workers, kernels[model]))
        ratios = [a / b for a, b in zip(mine, theirs)]
        print(f"{name:14} {statistics.median(mine):10.0f} {statistics.median(theirs):10.0f} "
              f"{statistics.median(ratios):7.2f} {min(ratios):6.2f} {max(ratios):6.2f} "
              f"{target:7.2f}", flush=True)


if __name__ == "__main__":
    main()
