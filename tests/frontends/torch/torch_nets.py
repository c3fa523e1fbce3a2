"""Networks in PyTorch for the frontend's tests, and their PT2E quantization. Import it where PyTorch is known to be there."""

import warnings
from typing import Any

import torch
from torch import nn
from torch.nn import functional

SHAPE = (1, 3, 32, 32)


class Block(nn.Module):
    """Expand, depthwise and project around a residual add."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.expand = nn.Conv2d(channels, channels * 2, 1)
        self.norm1 = nn.BatchNorm2d(channels * 2)
        self.depthwise = nn.Conv2d(channels * 2, channels * 2, 3, padding=1, groups=channels * 2, bias=False)
        self.norm2 = nn.BatchNorm2d(channels * 2)
        self.project = nn.Conv2d(channels * 2, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.relu6(self.norm1(self.expand(x)))
        y = functional.relu6(self.norm2(self.depthwise(y)))
        return functional.relu(x + self.project(y))


class Net(nn.Module):
    """Convolutions (one depthwise), a residual add, max and average pooling, a concatenation, two dense layers."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.block = Block(8)
        self.pool = nn.MaxPool2d(2)
        self.left = nn.Conv2d(8, 16, 3, padding=1, stride=2)
        self.right = nn.Conv2d(8, 16, 1, stride=2)
        self.hidden = nn.Linear(32, 24)
        self.head = nn.Linear(24, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(self.block(functional.relu(self.stem(x))))
        x = torch.cat([functional.relu(self.left(x)), functional.hardtanh(self.right(x), 0.0, 6.0)], 1)
        x = functional.adaptive_avg_pool2d(x, 1).flatten(1)
        return self.head(functional.relu(self.hidden(x)))


def seeded(net: nn.Module) -> nn.Module:
    """Return the net for inference, its batch normalizations with statistics that matter."""
    generator = torch.Generator().manual_seed(7)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.3, generator=generator)
            module.running_var.uniform_(0.5, 1.5, generator=generator)
    return net.eval()


def make_net() -> nn.Module:
    """Return a Net, the same one every time."""
    torch.manual_seed(0)
    return seeded(Net())


def export(net: nn.Module, *inputs: Any, **options: Any) -> Any:
    """Export without PyTorch's own warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.export(net, inputs, **options)


def quantize(net: nn.Module, config: dict[str, Any], shape: tuple[int, ...] = SHAPE, dims: Any = None) -> tuple[nn.Module, Any]:
    """Return the net quantized by PT2E for XNNPACK, as PyTorch runs it and as a program with `dims` open; needs torchao."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
        from torchao.testing.pt2e._xnnpack_quantizer import XNNPACKQuantizer, get_symmetric_quantization_config

        quantizer = XNNPACKQuantizer().set_global(get_symmetric_quantization_config(**config))
        prepared = prepare_pt2e(export(net, torch.randn(shape), dynamic_shapes=dims).module(), quantizer)
        generator = torch.Generator().manual_seed(1)
        for _ in range(4):
            prepared(torch.randn(shape, generator=generator))
        converted = convert_pt2e(prepared)
        return converted, export(converted, torch.randn(shape), dynamic_shapes=dims)
