# SPDX-License-Identifier: Apache-2.0
"""What experiments/gpu_check is made of: commands, checks, and a session that runs them in time."""

import collections
import dataclasses
import json
import math
import os
import pathlib
import shlex
import signal
import statistics
import subprocess
import sys
import time
import traceback
import typing

from runs import finished

TAIL_LINES = 25
LEAST_TIME_S = 2.0  # no check starts with less left
END_WAIT_S = 3.0  # for a program to end at SIGTERM, then at SIGKILL, which a stuck driver ignores
STATES = ("passed", "failed", "undecided", "skipped")


class Outcome(Exception):
    """What a check raises unless it passed: the text is the reason, `figures` are kept."""

    def __init__(self, reason, figures=None):
        super().__init__(reason)
        self.figures = figures or {}


class Skip(Outcome):
    """The check has nothing to judge."""


class Failed(Outcome):
    """The check found what is wrong."""


class Undecided(Outcome):
    """The figures neither reach the target nor miss it: they lie too far apart."""


@dataclasses.dataclass
class Command:
    """One program start. `folder` is the run.dir of a training run; `reuse`: one run serves all.

    `arguments` may be a function of what the check's commands before it left, asked when it is this
    one's turn; it may raise Skip.
    """

    arguments: list | typing.Callable
    folder: pathlib.Path | None = None
    reuse: bool = False
    statuses: tuple | None = (0,)  # None: any, also a signal's
    partial: bool = False  # when its time is over, what it printed until then is judged
    admit: typing.Callable | None = None  # gets what the commands before left; raises Skip if not

    def text(self):
        if callable(self.arguments):
            return "(depends on the results before)"
        return shlex.join(map(str, self.arguments))


@dataclasses.dataclass
class Done:
    """What a command left behind."""

    stdout: str
    output: str  # stderr, then stdout
    folder: pathlib.Path | None
    status: int | None  # None: its time was over; negative: ended by that signal
    error: str = ""  # stderr alone
    seconds: float = 0.0

    def tail(self):
        """Last lines of stderr, then of stdout: neither hides the other."""
        stdout = self.stdout if self.error else self.output
        return last_lines(self.error) + last_lines(stdout)

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
    least: int | None = None  # so many finished commands can be judged when time is over; None: all
    planned_s: float = 0.0  # what the plan (gpu_plan.py) keeps free for it


def spoken(error):
    """Type, text and place of an exception that no check foresaw."""
    places = traceback.extract_tb(error.__traceback__)
    at = f" ({pathlib.Path(places[-1].filename).name}:{places[-1].lineno})" if places else ""
    return f"{type(error).__name__}: {error}{at}"


