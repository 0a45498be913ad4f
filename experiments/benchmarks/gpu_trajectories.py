# SPDX-License-Identifier: Apache-2.0
"""gpu_check: losses of short runs on the device against the same runs on the CPU."""

import dataclasses

from gpu_session import Check, Command, Failed

# Largest difference of a loss over the run's largest loss; 16 bits are held to the CPU in fp32.
# Measured between CPU runs at the full sizes (gpu_calibration.py, an AVX2 machine, seeds 1..3), none
# by a GPU. What is right: the fp32 of another instruction set, which sums in another order, or of two
# micro-batches, and 16 bits. What is wrong: the fp32 without momentum or with doubled gradients.
#                     mlp      cnn      resnet20  gpt
#   fp32, at most     3.5e-8   5.3e-6   6.3e-3    9.0e-9
#   bf16, at most     2.5e-3   9.2e-3   1.2e-2    not on the CPU
#   fp16, at most     3.0e-4   2.9e-3   6.8e-3    not on the CPU
#   no momentum       0.88     0.25     0.26      0.24
#   gradient twice    0.51     0.51     0.24      0.11
# A resnet's batch norms amplify rounding. At lr 0.01 the cnn's bf16 differs by 0.089.
TOLERANCE = {"fp32": 1e-3, "bf16": 0.05, "fp16": 0.05}
RESNET_TOLERANCE = {"fp32": 0.03, "bf16": 0.06, "fp16": 0.06}
# The same over the first steps, before anything is amplified. Right: at most 3.4e-8 in fp32, 1.0e-3
# in bf16, 1.0e-4 in fp16; doubled gradients differ by 3.3e-3 and more.
EARLY_STEPS = 3
EARLY_TOLERANCE = {"fp32": 1e-4, "bf16": 0.02, "fp16": 0.01}
# Asynchronous runs of the mlp: mean loss of the last quarter over that of the first. Eight ranks' runs
# of each backend gave at most 0.03; the cnn's gave up to 0.92.
LARGEST_RATIO = 0.5


@dataclasses.dataclass
class Plan:
    """What all runs share."""

    program: str
    device: str
    gpus: int
    folder: object
    text: str  # a file that GPT reads
    tiny: bool

    def images(self, shape, classes, train, test=16):
        return ["data.name=synthetic", f"data.shape={shape}", f"data.classes={classes}",
                f"data.train_limit={train}", f"data.test_limit={test}"]

    def train(self, label, device, sync, world, *keys, reuse=False):
        folder = self.folder / label
        return Command([self.program, "train", f"--sync={sync}", f"--world={world}", "--quiet",
                        f"device={device}", *keys, "observe.trace=false", f"run.dir={folder}"],
                       folder, reuse)


def model_keys(plan, model, tiny):
    """The model's own keys and its batch; the full sizes take a CPU core a few seconds."""
    if model == "gpt":
        width, context, batch = (16, 16, 2) if tiny else (64, 64, 8)
        return ["data.name=text", f"data.path={plan.text}", f"data.context={context}",
                "data.test_limit=8", "gpt.layers=2", "gpt.heads=4", f"gpt.width={width}"], batch
    if model == "resnet20":
        return plan.images("16x16x3", 10, 512), (8 if tiny else 32)
    if model == "cnn":
        return plan.images("28x28x1", 10, 512), (8 if tiny else 16)
    return plan.images("28x28x1", 10, 512), (4 if tiny else 16)


def losses(done):
    """By rank."""
    return {rank: [step["loss"] for step in steps] for rank, steps in done.steps().items()}


def require_finite(*runs):
    if any(loss is None for run in runs for rank in run.values() for loss in rank):
        raise Failed("a loss is not finite")


def falls(rank):
    return sum(rank[-3:]) < sum(rank[:3])


