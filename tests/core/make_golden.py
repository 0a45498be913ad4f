#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the golden values in tests/core/golden with PyTorch in float64.

Inputs come from splitmix64, which the C++ tests run as well, so that only results are stored.
Lines are `name value...`; large tensors are stored as every k-th element, with sum, norm and
largest magnitude of all.

  make_golden.py            (any PyTorch >= 1.13)
"""

import math
import os

import torch
from torch import nn

MASK = (1 << 64) - 1
SAMPLES_KEPT = 97  # per tensor, about


def splitmix64(x):
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def fnv1a(name):
    value = 0xCBF29CE484222325
    for byte in name.encode():
        value = ((value ^ byte) * 0x100000001B3) & MASK
    return value


def stream_key(seed, name):
    return splitmix64(splitmix64(seed) ^ ((fnv1a(name) * 0xD1342543DE82EF95) & MASK))


def f32(value):
    return torch.tensor(value, dtype=torch.float64).to(torch.float32).to(torch.float64)


def uniform(key, n, scale):
    """scale·(2·u − 1) for uniform u, rounded to fp32 as the C++ tests do."""
    raw = torch.tensor([(splitmix64((key + i) & MASK) >> 40) * 2.0 ** -24 for i in range(n)],
                       dtype=torch.float64)
    return f32(float(scale)) * (2.0 * raw - 1.0)


def values(key, n, scale=1.0):
    return uniform(stream_key(key, "values"), n, scale).to(torch.float32).to(torch.float64)


def labels(key, n, classes):
    base = stream_key(key, "labels")
    return torch.tensor([splitmix64((base + i) & MASK) % classes for i in range(n)])


def normalised(name):
    """The models with a norm before every ReLU, as `MODEL_KIND`."""
    base, kind = name.split("_")
    norms = {
        "batch": lambda c, image: nn.BatchNorm2d(c) if image else nn.BatchNorm1d(c),
        "group": lambda c, image: nn.GroupNorm(8, c),
        "layer": lambda c, image: nn.GroupNorm(1, c) if image else nn.LayerNorm(c),
    }
    plain, names = make_model(base)
    layers, named = [], {}
    for i, layer in enumerate(plain):
        if isinstance(layer, nn.ReLU):
            before = layers[-1]
            image = isinstance(before, nn.Conv2d)
            channels = before.out_channels if image else before.out_features
            named[str(len(layers))] = names[str(i - 1)] + "_norm"
            layers.append(norms[kind](channels, image))
        elif str(i) in names:
            named[str(len(layers))] = names[str(i)]
        layers.append(layer)
    return nn.Sequential(*layers), named


def make_model(name):
    if "_" in name:
        return normalised(name)
    if name == "softmax":
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 10)), {"1": "fc"}
    if name == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512),
                             nn.ReLU(), nn.Linear(512, 10)), {"1": "fc1", "3": "fc2", "5": "fc3"}
    return nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(),
                         nn.MaxPool2d(2), nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(),
                         nn.Linear(128, 10)), {"0": "conv1", "2": "conv2", "6": "fc1", "8": "fc2"}


def line(file, name, numbers):
    file.write(name + "".join(f" {float(number):.9g}" for number in numbers) + "\n")


def summary(file, name, tensor, kept=SAMPLES_KEPT):
    flat = tensor.reshape(-1)
    stride = max(1, len(flat) // kept)
    line(file, name, [stride, flat.sum(), flat.norm(), flat.abs().max(), *flat[::stride]])


def write_model(folder, name, samples=6, seed=7):
    model, names = make_model(name)
    model = model.double()
    named = {f"{names[key.split('.')[0]]}.{key.split('.')[1]}": value
             for key, value in model.named_parameters()}
    for key, parameter in named.items():
        layer = key.split(".")[0]
        if layer.endswith("_norm"):
            continue  # starts with 1 and 0
        fan_in = named[layer + ".weight"][0].numel()
        weights = uniform(stream_key(seed, key), parameter.numel(), 1.0 / math.sqrt(fan_in))
        parameter.data = weights.to(torch.float32).to(torch.float64).reshape(parameter.shape)
    x = values(11, samples * 784).reshape(samples, 1, 28, 28)
    y = labels(13, samples, 10)
    logits = model(x)
    loss = nn.functional.cross_entropy(logits, y, reduction="sum")
    loss.backward()
    with open(os.path.join(folder, name + ".txt"), "w", encoding="ascii") as file:
        line(file, "loss", [loss])
        line(file, "correct", [(logits.argmax(1) == y).sum()])
        for key, parameter in named.items():
            norm = key.split(".")[0].endswith("_norm")
            ours = key.replace("weight", "gamma").replace("bias", "beta") if norm else key
            summary(file, ours, parameter.grad)


class ResNetBlock(nn.Module):
    """Basic (two 3x3) or bottleneck (1x1, 3x3 with the stride, 1x1); projection shortcuts."""

    def __init__(self, inputs, width, stride, bottleneck):
        super().__init__()
        outputs = 4 * width if bottleneck else width
        shapes = ([(width, 1, 1), (width, 3, stride), (outputs, 1, 1)] if bottleneck
                  else [(width, 3, stride), (outputs, 3, 1)])
        self.depth = len(shapes)
        channels = inputs
        for i, (to, kernel, step) in enumerate(shapes, 1):
            setattr(self, f"conv{i}",
                    nn.Conv2d(channels, to, kernel, step, kernel // 2, bias=False))
            setattr(self, f"conv{i}_norm", nn.BatchNorm2d(to))
            channels = to
        self.projects = stride != 1 or inputs != outputs
        if self.projects:
            self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut_norm = nn.BatchNorm2d(outputs)

    def forward(self, x):
        y = x
        for i in range(1, self.depth + 1):
            y = getattr(self, f"conv{i}_norm")(getattr(self, f"conv{i}")(y))
            y = torch.relu(y) if i < self.depth else y
        return torch.relu(y + (self.shortcut_norm(self.shortcut(x)) if self.projects else x))


class ResNet(nn.Module):
    def __init__(self, bottleneck, large_stem, width, blocks, classes):
        super().__init__()
        self.conv1 = (nn.Conv2d(3, width, 7, 2, 3, bias=False) if large_stem
                      else nn.Conv2d(3, width, 3, 1, 1, bias=False))
        self.conv1_norm = nn.BatchNorm2d(width)
        self.pool = nn.MaxPool2d(3, 2, 1) if large_stem else nn.Identity()
        self.stages = len(blocks)
        channels = width
        for stage, count in enumerate(blocks):
            layers = []
            for b in range(count):
                layers.append(ResNetBlock(channels, width << stage,
                                          2 if stage > 0 and b == 0 else 1, bottleneck))
                channels = (width << stage) * (4 if bottleneck else 1)
            setattr(self, f"layer{stage + 1}", nn.Sequential(*layers))
        self.fc = nn.Linear(channels, classes)

    def forward(self, x):
        x = self.pool(torch.relu(self.conv1_norm(self.conv1(x))))
        for stage in range(self.stages):
            x = getattr(self, f"layer{stage + 1}")(x)
        return self.fc(x.mean((2, 3)))


def write_resnet(folder, name, model, size, samples, kept, seed=7):
    """Gradients of one batch, then an evaluation of it with the running statistics."""
    model = model.double()
    named = dict(model.named_parameters())
    for key, parameter in named.items():
        if "_norm." in key:
            continue  # starts with 1 and 0
        fan_in = named[key.replace(".bias", ".weight")][0].numel()
        weights = uniform(stream_key(seed, key), parameter.numel(), 1.0 / math.sqrt(fan_in))
        parameter.data = weights.to(torch.float32).to(torch.float64).reshape(parameter.shape)
    x = values(11, samples * size * size * 3).reshape(samples, size, size, 3).permute(0, 3, 1, 2)
    y = labels(13, samples, 10)
    logits = model(x)
    loss = nn.functional.cross_entropy(logits, y, reduction="sum")
    loss.backward()
    model.eval()
    evaluation = nn.functional.cross_entropy(model(x), y, reduction="sum")
    with open(os.path.join(folder, name + ".txt"), "w", encoding="ascii") as file:
        line(file, "loss", [loss])
        line(file, "correct", [(logits.argmax(1) == y).sum()])
        line(file, "evaluation", [evaluation])
        for key, parameter in named.items():
            norm = "_norm." in key
            ours = key.replace("weight", "gamma").replace("bias", "beta") if norm else key
            summary(file, ours, parameter.grad, kept)


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
        scores = q @ k.transpose(2, 3) / math.sqrt(c // self.heads)
        future = torch.ones(t, t, dtype=torch.bool).triu(1)
        shares = scores.masked_fill(future, -math.inf).softmax(3)
        x = x + self.projection((shares @ v).transpose(1, 2).reshape(n, t, c))
        hidden = nn.functional.gelu(self.expand(self.norm2(x)), approximate="tanh")
        return x + self.contract(hidden)


class Gpt(nn.Module):
    """Pre-norm blocks, learned positions, the head tied to the embedding."""

    def __init__(self, context, layers, heads, width):
        super().__init__()
        self.token = nn.Parameter(torch.empty(256, width))
        self.position = nn.Parameter(torch.empty(context, width))
        self.blocks = nn.ModuleList([GptBlock(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens):
        x = self.token[tokens] + self.position
        for block in self.blocks:
            x = block(x)
        return self.norm(x) @ self.token.T

    def paceline_name(self, key):
        """Of the parameter `key` in our model."""
        if key in ("token", "position"):
            return "embedding." + key
        return key.replace("blocks.", "block")


def write_gpt(folder, context=8, samples=3, seed=7):
    """Loss and gradients of one batch; a sample's loss is the mean over its positions."""
    model = Gpt(context, layers=2, heads=2, width=16).double()
    named = {model.paceline_name(key): value for key, value in model.named_parameters()}
    for key, parameter in named.items():
        if "norm" in key:
            continue  # starts with 1 and 0
        fan_in = (833 if key.startswith("embedding")
                  else named[key.replace(".bias", ".weight")][0].numel())
        weights = uniform(stream_key(seed, key), parameter.numel(), 1.0 / math.sqrt(fan_in))
        parameter.data = weights.to(torch.float32).to(torch.float64).reshape(parameter.shape)
    tokens = labels(11, samples * context, 256).reshape(samples, context)
    targets = labels(13, samples * context, 256)
    logits = model(tokens).reshape(-1, 256)
    loss = nn.functional.cross_entropy(logits, targets, reduction="sum") / context
    loss.backward()
    with open(os.path.join(folder, "gpt.txt"), "w", encoding="ascii") as file:
        line(file, "loss", [loss])
        line(file, "correct", [(logits.argmax(1) == targets).sum() / context])
        for key, parameter in named.items():
            summary(file, key, parameter.grad)