def storable(value):
    """The same for JSON: what is not finite is null, what JSON does not know is its text."""
    if isinstance(value, dict):
        return {str(key): storable(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [storable(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, (str, int, float)) else str(value)


def say(text, stream=None):
    """Prints; a reader that has gone away ends no session."""
    try:
        print(text, file=stream or sys.stdout, flush=True)
    except (OSError, ValueError):
        pass


def figure(values):
    """A repeated measurement with its spread."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values),
            "repeats": len(values)}


def last_lines(text):
    return text.splitlines()[-TAIL_LINES:]


class OutOfTime(Skip):
    """The plan has no time for a command, or none was left to end it."""


class TooLong(Failed):
    """Commands of a check took longer than its limit."""


def ending_of(status):
    return f"ended by signal {-status}" if status < 0 else f"exit status {status}"


class Child:
    """One process in a group of its own, so that all it started ends with it."""

    def __init__(self, arguments, log, environment=None):
        self.log = log
        with open(f"{log}.out", "wb") as out, open(f"{log}.err", "wb") as err:
            self.process = subprocess.Popen(list(map(str, arguments)), stdin=subprocess.DEVNULL,
                                            stdout=out, stderr=err, start_new_session=True,
                                            env={**os.environ, **(environment or {})})

    def wait(self, seconds):
        """Its exit status; None when the time was over. Ends the group in any case."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            self.end()

    def end(self):
        try:
            if self.process.poll() is None:
                self.signal(signal.SIGTERM)
                self._reap()
        finally:  # also when a second signal comes meanwhile
            self.signal(signal.SIGKILL)
            self._reap()

    def _reap(self):
        try:
            self.process.wait(END_WAIT_S)
        except subprocess.TimeoutExpired:
            pass  # a process in the driver's hands is left to it

    def signal(self, number):
        try:
            os.killpg(self.process.pid, number)
        except (ProcessLookupError, PermissionError):
            pass

    def read(self, stream):
        return pathlib.Path(f"{self.log}.{stream}").read_text(encoding="utf-8", errors="replace")


class Session:
    """Runs checks one after another, each until its time is over, and keeps what they gave."""

    def __init__(self, folder, selected, show="", environment=None, keep=lambda: None):
        self.folder = folder
        self.selected = selected  # name -> whether it is wanted
        self.show = show  # instead of running: "names" or "commands"
        self.environment = environment or {}  # of the commands, beside this process's own
        self.keep = keep  # called after every check, to write the records
        self.records = []
        self.figures = {}  # of the checks that ran and gave figures, by name
        self.end_by = 0.0  # when the check that runs has to be over
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
        self.records.append(record)
        try:
            self._judge(check, record)
        except KeyboardInterrupt:
            self.interrupted = True
            record["state"] = "skipped: interrupted"
        record["seconds"] = round(time.monotonic() - begin, 3)
        if not self.skip_all:
            say(line_of(record))
        self.keep()

    def fail(self, name, error):
        """Records what came up outside of any check."""
        self.records.append({"name": name, "state": "failed", "seconds": 0.0, "commands": [],
                             "reason": spoken(error), "figures": {}})
        say(line_of(self.records[-1]))
        self.keep()

    def _judge(self, check, record):
        done = []
        figures = {}
        try:
            self._run_commands(check, done)
            figures = check.judge(done)
            record["state"] = "passed"
        except Skip as reason:
            record["state"] = f"skipped: {reason}"
            figures = reason.figures
        except Undecided as reason:
            record["state"] = f"undecided: {reason}"
            figures = reason.figures
        except Failed as failure:
            record.update(state="failed", reason=str(failure))
            figures = failure.figures
        except Exception as error:  # no check may end the session, whatever it stumbles over
            record.update(state="failed", reason=spoken(error))
        if record["state"] == "failed":
            output = done[-1].tail() if done else []
            figures = {**figures, "output": figures.get("output", output)}
        if figures or record["state"] in ("passed", "failed"):
            record["figures"] = figures
            self.figures[check.name] = figures

    def _run_commands(self, check, done):
        """Appends to `done` what each left."""
        if self.interrupted:
            raise Skip("interrupted")
        if self.skip_all or check.skip:
            raise Skip(self.skip_all or check.skip)
        end = time.monotonic() + check.limit_s
        for command in check.commands:
            try:
                done.append(self._run(command, end, check.limit_s, done))
            except (OutOfTime, TooLong):
                if check.least is None or len(done) < check.least:
                    raise
                return

    def _finished_before(self, command):
        if not command.reuse or not command.folder.exists():
            return False
        try:
            finished(command.folder)
            return True
        except (StopIteration, ValueError, OSError):
            return False  # that run did not finish

    def _run(self, command, end, limit_s, before):
        if self._finished_before(command):
            return Done("", "", command.folder, 0)
        if command.admit is not None:
            command.admit(before)
        arguments = command.arguments
        if callable(arguments):
            arguments = arguments(before)
        begin = time.monotonic()
        left = self.end_by - begin
        if left < LEAST_TIME_S:
            raise OutOfTime("out of time: no budget was left to start it")
        own = max(end - begin, 0.1)
        self._starts += 1
        child = Child(arguments, self.folder / f"command{self._starts}", self.environment)
        try:
            status = child.wait(min(own, left))
        except KeyboardInterrupt:
            self.interrupted = True
            status = None
        stdout, stderr = child.read("out"), child.read("err")
        done = Done(stdout, stderr + stdout, command.folder, status, stderr,
                    time.monotonic() - begin)
        if self.interrupted and not command.partial:
            raise Skip("interrupted", {"output": done.tail()})
        if status is None and not command.partial:
            found = {"output": done.tail()}
            if left < own:
                raise OutOfTime(f"out of time: it was ended after {left:.0f} s of its "
                                f"{limit_s:.0f} s, the rest is planned for others", found)
            raise TooLong(f"took longer than {limit_s:g} s: {shlex.join(map(str, arguments))}",
                          found)
        if status is not None and command.statuses is not None and status not in command.statuses:
            raise Failed(f"{ending_of(status)}: {shlex.join(map(str, arguments))}",
                         {"output": done.tail()})
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
    text = f"{state:9} {record['name']:44} {record['seconds']:6.1f} s"
    figures = record.get("figures", {})
    return f"{text}  {reason or record.get('reason') or figures.get('text', '')}".rstrip()
