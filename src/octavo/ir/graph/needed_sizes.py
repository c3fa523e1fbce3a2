"""What ops need of sizes that the shapes of their results do not say. Reads the graph, changes nothing.

    reshape(x[N, 5], [N * 5 // 3, 3])       N * 5 is a multiple of 3, or elements are left out
    mean(x[N, max(S, 3) - 3], axis=1)       max(S, 3) - 3 is at least 1: no elements have no mean, and no largest one
    topk(x[N, S], k=2, axis=1)              S is at least 2

Each is a size that must be at least 1, as the sizes of tensors are; a remainder, of which nothing may be left, as 1 - remainder.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tvm

from ...errors import ModelError
from ...runtime.size import Size, is_surely
from .dataflow import DataflowView, call_to, static_shape

Dim = int | Size
_Need = Callable[[Any, tuple[Dim, ...], tuple[Dim, ...]], Iterator[Dim]]


def needed_sizes(module: tvm.IRModule) -> tuple[Size, ...]:
    """Return the open sizes that must be at least 1 for ops of "main", each once, where bounds do not say so.

    Raises
    ------
    ModelError
        One is known, and is less.
    """
    main: Any = module["main"]
    bounds: Any = (main.attrs or {}).get("tir_var_lower_bound", {})
    least = {str(name): int(low) for name, low in bounds.items()}
    found: dict[Size, None] = {}
    for binding in DataflowView(main).bindings:
        call = call_to(binding.value, *_NEEDS)
        before = None if call is None else static_shape(call.args[0])
        if call is None or before is None:
            continue
        name = str(call.op.name).removeprefix("relax.")
        needs, why = _NEEDS[name]
        for size in needs(call, before, static_shape(binding.var) or before):
            if not isinstance(size, Size):
                if size < 1:
                    shape = ",".join(map(str, before))
                    raise ModelError(f"{binding.var.name}: {name} of a tensor [{shape}] {why}; give it other sizes")
            elif not is_surely(size, 1) and not (size.name is not None and least.get(size.name, 0) >= 1):
                found[size] = None
    return tuple(found)


def _all(call: Any, before: tuple[Dim, ...], after: tuple[Dim, ...]) -> Iterator[Dim]:
    del call
    left = math.prod(before) - math.prod(after)
    yield 1 - left
    if not is_surely(left, 0):
        yield left + 1


def _some(call: Any, before: tuple[Dim, ...], after: tuple[Dim, ...]) -> Iterator[Dim]:
    del after
    axis = call.attrs.axis
    axes = range(len(before)) if axis is None else [axis] if isinstance(axis, int) else axis
    yield from (before[int(each)] for each in axes)


def _as_many(call: Any, before: tuple[Dim, ...], after: tuple[Dim, ...]) -> Iterator[Dim]:
    del after
    yield before[int(call.attrs.axis)] - int(call.attrs.k) + 1


_NEEDS: Mapping[str, tuple[_Need, str]] = {
    "reshape": (_all, "leaves elements out"),
    **dict.fromkeys(("mean", "variance", "std", "argmax", "argmin"), (_some, "has no elements to reduce")),
    "topk": (_as_many, "has fewer elements than are picked"),
}
