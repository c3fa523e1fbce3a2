"""Small programs of common kinds that read images, for benchmarks/torch_programs.py: classifiers, segmenters, detectors."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from torch_networks import ConvNorm, SqueezeExcite

Tensor = torch.Tensor


class Head(nn.Sequential):
    """Mean over the image, and classes."""

    def __init__(self, channels: int) -> None:
        super().__init__(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(channels, 10))


class Bottleneck(nn.Module):
    """ResNet's block of three convolutions, and a projected shortcut."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            ConvNorm(inputs, width, 1, nn.ReLU), ConvNorm(width, width, 3, nn.ReLU, stride), ConvNorm(width, 4 * width, 1, None)
        )
        self.shortcut = ConvNorm(inputs, 4 * width, 1, None, stride)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu_(self.body(x) + self.shortcut(x))


def resnet() -> nn.Module:
    """Return a ResNet."""
    stem = ConvNorm(3, 8, 7, lambda: nn.ReLU(inplace=True), 2)
    return nn.Sequential(stem, nn.MaxPool2d(3, 2, 1), Bottleneck(8, 4, 1), Bottleneck(16, 8, 2), Head(32))


class Inverted(nn.Module):
    """Expansion, depthwise convolution, projection; with squeeze and excitation where `excites`."""

    def __init__(self, channels: int, kernel: int, activation: Any, *, excites: bool = False) -> None:
        super().__init__()
        wide = 4 * channels
        parts = [ConvNorm(channels, wide, 1, activation), ConvNorm(wide, wide, kernel, activation, groups=wide)]
        self.body = nn.Sequential(*parts, *([SqueezeExcite(wide)] if excites else []), ConvNorm(wide, channels, 1, None))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


def mobilenet_v2() -> nn.Module:
    """Return a MobileNetV2."""
    return nn.Sequential(ConvNorm(3, 8, 3, nn.ReLU6, 2), Inverted(8, 3, nn.ReLU6), Inverted(8, 3, nn.ReLU6), Head(8))


class HardExcite(nn.Module):
    """Squeeze and excitation by a hard sigmoid."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.reduce, self.expand = nn.Conv2d(channels, channels // 4, 1), nn.Conv2d(channels // 4, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        gate = self.expand(functional.relu(self.reduce(x.mean((2, 3), keepdim=True)), inplace=True))
        return functional.hardsigmoid(gate, inplace=True) * x


def mobilenet_v3() -> nn.Module:
    """Return a MobileNetV3."""
    stem = ConvNorm(3, 8, 3, lambda: nn.Hardswish(inplace=True), 2)
    return nn.Sequential(stem, Inverted(8, 5, nn.Hardswish), HardExcite(8), Inverted(8, 3, nn.ReLU), nn.Hardswish(), Head(8))


def efficientnet() -> nn.Module:
    """Return an EfficientNet."""
    body = [Inverted(8, kernel, lambda: nn.SiLU(inplace=True), excites=True) for kernel in (3, 5)]
    return nn.Sequential(ConvNorm(3, 8, 3, nn.SiLU, 2), *body, ConvNorm(8, 32, 1, nn.SiLU), Head(32))


class ConvNextBlock(nn.Module):
    """Depthwise 7 x 7, normalization of channels, two linear layers, a scale for each channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm, self.wide = nn.LayerNorm(channels, eps=1e-6), nn.Linear(channels, 4 * channels)
        self.narrow, self.scale = nn.Linear(4 * channels, channels), nn.Parameter(torch.full((channels, 1, 1), 0.3))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.narrow(functional.gelu(self.wide(y))).permute(0, 3, 1, 2)
        return x + self.scale * y


def convnext() -> nn.Module:
    """Return a ConvNeXt."""
    return nn.Sequential(nn.Conv2d(3, 16, 4, 4), ConvNextBlock(16), nn.Conv2d(16, 24, 2, 2), ConvNextBlock(24), Head(24))


