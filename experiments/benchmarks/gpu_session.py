# SPDX-License-Identifier: Apache-2.0
"""What experiments/gpu_check is made of: commands, checks, and a session that runs them in time."""

import collections
import dataclasses
import json
import os
import pathlib
import shlex
import signal
import statistics
import subprocess
import time
import typing

from runs import finished

TAIL_LINES = 25
LEAST_TIME_S = 2.0  # no check starts with less left


class Skip(Exception):
    """The check has nothing to judge; the text is the reason, `figures` are kept all the same."""

    def __init__(self, reason, figures=None):
        super().__init__(reason)
        self.figures = figures or {}


class Failed(Exception):
    """The check found what is wrong; `figures` are kept all the same."""

    def __init__(self, reason, figures=None):
        super().__init__(reason)
        self.figures = figures or {}


@dataclasses.dataclass
class Command:
    """One program start. `folder` is the run.dir of a training run; `reuse`: one run serves all."""

    arguments: list
    folder: pathlib.Path | None = None
    reuse: bool = False
    statuses: tuple = (0,)
    partial: bool = False  # when its time is over, what it printed until then is judged

    def text(self):
        return shlex.join(map(str, self.arguments))


@dataclasses.dataclass
class Done:
    """What a command left behind."""

    stdout: str
    output: str  # stderr, then stdout
    folder: pathlib.Path | None
    status: int | None  # None: its time was over

    def summary(self):
        return finished(self.folder)[1]

    def steps(self):
        """By rank: its lines of steps.jsonl, in order."""
        by_rank = collections.defaultdict(list)
        for line in (finished(self.folder)[0] / "steps.jsonl").read_text().splitlines():
            step = json.loads(line)
            by_rank[step["rank"]].append(step)
        return by_rank


@dataclasses.dataclass
class Check:
    """`judge` gets what the commands left and returns figures, or raises Skip or Failed."""

    name: str
    judge: typing.Callable
    commands: list = dataclasses.field(default_factory=list)
    limit_s: float = 60.0
    skip: str = ""


def figure(values):
    """A repeated measurement with its spread."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values),
            "repeats": len(values)}


def last_lines(text):
    return text.splitlines()[-TAIL_LINES:]


class Child:
    """One process in a group of its own, so that all it started ends with it."""

    def __init__(self, arguments, log):
        self.log = log
        with open(f"{log}.out", "wb") as out, open(f"{log}.err", "wb") as err:
            self.process = subprocess.Popen(list(map(str, arguments)), stdin=subprocess.DEVNULL,
                                            stdout=out, stderr=err, start_new_session=True)

    def wait(self, seconds):
        """Its exit status; None when the time was over. Ends the group in any case."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            self.end()

    def end(self):
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
            try:
                self.process.wait(3)
            except subprocess.TimeoutExpired:
                pass
        self.signal(signal.SIGKILL)
        self.process.wait()

    def signal(self, number):
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            pass

    def read(self, stream):
        return pathlib.Path(f"{self.log}.{stream}").read_text(encoding="utf-8", errors="replace")


class Session:
    """Runs checks one after another until the stage's time is over, and keeps what they gave."""

    def __init__(self, folder, selected, show=""):
        self.folder = folder
        self.selected = selected  # name -> whether it is wanted
        self.show = show  # instead of running: "names" or "commands"
        self.records = []
        self.figures = {}  # of the checks that passed or failed with figures, by name
        self.stage_end = 0.0
        self.interrupted = False
        self.skip_all = ""  # a reason why nothing can run
        self._starts = 0

    def perform(self, check):
        if not self.selected(check.name):
            return
        if self.show:
            self._print(check)
            return
        begin = time.monotonic()
        record = {"name": check.name, "state": "", "seconds": 0.0,
                  "commands": [command.text() for command in check.commands]}
        try:
            self._judge(check, record)
        except Skip as reason:
            record["state"] = f"skipped: {reason}"
            if reason.figures:
                record["figures"] = reason.figures
        except KeyboardInterrupt:
            self.interrupted = True
            record["state"] = "skipped: interrupted"
        record["seconds"] = round(time.monotonic() - begin, 3)
        self.records.append(record)
        if not self.skip_all:
            print(line_of(record), flush=True)

    def _judge(self, check, record):
        if self.interrupted:
            raise Skip("interrupted")
        if self.skip_all or check.skip:
            raise Skip(self.skip_all or check.skip)
        done = []
        try:
            end = time.monotonic() + check.limit_s
            for command in check.commands:
                done.append(self._run(command, end, check.limit_s))
            record["figures"] = check.judge(done)
            record["state"] = "passed"
        except Failed as failure:
            record["state"] = "failed"
            record["reason"] = str(failure)
            record["figures"] = failure.figures
        except (KeyError, ValueError, StopIteration, OSError) as error:
            record["state"] = "failed"
            record["reason"] = f"{type(error).__name__}: {error}"
        if record["state"] == "failed":
            output = "\n".join(one.output for one in done[-1:])
            record.setdefault("figures", {}).setdefault("output", last_lines(output))
        self.figures[check.name] = record["figures"]

    def _run(self, command, end, limit_s):
        if command.reuse and command.folder.exists():
            try:
                finished(command.folder)
                return Done("", "", command.folder, 0)
            except StopIteration:
                pass  # that run did not finish
        left = self.stage_end - time.monotonic()
        if left < LEAST_TIME_S:
            raise Skip("out of time: no budget was left to start it")
        own = max(end - time.monotonic(), 0.1)
        self._starts += 1
        child = Child(command.arguments, self.folder / f"command{self._starts}")
        status = child.wait(min(own, left))
        stdout = child.read("out")
        done = Done(stdout, child.read("err") + stdout, command.folder, status)
        if status is None and not command.partial:
            if left < own:
                raise Skip(f"out of time: it was ended after {left:.0f} s of its {limit_s:.0f} s, "
                           "when the budget was spent", {"output": last_lines(done.output)})
            raise Failed(f"took longer than {limit_s:g} s: {command.text()}",
                         {"output": last_lines(done.output)})
        if status is not None and status not in command.statuses:
            raise Failed(f"exit status {status}: {command.text()}",
                         {"output": last_lines(done.output)})
        return done

    def _print(self, check):
        if self.show == "names":
            print(check.name)
            return
        print(f"# {check.name}" + (f" (skipped: {check.skip})" if check.skip else ""))
        for command in [] if check.skip else check.commands:
            print(f"  {command.text()}")


def line_of(record):
    state, _, reason = record["state"].partition(": ")
    text = f"{state:8} {record['name']:44} {record['seconds']:6.1f} s"
    figures = record.get("figures", {})
    return f"{text}  {reason or record.get('reason') or figures.get('text', '')}".rstrip()
