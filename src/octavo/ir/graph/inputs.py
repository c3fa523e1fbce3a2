"""What a model takes, and inputs made up for it where only their shapes count."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import ModelError, shape_advice
from ...runtime.huge_pages import machine_bytes
from ...runtime.inputs import InputSpec
from ...runtime.size import names_in
from .dataflow import dtype_of, static_shape
from .index_ranges import index_ranges
from .model import Model

_SEED = 0
_DRAWN = 8
"""Bytes of a number as it is drawn."""


def input_specs(model: Model) -> tuple[InputSpec, ...]:
    """Return what "main" of a model takes, in order. ModelError if a dimension depends on values."""
    params = model.module["main"].params
    indices = index_ranges(model.module, params[: len(model.input_ids)])
    specs: list[InputSpec] = []
    for index, tensor_id in enumerate(model.input_ids):
        shape = static_shape(params[index])
        source_name = model.tensors[tensor_id].source_name
        if shape is None:
            raise ModelError(f"input {source_name} has a shape that nothing names; give it one: {shape_advice(source_name)}")
        bounds = {name: model.sizes[name] for name in sorted(names_in(shape)) if name in model.sizes}
        dtype = dtype_of(params[index])
        facts: Any = {"shape": shape, "dtype": dtype, "bounds": bounds, "indices": indices.get(params[index].name)}
        start = model.starts.get(str(tensor_id))
        specs.append(InputSpec(id=str(tensor_id), source_name=source_name, start=start, **facts))
    return tuple(specs)


def check_fixed(model: Model, what: str) -> None:
    """Raise ModelError where a model has open dimensions: `what` needs numbers."""
    names = sorted(names_in(dim for spec in input_specs(model) for dim in spec.shape))
    if names:
        given = ", ".join(f'"{name}": N' for name in names)
        options = " ".join(f"--size {name}=N" for name in names)
        raise ModelError(
            f"{what} of fixed sizes, and this model leaves {', '.join(names)} open: load it with sizes={{{given}}} in Python, "
            f"{options} on the command line"
        )


def random_inputs(model: Model) -> dict[str, npt.NDArray[Any]]:
    """Return one batch by source name, always the same one.

    Floats are in [-1; 1), integers over their dtype's range; those of 32 and 64 bits, which are ids and masks, 0 or 1. ModelError
    where one has no elements, or more than the machine can hold.
    """
    _check_drawable(model)
    rng = np.random.default_rng(_SEED)
    values: dict[str, npt.NDArray[Any]] = {}
    for tensor_id in model.input_ids:
        entry = model.tensors[tensor_id]
        shape, dtype = tuple(int(size) for size in entry.shape), np.dtype(entry.dtype)
        if dtype.kind == "f":
            values[entry.source_name] = rng.uniform(-1, 1, shape).astype(dtype)
        else:
            low, high = (0, 1) if dtype.itemsize > 2 else (np.iinfo(dtype).min, np.iinfo(dtype).max)
            values[entry.source_name] = rng.integers(low, high, shape, dtype, endpoint=True)
    return values


def _check_drawable(model: Model) -> None:
    for tensor_id in model.input_ids:
        entry = model.tensors[tensor_id]
        shape = tuple(int(size) for size in entry.shape)
        where, count, memory = f"input {entry.source_name} of shape {list(shape)}", math.prod(shape), machine_bytes()
        if count == 0:
            raise ModelError(f"{where} has no elements, so there is nothing to time; give sizes above 0")
        needed = count * max(np.dtype(entry.dtype).itemsize, _DRAWN)
        if needed > memory:
            raise ModelError(
                f"random values for {where} take {needed / 2**30:.0f} GiB, and this machine has {memory / 2**30:.0f}; "
                "give smaller sizes"
            )
