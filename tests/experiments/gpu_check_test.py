#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""experiments/gpu_check without a GPU: what it calls passed, failed, undecided and skipped.

  gpu_check_test.py BUILD_FOLDER
"""

import copy
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "experiments/benchmarks"))
sys.dont_write_bytecode = True

import gpu_many  # noqa: E402
import gpu_probes  # noqa: E402
import gpu_speed  # noqa: E402
import gpu_trajectories  # noqa: E402
from gpu_session import Done, Failed, Skip, Undecided  # noqa: E402

BUILD = sys.argv.pop()


class OnTheCpu(unittest.TestCase):
    def test_it_runs_to_its_end_and_calls_it_no_gpu_result(self):
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "out.json"
            done = subprocess.run(
                [ROOT / "experiments/gpu_check", "--device", "cpu", "--bundle", BUILD, "--out", out,
                 "--only", "trajectories.mlp", "trajectories.ring", "trajectories.nccl",
                 "nccl.busbw", "nccl.lost_rank", "nccl.hidden.gpt",
                 "sanitizer", "speed.gpt", "speed.optimizer"],
                capture_output=True, text=True, check=False, timeout=100)
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
        self.assertEqual(states["nccl.lost_rank"], "passed")
        self.assertEqual(result["counts"]["passed"], 4)
        self.assertTrue(states["speed.optimizer"].startswith("skipped: device=cpu"))
        optimizer = next(c for c in result["checks"] if c["name"] == "speed.optimizer")
        self.assertGreater(optimizer["figures"]["of_copy"]["adam"], 0.0)
        hidden = next(c for c in result["checks"] if c["name"] == "nccl.hidden.gpt")
        self.assertGreater(hidden["figures"]["communication_s"], 0.0)
        self.assertTrue(result["complete"])
        mlp = next(c for c in result["checks"] if c["name"] == "trajectories.mlp.fp32")
        self.assertEqual(mlp["figures"]["steps"], 20)
        self.assertEqual(len(mlp["commands"]), 2)


class Steps:
    """A run that left these losses of one rank."""

    def __init__(self, values, graph_batches=None, ranks=1):
        self.values = values
        self.ranks = ranks
        self.graph_batches = graph_batches

    def summary(self):
        return {"graph_batches": self.graph_batches}

    def steps(self):
        return {rank: [{"loss": value, "samples": 4, "compute_s": 0.25, "exposed_comm_s": 0.25,
                        "wait_s": 0.0} for value in self.values] for rank in range(self.ranks)}


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

    def test_trajectories_of_nccl_and_of_the_host(self):
        def named(device, gpus):
            plan = gpu_trajectories.Plan("paceline", device, gpus, pathlib.Path("runs"), "text", True)
            return {check.name.removeprefix("trajectories."): check
                    for check in gpu_trajectories.checks(plan)}

        one = named("cuda", 1)
        for name, sync in (("sharded.world2", "sharded"), ("hierarchical.world4", "hierarchical")):
            host, nccl = one[name], one[f"nccl.{name}"]
            on_cpu, on_gpu = (command.arguments for command in host.commands)
            self.assertEqual(host.skip, "")
            self.assertIn(f"--sync={sync}", nccl.commands[1].arguments)
            self.assertIn("cuda.collectives=host", on_gpu)
            self.assertNotIn("cuda.collectives=host", on_cpu + nccl.commands[1].arguments)
            self.assertRegex(nccl.skip, "needs . GPUs, 1 here")
        self.assertEqual(one["nccl.sharded.world1"].skip, "")
        self.assertEqual(named("cuda", 4)["nccl.hierarchical.world4"].skip, "")
        self.assertTrue(named("cpu", 0)["nccl.sharded.world1"].skip.startswith("device=cpu: NCCL"))
        self.assertTrue(named("cpu", 0)["sharded.world2"].skip.startswith("device=cpu: cuda."))

    def test_speed(self):
        self.assertEqual(gpu_speed.steady_rates(Steps(self.LOSSES)), [8.0, 8.0, 8.0])
        # 4.09e9 multiplications with one addition each, as published for v1.5
        self.assertAlmostEqual(gpu_speed.resnet50_forward_flops(224, 1000) / 2e9, 4.09, places=2)
        self.assertIsNone(gpu_speed.peak_of("a card of next year"))

    def test_runs_without_steps_or_losses_fail(self):
        for judge in (lambda: gpu_speed.steady_rates(Steps([], ranks=0)),
                      lambda: gpu_speed.steady_rates(Steps([], ranks=1)),
                      lambda: gpu_trajectories.compare([Steps([], ranks=0)] * 2, 1e-3, 1e-4),
                      lambda: gpu_trajectories.compare([Steps([])] * 2, 1e-3, 1e-4),
                      lambda: gpu_trajectories.compare([Steps([0.0] * 12)] * 2, 1e-3, 1e-4),
                      lambda: gpu_trajectories.converge([Steps([], ranks=0)]),
                      lambda: gpu_trajectories.converge([Steps([0.0] * 12)])):
            with self.assertRaises(Failed):
                judge()

    def test_seam(self):
        def rates(*overheads):
            return [rate for overhead in overheads for rate in (100.0, 100.0 * (1 - overhead))]

        self.assertAlmostEqual(gpu_speed.judge_seam(rates(0.004, -0.01, 0.009))["overhead"]["median"],
                               0.004)
        with self.assertRaises(Failed) as over:
            gpu_speed.judge_seam(rates(0.02, 0.011, 0.03))
        self.assertIn("2.00% of a step (1.10..3.00 in 3 pairs of runs)", str(over.exception))
        with self.assertRaises(Undecided) as between:
            gpu_speed.judge_seam(rates(0.02, 0.005, 0.03))
        self.assertAlmostEqual(between.exception.figures["overhead"]["median"], 0.02)

    def test_optimizer(self):
        def judged(share, device="cuda"):
            with tempfile.TemporaryDirectory() as folder:
                file = pathlib.Path(folder) / "result.json"
                file.write_text(json.dumps({"copy_bytes_per_s": 4e12, "results": [
                    {"optimizer": "sgd", "of_copy": 0.9}, {"optimizer": "adam", "of_copy": share}]}))
                return gpu_speed.judge_optimizer(file, device)

        self.assertEqual(judged(0.85)["text"], "sgd 90%, adam 85% of a plain copy (4000 GB/s)")
        for share in (0.849, None):
            with self.assertRaises(Failed):
                judged(share)
        with self.assertRaises(Skip) as skip:
            judged(0.5, "cpu")
        self.assertEqual(skip.exception.figures["of_copy"]["adam"], 0.5)

    def test_memory(self):
        def ask(fits):
            gpu_speed.require_memory([Done(json.dumps({
                "fits": fits, "needed": 3 * 2**30, "memory": 2**31, "memory_from": "the GPU"}), "",
                None, 0)])

        ask(True)
        ask(None)  # nobody knows how much there is
        with self.assertRaises(Skip) as skip:
            ask(False)
        self.assertIn("needs 3.0 GiB, there are 2.0 (the GPU)", str(skip.exception))

    def test_hidden_communication(self):
        def judged(exposed, transfers):
            run = Steps(self.LOSSES)
            run.summary = lambda: {"exposed_comm_s": exposed, "communication_s": transfers,
                                   "world_size": 4, "compute_s": 1.0, "wait_s": 0.0}
            return gpu_many.judge_hidden(run, gpu_speed.steady_rates, 10)

        figures = judged(0.001, 0.004)
        self.assertEqual(figures["hidden_fraction"], 0.75)
        self.assertEqual(figures["items_per_s"], [80.0] * 3)
        self.assertEqual(figures["text"],
                         "75% of 4.00 ms of transfers a step hidden, 1.00 ms exposed")
        self.assertEqual(judged(0.005, 0.004)["hidden_fraction"], 0.0)
        for nothing in (0.0, None):
            with self.assertRaises(Failed):
                judged(0.0, nothing)

    def test_a_lost_rank(self):
        line = "paceline: rank 1 was killed by signal 9 (SIGKILL)"

        def judged(status=1, error=line, seconds=9.0):
            return gpu_many.judge_lost(Done("", error, None, status, error, seconds))

        self.assertEqual(judged()["text"], f"ended after 9.0 s: {line}")
        for wrong in ({"status": 0}, {"status": None}, {"status": -15}, {"error": ""},
                      {"error": f"{line}\n{line}"}, {"error": "paceline: a rank was lost"},
                      {"seconds": 40.0}):
            with self.assertRaises(Failed):
                judged(**wrong)

    TESTS = """[==========] Running 4 tests from 1 test suite.
