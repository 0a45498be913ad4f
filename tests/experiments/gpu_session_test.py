#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How experiments/gpu_check runs its checks: what comes up, in which time, and what is left of it.

No GPU and no build: its program is a script that stands for paceline.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "experiments/benchmarks"))
sys.dont_write_bytecode = True

import gpu_plan  # noqa: E402
import gpu_python  # noqa: E402
from gpu_session import Check, Command, Failed, Session, Skip, Undecided, storable  # noqa: E402

GPU_CHECK = ROOT / "experiments/gpu_check"


def raise_it(error):
    raise error


class Running(unittest.TestCase):
    def perform(self, arguments, seconds=60.0, limit_s=30.0, judge=None, more=()):
        with tempfile.TemporaryDirectory() as folder:
            session = Session(pathlib.Path(folder), lambda name: True,
                              environment={"GPU_CHECK_TEST": "in the environment"})
            session.end_by = time.monotonic() + seconds
            session.perform(Check("check", judge or (lambda done: {"text": done[0].stdout}),
                                  [Command(arguments), *more], limit_s, least=1 if more else None))
        return session.records[0]

    def test_states(self):
        self.assertEqual(self.perform(["echo", "well"])["state"], "passed")
        failed = self.perform(["sh", "-c", "echo why >&2; exit 3"])
        self.assertEqual(failed["state"], "failed")
        self.assertEqual(failed["figures"]["output"], ["why"])
        self.assertEqual(self.perform(["/no/such/program"])["state"], "failed")
        long = self.perform(["sh", "-c", "seq 100; echo why >&2; exit 3"])
        self.assertEqual(long["figures"]["output"][0], "why")
        self.assertEqual(long["figures"]["output"][-1], "100")
        killed = self.perform(["sh", "-c", "kill -9 $$"])
        self.assertTrue(killed["reason"].startswith("ended by signal 9: "))
        between = self.perform(["true"], judge=lambda _: raise_it(Undecided("so-so", {"a": 1})))
        self.assertEqual((between["state"], between["figures"]), ("undecided: so-so", {"a": 1}))

    def test_whatever_a_judge_raises_is_recorded(self):
        for judge, name in ((lambda done: done[7], "IndexError"), (lambda _: 1 / 0, "ZeroDivision"),
                            (lambda _: None + 1, "TypeError"), (lambda _: {}["a"], "KeyError"),
                            (lambda _: next(iter(())), "StopIteration"),
                            (lambda _: raise_it(RecursionError("deep")), "RecursionError: deep")):
            record = self.perform(["echo", "said"], judge=judge)
            self.assertEqual(record["state"], "failed")
            self.assertTrue(record["reason"].startswith(name), record["reason"])
            self.assertIn("(gpu_session_test.py:", record["reason"])
            self.assertEqual(record["figures"]["output"], ["said"])

    def test_time(self):
        late = self.perform(["sleep", "60"], limit_s=0.2)
        self.assertEqual(late["state"], "failed")
        self.assertIn("took longer", late["reason"])
        self.assertTrue(self.perform(["true"], seconds=0)["state"].startswith("skipped: out of"))
        cut = self.perform(["sleep", "60"], seconds=2.1)
        self.assertTrue(cut["state"].startswith("skipped: out of time: it was ended"))

    def test_enough_runs_are_judged_when_time_is_over(self):
        def count(done):
            return {"text": str(len(done))}

        for limits in ({"limit_s": 0.3}, {"seconds": 2.2}):
            record = self.perform(["true"], judge=count, more=[Command(["sleep", "60"])], **limits)
            self.assertEqual((record["state"], record["figures"]), ("passed", {"text": "1"}))

    def test_commands_know_the_environment_and_those_before(self):
        self.assertIn("in the environment",
                      self.perform(["sh", "-c", "echo $GPU_CHECK_TEST"])["figures"]["text"])
        record = self.perform(["echo", "three"], judge=lambda done: {"text": done[1].stdout}, more=[
            Command(lambda before: ["echo", before[0].stdout.strip(), "times"])])
        self.assertEqual(record["figures"]["text"], "three times\n")
        refused = self.perform(["true"], more=[
            Command(["true"], admit=lambda before: raise_it(Skip("does not fit")))])
        self.assertEqual(refused["state"], "skipped: does not fit")

    def test_figures_that_json_does_not_know(self):
        odd = {"nan": float("nan"), 3: [float("inf"), pathlib.Path("a"), (1, True, None, "b")]}
        self.assertEqual(storable(odd), {"nan": None, "3": [None, "a", [1, True, None, "b"]]})


