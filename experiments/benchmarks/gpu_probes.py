# SPDX-License-Identifier: Apache-2.0
"""gpu_check: the tests for GPUs, NCCL's bus bandwidth, and compute-sanitizer."""

import json
import pathlib
import re
import shutil

from gpu_session import Check, Command, Failed, Skip

# Under a sanitizer a step takes many times as long: three of them, of small models.
SANITIZED = (("memcheck", "mlp"), ("racecheck", "mlp"), ("memcheck", "cnn"), ("racecheck", "cnn"),
             ("memcheck", "gpt"), ("memcheck", "resnet20"))


def count_tests(report):
    """Names of the tests of gtest's JSON report by what became of them."""
    names = {"passed": [], "failed": [], "skipped": []}
    messages = {}
    for suite in report["testsuites"]:
        for test in suite["testsuite"]:
            name = f"{suite['name']}.{test['name']}"
            if "failures" in test:
                names["failed"].append(name)
                messages[name] = test["failures"][0]["failure"].splitlines()[:8]
            elif test["result"] == "COMPLETED":
                names["passed"].append(name)
            else:
                names["skipped"].append(name)
    return names, messages


def cuda_test(plan, program):
    report = plan.folder / "cuda_test.json"

    def judge(_):
        names, messages = count_tests(json.loads(report.read_text()))
        figures = {**{key: len(value) for key, value in names.items()}, "names": names,
                   "messages": messages,
                   "text": ", ".join(f"{len(value)} {key}" for key, value in names.items())}
        if names["failed"]:
            raise Failed(f"{len(names['failed'])} tests failed, first {names['failed'][0]}",
                         figures)
        if not names["passed"] and plan.device == "cuda":
            raise Failed(f"all {len(names['skipped'])} tests were skipped, and there is a GPU",
                         figures)
        if not names["passed"]:
            raise Skip(f"no GPU: all {len(names['skipped'])} tests were skipped")
        return figures

    skip = "" if program else "the program cuda_test is not beside paceline"
    return Check("cuda_test", judge,
                 [Command([program or "cuda_test", f"--gtest_output=json:{report}"], statuses=(0, 1))],
                 limit_s=60, skip=skip)


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
    figures = {"busbw_bytes_per_s": largest["busbw_gbps"] * 1e9,
               "algbw_bytes_per_s": largest["algbw_gbps"] * 1e9,
               "ceiling_bytes_per_s": copies["ceiling_gbps"] * 1e9,
               "ceiling_of": copies["ceiling_of"], "of_ceiling": largest["of_ceiling"],
               "bytes": largest["size"], "wrong": sum(row["wrong"] for row in result["results"]),
               "nccl": result["nccl"], "copies": copies, "results": result["results"],
               "text": f"{copies['ceiling_of']} {rate:.1f} GB/s, {result['world']} GPUs, "
               f"{100 * largest['of_ceiling']:.0f}% of a plain copy ({copies['ceiling_gbps']:.1f})"}
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
        run.arguments = [tool or "compute-sanitizer", "--tool", kind, "--target-processes", "all",
                         "--error-exitcode", 9, *run.arguments]
        run.statuses = (0, 9)

        def judge(done):
            found = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)", done[0].output)
            if not found:
                raise Failed("the tool gave no summary")
            errors = sum(map(int, found))
            figures = {"errors": errors, "text": f"{errors} errors"}
            if errors:
                raise Failed(f"{errors} errors", figures)
            return figures

        yield Check(f"sanitizer.{kind}.{model}", judge, [run], limit_s=60, skip=skip)
