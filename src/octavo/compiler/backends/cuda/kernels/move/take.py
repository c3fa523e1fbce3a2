"""Elements of one axis by indices that are known at run time."""

from __future__ import annotations

import math

from ...isa import Isa
from ...kernel import Argument, BoundKernel, Kernel
from ..language.axes import vector_length
from ..quantization.change import THREADS, Change


def take(shape: tuple[int, ...], axis: int, count: int, index_dtype: str, how: Change, isa: Isa) -> BoundKernel:
    """Return the kernel of x[..., indices, ...] along an axis of a dense tensor; indices are clamped to its ends."""
    inner = math.prod(shape[axis + 1 :])
    elements = math.prod(shape[:axis]) * count * inner
    per_thread = vector_length(inner, (), elements, (how.dtype, how.to), isa)
    items = elements // per_thread
    kernel = Kernel(
        name="take",
        header="take.cuh",
        function="take",
        parameters={
            "items": items,
            "threads": THREADS,
            "elements_of_thread": per_thread,
            "extent": shape[axis],
            "count": count,
            "inner": inner,
            **how.parameters,
        },
        types={**how.types, "I": index_dtype},
        arguments=(
            Argument(name="x", dtype=how.dtype),
            Argument(name="indices", dtype=index_dtype),
            Argument(name="table", dtype=how.to),
            Argument(name="y", dtype=how.to, writes=True),
        ),
        grid=(-(-items // THREADS), 1, 1),
        block=(THREADS, 1, 1),
        isa=isa.name,
    )
    return kernel, (how.table,)
