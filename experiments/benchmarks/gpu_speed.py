# SPDX-License-Identifier: Apache-2.0
"""gpu_check: images/s and tokens/s, beside PyTorch on the same card, and shares of its peak."""

import json

from gpu_session import Check, Command, Failed, Skip, Undecided, figure
from runs import ROOT

PEER = ROOT / "experiments/benchmarks/gpu_peer.py"

# Dense bf16 or fp16 on tensor cores, FLOP/s, from NVIDIA's data sheets; the first name that is part
# of the card's counts. A card that is not here has no known peak.
PEAKS = (("H100 PCIe", 756e12), ("H100 NVL", 835e12), ("H100", 989e12), ("H200", 989e12),
         ("A100", 312e12))
WINDOWS = 3  # parts of a run whose speeds give the spread
SEAM_PAIRS = 4  # runs of either kind
SEAM_TARGET = 0.01  # of a step
OPTIMIZER_TARGET = 0.85  # of a plain copy's rate


def peak_of(card):
    return next((peak for name, peak in PEAKS if name in card), None)


def resnet50_forward_flops(size, classes):
    """Of one image: 2 per multiplication in convolutions and the last layer (v1.5)."""
    total = 0
    side = size // 2
    total += 2 * side * side * 64 * 3 * 49
    side //= 2
    inputs = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 << stage
        for block in range(blocks):
            stride = 2 if block == 0 and stage > 0 else 1
            before, side = side, side // stride
            total += 2 * before * before * inputs * width
            total += 2 * side * side * (9 * width * width + width * 4 * width)
            if block == 0:
                total += 2 * side * side * inputs * 4 * width
            inputs = 4 * width
    return total + 2 * inputs * classes


def gpt_forward_flops(layers, width, context, tokens=256):
    """Of one token; attention is counted without the half that the mask leaves out."""
    return 2 * (12 * layers * width * width + tokens * width) + 2 * layers * context * width


def steady_rates(done, per_sample=1):
    """Samples/s of the parts of the run after its first steps, from steps.jsonl."""
    ranks = list(done.steps().values())
    if not ranks or not ranks[0]:
        raise Failed("the run wrote no steps")
    durations = [max(rank[i]["compute_s"] + rank[i]["exposed_comm_s"] + rank[i]["wait_s"]
                     for rank in ranks) for i in range(len(ranks[0]))]
    samples = [sum(rank[i]["samples"] for rank in ranks) for i in range(len(ranks[0]))]
    first = len(durations) // 4
    parts = min(WINDOWS, len(durations) - first)
    size = (len(durations) - first) // parts
    starts = [first + k * size for k in range(parts)]
    if not all(sum(durations[s:s + size]) > 0 for s in starts):
        raise Failed("steps of the run took no time")
    return [per_sample * sum(samples[s:s + size]) / sum(durations[s:s + size]) for s in starts]


def speed_figures(done, unit, forward_flops, peak, per_sample=1):
    """forward_flops: of one image or token; a training step takes three times as many."""
    rates = figure(steady_rates(done, per_sample))
    summary = done.summary()
    fraction = None if peak is None else 3 * forward_flops * rates["median"] / peak
    shown = "" if fraction is None else f", {100 * fraction:.1f}% of the card's peak"
    return {unit: rates, "whole_run": per_sample * summary["samples_per_second"],
            "steps": summary["steps"], "flop_per_item": 3 * forward_flops, "peak_flops": peak,
            "fraction_of_peak": fraction, "exposed_comm_s": summary["exposed_comm_s"],
            "text": f"{rates['median']:.1f} {unit}{shown}"}


def judge_optimizer(file, device):
    """Figures of the JSON of `paceline bench optimizer`; the target is for a GPU."""
    result = json.loads(file.read_text())
    shares = {row["optimizer"]: row["of_copy"] for row in result["results"]}
    if not shares or None in shares.values():
        raise Failed("a rate is not finite: updates or copies took no time", result)
    figures = {**result, "of_copy": shares, "target": OPTIMIZER_TARGET,
               "text": ", ".join(f"{name} {100 * share:.0f}%" for name, share in shares.items())
               + f" of a plain copy ({result['copy_bytes_per_s'] * 1e-9:.0f} GB/s)"}
    if device == "cpu":
        raise Skip("device=cpu: the target is for a GPU", figures)
    if min(shares.values()) < OPTIMIZER_TARGET:
        raise Failed(f"under {100 * OPTIMIZER_TARGET:.0f}%: {figures['text']}", figures)
    return figures


