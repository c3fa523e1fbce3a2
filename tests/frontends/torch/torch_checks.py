"""Whether PyTorch modules give what PyTorch gives; several share a program. Tests that import it are skipped without PyTorch."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import octavo

torch = pytest.importorskip("torch", reason="needs PyTorch: make test-torch")
nn = torch.nn


class Apply(nn.Module):
    """A function of tensors, and of modules that hold its weights."""

    def __init__(self, function: Callable[..., Any], *parts: Any) -> None:
        super().__init__()
        self.function, self.parts = function, nn.ModuleList(parts)

    def forward(self, *x):
        return self.function(*x, *self.parts)


class Several(nn.Module):
    """Modules beside each other, each with inputs and results of its own."""

    def __init__(self, modules: list[Any], inputs: list[int]) -> None:
        super().__init__()
        self.parts, self.inputs = nn.ModuleList(modules), inputs

    def forward(self, *x):
        results, start = [], 0
        for part, count in zip(self.parts, self.inputs, strict=True):
            result = part(*x[start : start + count])
            results += result if isinstance(result, tuple) else [result]
            start += count
        return tuple(results)


def load(module, inputs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return octavo.load(torch.export.export(module.eval(), tuple(inputs)))


def check(module, shapes, names=()):
    torch.manual_seed(0)
    for part in module.modules():
        if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d) and part.track_running_stats:
            part.running_mean.normal_()
            part.running_var.uniform_(0.3, 2)
    inputs = [torch.randn(shape) for shape in shapes]
    model = load(module, inputs)
    assert [name.name_hint for name in model.module.get_global_vars()] == ["main"], "PrimFuncs are left"
    named = dict(zip(model.input_ids, inputs, strict=True))
    actual = list(octavo.compile(model)({name: value.numpy() for name, value in named.items()}).values())
    expected = module(*[value.clone() for value in inputs])
    expected = expected if isinstance(expected, tuple) else (expected,)
    assert len(actual) == len(expected)
    for number, (ours, theirs) in enumerate(zip(actual, expected, strict=True)):
        said = f"result {number} of {names}"
        assert ours.shape == tuple(theirs.shape), said
        np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=1e-5, atol=2e-6, err_msg=said)


def groups(names, size):
    names = list(names)
    return [pytest.param(names[at : at + size], id=f"{names[at]} and {size - 1} more") for at in range(0, len(names), size)]
