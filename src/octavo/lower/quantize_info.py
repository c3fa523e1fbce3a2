"""quantize_info: what a code generator must know of each tensor of a composite, as plain attributes.

Keys are the tensor's role ("input", "weight", "bias", "output", "input0" ...). Each value holds: id (TensorId or variable
name), dtype, scale and zero_point (numbers per tensor, lists per axis), axis (None per tensor), qmin, qmax (inclusive;
clamps included).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..numerics import INTEGER_RANGE
from .forms import (
    AddForm,
    ConcatForm,
    ConvForm,
    DequantizeForm,
    Form,
    MatmulForm,
    MoveForm,
    OutputForm,
    PoolForm,
    QuantizeForm,
    TensorForm,
    WeightForm,
)


def quantize_info(form: Form) -> dict[str, Any]:
    """Return the attribute's value for a form."""
    match form:
        case ConvForm() | MatmulForm():
            return {"input": _tensor(form.x), **_weight(form.weight), "output": _output(form.y)}
        case AddForm():
            return {"input0": _tensor(form.a), "input1": _tensor(form.b), "output": _output(form.y)}
        case ConcatForm():
            inputs = {f"input{i}": _tensor(tensor) for i, tensor in enumerate(form.inputs)}
            return {**inputs, "output": _output(form.y)}
        case PoolForm() | MoveForm():
            return {"input": _tensor(form.x), "output": _output(form.y)}
        case QuantizeForm():
            return {"output": _output(form.y)}
        case DequantizeForm():
            return {"input": _tensor(form.x)}


def _tensor(tensor: TensorForm) -> dict[str, Any]:
    return {"id": tensor.name, **tensor.params.to_json()}


def _output(output: OutputForm) -> dict[str, Any]:
    return {**_tensor(output.tensor), "qmin": output.qmin, "qmax": output.qmax}


def _weight(weight: WeightForm) -> dict[str, Any]:
    low, high = INTEGER_RANGE["int32"]
    scale = weight.bias_scale
    per_tensor = bool((scale == scale[0]).all())
    bias = {
        "id": weight.bias_name,
        "dtype": "int32",
        "scale": float(scale[0]) if per_tensor else scale.tolist(),
        "zero_point": 0 if per_tensor else np.zeros(scale.shape, np.int32).tolist(),
        "axis": None if per_tensor else 0,
        "qmin": low,
        "qmax": high,
    }
    return {"weight": {"id": weight.name, **weight.params.to_json()}, "bias": bias}
