#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch as the peer of gpu_check: training steps of ResNet-50 (v1.5) and a GPT on a GPU.

Channels-last, autocast (fp16 with a gradient scaler), cuDNN's benchmark mode, SGD with momentum,
fused attention, torch.compile off. One JSON line per case, with items_per_s (images or tokens) and
its spread, or "skipped" and the reason. Input lies on the device, or (ResNet-50) comes from
page-locked fp32 memory of the host in every step. Needs PyTorch only, no torchvision.

  gpu_peer.py --model resnet50 --precision bf16 fp16 --batch 64 256
  gpu_peer.py --model gpt --precision bf16 --batch 8 --layers 12 --heads 12 --width 768
  gpu_peer.py --device cpu --model resnet50 --size 32 --batch 2 --steps 1    (to test this script)
"""

import argparse
import contextlib
import json
import statistics
import sys
import time

try:
    import torch
    from torch import nn
except ImportError as error:
    print(f"{sys.executable}: {error}", file=sys.stderr)
    sys.exit(3)

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Bottleneck(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        outputs = 4 * width
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False),
                                          nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = torch.relu_(self.norm1(self.conv1(x)))
        y = torch.relu_(self.norm2(self.conv2(y)))
        return torch.relu_(self.norm3(self.conv3(y)).add_(self.shortcut(x)))


def resnet50(classes):
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True),
              nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for block in range(blocks):
            layers.append(Bottleneck(channels, 64 << stage, 2 if block == 0 and stage > 0 else 1))
            channels = 256 << stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                         nn.Linear(channels, classes))


class GptBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)

    def forward(self, x):
        n, t, c = x.shape
        q, k, v = (part.reshape(n, t, self.heads, c // self.heads).transpose(1, 2)
                   for part in self.qkv(self.norm1(x)).split(c, 2))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(y.transpose(1, 2).reshape(n, t, c))
        hidden = nn.functional.gelu(self.expand(self.norm2(x)), approximate="tanh")
        return x + self.contract(hidden)


class Gpt(nn.Module):
    """Pre-norm blocks, learned positions, the head tied to the embedding: our model=gpt."""

    def __init__(self, layers, heads, width, context):
        super().__init__()
        self.token = nn.Embedding(256, width)
        self.position = nn.Parameter(0.02 * torch.randn(context, width))
        nn.init.normal_(self.token.weight, std=0.02)
        self.blocks = nn.Sequential(*(GptBlock(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens):
        x = self.norm(self.blocks(self.token(tokens) + self.position))
        return nn.functional.linear(x, self.token.weight)


class Case:
    """One model with its optimizer, input and precision."""

    def __init__(self, options, precision, batch, source):
        self.options = options
        self.source = source
        if options.model == "resnet50":
            self.model = resnet50(options.classes).to(options.device,
                                                      memory_format=torch.channels_last)
            inputs = torch.randn(batch, 3, options.size, options.size).contiguous(
                memory_format=torch.channels_last)
            labels = torch.randint(0, options.classes, (batch,))
        else:
            if not hasattr(nn.functional, "scaled_dot_product_attention"):
                raise ValueError(f"PyTorch {torch.__version__} has no fused attention")
            self.model = Gpt(options.layers, options.heads, options.width,
                             options.context).to(options.device)
            inputs = torch.randint(0, 256, (batch, options.context))
            labels = torch.randint(0, 256, (batch, options.context))
        if source == "host" and options.device == "cuda":
            self.inputs, self.labels = inputs.pin_memory(), labels.pin_memory()
        else:
            self.inputs, self.labels = inputs.to(options.device), labels.to(options.device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.dtype = DTYPES[precision]
        scaled = precision == "fp16" and options.device == "cuda"
        self.scaler = torch.cuda.amp.GradScaler(enabled=scaled)
        self.loss = None

    def autocast(self):
        if self.dtype == torch.float32:
            return contextlib.nullcontext()
        return torch.autocast(self.options.device, dtype=self.dtype)

    def step(self):
        inputs = self.inputs.to(self.options.device, non_blocking=True)
        labels = self.labels.to(self.options.device, non_blocking=True)
        self.optimizer.zero_grad(set_to_none=True)
        with self.autocast():
            outputs = self.model(inputs).flatten(0, -2)
            self.loss = nn.functional.cross_entropy(outputs, labels.flatten())
        self.scaler.scale(self.loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def finish(self):
        if self.options.device == "cuda":
            torch.cuda.synchronize()


def measure(options, precision, batch, source):
    case = Case(options, precision, batch, source)
    for _ in range(options.warmup):
        case.step()
    case.finish()
    items = batch * options.steps * (options.context if options.model == "gpt" else 1)
    rates = []
    for _ in range(options.windows):
        begin = time.monotonic()
        for _ in range(options.steps):
            case.step()
        case.finish()
        rates.append(items / (time.monotonic() - begin))
    return {"items_per_s": {"median": statistics.median(rates), "min": min(rates),
                            "max": max(rates), "repeats": len(rates)},
            "last_loss": case.loss.item()}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=["resnet50", "gpt"], required=True)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--precision", nargs="+", choices=list(DTYPES), default=["bf16"])
    parser.add_argument("--batch", nargs="+", type=int, default=[64])
    parser.add_argument("--size", type=int, default=224, help="resnet50: pixels of a side")
    parser.add_argument("--classes", type=int, default=1000, help="resnet50")
    for name, value in (("layers", 12), ("heads", 12), ("width", 768), ("context", 1024)):
        parser.add_argument(f"--{name}", type=int, default=value, help="gpt")
    parser.add_argument("--steps", type=int, default=10, help="of a window")
    parser.add_argument("--windows", type=int, default=3, help="that are timed")
    parser.add_argument("--warmup", type=int, default=5, help="steps before them")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print(f"PyTorch {torch.__version__} finds no GPU", file=sys.stderr)
        sys.exit(3)
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(1)
    cases = [(precision, batch, "device") for precision in options.precision
             for batch in options.batch]
    if options.model == "resnet50":
        cases += [(options.precision[0], batch, "host") for batch in options.batch]
    for precision, batch, source in cases:
        row = {"peer": f"pytorch {torch.__version__}", "cuda": torch.version.cuda,
               "cudnn": torch.backends.cudnn.version(), "model": options.model,
               "device": options.device, "precision": precision, "batch": batch, "input": source,
               "steps": options.steps}
        try:
            row |= measure(options, precision, batch, source)
        except (RuntimeError, ValueError) as error:  # out of memory, an unsupported format
            row["skipped"] = str(error).splitlines()[0]
        print(json.dumps(row), flush=True)
        if options.device == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
