#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch as the peer of `paceline train`: the same models, data, batch and optimizer.

Prints one JSON line with samples_per_second, the slowest worker's, measured after a warm-up. One
thread per process. Works with Debian 12's python3-torch, and needs libopenblas0-pthread beside it:
with Debian's default reference BLAS PyTorch's matrix products are about twenty times slower, a
peer not worth beating, so that is refused.

  train_peer.py --mode single --model cnn --steps 100
  train_peer.py --mode ddp-gloo --world 2 --model mlp
  train_peer.py --mode hogwild --world 2 --model cnn
"""

import argparse
import gzip
import json
import os
import socket
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import torch  # noqa: E402  (threads are set before the library starts)
import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402
from torch import nn  # noqa: E402

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tests/core"))
from make_golden import Gpt  # noqa: E402

FASHION_MNIST = "/usr/share/datasets/fashion-mnist"
TEXT = "/usr/share/common-licenses/GPL-3"
CONTEXT = 128


def blas():
    """Name of the BLAS library that this process multiplies matrices with."""
    torch.ones(8, 8).mm(torch.ones(8, 8))
    with open("/proc/self/maps", encoding="utf-8") as maps:
        mapped = {os.path.basename(line.split()[-1]) for line in maps if ".so" in line}
    for name in ("mkl_rt", "mkl_core", "openblas", "blis"):
        if any(name in library for library in mapped):
            return name
    return "reference" if any(library.startswith("libblas") for library in mapped) else "unknown"


def read_idx(path, dimensions):
    """The unsigned bytes of a gzipped idx file, shaped as its header says."""
    with gzip.open(path, "rb") as file:
        data = file.read()
    if data[:4] != bytes([0, 0, 8, dimensions]):
        sys.exit(f"{path}: wrong magic {data[:4].hex()}, expected 000008{dimensions:02x}")
    shape = [int.from_bytes(data[4 + 4 * d:8 + 4 * d], "big") for d in range(dimensions)]
    values = torch.frombuffer(bytearray(data[4 + 4 * dimensions:]), dtype=torch.uint8)
    return values.reshape(shape)


def made_up(split):
    """Noise of CIFAR's shape: a step takes the same time whatever the pixels are."""
    count = 4000 if split == "train" else 100
    generator = torch.Generator().manual_seed(1)
    return (torch.randn(count, 3, 32, 32, generator=generator),
            torch.randint(0, 10, (count,), generator=generator))


def windows(split):
    """Bytes and the byte after each; nine tenths of the text train."""
    with open(TEXT, "rb") as file:
        text = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8).to(torch.int64)
    cut = len(text) - len(text) // 10
    text = text[:cut] if split == "train" else text[cut:]
    count = (len(text) - 1) // CONTEXT
    return (text[:count * CONTEXT].reshape(count, CONTEXT),
            text[1:count * CONTEXT + 1].reshape(count, CONTEXT))


def load(args, split):
    if args.model == "gpt":
        return windows(split)
    if args.model == "resnet20":
        return made_up(split)
    folder = args.data
    prefix = os.path.join(folder, "train" if split == "train" else "t10k")
    images = read_idx(prefix + "-images-idx3-ubyte.gz", 3)
    labels = read_idx(prefix + "-labels-idx1-ubyte.gz", 1)
    inputs = (images.to(torch.float32) / 255.0 - 0.2860) / 0.3530
    return inputs.unsqueeze(1), labels.to(torch.int64)


class ResNetBlock(nn.Module):
    """Two 3x3 convolutions; a 1x1 convolution as the shortcut where the shape changes."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False),
                                          nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = torch.relu_(self.norm1(self.conv1(x)))
        return torch.relu_(self.norm2(self.conv2(y)) + self.shortcut(x))


def resnet20():
    layers = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    channels = 16
    for width in (16, 32, 64):
        for _ in range(3):
            layers.append(ResNetBlock(channels, width, 1 if width == channels else 2))
            channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def make_model(name):
    if name == "resnet20":
        return resnet20()
    if name == "gpt":
        model = Gpt(CONTEXT, layers=4, heads=4, width=128)
        for embedding in (model.token, model.position):
            nn.init.normal_(embedding, std=0.02)
        return model
    if name == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512),
                             nn.ReLU(), nn.Linear(512, 10))
    return nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(),
                         nn.MaxPool2d(2), nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(),
                         nn.Linear(128, 10))


def sampled(count, seed, rank, world):
    """This rank's share of endless permutations of range(count)."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(count, generator=generator)
        yield from order[rank::world].split(1 << 20)