class Planning(unittest.TestCase):
    @staticmethod
    def check(name, limit_s=60.0, **more):
        return Check(name, None, [Command(["true"])], limit_s, **more)

    def test_no_check_spends_what_is_planned_for_later_ones(self):
        checks = gpu_plan.in_order([
            self.check("sanitizer.memcheck.mlp"), self.check("speed.seam", skip="no"),
            self.check("cuda_test"), self.check("sanitizer.racecheck.gpt")])
        self.assertEqual([check.name for check in checks],
                         ["cuda_test", "sanitizer.memcheck.mlp", "speed.seam",
                          "sanitizer.racecheck.gpt"])
        first, second, skipped, last = checks
        self.assertEqual(skipped.planned_s, 0.0)
        budget = first.planned_s + second.planned_s + 3.0  # no room for the last
        pace = gpu_plan.Pace(checks, budget)
        end = time.monotonic() + budget
        pace.start(end)
        self.assertAlmostEqual(pace.end_of(first), end - second.planned_s, places=1)
        self.assertAlmostEqual(pace.end_of(second), end, places=1)
        self.assertAlmostEqual(pace.end_of(last), end, places=1)
        pace.start(time.monotonic() + second.planned_s)  # the first took all it could
        self.assertGreater(pace.end_of(second) - time.monotonic(), second.planned_s - 0.1)
        text = "\n".join(gpu_plan.describe(checks, budget))
        self.assertRegex(text, r"later +60  sanitizer.racecheck.gpt\n")
        self.assertIn("speed.seam  (skipped: no)", text)

    def test_the_longest_name_covers(self):
        index = {prefix: place for place, (prefix, _) in enumerate(gpu_plan.ORDER)}
        self.assertEqual(gpu_plan.place_of("speed.resnet50.bf16.256.cudnn_norm")[0],
                         index["speed.resnet50.bf16.256.cudnn_norm"])
        self.assertEqual(gpu_plan.place_of("trajectories.nccl.world4")[0], index["trajectories.nccl"])
        self.assertEqual(gpu_plan.place_of("trajectories.asgd.world2")[0], index["trajectories"])
        self.assertEqual(gpu_plan.place_of("no.such"), (len(gpu_plan.ORDER), gpu_plan.UNKNOWN_S))

    def test_the_plan_is_shown_without_a_gpu_and_names_every_check(self):
        def lines(*arguments):
            done = subprocess.run([GPU_CHECK, "--bundle", self.bundle(), *arguments], check=True,
                                  capture_output=True, text=True, timeout=60)
            return done.stdout.splitlines()

        names = lines("--list", "--gpus", "4")
        shown = lines("--plan", "--gpus", "4")
        self.assertEqual([line.split("  (")[0].split()[-1] for line in shown[1:-1]], names)
        for name in names:
            self.assertLess(gpu_plan.place_of(name)[0], len(gpu_plan.ORDER), name)
        for prefix, _ in gpu_plan.ORDER:
            self.assertTrue(any(f"{name}.".startswith(f"{prefix}.") for name in names), prefix)
        # Who judges another check's figures comes after it.
        for name in names:
            if name.endswith(".ratio"):
                self.assertLess(names.index(name.removesuffix(".ratio")), names.index(name))
        self.assertLess(names.index("speed.pytorch.resnet50.late"),
                        names.index("speed.resnet50.bf16.512.ratio"))
        self.assertLess(names.index("cuda_test"), names.index("cuda_test.rest"))

    def bundle(self):
        return stand_in(self, "exit 0")


def stand_in(test, train):
    """A bundle's folder, which goes with the test: doctor and what `train` says in sh."""
    temporary = tempfile.TemporaryDirectory()
    test.addCleanup(temporary.cleanup)
    folder = pathlib.Path(temporary.name)
    (folder / "bin").mkdir()
    for name, body in (("paceline", f"[ $1 = doctor ] && echo '{{\"version\": \"0\"}}' && exit\n{train}"),
                       ("cuda_test", "exit 0")):
        program = folder / "bin" / name
        program.write_text(f"#!/bin/sh\n{body}\n")
        program.chmod(0o755)
    return folder


