# SPDX-License-Identifier: Apache-2.0
"""gpu_check: the tests for GPUs, NCCL's bus bandwidth, and compute-sanitizer."""

import json
import pathlib
import re
import shutil

from gpu_session import Check, Command, Failed, Skip, Undecided

REPORT_LINES = 100  # of a sanitizer that found errors
# Under a sanitizer a step takes many times as long: three of them, of small models.
SANITIZED = (("memcheck", "mlp"), ("racecheck", "mlp"), ("memcheck", "cnn"), ("racecheck", "cnn"),
             ("memcheck", "gpt"), ("memcheck", "resnet20"))


# Lines of googletest, whose order is the order of the tests. Output without a line's end may stand
# before one.
TEST_BEGINS = re.compile(r"\[ RUN      \] (\S+)$")
TEST_ENDS = re.compile(r"\[ *(OK|FAILED|SKIPPED) *\] (\S+?)(?:, where .*)? \(\d+ ms\)$")
MESSAGE_LINES = 8


def read_tests(output):
    """(names of the tests by what became of them, messages of those that failed, the one that runs).

    `output` may end anywhere: a program that was cut or crashed has told of the tests before.
    """
    names = {"passed": [], "failed": [], "skipped": []}
    messages = {}
    running, said = None, []
    for line in output.splitlines():
        if begins := TEST_BEGINS.search(line):
            running, said = begins.group(1), []
        elif (ends := TEST_ENDS.search(line)) and running is not None:
            result, name = ends.groups()
            names[{"OK": "passed", "FAILED": "failed", "SKIPPED": "skipped"}[result]].append(name)
            if result == "FAILED":
                messages[name] = said[:MESSAGE_LINES]
            running = None
        elif running is not None:
            said.append(line)
    if running is not None:
        messages[running] = said[-MESSAGE_LINES:]
    return names, messages, running


def listed_tests(output):
    """Names that --gtest_list_tests printed."""
    names = []
    suite = ""
    for line in output.splitlines():
        word = line.split("#")[0].strip()
        if line.startswith("  ") and suite:
            names.append(suite + word)
        else:
            suite = word if word.endswith(".") else ""
    return names


def judge_tests(plan, done, wanted):
    """Figures of a run of cuda_test, of which `wanted` should have run."""
    names, messages, running = read_tests(done.stdout)
    told = {name for some in names.values() for name in some}
    not_run = [name for name in wanted if name not in told]
    if done.status is None:
        why = "its time was over"
    elif done.status < 0:
        why = f"the program was ended by signal {-done.status}"
    else:
        why = f"the program ended with status {done.status}"
    figures = {**{key: len(value) for key, value in names.items()}, "not_run": len(not_run),
               "names": {**names, "not_run": not_run}, "messages": messages,
               "text": ", ".join(f"{len(value)} {key}" for key, value in names.items())}
    if not_run or running:
        figures.update(not_run_because=why + (f" in {running}" if running else ""))
        figures["text"] += f", {len(not_run)} did not run: {figures['not_run_because']}"
    if names["failed"]:
        raise Failed(f"{len(names['failed'])} tests failed, first {names['failed'][0]}; "
                     f"{figures['text']}", figures)
    if done.status not in (None, 0):
        raise Failed(figures["text"] if not_run else f"no test failed, but {why}", figures)
    if not_run and done.status == 0:
        raise Failed(figures["text"], figures)
    if not_run:
        raise Undecided(figures["text"], figures)
    if not names["passed"] and plan.device == "cuda":
        raise Failed(f"all {len(names['skipped'])} tests were skipped, and there is a GPU", figures)
    if not names["passed"]:
        raise Skip(f"no GPU: all {len(names['skipped'])} tests were skipped")
    return figures


def cuda_test(plan, session, program):
    """All tests in one process, then once more, in another, what failed or did not come to run.

    A crash loses the tests behind it, and an address that is not the GPU's spoils all later calls
    of its process.
    """
    base = [program or "cuda_test", "--gtest_color=no"]
    skip = "" if program else "the program cuda_test is not beside paceline"

    def rest(_):
        before = session.figures.get("cuda_test", {}).get("names")
        if before is None:
            raise Skip("cuda_test told of no tests")
        crashed = session.figures["cuda_test"].get("not_run_because", "").rpartition(" in ")[2]
        names = before["failed"] + [name for name in before["not_run"] if name != crashed]
        if not names:
            raise Skip("cuda_test ran all its tests, and none failed")
        return [*base, "--gtest_filter=" + ":".join(names)]

    def judge_rest(done):
        names = rest(None)[-1].partition("=")[2].split(":")
        return judge_tests(plan, done[0], names)

    yield Check("cuda_test",
                lambda done: judge_tests(plan, done[1], listed_tests(done[0].stdout)),
                [Command([*base, "--gtest_list_tests"]),
                 Command(base, statuses=None, partial=True)], limit_s=60, skip=skip)
    yield Check("cuda_test.rest", judge_rest, [Command(rest, statuses=None, partial=True)],
                limit_s=30, skip=skip)


