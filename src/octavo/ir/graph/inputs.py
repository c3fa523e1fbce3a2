"""What a model takes, and inputs made up for it where only their shapes count."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import ModelError, shape_advice
from ...runtime.inputs import InputSpec
from ...runtime.size import names_in
from .dataflow import dtype_of, static_shape
from .model import Model

_SEED = 0


def input_specs(model: Model) -> tuple[InputSpec, ...]:
    """Return what "main" of a model takes, in order. ModelError if a dimension depends on values."""
    params = model.module["main"].params
    specs: list[InputSpec] = []
    for index, tensor_id in enumerate(model.input_ids):
        shape = static_shape(params[index])
        source_name = model.tensors[tensor_id].source_name
        if shape is None:
            raise ModelError(f"input {source_name} has a shape that nothing names; give it one: {shape_advice(source_name)}")
        bounds = {name: model.sizes[name] for name in sorted(names_in(shape)) if name in model.sizes}
        dtype = dtype_of(params[index])
        specs.append(InputSpec(id=str(tensor_id), source_name=source_name, shape=shape, dtype=dtype, bounds=bounds))
    return tuple(specs)


def random_inputs(model: Model) -> dict[str, npt.NDArray[Any]]:
    """Return one batch by source name: integers over their dtype's range, floats in [-1; 1), always the same ones."""
    rng = np.random.default_rng(_SEED)
    values: dict[str, npt.NDArray[Any]] = {}
    for tensor_id in model.input_ids:
        entry = model.tensors[tensor_id]
        shape, dtype = tuple(int(size) for size in entry.shape), np.dtype(entry.dtype)
        if dtype.kind == "f":
            values[entry.source_name] = rng.uniform(-1, 1, shape).astype(dtype)
        else:
            info = np.iinfo(dtype)
            values[entry.source_name] = rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    return values
