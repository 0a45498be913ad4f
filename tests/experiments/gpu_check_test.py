#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""experiments/gpu_check without a GPU: what it calls passed, failed and skipped.

  gpu_check_test.py BUILD_FOLDER
"""

import copy
import json
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "experiments/benchmarks"))
sys.dont_write_bytecode = True

import gpu_probes  # noqa: E402
import gpu_speed  # noqa: E402
import gpu_trajectories  # noqa: E402
from gpu_session import Check, Command, Failed, Session  # noqa: E402

BUILD = sys.argv.pop()


class OnTheCpu(unittest.TestCase):
    def test_it_runs_to_its_end_and_calls_it_no_gpu_result(self):
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "out.json"
            done = subprocess.run(
                [ROOT / "experiments/gpu_check", "--device", "cpu", "--bundle", BUILD, "--out", out,
                 "--only", "trajectories.mlp", "trajectories.ring", "trajectories.nccl", "nccl",
                 "sanitizer", "speed.gpt"], capture_output=True, text=True, check=False, timeout=100)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            result = json.loads(out.read_text())
        self.assertEqual((result["device"], result["is_a_gpu_result"]), ("cpu", False))
        states = {check["name"]: check["state"] for check in result["checks"]}
        self.assertEqual(states["trajectories.mlp.fp32"], "passed")
        self.assertEqual(states["trajectories.ring.world2"], "passed")
        self.assertEqual(states["speed.gpt"], "passed")
        self.assertTrue(states["trajectories.nccl.world1"].startswith("skipped: device=cpu"))
        self.assertTrue(states["nccl.busbw.world1"].startswith("skipped: device=cpu"))
        self.assertTrue(states["sanitizer.memcheck.mlp"].startswith("skipped: device=cpu"))
        self.assertEqual(result["counts"]["passed"], 3)
        mlp = next(c for c in result["checks"] if c["name"] == "trajectories.mlp.fp32")
        self.assertEqual(mlp["figures"]["steps"], 20)
        self.assertEqual(len(mlp["commands"]), 2)


class Steps:
    """A run that left these losses of one rank."""

    def __init__(self, values, graph_batches=None):
        self.values = values
        self.graph_batches = graph_batches

    def summary(self):
        return {"graph_batches": self.graph_batches}

    def steps(self):
        return {0: [{"loss": value, "samples": 4, "compute_s": 0.25, "exposed_comm_s": 0.25,
                     "wait_s": 0.0} for value in self.values]}


class Judging(unittest.TestCase):
    LOSSES = [2.0 - 0.1 * k for k in range(12)]

    def compare(self, found):
        return gpu_trajectories.compare([Steps(self.LOSSES), Steps(found)], 1e-3, 1e-4)

    def test_trajectories(self):
        self.assertEqual(self.compare(self.LOSSES)["max_relative_difference"], 0.0)
        late, early, lost = (copy.copy(self.LOSSES) for _ in range(3))
        late[8] += 1e-3  # half the tolerance
        self.assertAlmostEqual(self.compare(late)["max_relative_difference"], 5e-4)
        late[8] += 2e-3
        early[1] += 5e-4
        lost[5] = None
        for wrong in (late, early, lost, self.LOSSES[:-1]):
            with self.assertRaises(Failed):
                self.compare(wrong)

    def test_trajectories_of_graphs(self):
        def judge(batches):
            return gpu_trajectories.compare_graphs(
                [Steps(self.LOSSES), Steps(self.LOSSES, batches)], 1e-3, 1e-4)
        self.assertEqual(judge(8)["graph_batches"], 8)
        with self.assertRaises(Failed):
            judge(5)

    def test_speed(self):
        self.assertEqual(gpu_speed.steady_rates(Steps(self.LOSSES)), [8.0, 8.0, 8.0])
        # 4.09e9 multiplications with one addition each, as published for v1.5
        self.assertAlmostEqual(gpu_speed.resnet50_forward_flops(224, 1000) / 2e9, 4.09, places=2)
        self.assertIsNone(gpu_speed.peak_of("a card of next year"))

    def test_counts_of_tests(self):
        test = {"name": "A", "result": "COMPLETED"}
        report = {"testsuites": [{"name": "Cuda", "testsuite": [
            test, {**test, "name": "B", "result": "SKIPPED"},
            {**test, "name": "C", "failures": [{"failure": "file:1\nwrong"}]}]}]}
        names, messages = gpu_probes.count_tests(report)
        self.assertEqual(names, {"passed": ["Cuda.A"], "skipped": ["Cuda.B"], "failed": ["Cuda.C"]})
        self.assertEqual(messages, {"Cuda.C": ["file:1", "wrong"]})

    def test_bus_bandwidth(self):
        def judged(wrong, ceiling_of):
            row = {"size": 4, "algbw_gbps": 8.0, "busbw_gbps": 6.0, "of_ceiling": 0.75, "wrong": wrong}
            with tempfile.TemporaryDirectory() as folder:
                file = pathlib.Path(folder) / "result.json"
                file.write_text(json.dumps({
                    "world": 2, "nccl": "2.28.9", "results": [{**row, "busbw_gbps": 1.0}, row],
                    "copies": {"ceiling_gbps": 8.0, "ceiling_of": ceiling_of}}))
                return gpu_probes.judge_bus_bandwidth(file)

        figures = judged(0, "busbw")
        self.assertEqual(figures["busbw_bytes_per_s"], 6e9)
        self.assertEqual(figures["text"], "busbw 6.0 GB/s, 2 GPUs, 75% of a plain copy (8.0)")
        self.assertTrue(judged(0, "algbw")["text"].startswith("algbw 8.0 GB/s"))
        with self.assertRaises(Failed):
            judged(1, "busbw")


class Running(unittest.TestCase):
    def perform(self, arguments, seconds=60.0, limit_s=30.0):
        with tempfile.TemporaryDirectory() as folder:
            session = Session(pathlib.Path(folder), lambda name: True)
            session.stage_end = time.monotonic() + seconds
            session.perform(Check("check", lambda done: {"text": done[0].stdout},
                                  [Command(arguments)], limit_s))
        return session.records[0]

    def test_states(self):
        self.assertEqual(self.perform(["echo", "well"])["state"], "passed")
        failed = self.perform(["sh", "-c", "echo why >&2; exit 3"])
        self.assertEqual(failed["state"], "failed")
        self.assertEqual(failed["figures"]["output"], ["why"])
        self.assertEqual(self.perform(["/no/such/program"])["state"], "failed")

    def test_time(self):
        late = self.perform(["sleep", "60"], limit_s=0.2)
        self.assertEqual(late["state"], "failed")
        self.assertIn("took longer", late["reason"])
        self.assertTrue(self.perform(["true"], seconds=0)["state"].startswith("skipped: out of"))
        cut = self.perform(["sleep", "60"], seconds=2.1)
        self.assertTrue(cut["state"].startswith("skipped: out of time: it was ended"))


if __name__ == "__main__":
    unittest.main()