# Bytes; the largest is the figure. 256 MiB exceed every GPU's caches.
BUS_SIZES = ("1MiB", "16MiB", "256MiB")


def judge_bus_bandwidth(file):
    """Figures of the JSON of `paceline bench allreduce --transport=nccl`."""
    if not file.exists():
        raise Failed("the benchmark failed before it had figures")
    result = json.loads(file.read_text())
    largest = result["results"][-1]
    copies = result["copies"]
    rate = largest[copies["ceiling_of"] + "_gbps"]
    if None in (rate, largest["busbw_gbps"], largest["algbw_gbps"], copies["ceiling_gbps"]):
        raise Failed("a rate is not finite: a sum or a copy took no time", result)
    share = largest["of_ceiling"]  # null where no copy took any time
    shown = "no share" if share is None else f"{100 * share:.0f}%"
    figures = {"busbw_bytes_per_s": largest["busbw_gbps"] * 1e9,
               "algbw_bytes_per_s": largest["algbw_gbps"] * 1e9,
               "ceiling_bytes_per_s": copies["ceiling_gbps"] * 1e9,
               "ceiling_of": copies["ceiling_of"], "of_ceiling": share,
               "bytes": largest["size"], "wrong": sum(row["wrong"] for row in result["results"]),
               "nccl": result["nccl"], "copies": copies, "results": result["results"],
               "text": f"{copies['ceiling_of']} {rate:.1f} GB/s, {result['world']} GPUs, "
               f"{shown} of a plain copy ({copies['ceiling_gbps']:.1f})"}
    if figures["wrong"]:
        raise Failed(f"{figures['wrong']} elements of the sums are wrong", figures)
    return figures


def bus_bandwidth(plan, counts):
    """NCCL's sums beside plain copies, at the largest world first: its figure matters most."""
    for world in [*sorted(counts, reverse=True), 1]:
        file = plan.folder / f"busbw-{world}.json"
        skip = "device=cpu: NCCL sums between GPUs" if plan.device == "cpu" else ""
        yield Check(f"nccl.busbw.world{world}", lambda _, file=file: judge_bus_bandwidth(file), [
            Command([plan.program, "bench", "allreduce", "--transport=nccl", f"--world={world}",
                     f"--sizes={','.join(BUS_SIZES)}", "--iters=10", "--warmup=3",
                     f"--json={file}"], statuses=(0, 1))], limit_s=30, skip=skip)


def sanitizer():
    """Path of compute-sanitizer, or nothing."""
    found = shutil.which("compute-sanitizer")
    usual = pathlib.Path("/usr/local/cuda/bin/compute-sanitizer")
    return found or (str(usual) if usual.exists() else None)


def sanitizers(plan, keys_of):
    """keys_of(model): its keys and batch, at small sizes."""
    tool = sanitizer()
    skip = "" if tool else "no compute-sanitizer on PATH or in /usr/local/cuda/bin"
    if plan.device == "cpu":
        skip = "device=cpu: nothing runs on a GPU"
    for kind, model in SANITIZED:
        keys, batch = keys_of(model)
        run = plan.train(f"{kind}-{model}", plan.device, "single", 1, f"model={model}", *keys,
                         f"train.batch={batch}", f"train.samples={3 * batch}")
        # memcheck also reports calls of the API that fail, and libraries try what a driver may lack.
        of_kind = ["--report-api-errors", "no"] if kind == "memcheck" else []
        run.arguments = [tool or "compute-sanitizer", "--tool", kind, *of_kind,
                         "--target-processes", "all", "--error-exitcode", 9, *run.arguments]
        run.statuses = (0, 9)

        def judge(done):
            found = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)", done[0].output)
            if not found:
                raise Failed("the tool gave no summary")
            errors = sum(map(int, found))
            figures = {"errors": errors, "text": f"{errors} errors"}
            if errors:
                figures["report"] = [line for line in done[0].output.splitlines()
                                     if line.startswith("=========")][:REPORT_LINES]
                raise Failed(f"{errors} errors", figures)
            return figures

        yield Check(f"sanitizer.{kind}.{model}", judge, [run], limit_s=60, skip=skip)