def judge_seam(rates):
    """`rates`: of runs with single and nccl in turn, an even number of them."""
    overheads = [1 - nccl / single for single, nccl in zip(rates[::2], rates[1::2])]
    least, most = min(overheads), max(overheads)
    figures = {"overhead": figure(overheads), "overheads": overheads, "target": SEAM_TARGET,
               "single_images_per_s": figure(rates[::2]), "nccl_images_per_s": figure(rates[1::2]),
               "text": f"{100 * figure(overheads)['median']:.2f}% of a step "
               f"({100 * least:.2f}..{100 * most:.2f} in {len(overheads)} pairs of runs)"}
    if most < SEAM_TARGET:
        return figures
    if least >= SEAM_TARGET:
        raise Failed(f"over 1%: {figures['text']}", figures)
    raise Undecided(f"the runs lie on both sides of 1%: {figures['text']}", figures)


def require_memory(done):
    """Raises Skip unless the `paceline memory --json` before says that the run fits."""
    plan = json.loads(done[0].stdout)
    if plan["fits"] is False:
        raise Skip(f"by paceline memory a rank needs {plan['needed'] / 2**30:.1f} GiB, there are "
                   f"{plan['memory'] / 2**30:.1f} ({plan['memory_from']})", {"memory": plan})


class Speed:
    """The stage's checks. `python` is one that may have PyTorch."""

    def __init__(self, plan, session, python, card):
        self.plan = plan
        self.session = session
        self.python = python
        self.peak = peak_of(card)
        self.size = 32 if plan.tiny else 224
        self.classes = 10 if plan.tiny else 1000
        self.batches = [2, 4] if plan.tiny else [64, 256]
        self.late_batch = 8 if plan.tiny else 512
        self.gpt = ({"layers": 2, "heads": 4, "width": 16, "context": 16, "batch": 2}
                    if plan.tiny else
                    {"layers": 12, "heads": 12, "width": 768, "context": 1024, "batch": 8})
        self.steps = 8 if plan.tiny else 40
        # As PyTorch's benchmark mode, beside which the runs stand
        self.tuned = [] if plan.device == "cpu" else ["cuda.tune=true"]

    def checks(self):
        first, second = self.batches
        yield self.ours("bf16", second)
        yield self.peer_images("pytorch.resnet50", ["bf16", "fp16"], [second, first])
        yield self.ours("bf16", first)
        yield self.graphs("bf16", first)
        yield self.ours("fp16", second)
        yield self.ours("fp16", first)
        for precision in ("bf16", "fp16"):
            for batch in self.batches:
                yield self.ratio(precision, batch, "pytorch.resnet50")
        yield self.tokens()
        yield self.peer_tokens()
        yield self.tokens_ratio()
        yield from self.engines("bf16", second)
        yield self.variant("untuned", "bf16", second, [], "device=cpu: cuda.tune is a GPU's")
        yield self.seam(first)
        yield self.optimizer()
        yield self.ours_if_it_fits("bf16", self.late_batch)
        yield self.ours_if_it_fits("fp16", self.late_batch)
        yield self.peer_images("pytorch.resnet50.late", ["bf16"], [self.late_batch])
        yield self.ratio("bf16", self.late_batch, "pytorch.resnet50.late")

    def resnet50(self, label, precision, batch, steps, sync="single", extra=(), world=1):
        # 400 images of 224x224x3 are the most that the data set keeps rather than makes again
        return self.plan.train(
            label, self.plan.device, sync, world, "model=resnet50",
            *self.plan.images(f"{self.size}x{self.size}x3", self.classes, min(2 * batch, 400), 8),
            f"train.batch={batch}", f"train.samples={batch * world * steps}", "optimizer.lr=0.01",
            f"precision.compute={precision}", *extra)

    def variant(self, suffix, precision, batch, keys, skip, finish=lambda found, done: None):
        """A run with these keys, beside the plain one, which comes before."""
        plain = f"speed.resnet50.{precision}.{batch}"
        flops = resnet50_forward_flops(self.size, self.classes)

        def judge(done):
            found = speed_figures(done[0], "images_per_s", flops, self.peak)
            finish(found, done[0])
            without = self.session.figures.get(plain, {}).get("images_per_s")
            if without is not None:
                found["ratio_to_plain"] = found["images_per_s"]["median"] / without["median"]
                found["text"] += f", {found['ratio_to_plain']:.3f} of the plain run"
            return found

        return Check(f"{plain}.{suffix}", judge,
                     [self.resnet50(f"{plain}.{suffix}", precision, batch, self.steps,
                                    extra=keys)], limit_s=60,
                     skip=skip if self.plan.device == "cpu" else "")

    def graphs(self, precision, batch):
        def count(found, done):
            found["graph_batches"] = done.summary()["graph_batches"]

        return self.variant("graphs", precision, batch, [*self.tuned, "cuda.graph=true"],
                            "device=cpu: CUDA graphs are a GPU's", count)

    def engines(self, precision, batch):
        """With batch norms, then pools, through cuDNN: which is faster decides the standards."""
        for key in ("norm", "pool"):
            yield self.variant(f"cudnn_{key}", precision, batch,
                               [*self.tuned, f"cuda.{key}=cudnn"],
                               f"device=cpu: cuda.{key} is a GPU's")

    def ours(self, precision, batch):
        name = f"speed.resnet50.{precision}.{batch}"
        flops = resnet50_forward_flops(self.size, self.classes)
        return Check(name, lambda done: speed_figures(done[0], "images_per_s", flops, self.peak),
                     [self.resnet50(name, precision, batch, self.steps, extra=self.tuned)],
                     limit_s=45)

    def ours_if_it_fits(self, precision, batch):
        """The same, where the plan of its memory allows it."""
        check = self.ours(precision, batch)
        run, judge = check.commands[0], check.judge
        keys = [part for part in run.arguments if "=" in str(part)]
        check.commands = [Command([self.plan.program, "memory", "--json", *keys]), run]
        run.admit = require_memory
        check.judge = lambda done: judge(done[1:])
        return check

    def optimizer(self):
        file = self.plan.folder / "optimizer.json"
        sizes = ["--elements=1000000", "--iters=3"] if self.plan.device == "cpu" else []
        return Check("speed.optimizer", lambda _: judge_optimizer(file, self.plan.device), [
            Command([self.plan.program, "bench", "optimizer", f"--device={self.plan.device}",
                     "--optimizer=sgd,momentum,adam", *sizes, f"--json={file}"])], limit_s=20)

    def peer(self, name, arguments, keys):
        command = Command([self.python, PEER, "--device", self.plan.device, *arguments],
                          partial=True, statuses=(0, 3))

        def judge(done):
            lines = [json.loads(line) for line in done[0].stdout.splitlines()
                     if line.startswith("{") and line.endswith("}")]
            if not lines:
                raise Skip("PyTorch gave no figure: " +
                           (done[0].output.strip().splitlines() or ["its time was over"])[-1])
            measured = [line for line in lines if "items_per_s" in line]
            if not measured:
                raise Skip("PyTorch ran no case: " + str(lines[0].get("skipped", "")))
            shown = ", ".join(f"{'.'.join(str(line[k]) for k in keys)} "
                              f"{line['items_per_s']['median']:.1f}/s" for line in measured)
            cut = "" if done[0].status == 0 else "; its time was over before all cases"
            return {"cases": lines, "complete": done[0].status == 0, "text": shown + cut}

        return Check(f"speed.{name}", judge, [command], limit_s=45)

    def peer_images(self, name, precisions, batches):
        return self.peer(name, ["--model", "resnet50", "--precision", *precisions, "--batch",
                                *batches, "--size", self.size, "--classes", self.classes,
                                "--steps", max(2, self.steps // 4), "--windows", WINDOWS],
                         ("precision", "batch", "input"))

    def peer_rate(self, name, **wanted):
        cases = self.session.figures.get(f"speed.{name}", {}).get("cases", [])
        for case in cases:
            if "items_per_s" in case and all(case[key] == value for key, value in wanted.items()):
                return case["items_per_s"]
        raise Skip(f"speed.{name} has no figure for it")

    def against(self, name, ours, peers):
        """peers() gives the rates by which input they had; the target holds for one on the device."""
        def judge(_):
            figures = self.session.figures.get(ours, {})
            rates = figures.get("images_per_s") or figures.get("tokens_per_s")
            if rates is None:
                raise Skip(f"{ours} has no figure")
            ratios = {kind: rates["median"] / rate["median"] for kind, rate in peers().items()}
            found = {"ratio_by_peers_input": ratios, "target": 1.0,
                     "text": "ratio to PyTorch " + ", ".join(
                         f"{ratio:.2f} (its input: {kind})" for kind, ratio in ratios.items())}
            if self.plan.device == "cpu":
                raise Skip("device=cpu: the target is for a GPU", found)
            if ratios["device"] < 1.0:
                raise Failed(f"slower than PyTorch: {found['text']}", found)
            return found

        return Check(name, judge)

    def ratio(self, precision, batch, peer):
        def rates():
            found = {"device": self.peer_rate(peer, precision=precision, batch=batch,
                                              input="device")}
            try:
                found["host"] = self.peer_rate(peer, precision=precision, batch=batch, input="host")
            except Skip:
                pass
            return found

        return self.against(f"speed.resnet50.{precision}.{batch}.ratio",
                            f"speed.resnet50.{precision}.{batch}", rates)

    def gpt_run(self, label, sync="single", world=1):
        gpt = self.gpt
        precision = "fp32" if self.plan.device == "cpu" else "bf16"
        keys = ["model=gpt", "data.name=text", f"data.path={self.plan.text}",
                f"data.context={gpt['context']}", "data.train_limit=256", "data.test_limit=8",
                *(f"gpt.{key}={gpt[key]}" for key in ("layers", "heads", "width")),
                f"train.batch={gpt['batch']}",
                f"train.samples={gpt['batch'] * world * self.steps}",
                "optimizer.lr=0.01", f"precision.compute={precision}"]
        return self.plan.train(label, self.plan.device, sync, world, *keys)

    def tokens(self):
        gpt = self.gpt
        flops = gpt_forward_flops(gpt["layers"], gpt["width"], gpt["context"])
        return Check("speed.gpt", lambda done: speed_figures(done[0], "tokens_per_s", flops,
                                                             self.peak, gpt["context"]),
                     [self.gpt_run("speed.gpt")], limit_s=45)

    def peer_tokens(self):
        gpt = self.gpt
        return self.peer("pytorch.gpt", ["--model", "gpt", "--precision", "bf16", "--batch",
                                         gpt["batch"], "--steps", max(2, self.steps // 4),
                                         "--windows", WINDOWS,
                                         *(part for key in ("layers", "heads", "width", "context")
                                           for part in (f"--{key}", gpt[key]))],
                         ("precision", "batch", "input"))

    def tokens_ratio(self):
        return self.against("speed.gpt.ratio", "speed.gpt", lambda: {
            "device": self.peer_rate("pytorch.gpt", precision="bf16", input="device")})

    def seam(self, batch):
        """single and nccl at world 1 in turn: what the way of synchronising costs a step."""
        name = "speed.seam"
        commands = [self.resnet50(f"{name}-{sync}-{k}", "bf16", batch, self.steps, sync)
                    for k in range(SEAM_PAIRS) for sync in ("single", "nccl")]

        def judge(done):
            whole = len(done) // 2 * 2
            return judge_seam([figure(steady_rates(one))["median"] for one in done[:whole]])

        skip = "device=cpu: NCCL sums between GPUs" if self.plan.device == "cpu" else ""
        return Check(name, judge, commands, limit_s=60, skip=skip, least=4)
