# SPDX-License-Identifier: Apache-2.0
"""gpu_check: what needs several GPUs: communication beside compute, and a rank that is lost."""

from gpu_session import Check, Failed, Skip

LOST_TIMEOUT_S = 5  # comm.timeout of the run that loses a rank
LOST_START_S = 20  # for its processes to start, open the GPUs and NCCL, and to come to the step


def judge_hidden(done, steady_rates, per_sample):
    """Figures of a run's summary: how much of its transfers lay beside compute."""
    summary = done.summary()
    exposed, transfers = summary["exposed_comm_s"], summary["communication_s"]
    if not transfers:
        raise Failed("the run tells of no time of transfers",
                     {"exposed_comm_s": exposed, "communication_s": transfers})
    rates = [per_sample * rate for rate in steady_rates(done)]
    hidden = max(0.0, 1 - exposed / transfers)
    return {"world": summary["world_size"], "exposed_comm_s": exposed, "communication_s": transfers,
            "compute_s": summary["compute_s"], "wait_s": summary["wait_s"],
            "hidden_fraction": hidden, "items_per_s": rates,
            "text": f"{100 * hidden:.0f}% of {1e3 * transfers:.2f} ms of transfers a step hidden, "
            f"{1e3 * exposed:.2f} ms exposed"}


def hidden(plan, speed, steady_rates):
    """A run of each model over all GPUs; on the CPU the same over the ring, which is no GPU result."""
    world, sync = (2, "ring") if plan.device == "cpu" else (plan.gpus, "nccl")
    skip = "" if world > 1 else "one GPU: there is nobody to communicate with; needs 2"
    precision = "fp32" if plan.device == "cpu" else "bf16"
    runs = (("resnet50", speed.resnet50("hidden.resnet50", precision, speed.batches[-1],
                                        speed.steps, sync, world=world), 1),
            ("gpt", speed.gpt_run("hidden.gpt", sync, world), speed.gpt["context"]))
    for model, run, per_sample in runs:
        def judge(done, per_sample=per_sample):
            figures = judge_hidden(done[0], steady_rates, per_sample)
            if plan.device == "cpu":
                raise Skip("device=cpu: the ring's figures say nothing of NCCL", figures)
            return figures

        yield Check(f"nccl.hidden.{model}", judge, [run], limit_s=40, skip=skip)


def judge_lost(done):
    """The run ended by itself, with an error of one line that names the rank."""
    lines = [line for line in done.error.splitlines() if line.strip()]
    figures = {"status": done.status, "seconds": done.seconds, "error": lines[:10],
               "comm_timeout_s": LOST_TIMEOUT_S, "allowed_s": LOST_TIMEOUT_S + LOST_START_S,
               "text": f"ended after {done.seconds:.1f} s: {lines[0] if lines else 'no error'}"}
    if done.status is None:
        raise Failed("a hang: it had not ended when its time was over", figures)
    if done.status <= 0:
        raise Failed(f"status {done.status} although a rank was killed", figures)
    if len(lines) != 1 or not lines[0].startswith("paceline: ") or "rank 1" not in lines[0]:
        raise Failed(f"not one line that names rank 1, but {len(lines)}: {lines[:3]}", figures)
    if done.seconds > figures["allowed_s"]:
        raise Failed(f"it ended too late: {figures['text']}", figures)
    return figures


def lost_rank(plan, keys):
    """Rank 1 kills itself within a step; `keys`: of a small model."""
    world, sync = (2, "ring") if plan.device == "cpu" else (plan.gpus, "nccl")
    run = plan.train("lost_rank", plan.device, sync, world, *keys, "train.samples=10000000",
                     "fault.kill=1@backward:3", f"comm.timeout={LOST_TIMEOUT_S}s")
    run.statuses = None
    run.partial = True  # when its time is over, that is what is judged
    return Check("nccl.lost_rank", lambda done: judge_lost(done[0]), [run],
                 limit_s=LOST_TIMEOUT_S + LOST_START_S + 5,
                 skip="" if world > 1 else "one GPU: there is no other rank to lose; needs 2")
