"""The fingerprint of a quantized model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ..ir.graph.model import Model
from ..ir.identity import TensorId
from ..numerics import QuantParams
from .plan import QuantizationPlan


def quantized_fingerprint(model: Model, plan: QuantizationPlan) -> str:
    """Return the fingerprint of a quantized model: of the float model, the parameters, and which ops they make integer."""
    content = {
        "model": model.fingerprint,
        "activations": _params(plan.activations),
        "weights": _params(plan.weights),
        "biases": _params(plan.biases),
        "bias_shifts": _arrays(plan.corrections.bias_shifts),
        "weight_values": _arrays(plan.corrections.weight_values),
        "equalization": _arrays(plan.equalization.factors),
        "roundings": {str(key): value for key, value in plan.roundings.items()},
        "layers": [str(layer) for layer in plan.layers],
    }
    if plan.equalization.rotations:
        content["rotations"] = {str(key): str(value) for key, value in plan.equalization.rotations.items()}
    return f"sha256:{hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()}"


def _params(entries: Mapping[TensorId, QuantParams]) -> dict[str, str]:
    return {
        str(key): f"{_digest(each.scale)} {_digest(each.zero_point)} {each.dtype} {each.qmin} {each.qmax} {each.granularity}"
        for key, each in entries.items()
    }


def _arrays(entries: Mapping[TensorId, npt.NDArray[Any]]) -> dict[str, str]:
    return {str(key): _digest(value) for key, value in entries.items()}


def _digest(value: Any) -> str:
    """Return a digest of an array: of bytes, for numbers as text take ten times as long."""
    array = np.asarray(value)
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return hashlib.sha256(f"{array.dtype} {array.shape} ".encode() + little.tobytes()).hexdigest()