def batches(count, batch, seed, rank, world):
    for order in sampled(count, seed, rank, world):
        for part in order.split(batch):
            if len(part) == batch:
                yield part


def train(args, model, rank, world, barrier):
    """Returns the seconds that args.steps steps took and the last loss."""
    inputs, labels = load(args, "train")
    if args.channels_last:
        model.to(memory_format=torch.channels_last)
        inputs = inputs.contiguous(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=args.momentum)
    loss_of = nn.CrossEntropyLoss()
    source = batches(len(labels), args.batch, args.seed, rank, world)
    begin = None
    loss = None
    for step in range(args.warmup + args.steps):
        if step == args.warmup:
            barrier()
            begin = time.monotonic()
        chosen = next(source)
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model(inputs[chosen]).flatten(0, -2), labels[chosen].flatten())
        loss.backward()
        optimizer.step()
    value = loss.item()
    return time.monotonic() - begin, value


def accuracy(args, model):
    model.eval()
    inputs, labels = load(args, "test")
    correct = 0
    with torch.no_grad():
        for i in range(0, len(labels), 500):
            correct += int((model(inputs[i:i + 500]).argmax(-1) == labels[i:i + 500]).sum())
    return correct / labels.numel()


def ddp_worker(rank, args, port, results):
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank,
                            world_size=args.world)
    model = nn.parallel.DistributedDataParallel(make_model(args.model))
    seconds, loss = train(args, model, rank, args.world, dist.barrier)
    results.put((rank, seconds, loss, accuracy(args, model.module) if rank == 0 else None))
    dist.destroy_process_group()


def hogwild_worker(rank, args, model, gate, results):
    torch.set_num_threads(1)
    seconds, loss = train(args, model, rank, args.world, gate.wait)
    gate.wait()
    results.put((rank, seconds, loss, accuracy(args, model) if rank == 0 else None))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_processes(args):
    context = mp.get_context("spawn")
    results = context.SimpleQueue()
    if args.mode == "ddp-gloo":
        target, common = ddp_worker, (args, free_port(), results)
    else:
        model = make_model(args.model)
        model.share_memory()
        target, common = hogwild_worker, (args, model, context.Barrier(args.world), results)
    workers = [context.Process(target=target, args=(rank, *common)) for rank in range(args.world)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if any(worker.exitcode != 0 for worker in workers):
        sys.exit(f"train_peer.py: exit codes {[worker.exitcode for worker in workers]}")
    return sorted(results.get() for _ in workers)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=["single", "ddp-gloo", "hogwild"], default="single")
    parser.add_argument("--model", choices=["mlp", "cnn", "resnet20", "gpt"], default="cnn")
    parser.add_argument("--world", type=int, default=1, help="processes (ddp-gloo, hogwild)")
    parser.add_argument("--batch", type=int, default=64, help="samples per process and step")
    parser.add_argument("--steps", type=int, default=100, help="steps that are timed")
    parser.add_argument("--warmup", type=int, default=10, help="steps before them")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data", default=FASHION_MNIST, help="folder of the idx.gz files")
    parser.add_argument("--reference-blas", action="store_true",
                        help="measure even though no optimised BLAS is installed")
    parser.add_argument("--channels-last", action="store_true", help="NHWC activations (cnn, resnet20)")
    args = parser.parse_args()
    if min(args.world, args.batch, args.steps) < 1 or args.warmup < 0:
        parser.error("--world, --batch and --steps must be at least 1, --warmup at least 0")
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    library = blas()
    if library == "reference" and not args.reference_blas:
        sys.exit("train_peer.py: PyTorch runs on Debian's reference BLAS, which is no fair peer: "
                 "apt-get install libopenblas0-pthread (or --reference-blas to measure it anyway)")
    if args.mode == "single":
        args.world = 1
        model = make_model(args.model)
        seconds, loss = train(args, model, 0, 1, lambda: None)
        rows = [(0, seconds, loss, accuracy(args, model))]
    else:
        rows = run_processes(args)
    slowest = max(row[1] for row in rows)
    samples = args.world * args.batch * args.steps
    print(json.dumps({
        "peer": f"pytorch {torch.__version__}", "blas": library, "mode": args.mode, "model": args.model,
        "world": args.world, "batch": args.batch, "steps": args.steps, "samples": samples,
        "seconds": slowest, "samples_per_second": samples / slowest,
        "last_loss": sum(row[2] for row in rows) / len(rows), "test_accuracy": rows[0][3],
    }))


if __name__ == "__main__":
    main()