def quarters(rank):
    """Of its last losses over its first ones."""
    size = max(1, len(rank) // 4)
    first = sum(rank[:size])
    if first <= 0.0:
        raise Failed("its first losses are not over 0")
    return sum(rank[-size:]) / first


def difference(expected, found, steps):
    """Largest over ranks and the first steps, as a share of the largest loss."""
    pairs = [(a, b) for rank in expected for a, b in zip(expected[rank][:steps],
                                                         found[rank][:steps])]
    largest = max((a for a, _ in pairs), default=0.0)
    if largest <= 0.0:
        raise Failed("the reference has no loss over 0 to compare with")
    return max(abs(a - b) for a, b in pairs) / largest


def compare(done, tolerance, early_tolerance):
    """Figures of a reference and a run on the device; raises Failed beyond the tolerances."""
    expected, found = losses(done[0]), losses(done[1])
    if {r: len(v) for r, v in expected.items()} != {r: len(v) for r, v in found.items()}:
        raise Failed("the runs have different ranks or numbers of steps")
    require_finite(expected, found)
    if not expected or not all(expected.values()):
        raise Failed("the runs wrote no steps")
    steps = len(expected[0])
    worst = difference(expected, found, steps)
    early = difference(expected, found, EARLY_STEPS)
    figures = {"steps": steps, "ranks": len(expected), "max_relative_difference": worst,
               "tolerance": tolerance, "early_relative_difference": early,
               "early_steps": EARLY_STEPS, "early_tolerance": early_tolerance,
               "first_loss": found[0][0], "last_loss": found[0][-1],
               "text": f"losses differ by {worst:.1e} (at most {tolerance:g}), in the first "
               f"{EARLY_STEPS} steps by {early:.1e} ({early_tolerance:g})"}
    if worst > tolerance or early > early_tolerance:
        raise Failed(figures["text"], figures)
    if not falls(found[0]):
        raise Failed("the loss did not fall", figures)
    return figures


def converge(done):
    """Figures of an asynchronous run, whose order of updates differs from run to run."""
    found = losses(done[0])
    require_finite(found)
    if not found:
        raise Failed("the run wrote no steps")
    figures = {"steps": [len(rank) for rank in found.values()],
               "first_losses": [rank[0] for rank in found.values()],
               "last_losses": [rank[-1] for rank in found.values()]}
    ratio = max(map(quarters, found.values()))
    figures["last_quarter_over_first"] = ratio
    figures["text"] = (f"the last quarter's loss is {ratio:.2f} of the first's (at most "
                       f"{LARGEST_RATIO:g}); the order of updates is not repeatable")
    if not ratio <= LARGEST_RATIO:
        raise Failed(figures["text"], figures)
    return figures


def steps_of(plan):
    return 20 if plan.tiny else 50


def learning_rate(plan, model):
    if model == "resnet20":
        return 0.001
    return 0.005 if model == "cnn" and not plan.tiny else 0.01


def training_keys(plan, model, world):
    keys, batch = model_keys(plan, model, plan.tiny)
    return [*keys, f"model={model}", f"train.batch={batch}",
            f"train.samples={batch * world * steps_of(plan)}",
            f"optimizer.lr={learning_rate(plan, model)}"]


def asynchronous_keys(plan, world):
    batch, steps = 16, 50  # also where the sizes are tiny: fewer steps do not show it
    return [*plan.images("28x28x1", 10, 512), "model=mlp", f"train.batch={batch}",
            f"train.samples={batch * world * steps}", "optimizer.lr=0.05",
            "optimizer.momentum=0"]


def asynchronous(plan, sync, world):
    run = plan.train(f"{sync}.world{world}", plan.device, sync, world,
                     *asynchronous_keys(plan, world))
    return Check(f"trajectories.{sync}.world{world}", converge, [run], limit_s=40)


def compare_graphs(done, tolerance, early_tolerance):
    """The same of a run with cuda.graph=true, most of whose batches come again."""
    figures = compare(done, tolerance, early_tolerance)
    figures["graph_batches"] = done[1].summary()["graph_batches"]
    figures["text"] += f"; {figures['graph_batches']} batches were launched as graphs"
    if 2 * figures["graph_batches"] < figures["steps"]:
        raise Failed(figures["text"], figures)
    return figures


ON_HOST = "cuda.collectives=host"


def sums_by_nccl(sync, extra):
    """As the program decides for device=cuda."""
    return sync == "nccl" or (sync in ("sharded", "hierarchical") and ON_HOST not in extra)


def trajectory(plan, name, model, sync, world, precision="fp32", reference="", extra=(), norm=""):
    """`extra` keys are the device's run's alone where there is a `reference`, and those of cuda
    always; `norm` is of both."""
    graphs = "cuda.graph=true" in extra
    keys = [*training_keys(plan, model, world), "optimizer.momentum=0.9",
            *([f"norm={norm}"] if norm else [])]
    if precision == "fp16":  # so small that no step is left out for an overflow
        extra = [*extra, "precision.initial_scale=1024"]
    shared = [] if reference else [key for key in extra if not key.startswith("cuda.")]
    on_cpu = plan.train(f"cpu-{model}{norm}-{reference or sync}-{world}", "cpu", reference or sync,
                        world, *keys, *shared, reuse=True)
    on_device = plan.train(name, plan.device, sync, world, *keys, *extra,
                           f"precision.compute={precision}")
    skip = ""
    if plan.device == "cpu" and sums_by_nccl(sync, extra):
        skip = "device=cpu: NCCL sums between GPUs"
    elif plan.device == "cpu" and model == "gpt" and precision != "fp32":
        skip = "device=cpu: gpt computes in fp32 there"
    elif plan.device == "cpu" and graphs:
        skip = "device=cpu: CUDA graphs are a GPU's"
    elif plan.device == "cpu" and ON_HOST in extra:
        skip = "device=cpu: cuda.collectives is a GPU's"
    elif plan.device == "cpu" and "ps.device=cuda" in extra:
        skip = "device=cpu: ps.device=cuda is a GPU's"
    elif sums_by_nccl(sync, extra) and world > plan.gpus:
        skip = f"needs {world} GPUs, {plan.gpus} here"
    tolerance = (RESNET_TOLERANCE if model == "resnet20" else TOLERANCE)[precision]
    return Check(f"trajectories.{name}",
                 lambda done: (compare_graphs if graphs else compare)(
                     done, tolerance, EARLY_TOLERANCE[precision]),
                 [on_cpu, on_device], limit_s=40, skip=skip)


def gpu_counts(gpus):
    """Worlds of NCCL beyond 1: all up to 4, then powers of two and all of them."""
    return [n for n in range(2, gpus + 1) if n <= 4 or n & (n - 1) == 0 or n == gpus]


def checks(plan):
    for model in ("mlp", "cnn", "resnet20", "gpt"):
        yield trajectory(plan, f"{model}.fp32", model, "single", 1)
    yield trajectory(plan, "cnn.graphs", "cnn", "single", 1, reference="single",
                     extra=["cuda.graph=true"])
    yield trajectory(plan, "nccl.world1", "cnn", "nccl", 1, reference="single")
    yield trajectory(plan, "nccl.sharded.world1", "cnn", "sharded", 1, reference="single")
    yield trajectory(plan, "ring.world2", "cnn", "ring", 2)  # two ranks, also on one GPU
    yield trajectory(plan, "ps.world2", "cnn", "ps", 2)
    yield trajectory(plan, "ps.cuda.world2", "cnn", "ps", 2, reference="ps",
                     extra=["ps.device=cuda"])
    for model in ("cnn", "resnet20", "gpt"):
        for precision in ("bf16", "fp16"):
            yield trajectory(plan, f"{model}.{precision}", model, "single", 1, precision)
    yield trajectory(plan, "sharded.world2", "cnn", "sharded", 2, extra=[ON_HOST])
    yield trajectory(plan, "hierarchical.world4", "mlp", "hierarchical", 4,
                     extra=["topology.ranks_per_node=2", ON_HOST])
    yield asynchronous(plan, "asgd", 2)
    yield asynchronous(plan, "hogwild", 2)
    counts = gpu_counts(plan.gpus) or [2]
    for world in counts:
        yield trajectory(plan, f"nccl.world{world}", "cnn", "nccl", world, reference="ring")
    yield trajectory(plan, f"nccl.sharded.world{counts[-1]}", "cnn", "sharded", counts[-1],
                     reference="ring")
    yield trajectory(plan, f"nccl.sync_batch.world{counts[-1]}", "cnn", "nccl", counts[-1],
                     reference="ring", norm="sync_batch")
    yield trajectory(plan, "nccl.hierarchical.world4", "mlp", "hierarchical", 4, reference="ring",
                     extra=["topology.ranks_per_node=2"])