class Surviving(unittest.TestCase):
    """The whole script, whose runs never end."""

    def start(self, *only, train="sleep 100"):
        bundle = stand_in(self, train)
        self.out = bundle / "out.json"
        child = subprocess.Popen(
            [GPU_CHECK, "--device", "cpu", "--bundle", bundle, "--out", self.out,
             "--keep", bundle / "runs", "--only", *only],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(child.stdout.close)
        self.addCleanup(child.wait)
        self.addCleanup(child.kill)
        return child

    def wait_for(self, condition):
        end = time.monotonic() + 30
        while not condition():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.02)

    def states(self):
        result = json.loads(self.out.read_text())
        return result, {check["name"]: check["state"] for check in result["checks"]}

    def interrupt(self, number):
        child = self.start("doctor", "trajectories.mlp", "speed.gpt")
        self.wait_for(lambda: self.out.exists() and self.states()[1])
        result, states = self.states()
        self.assertEqual((result["complete"], result["exit_status"]), (False, None))
        self.assertEqual(list(states), ["doctor"])
        time.sleep(0.3)  # so that the run has begun
        child.send_signal(number)
        return child.wait(30)

    def test_signals_leave_what_ran(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            self.assertEqual(self.interrupt(number), 130)
            result, states = self.states()
            self.assertEqual((result["complete"], result["exit_status"]), (True, 130))
            self.assertEqual(states["trajectories.mlp.fp32"], "skipped: interrupted")
            self.assertEqual(states["speed.gpt"], "skipped: interrupted")
            self.assertFalse(self.out.with_name("out.json.part").exists())

    def test_even_a_kill_leaves_what_ran(self):
        self.assertEqual(self.interrupt(signal.SIGKILL), -signal.SIGKILL)
        result, states = self.states()
        self.assertEqual((result["complete"], list(states)), (False, ["doctor"]))

    def test_runs_that_leave_nonsense_fail_and_the_next_one_runs(self):
        # An empty steps.jsonl, and a summary that is none.
        leave = ('for a in "$@"; do case "$a" in run.dir=*) d=${a#run.dir=}/run;; esac; done\n'
                 'mkdir -p "$d"; : > "$d/steps.jsonl"; echo "{}" > "$d/summary.json"')
        child = self.start("trajectories.mlp", "trajectories.asgd", "speed.gpt", "nccl.hidden",
                           train=leave)
        child.communicate(timeout=60)
        self.assertEqual(child.returncode, 1)
        result, states = self.states()
        self.assertTrue((self.out.parent / "runs/mlp.fp32/run/summary.json").exists())
        for name in ("trajectories.mlp.fp32", "trajectories.asgd.world2", "speed.gpt",
                     "nccl.hidden.gpt"):
            self.assertEqual(states[name], "failed")
        self.assertTrue(result["complete"])

    def test_a_program_without_a_report_is_said_in_the_json(self):
        bundle = stand_in(self, "exit 1")
        (bundle / "bin/paceline").write_text("#!/bin/sh\necho 'no libfmt.so.9' >&2; exit 127\n")
        out = bundle / "out.json"
        done = subprocess.run([GPU_CHECK, "--bundle", bundle, "--out", out], capture_output=True,
                              text=True, check=False, timeout=60)
        self.assertEqual(done.returncode, 2)
        self.assertIn("no libfmt.so.9", done.stderr)
        result = json.loads(out.read_text())
        self.assertEqual((result["is_a_gpu_result"], result["exit_status"]), (False, 2))
        self.assertIn("no libfmt.so.9", result["checks"][0]["state"])


class Libraries(unittest.TestCase):
    def test_those_of_the_given_python(self):
        with tempfile.TemporaryDirectory() as folder:
            own = pathlib.Path(folder) / "site/nvidia/nccl/lib"
            own.mkdir(parents=True)
            python = pathlib.Path(folder) / "python"
            python.write_text(f"#!/bin/sh\nPYTHONPATH={folder}/site exec {sys.executable} \"$@\"\n")
            python.chmod(0o755)
            found = gpu_python.library_folders(python)[gpu_python.VARIABLE].split(":")
            self.assertIn(str(own), found)
            os.environ[gpu_python.VARIABLE] = "/mine"
            self.addCleanup(os.environ.pop, gpu_python.VARIABLE)
            self.assertEqual(gpu_python.library_folders(python), {})

    def test_a_python_that_does_not_run_has_none(self):
        for python in ("/no/such/python", "/bin/false", "/bin/true"):
            self.assertEqual(gpu_python.library_folders(python), {})


if __name__ == "__main__":
    unittest.main()
