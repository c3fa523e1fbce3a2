"""Composition: composites that are functions of one 8-bit tensor, element by element, become one table of it.

Before::

    s_q = octavo_lookup(x_q); y_q = octavo_mul(x_q, s_q); z_q = octavo_mul_1(y_q)       # a gate of itself, times a constant

After::

    z_q = octavo_lookup(x_q)

So a GELU or SiLU, which quantizers cut at each of its ops, costs one pass over the tensor. Exact: the table holds what the
oracles of the ops give one after the other. An op whose result somebody else reads is computed as before. It decides only;
nothing is written here, and the module of the partition, which vendors take over, stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm.ir import Call
from tvm.relax import Var

from ....ir.composites.attributes import HOST, Composite
from ....ir.composites.base import ElementFunction, QuantizedOutput, QuantizedTensor
from ....ir.composites.elementwise import LookupOp
from ....ir.graph.dataflow import DataflowView, operand_vars

TABLE = "lookup"
"""Kernel of an op that a table of several ops stands for."""

_EVERY: npt.NDArray[np.uint8] = np.arange(256, dtype=np.uint8)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Composed:
    """What bindings of main compute in place of what they say.

    Parameters
    ----------
    calls
        Composites and what they read, by the variable that holds the result.
    fused
        Variables that are computed within these alone, with the kernel that does it; "" where it only reads past them.
    """

    calls: dict[Var, tuple[Composite, tuple[Var, ...]]]
    fused: dict[Var, str]

    def joined(self, other: Composed) -> Composed:
        """Return both."""
        return Composed(calls=self.calls | other.calls, fused=self.fused | other.fused)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Function:
    """A variable of main as a function of another one, `root`.

    Parameters
    ----------
    composite
        The one that gives it.
    entrance, x, entry
        The root within the composite that reads it first: its parameter, the tensor, its entry of the quantize_info.
    table
        The result for each of the root's integers, both as kernels hold them.
    passed
        Variables of main between the root and it.
    is_gain
        Whether to read the root is cheaper than to run the composite.
    """

    root: Var
    composite: Composite
    entrance: str
    x: QuantizedTensor
    entry: Any
    y: QuantizedOutput
    table: npt.NDArray[np.uint8]
    passed: tuple[Var, ...]
    is_gain: bool


def compose_tables(view: DataflowView, composites: Mapping[str, Composite]) -> Composed:
    """Find the composites that one table of another tensor can stand for."""
    functions: dict[Var, _Function] = {}
    for binding in view.bindings:
        value = binding.value
        if not isinstance(value, Call) or not isinstance(value.op, tvm.ir.GlobalVar):
            continue
        composite = composites.get(value.op.name_hint)
        if composite is not None and composite.backend == HOST:
            found = _function(composite, operand_vars(value), functions)
            functions |= {} if found is None else {binding.var: found}
    needed = _needed(view, functions)
    fused = {var: function.composite for var, function in functions.items() if var not in needed}
    calls = {
        var: (_table(function, fused), (function.root,))
        for var, function in functions.items()
        if function.is_gain and var in needed
    }
    return Composed(calls=calls, fused=dict.fromkeys(fused, TABLE))


def _function(composite: Composite, operands: Sequence[Var], functions: dict[Var, _Function]) -> _Function | None:
    """Return a composite's result as a function of what its operands are functions of, None if these are several tensors."""
    own: ElementFunction | None = composite.op.element_function()
    if own is None:
        return None
    outside = dict(zip(composite.inputs, operands, strict=True))
    variables = [outside[tensor.name] for tensor in own.operands.values()]
    before = [functions.get(var) for var in variables]
    roots = {var if function is None else function.root for var, function in zip(variables, before, strict=True)}
    if len(roots) != 1:
        return None
    table = own.of(*(_EVERY if function is None else function.table for function in before))
    role, x = next(iter(own.operands.items()))
    first = before[0]
    # A composite that leaves its one operand's integers as they are costs nothing where it is.
    is_free = len(before) == 1 and np.array_equal(own.of(_EVERY), _EVERY)
    passed = [var for var, function in zip(variables, before, strict=True) if function is not None]
    earlier = [inner for function in before if function is not None for inner in function.passed]
    return _Function(
        root=roots.pop(),
        composite=composite,
        entrance=x.name if first is None else first.entrance,
        x=x if first is None else first.x,
        entry=composite.quantize_info[role] if first is None else first.entry,
        y=own.result,
        table=table,
        passed=tuple(dict.fromkeys((*earlier, *passed))),
        is_gain=not is_free and (len(before) > 1 or first is not None),
    )


def _needed(view: DataflowView, functions: dict[Var, _Function]) -> set[Var]:
    """Return the variables that are read once tables read their roots."""
    needed = set(operand_vars(view.result))
    for binding in reversed(view.bindings):
        function = functions.get(binding.var)
        if function is not None and binding.var not in needed:
            continue
        needed.update(operand_vars(binding.value) if function is None or not function.is_gain else [function.root])
    return needed


def _table(function: _Function, inner: dict[Var, Composite]) -> Composite:
    """Return the composite of a table; its attributes tell of the ops in it that nobody else reads."""
    fused = [inner[var] for var in function.passed if var in inner]
    last = function.composite
    own = (function.table.astype(np.int16) - function.y.tensor.relabelling).astype(function.y.tensor.params.dtype)
    results = {f"inner{number}": each.quantize_info["output"] for number, each in enumerate(fused)}
    return replace(
        last,
        inputs=(function.entrance,),
        op=LookupOp(x=function.x, y=function.y, table=own),
        quantize_info={"input": function.entry, **results, "output": last.quantize_info["output"]},
        tensor_ids=tuple(dict.fromkeys(tensor for each in (*fused, last) for tensor in each.tensor_ids)),
    )
