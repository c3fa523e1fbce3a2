"""Small networks of several kinds, trained in seconds on the demo's handwritten digits, for benchmarks/torch_quantizers.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import octavo

SEED = 3
EPOCHS = 6
BATCH = 32
PIXEL_MAX = 16.0  # the digits' pixels are counts in [0; 16]


class ConvNorm(nn.Sequential):
    """Convolution and batch normalization, then what `activation` makes, if anything."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, activation: Callable[[], nn.Module] | None, stride: int = 1, groups: int = 1
    ) -> None:
        parts = [
            nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, groups=groups, bias=False),
            nn.BatchNorm2d(outputs),
        ]
        super().__init__(*parts, *([activation()] if activation else []))


class SqueezeExcite(nn.Module):
    """Scale each channel by a small network's view of the whole image."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(channels, channels // 4, 1)
        self.expand = nn.Conv2d(channels // 4, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate = self.expand(functional.relu(self.reduce(functional.adaptive_avg_pool2d(x, 1))))
        return x * torch.sigmoid(gate)


class Residual(nn.Module):
    """ReLU: plain and depthwise convolutions, a residual addition, maximum and average pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = ConvNorm(1, 16, 3, nn.ReLU)
        self.expand = ConvNorm(16, 32, 1, nn.ReLU6)
        self.depthwise = ConvNorm(32, 32, 3, nn.ReLU6, groups=32)
        self.project = ConvNorm(32, 16, 1, None)
        self.left = ConvNorm(16, 16, 3, nn.ReLU)
        self.right = ConvNorm(16, 16, 1, nn.ReLU)
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.max_pool2d(self.stem(x), 2)
        x = functional.relu(x + self.project(self.depthwise(self.expand(x))))
        x = torch.cat([self.left(x), self.right(x)], 1)
        return self.head(functional.adaptive_avg_pool2d(x, 1).flatten(1))


class Mobile(nn.Module):
    """SiLU, hard-swish and hard-sigmoid, squeeze-and-excite, average pooling before the flattening."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = ConvNorm(1, 16, 3, nn.SiLU)
        self.expand = ConvNorm(16, 32, 1, nn.Hardswish)
        self.depthwise = ConvNorm(32, 32, 3, nn.Hardswish, stride=2, groups=32)
        self.excite = SqueezeExcite(32)
        self.project = ConvNorm(32, 24, 1, None)
        self.last = ConvNorm(24, 32, 3, nn.SiLU)
        self.head = nn.Linear(32 * 4, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.project(self.excite(self.depthwise(self.expand(self.stem(x)))))
        return self.head(torch.flatten(functional.avg_pool2d(self.last(x), 2), 1))


class Dense(nn.Module):
    """A multilayer perceptron over pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(),
            nn.Linear(64, 96),
            nn.ReLU(),
            nn.Linear(96, 48),
            nn.Tanh(),
            nn.Linear(48, 32),
            nn.GELU(),
            nn.Linear(32, 10),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class Encoder(nn.Module):
    """One transformer encoder block; the rows of the picture are its tokens."""

    def __init__(self, width: int = 32, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.embed = nn.Linear(8, width)
        self.position = nn.Parameter(torch.zeros(1, 8, width))
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.head = nn.Linear(width, 10)

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        rows, width = x.shape[1], x.shape[2]
        query, key, value = (
            layer(x).reshape(-1, rows, self.heads, width // self.heads).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        scores = torch.softmax(query @ key.transpose(-2, -1) / (width // self.heads) ** 0.5, dim=-1)
        return self.out((scores @ value).transpose(1, 2).reshape(-1, rows, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x.squeeze(1)) + self.position
        x = x + self.attend(self.norm1(x))
        x = x + self.narrow(functional.gelu(self.wide(self.norm2(x))))
        return self.head(x.mean(1))


NETWORKS: dict[str, Callable[[], nn.Module]] = {"residual": Residual, "mobile": Mobile, "dense": Dense, "encoder": Encoder}


def digits() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return training pixels and labels, held-out pixels and labels: float [N, 1, 8, 8] in [0; 1]."""
    with np.load(Path(octavo.__file__).parent / "cli" / "demo_data" / "digits.npz") as archive:
        pixels = torch.from_numpy(archive["images"][:, None].astype(np.float32) / PIXEL_MAX)
        labels = torch.from_numpy(archive["labels"].astype(np.int64))
        held_out = torch.from_numpy(archive["held_out"])
    return pixels[~held_out], labels[~held_out], pixels[held_out], labels[held_out]


def learn(net: nn.Module, pixels: torch.Tensor, labels: torch.Tensor, *, epochs: int, rate: float = 3e-3) -> None:
    """Train in place, as the net's own mode is."""
    generator = torch.Generator().manual_seed(SEED)
    optimizer = torch.optim.AdamW(net.parameters(), lr=rate)
    for _ in range(epochs):
        order = torch.randperm(len(pixels), generator=generator)
        for start in range(0, len(order) - BATCH + 1, BATCH):
            chosen = order[start : start + BATCH]
            loss = functional.cross_entropy(net(pixels[chosen]), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def trained(name: str, *, epochs: int = EPOCHS) -> nn.Module:
    """Return a network for inference, trained on the digits that are not held out: the same one every time."""
    torch.manual_seed(SEED)
    net = NETWORKS[name]()
    pixels, labels, _, _ = digits()
    learn(net.train(), pixels, labels, epochs=epochs)
    return net.eval()
