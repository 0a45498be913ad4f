# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks share: the program, its runs, and figures with their spread."""

import json
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "build/release/experiments/paceline"


def require(program):
    if not pathlib.Path(program).exists():
        sys.exit(f"{program} is missing: build the release preset first")


def stop_if_failed(command, status, output):
    if status != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{output}")


def run(command, environment=None):
    """Standard output; ends this program when the command fails."""
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    stop_if_failed(command, done.returncode, done.stdout + done.stderr)
    return done.stdout


def finished(folder):
    """The directory of the one run in the folder, and its summary."""
    summary = next(pathlib.Path(folder).glob("*/summary.json"))
    return summary.parent, json.loads(summary.read_text())


def spread(values, digits, factor=1):
    """Median (smallest..largest), times factor."""
    return (f"{factor * statistics.median(values):.{digits}f} "
            f"({factor * min(values):.{digits}f}..{factor * max(values):.{digits}f})")