def write_norms(folder):
    """Two training batches and an evaluation; activations are channels-last in the file."""
    cases = {
        "batch": (lambda c: nn.BatchNorm2d(c), 5, (3, 2, 4)),
        "batch_vector": (lambda c: nn.BatchNorm1d(c), 4, (1, 1, 6)),
        "group": (lambda c: nn.GroupNorm(2, c), 3, (3, 2, 4)),
        "layer_image": (lambda c: nn.GroupNorm(1, c), 3, (3, 2, 4)),
        "layer_vector": (lambda c: nn.LayerNorm(c), 4, (1, 1, 6)),
    }
    with open(os.path.join(folder, "norms.txt"), "w", encoding="ascii") as file:
        for name, (make, samples, (height, width, channels)) in cases.items():
            count = samples * height * width * channels
            image = height * width > 1

            def load(key, scale):
                flat = values(key, count, scale)
                if not image:
                    return flat.reshape(samples, channels)
                return flat.reshape(samples, height, width, channels).permute(0, 3, 1, 2)

            def store(what, tensor):
                line(file, f"{name}.{what}",
                     (tensor.permute(0, 2, 3, 1) if image else tensor).reshape(-1))

            norm = make(channels).double()
            norm.weight.data, norm.bias.data = values(21, 2 * channels).reshape(2, -1)
            for key in (22, 23):
                norm.zero_grad()
                x = load(key, 2.0).detach().requires_grad_()
                y = norm(x)
                (y * load(24, 1.0)).sum().backward()
            store("y", y.detach())
            store("dx", x.grad)
            line(file, name + ".dw", torch.cat([norm.weight.grad, norm.bias.grad]))
            if name.startswith("batch"):
                line(file, name + ".buffers", torch.cat([norm.running_mean, norm.running_var]))
            norm.eval()
            store("evaluation", norm(load(25, 2.0)).detach())


