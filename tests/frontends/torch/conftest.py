"""What torchao exports again for each network that it quantizes, exported once for all tests that a process runs."""

from __future__ import annotations

import copy
import types
from collections.abc import Hashable, Iterator
from typing import Any

import pytest


def _same(value: Any) -> Hashable:
    """Return what two patterns, or what they are exported with, share where their programs are the same."""
    import torch

    if isinstance(value, types.FunctionType):
        closure = tuple(_same(cell.cell_contents) for cell in value.__closure__ or ())
        return (value.__code__, _same(value.__defaults__ or ()), closure)
    if isinstance(value, torch.nn.Module):
        return (type(value), value.training, _same(vars(value).get("fn", id(value))))
    if isinstance(value, torch.Tensor):
        return (value.dtype, value.shape, value.device)
    if isinstance(value, dict):
        return tuple((key, _same(each)) for key, each in value.items())
    if isinstance(value, tuple | list):
        return tuple(_same(each) for each in value)
    return value


@pytest.fixture(scope="session")
def patterns_once() -> Iterator[None]:
    """PT2E looks for patterns of dropout, of normalizations, of convolutions before them. They are the same for each network, and
    to export them takes longer than all that it does with a network of these tests. Each caller gets a copy of its own."""
    pytest.importorskip("torchao", reason="needs PyTorch and torchao: make test-torch", exc_type=ImportError)
    from torchao.quantization.pt2e import qat_utils, utils
    from torchao.testing.pt2e import _xnnpack_quantizer_utils

    export = utils._get_aten_graph_module_for_pattern
    known: dict[Hashable, Any] = {}

    def exported(pattern: Any, example_inputs: Any, is_cuda: bool = False, **kwargs: Any) -> Any:
        key = (_same(pattern), _same(example_inputs), is_cuda, _same(kwargs))
        if key not in known:
            # With the pattern itself: that nothing else takes its place in memory while its key may name it by that.
            known[key] = (export(pattern, example_inputs, is_cuda, **kwargs), pattern)
        return copy.deepcopy(known[key][0])

    with pytest.MonkeyPatch.context() as patch:
        for module in (utils, qat_utils, _xnnpack_quantizer_utils):
            patch.setattr(module, export.__name__, exported)
        yield