[ RUN      ] Cuda.A
[       OK ] Cuda.A (10 ms)
[ RUN      ] Cuda.B
file:1: Skipped
[  SKIPPED ] Cuda.B (0 ms)
[ RUN      ] Cuda.C
file:1
wrong
no end of a line[  FAILED  ] Cuda.C, where GetParam() = 3 (7 ms)
[ RUN      ] Cuda.D
about to
"""
    NAMES = ["Cuda.A", "Cuda.B", "Cuda.C", "Cuda.D", "Cuda.E"]

    def test_lines_of_tests(self):
        names, messages, running = gpu_probes.read_tests(self.TESTS)
        self.assertEqual(names, {"passed": ["Cuda.A"], "skipped": ["Cuda.B"], "failed": ["Cuda.C"]})
        self.assertEqual(messages, {"Cuda.C": ["file:1", "wrong"], "Cuda.D": ["about to"]})
        self.assertEqual(running, "Cuda.D")
        # The summary at the end repeats names without a time.
        again = gpu_probes.read_tests(self.TESTS + "[  FAILED  ] Cuda.C\n[  FAILED  ] 1 test, listed:")
        self.assertEqual(again[0]["failed"], ["Cuda.C"])
        self.assertEqual(gpu_probes.listed_tests(
            "Running main() from a.cc\nCuda.\n  A\n  C/0  # GetParam() = 3\n"),
            ["Cuda.A", "Cuda.C/0"])

    def judge_tests(self, output, status, wanted, device="cuda"):
        plan = gpu_trajectories.Plan("paceline", device, 1, None, "", False)
        return gpu_probes.judge_tests(plan, Done(output, output, None, status), wanted)

    def test_tests_that_were_cut(self):
        good = "\n".join(self.TESTS.splitlines()[:3])
        self.assertEqual(self.judge_tests(good, 0, ["Cuda.A"])["text"],
                         "1 passed, 0 failed, 0 skipped")
        with self.assertRaises(Undecided) as cut:
            self.judge_tests(good, None, ["Cuda.A", "Cuda.E"])
        self.assertEqual(cut.exception.figures["names"]["passed"], ["Cuda.A"])
        self.assertEqual(cut.exception.figures["names"]["not_run"], ["Cuda.E"])
        self.assertEqual(cut.exception.figures["not_run_because"], "its time was over")
        with self.assertRaises(Failed) as crash:
            self.judge_tests(self.TESTS, -11, self.NAMES)
        self.assertEqual(crash.exception.figures["names"]["not_run"], ["Cuda.D", "Cuda.E"])
        self.assertEqual(crash.exception.figures["not_run_because"],
                         "the program was ended by signal 11 in Cuda.D")
        for output, status in ((good, -6), (good, 1), ("", 0), (good + self.TESTS, None)):
            with self.assertRaises(Failed):
                self.judge_tests(output, status, ["Cuda.A"])

    def test_skipped_tests_are_not_passed(self):
        skipped = "\n".join(self.TESTS.splitlines()[3:6])
        with self.assertRaises(Failed):
            self.judge_tests(skipped, 0, ["Cuda.B"])
        with self.assertRaises(Skip):
            self.judge_tests(skipped, 0, ["Cuda.B"], "cpu")

    def test_tests_that_did_not_run_or_failed_run_again(self):
        class Before:
            figures = {"cuda_test": {"names": {"failed": ["Cuda.C"], "not_run": ["Cuda.D", "Cuda.E"]},
                                     "not_run_because": "ended by signal 11 in Cuda.D"}}

        rest = list(gpu_probes.cuda_test(None, Before, "cuda_test"))[1].commands[0].arguments
        self.assertEqual(rest([])[-1], "--gtest_filter=Cuda.C:Cuda.E")
        Before.figures = {"cuda_test": {"names": {"failed": [], "not_run": []}}}
        with self.assertRaises(Skip):
            rest([])
        Before.figures = {}
        with self.assertRaises(Skip):
            rest([])

    def test_sanitizers_leave_out_failed_calls_of_the_api(self):
        plan = gpu_trajectories.Plan("paceline", "cuda", 1, pathlib.Path("runs"), "", False)
        for check in gpu_probes.sanitizers(plan, lambda _: ([], 4)):
            command = check.commands[0].text()
            self.assertEqual("--report-api-errors no" in command, ".memcheck." in check.name)

    def test_bus_bandwidth(self):
        def judged(wrong, ceiling_of, share=0.75, busbw=6.0):
            row = {"size": 4, "algbw_gbps": 8.0, "busbw_gbps": busbw, "of_ceiling": share,
                   "wrong": wrong}
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
        self.assertIn("no share of a plain copy", judged(0, "busbw", None)["text"])
        with self.assertRaises(Failed):
            judged(1, "busbw")
        with self.assertRaises(Failed):
            judged(0, "busbw", None, None)


if __name__ == "__main__":
    unittest.main()