class DenseLayer(nn.Module):
    """Normalization before the convolution; the result is joined to what was read."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(inputs), nn.Conv2d(inputs, 16, 1, bias=False)
        self.norm2, self.conv2 = nn.BatchNorm2d(16), nn.Conv2d(16, 8, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(functional.relu(self.norm1(x)))
        return torch.cat([x, self.conv2(functional.relu(self.norm2(y), inplace=True))], 1)


def densenet() -> nn.Module:
    """Return a DenseNet."""
    move = nn.Sequential(nn.BatchNorm2d(24), nn.ReLU(), nn.Conv2d(24, 12, 1), nn.AvgPool2d(2, 2))
    return nn.Sequential(ConvNorm(3, 8, 3, nn.ReLU, 2), DenseLayer(8), DenseLayer(16), move, DenseLayer(12), Head(20))


class Shuffle(nn.Module):
    """ShuffleNetV2's unit: half of the channels pass by, then both halves are dealt out."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        half = channels // 2
        self.branch = nn.Sequential(ConvNorm(half, half, 1, nn.ReLU), ConvNorm(half, half, 3, None, groups=half))

    def forward(self, x: Tensor) -> Tensor:
        left, right = x.chunk(2, dim=1)
        x = torch.cat((left, self.branch(right)), dim=1)
        batch, channels, height, width = x.size()
        x = x.view(batch, 2, channels // 2, height, width).transpose(1, 2).contiguous()
        return x.view(batch, channels, height, width)


def shufflenet() -> nn.Module:
    """Return a ShuffleNetV2."""
    return nn.Sequential(ConvNorm(3, 16, 3, nn.ReLU, 2), nn.MaxPool2d(3, 2, 1), Shuffle(16), Shuffle(16), Head(16))


class Fire(nn.Module):
    """Squeeze, then two expansions side by side."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.squeeze, self.one, self.three = nn.Conv2d(inputs, 4, 1), nn.Conv2d(4, 8, 1), nn.Conv2d(4, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.squeeze(x))
        return torch.cat([functional.relu(self.one(x)), functional.relu(self.three(x))], 1)


def squeezenet() -> nn.Module:
    """Return a SqueezeNet, whose pools round sizes up."""
    pool = nn.MaxPool2d(3, 2, ceil_mode=True)
    last = [nn.Dropout(), nn.Conv2d(16, 10, 1), nn.ReLU(), nn.AdaptiveAvgPool2d((1, 1)), nn.Flatten()]
    return nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), pool, Fire(8), pool, Fire(16), *last)


class Mixed(nn.Module):
    """Inception's branches: 1 x 1, 1 x 7 and 7 x 1, an average of padded windows; and a second reduction by a maximum."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.one = ConvNorm(inputs, 6, 1, nn.ReLU)
        self.seven = nn.Sequential(nn.Conv2d(inputs, 6, (1, 7), padding=(0, 3)), nn.Conv2d(6, 6, (7, 1), padding=(3, 0)))
        self.pooled = nn.Conv2d(inputs, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        pooled = self.pooled(functional.avg_pool2d(x, kernel_size=3, stride=1, padding=1))
        x = torch.cat([self.one(x), self.seven(x), pooled], 1)
        return torch.cat([functional.max_pool2d(x, 3, 2), functional.avg_pool2d(x, 3, 2)], 1)


class Inception(nn.Module):
    """An Inception network that normalizes its pixels by channel, as torchvision's does."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.mixed, self.head = ConvNorm(3, 8, 3, nn.ReLU, 2), Mixed(8), Head(32)

    def forward(self, x: Tensor) -> Tensor:
        channels = [torch.unsqueeze(x[:, axis], 1) * 0.458 + (axis - 1) * 0.03 for axis in range(3)]
        return self.head(self.mixed(self.stem(torch.cat(channels, 1))))


class UNet(nn.Module):
    """Down and up again: by a transposed convolution, and by resizing to the skipped image's size."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([ConvNorm(3, 8, 3, nn.ReLU), ConvNorm(8, 16, 3, nn.ReLU), ConvNorm(16, 16, 3, nn.ReLU)])
        self.up = nn.ConvTranspose2d(16, 16, 2, 2)
        self.join = nn.ModuleList([ConvNorm(32, 8, 3, nn.ReLU), ConvNorm(16, 8, 3, nn.ReLU)])
        self.last = nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.down[0](x)
        second = self.down[1](functional.max_pool2d(first, 2))
        x = self.up(self.down[2](functional.max_pool2d(second, 2)))
        extra = [second.size(-1) - x.size(-1), second.size(-2) - x.size(-2)]
        x = functional.pad(x, [extra[0] // 2, extra[0] - extra[0] // 2, extra[1] // 2, extra[1] - extra[1] // 2])
        x = self.join[0](torch.cat([second, x], 1))
        x = functional.interpolate(x, size=first.shape[-2:], mode="bilinear", align_corners=True)
        return self.last(self.join[1](torch.cat([first, x], 1)))


class Pyramid(nn.Module):
    """A feature pyramid: nearest by a factor, bilinear to the input's size, smoothed where it is made smaller, bicubic."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = ConvNorm(3, 8, 3, nn.ReLU, 2), ConvNorm(8, 8, 3, nn.ReLU, 2)
        self.side, self.last, self.norm = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 3, 3, padding=1), nn.GroupNorm(2, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        first = self.first(x)
        second = functional.interpolate(self.second(first), scale_factor=2, mode="nearest")
        merged = functional.relu(self.norm(self.side(first) + second))
        classes = functional.interpolate(self.last(merged), size=x.shape[-2:], mode="bilinear", align_corners=False)
        small = functional.interpolate(x, size=(9, 7), mode="bilinear", antialias=True, align_corners=False)
        return classes, small, functional.interpolate(x, size=(24, 20), mode="bicubic", align_corners=False)


class RetinaNet(nn.Module):
    """Anchors, decoded boxes, the best of them, and what is below a threshold masked."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(ConvNorm(3, 8, 3, nn.ReLU, 2), ConvNorm(8, 16, 3, nn.ReLU, 2))
        self.scores, self.boxes = nn.Conv2d(16, 3 * 4, 3, padding=1), nn.Conv2d(16, 4 * 4, 3, padding=1)
        self.register_buffer("anchors", torch.rand(64 * 4, 4) * 8 + 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = self.body(x)
        batch = x.shape[0]
        scores = self.scores(x).view(batch, 4, 3, 8, 8).permute(0, 3, 4, 1, 2).reshape(batch, -1, 3).sigmoid()
        moves = self.boxes(x).view(batch, 4, 4, 8, 8).permute(0, 3, 4, 1, 2).reshape(batch, -1, 4)
        sizes = self.anchors[:, 2:] * torch.exp(moves[..., 2:].clamp(max=4.0))
        centers = self.anchors[:, :2] + moves[..., :2] * self.anchors[:, 2:]
        boxes = torch.stack([centers - sizes / 2, centers + sizes / 2], -2).flatten(-2).clamp(0, 32)
        best, labels = scores.max(-1)
        top, places = best.masked_fill(best < 0.5, 0.0).topk(10, dim=1)
        return boxes.gather(1, places[..., None].expand(-1, -1, 4)), top, labels.gather(1, places)


class Yolo(nn.Module):
    """Pooled pyramid, a neck by Upsample, distances as expectations, and grids that are made of the image's size."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = ConvNorm(3, 8, 3, nn.SiLU, 2), ConvNorm(8, 16, 3, nn.SiLU, 2)
        self.pool, self.after = nn.MaxPool2d(5, 1, 2), ConvNorm(48, 16, 1, nn.SiLU)
        self.up, self.last = nn.Upsample(scale_factor=2.0, mode="nearest"), nn.Conv2d(24, 4 * 4 + 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.first(x)
        second = self.second(first)
        pooled = self.pool(second)
        second = self.after(torch.cat((second, pooled, self.pool(pooled)), 1))
        y = self.last(torch.cat((self.up(second), first), 1))
        batch, _, height, width = y.shape
        distances, classes = y.view(batch, 21, -1).split((16, 5), 1)
        weights = distances.view(batch, 4, 4, -1).transpose(2, 1).softmax(1)
        distances = (weights * torch.arange(4.0).view(1, 4, 1, 1)).sum(1)
        rows, columns = torch.arange(height) + 0.5, torch.arange(width) + 0.5
        grid = torch.stack(torch.meshgrid(columns, rows, indexing="xy"), -1).view(1, -1, 2).transpose(1, 2)
        low, high = distances.chunk(2, 1)
        boxes = torch.cat(((grid - low + grid + high) / 2, high + low), 1) * 2
        return torch.cat((boxes, classes.sigmoid()), 1)


class CenterNet(nn.Module):
    """Peaks of a map of places are its maxima of windows; the best ones' offsets are gathered."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.heat, self.offset = ConvNorm(3, 16, 3, nn.ReLU, 2), nn.Conv2d(16, 2, 1), nn.Conv2d(16, 2, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.body(x)
        heat = torch.sigmoid(self.heat(x))
        heat = heat * (functional.max_pool2d(heat, 3, 1, 1) == heat).float()
        batch, classes, height, width = heat.size()
        scores, places = torch.topk(heat.view(batch, classes, -1), 5)
        score, best = torch.topk(scores.view(batch, -1), 4)
        places = places.view(batch, -1).gather(1, best) % (height * width)
        offsets = self.offset(x).permute(0, 2, 3, 1).reshape(batch, -1, 2)
        offsets = offsets.gather(1, places.unsqueeze(-1).expand(-1, -1, 2))
        centers = torch.stack([(places % width).float(), torch.div(places, width, rounding_mode="floor").float()], -1)
        return centers + offsets, score


class Suppression(nn.Module):
    """Overlaps of all pairs of boxes; one that overlaps a better one too much is written over."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        corner, size, score = self.layer(x).split([2, 2, 1], -1)
        order = torch.argsort(score[:, 0], descending=True)
        boxes = torch.cat([corner, corner + size.abs() + 0.1], -1)[order]
        low, high = torch.maximum(boxes[:, None, :2], boxes[None, :, :2]), torch.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
        shared = (high - low).clamp(min=0).prod(-1)
        area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
        overlap = torch.triu(shared / (area[:, None] + area[None] - shared), diagonal=1)
        keep = torch.ones(8, dtype=torch.bool)
        for place in range(7):
            keep = keep & ~((overlap[place] > 0.3) & keep[place])
        kept = torch.where(keep, score[order, 0], torch.zeros(()))
        kept[0] = 2.0
        return boxes * keep[:, None], kept.index_put((torch.tensor([1, 2]),), torch.tensor([-1.0, -2.0]))


class SuperResolution(nn.Module):
    """Pads of every kind, images dealt out to channels and back."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(12, 8, 3, padding=1, padding_mode="replicate")
        self.second = nn.Conv2d(8, 12, 3, padding=1, padding_mode="circular")

    def forward(self, x: Tensor) -> Tensor:
        y = functional.pixel_unshuffle(x, 2)
        y = functional.prelu(self.first(y), torch.tensor([0.2]))
        y = functional.pad(functional.pixel_shuffle(self.second(y), 2), (1, 1, 1, 1), mode="reflect")
        return (x + y[:, :, 1:-1, 1:-1]).clamp(0, 1)


class Warped(nn.Module):
    """A spatial transformer: an image is sampled by a grid that a network made of it."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.place = ConvNorm(3, 8, 5, nn.ReLU, 2), nn.Linear(8, 6)
        self.last = nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        moves = self.place(self.body(x).mean((-2, -1))).view(-1, 2, 3) * 0.1
        grid = functional.affine_grid(moves + torch.eye(2, 3), list(x.size()), align_corners=False)
        return self.last(functional.grid_sample(x, grid, padding_mode="border", align_corners=False))


class Styled(nn.Module):
    """Style transfer: reflected borders, each image normalized by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.ReflectionPad2d(2), nn.Conv2d(3, 8, 5), nn.InstanceNorm2d(8, affine=True), nn.ReLU()),
            *(
                nn.Upsample(scale_factor=2, mode="nearest"),
                nn.ReflectionPad2d(1),
                nn.Conv2d(8, 8, 3),
                nn.GroupNorm(4, 8),
                nn.Tanh(),
            ),
        )
        self.last = nn.ConvTranspose2d(8, 3, 4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.last(self.body(x)))


def volume() -> nn.Module:
    """Return a network of films: convolutions and pools in three axes."""
    first = [nn.Conv3d(3, 8, 3, stride=(1, 2, 2), padding=1), nn.BatchNorm3d(8), nn.ReLU(), nn.MaxPool3d((1, 2, 2))]
    second = [nn.Conv3d(8, 12, (3, 1, 1), padding=(1, 0, 0)), nn.BatchNorm3d(12), nn.ReLU(), nn.AvgPool3d(2)]
    return nn.Sequential(*first, *second, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(12, 5))
