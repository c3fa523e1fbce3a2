"""How far indices go that a graph computes of sizes and that pick rows of a table. Reads the graph, changes nothing.

    positions = add(arange(0, sequence), past) ; take(table[1024, 64], positions, axis=0)      last index: past + sequence - 1

Positions behind a past pick rows so, and what PyTorch writes for a mask. Kernels bring any index into range, so that none reads
memory that isn't the table's; ONNX, PyTorch and TFLite alike call an index beyond it an error. An index is followed as long as it
is a sum of a start and of steps along axes, which says exactly how far it goes; any other is not looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import GenericConst as Constant
from tvm.relax import Var

from ...runtime.size import Size, is_surely
from .dataflow import DataflowView, call_to, dtype_of, static_shape
from .nodes import elements
from .sizes import size_of

Dim = int | Size


@dataclass(frozen=True, kw_only=True, slots=True)
class LastRow:
    """The last index that a graph picks of a table, and how many rows the table has."""

    last: Dim
    rows: Dim


@dataclass(frozen=True, kw_only=True, slots=True)
class _Steps:
    """start + sum of step * i over axes, where i goes from 0 to extent - 1.

    `axes` says of each axis of the tensor along which of the steps, by its number, it goes (None: none); None where that is lost.
    """

    start: Dim
    steps: Mapping[int, tuple[Dim, Dim]]
    axes: tuple[int | None, ...] | None

    @property
    def is_counting_up(self) -> bool:
        return is_surely(self.start, 0) and all(is_surely(step, 0) for step, _ in self.steps.values())

    @property
    def last(self) -> Dim:
        return self.start + sum(step * (extent - 1) for step, extent in self.steps.values())


def last_rows(module: tvm.IRModule) -> tuple[LastRow, ...]:
    """Return what "main" picks by indices that depend on sizes, each once."""
    reader = _Reader(DataflowView(module["main"]))
    found: list[LastRow] = []
    for binding in reader.view.bindings:
        call = call_to(binding.value, "take")
        shape = None if call is None else static_shape(call.args[0])
        if call is None or not shape:
            continue
        index = reader.steps_of(call.args[1])
        if index is None or not index.is_counting_up:
            continue
        rows = shape[0 if call.attrs.axis is None else int(call.attrs.axis)]
        if isinstance(rows - index.last, Size):
            found.append(LastRow(last=index.last, rows=rows))
    return tuple(dict.fromkeys(found))


class _Reader:
    """Follows indices to where they come from."""

    def __init__(self, view: DataflowView) -> None:
        self.view = view
        self._known: dict[str, _Steps | None] = {}

    def steps_of(self, value: Any) -> _Steps | None:
        """Return an index as steps; None for any other."""
        if isinstance(value, Constant):
            return _constant(value)
        if not isinstance(value, Var) or np.dtype(dtype_of(value)).kind not in "iu":
            return None
        if value.name not in self._known:
            self._known[value.name] = self._read(value)
        return self._known[value.name]

    def _read(self, var: Var) -> _Steps | None:
        call = call_to(self.view.definition(var), *_READ, "arange", "where", "strided_slice")
        if call is None:
            return None
        name = str(call.op.name).removeprefix("relax.")
        if name == "arange":
            return self._range(call)
        if name == "where":
            return self._chosen(call)
        if name == "strided_slice":
            return self._part(call)
        operands = [self.steps_of(each) for each in call.args if not isinstance(each, relax.ShapeExpr)]
        before, after = static_shape(call.args[0]), static_shape(var)
        if before is None or after is None or not all(isinstance(each, _Steps) for each in operands):
            return None
        known: Any = operands
        return _READ[name](known, before, after)

    def _range(self, call: relax.Call) -> _Steps | None:
        start, end, step = (size_of(each) for each in call.args)
        if start is None or end is None or step != 1:
            return None
        extent = end - start
        if extent == 1:
            return _Steps(start=start, steps={}, axes=(None,))
        number = len(self._known)  # as many are known by now: no other range has it
        return _Steps(start=start, steps={number: (1, extent)}, axes=(number,))

    def _part(self, call: relax.Call) -> _Steps | None:
        """Follow one part of those that are joined along an axis, each of size 1."""
        joined = call_to(self.view.definition(call.args[0]), "concat")
        axes, begin, end = ([size_of(each) for each in elements(values.fields)] for values in call.args[1:4])
        rank = len(static_shape(call.args[0]) or ())
        if joined is None or not rank or axes != [int(joined.attrs.axis) % rank]:
            return None
        [axis], [first], [last] = axes, begin, end
        parts = [(part, static_shape(part)) for part in elements(joined.args[0].fields)]
        if not isinstance(first, int) or last != first + 1 or any(shape is None or shape[int(axis)] != 1 for _, shape in parts):
            return None
        return self.steps_of(parts[first][0])

    def _chosen(self, call: relax.Call) -> _Steps | None:
        """Follow what counts from the end where it is negative: where(less(x, 0), x + size, x)."""
        less, index = call_to(self.view.definition(call.args[0]), "less"), self.steps_of(call.args[2])
        if less is None or index is None or not index.is_counting_up or not less.args[0].same_as(call.args[2]):
            return None
        bound = self.steps_of(less.args[1])
        return index if bound is not None and bound.start == 0 and not bound.steps else None


def _constant(value: Any) -> _Steps | None:
    """Return one integer as steps."""
    array: Any = value.value.numpy()
    if array.size != 1 or array.dtype.kind not in "iu":
        return None
    return _Steps(start=int(array.item()), steps={}, axes=(None,) * array.ndim)


def _reshaped(operands: Sequence[_Steps], before: Sequence[Dim], after: Sequence[Dim]) -> _Steps:
    """Keep the axes where only those of size 1 come or go: any other has the same integers, in an order that is lost."""
    [x] = operands
    if x.axes is None or [dim for dim in before if dim != 1] != [dim for dim in after if dim != 1]:
        return replace(x, axes=None if x.steps else (None,) * len(after))
    rest = iter([axis for axis, dim in zip(x.axes, before, strict=True) if dim != 1])
    return replace(x, axes=tuple(None if dim == 1 else next(rest) for dim in after))


def _repeated(operands: Sequence[_Steps], before: Sequence[Dim], after: Sequence[Dim]) -> _Steps:
    [x] = operands
    return x if x.axes is None else replace(x, axes=(None,) * (len(after) - len(before)) + x.axes)


def _same(operands: Sequence[_Steps], before: Sequence[Dim], after: Sequence[Dim]) -> _Steps:
    del before, after
    return operands[0]


def _sum(operands: Sequence[_Steps], before: Sequence[Dim], after: Sequence[Dim]) -> _Steps | None:
    """Add what goes along different axes: along one and the same the largest of both need not meet."""
    del before, after
    x, y = operands
    steps = {**x.steps, **y.steps}
    if x.axes is None or y.axes is None:
        if x.steps and y.steps:
            return None
        return _Steps(start=x.start + y.start, steps=steps, axes=None)
    pairs = list(zip_longest(reversed(x.axes), reversed(y.axes)))
    if x.steps.keys() & y.steps.keys() or any(None not in pair for pair in pairs):
        return None
    axes = tuple(one if other is None else other for one, other in reversed(pairs))
    return _Steps(start=x.start + y.start, steps=steps, axes=axes)


def _product(operands: Sequence[_Steps], before: Sequence[Dim], after: Sequence[Dim]) -> _Steps | None:
    """Multiply by one number."""
    del before, after
    x, y = operands
    if y.steps:
        x, y = y, x
    if y.steps or not is_surely(y.start, 0):
        return None
    axes = x.axes
    if axes is not None and y.axes is not None:
        axes = (None,) * (len(y.axes) - len(axes)) + axes
    steps = {number: (step * y.start, extent) for number, (step, extent) in x.steps.items()}
    return _Steps(start=x.start * y.start, steps=steps, axes=axes)


_READ: Mapping[str, Callable[[Sequence[_Steps], Sequence[Dim], Sequence[Dim]], _Steps | None]] = {
    "reshape": _reshaped,
    "flatten": _reshaped,
    "squeeze": _reshaped,
    "expand_dims": _reshaped,
    "broadcast_to": _repeated,
    "astype": _same,
    "add": _sum,
    "multiply": _product,
}