def write_optimizers(folder, elements=19, steps=7):
    cases = {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
        "sgd_decay": lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.01),
        "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        "momentum_decay": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
        "nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
        "nesterov_decay": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True,
                                                    weight_decay=0.01),
        "adam": lambda p: torch.optim.Adam(p, lr=0.01),
        "adam_decay": lambda p: torch.optim.Adam(p, lr=0.01, betas=(0.8, 0.99), eps=1e-6,
                                                 weight_decay=0.01),
    }
    with open(os.path.join(folder, "optimizers.txt"), "w", encoding="ascii") as file:
        for name, make in cases.items():
            weights = values(17, elements).clone().requires_grad_()
            optimizer = make([weights])
            for step in range(steps):
                weights.grad = values(100 + step, elements)
                optimizer.step()
                line(file, f"{name}.{step}", weights.detach())


def main():
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "golden")
    os.makedirs(folder, exist_ok=True)
    for name in ("softmax", "mlp", "cnn", "mlp_layer", "cnn_batch", "cnn_group"):
        write_model(folder, name)
    write_resnet(folder, "resnet20", ResNet(False, False, 16, [3, 3, 3], 10), 12, 6, 4)
    write_resnet(folder, "bottleneck", ResNet(True, True, 4, [1, 2, 1], 10), 40, 4, 6)
    write_gpt(folder)
    write_norms(folder)
    write_optimizers(folder)


if __name__ == "__main__":
    main()
