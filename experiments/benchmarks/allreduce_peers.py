#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Allreduce (fp32, sum, in place) side by side with Open MPI and Gloo on this machine.

All run in turn within each round: the same sizes, a barrier before each run, the slowest rank's
time, the median over runs; then the median over rounds. Peers that are not installed (Debian:
openmpi-bin libopenmpi-dev libgloo-dev) are left out. Ratios over 1.00 mean that ours is faster.

    experiments/benchmarks/allreduce_peers.py [--rounds 3] [--only shm2,tcp4]
"""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
PROGRAM = HERE.parents[1] / "build/release/experiments/paceline"
KIB, MIB = 1024, 1024 * 1024
SIZES = [4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB, 100 * MIB]
CASES = {"shm2": ("shm", 2), "shm4": ("shm", 4), "tcp2": ("tcp", 2), "tcp4": ("tcp", 4)}
# Without these glibc hands large buffers back to the system and every call pays for page faults.
ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": "4294967296",
    "MALLOC_TRIM_THRESHOLD_": "8589934592",
    "MALLOC_TOP_PAD_": "268435456",
}


def build_peers(folder):
    """Compiles the peers that are there; returns {name: program}."""
    peers = {}
    if shutil.which("mpicxx") and shutil.which("mpirun"):
        program = folder / "allreduce_mpi"
        subprocess.run(
            ["mpicxx", "-std=c++17", "-O3", "-march=native", HERE / "allreduce_mpi.cpp", "-o", program],
            check=True,
        )
        peers["openmpi"] = program
    if pathlib.Path("/usr/include/gloo/allreduce.h").exists():
        program = folder / "allreduce_gloo"
        subprocess.run(
            ["g++", "-std=c++17", "-O3", "-march=native", HERE / "allreduce_gloo.cpp", "-lgloo",
             "-pthread", "-o", program],
            check=True,
        )
        peers["gloo"] = program
    return peers


def parse(text):
    return {int(a): float(b) for a, b in (line.split() for line in text.splitlines())}


def run_openmpi(program, transport, world, iters, sizes):
    command = ["mpirun", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1", "-np", str(world)]
    if os.geteuid() == 0:
        command.append("--allow-run-as-root")
    for name, value in ALLOCATOR.items():
        command += ["-x", f"{name}={value}"]
    if transport == "tcp":
        command += ["--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo"]
    command += [program, str(iters)] + [str(size) for size in sizes]
    return parse(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def run_gloo(program, transport, world, iters, sizes):
    with tempfile.TemporaryDirectory() as store:
        environment = {**os.environ, **ALLOCATOR}
        ranks = [
            subprocess.Popen(
                [program, str(rank), str(world), store, str(iters)] + [str(size) for size in sizes],
                stdout=subprocess.PIPE, text=True, env=environment,
            )
            for rank in range(world)
        ]
        outputs = [rank.communicate()[0] for rank in ranks]
        if any(rank.returncode != 0 for rank in ranks):
            sys.exit("gloo failed")
        return parse(outputs[0])


def run_ours(program, transport, world, iters, sizes):
    times = {}
    with tempfile.TemporaryDirectory() as folder:
        results = pathlib.Path(folder) / "results.json"
        subprocess.run(
            [program, "bench", "allreduce", f"--transport={transport}", f"--world={world}",
             f"--iters={iters}", f"--warmup={max(1, iters // 4)}",
             "--sizes=" + ",".join(str(size) for size in sizes), f"--json={results}"],
            check=True, capture_output=True,
        )
        for row in json.loads(results.read_text())["results"]:
            if row["wrong"]:
                sys.exit(f"ours: {row['wrong']} wrong elements at {row['size']} bytes")
            times[row["size"]] = row["time_us"]
    return times


def bus_bandwidth(size, world, microseconds):
    return size / (microseconds * 1e-6) * 2 * (world - 1) / world * 1e-9


def compare(name, arguments, peers):
    transport, world = CASES[name]
    runners = {"ours": (run_ours, arguments.program), "openmpi": (run_openmpi, peers.get("openmpi"))}
    if transport == "tcp":
        runners["gloo"] = (run_gloo, peers.get("gloo"))
    runners = {who: entry for who, entry in runners.items() if entry[1]}
    samples = {who: {size: [] for size in arguments.sizes} for who in runners}
    for _ in range(arguments.rounds):
        for who, (run, program) in runners.items():
            for size, time in run(program, transport, world, arguments.iters, arguments.sizes).items():
                samples[who][size].append(time)
    print(f"\n{name}: {world} ranks over {transport}, median of {arguments.rounds} rounds")
    others = [who for who in runners if who != "ours"]
    print(f"{'bytes':>12} {'ours us':>11} {'GB/s':>7}" +
          "".join(f" {who + ' us':>12} {'ratio':>6}" for who in others))
    for size in arguments.sizes:
        ours = statistics.median(samples["ours"][size])
        line = f"{size:>12} {ours:>11.1f} {bus_bandwidth(size, world, ours):>7.2f}"
        for who in others:
            theirs = statistics.median(samples[who][size])
            line += f" {theirs:>12.1f} {theirs / ours:>6.2f}"
        print(line, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--program", default=PROGRAM, help="the built paceline")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--iters", type=int, default=10)
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--sizes", type=lambda text: [int(size) for size in text.split(",")], default=SIZES)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        peers = build_peers(pathlib.Path(folder))
        for name in arguments.only.split(","):
            compare(name, arguments, peers)


if __name__ == "__main__":
    main()
