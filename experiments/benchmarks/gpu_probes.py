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


def bus_bandwidth(plan, counts):
    """From a training run's transfers, which share the card with computing: a lower bound."""
    if plan.device == "cpu" or not counts:
        why = "device=cpu" if plan.device == "cpu" else f"it needs 2 GPUs, {plan.gpus} here"
        yield Check("nccl.busbw", None, skip=f"`paceline bench` has no transport nccl, and a "
                    f"training run's transfers say nothing of it: {why}")
        return
    for world in counts:
        def judge(done, world=world):
            summary = done[0].summary()
            gradients = summary["memory_bytes"]["gradients"]
            seconds = summary["communication_s"]
            if not seconds > 0:
                raise Skip("the run reports no time of its transfers")
            rate = 2 * (world - 1) / world * gradients / seconds
            return {"busbw_bytes_per_s": rate, "gradient_bytes": gradients,
                    "communication_s": seconds, "exposed_comm_s": summary["exposed_comm_s"],
                    "steps": summary["steps"],
                    "how": "mean of the transfers of a training run, beside computing",
                    "text": f"at least {rate / 1e9:.1f} GB/s, {world} GPUs, in training"}

        yield Check(f"nccl.busbw.world{world}", judge, [plan.train(
            f"busbw-{world}", plan.device, "nccl", world, "model=resnet50",
            *plan.images("64x64x3", 1000, 256, 8), "train.batch=32",
            f"train.samples={32 * world * 20}", "optimizer.lr=0.01", "precision.compute=bf16")],
                    limit_s=40)


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
