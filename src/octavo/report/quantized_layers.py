"""What quantizing made of single tensors and ops: weights as they are rounded, and what float ops cost. It runs nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..compiler.explanation import ExplainedOp, Explanation
from ..ir.graph import Model
from ..ir.identity import TensorId
from ..numerics import dequantize
from ..numerics.statistics.metrics import sqnr_db
from ..quantizer.plan.plan import QuantizedModel
from ..quantizer.programs import Programs
from ..quantizer.recipe import WEIGHT_BITS


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightFigures:
    """The weights of one layer, as they are rounded.

    Parameters
    ----------
    id, name
        The constant.
    bits
        Of its integers.
    scales
        How many it has: one, or one for each output channel.
    least_scale, greatest_scale
        Of these.
    sqnr_db
        Of the integers, with these scales, against the float values that they were made of; inf without an error.
    """

    id: TensorId
    name: str
    bits: int
    scales: int
    least_scale: float
    greatest_scale: float
    sqnr_db: float


@dataclass(frozen=True, kw_only=True, slots=True)
class FloatOpFigures:
    """An op that stays float.

    Parameters
    ----------
    tensor, name, op
        Its result, the source's name of that, and the op.
    reason
        Why.
    macs
        Multiply-accumulates of one inference.
    share
        Of the quantized model's modelled time, in [0; 1].
    saving
        Share of that time that it would take less as an integer op; nothing for moving values.
    """

    tensor: str
    name: str
    op: str
    reason: str
    macs: int
    share: float
    saving: float


def weights_of(model: Model, quantized: QuantizedModel, programs: Programs) -> Mapping[TensorId, WeightFigures]:
    """Return the weights of the layers that have some, by the layers' outputs."""
    plan = quantized.plan
    floats, _ = programs.equalized(plan)
    found: dict[TensorId, WeightFigures] = {}
    for layer in plan.layers:
        name = layer.weight
        if name is None or name not in plan.weight_values or name not in floats.params:
            continue
        params, values = plan.weights[name], plan.weight_values[name]
        entry = model.tensors.get(name)
        found[layer.output] = WeightFigures(
            id=name,
            name=(entry.source_name if entry is not None else "") or plan.names.get(name, "") or str(name),
            bits=params.num_bits,
            scales=params.scale.size,
            least_scale=float(params.scale.min()),
            greatest_scale=float(params.scale.max()),
            sqnr_db=sqnr_db(np.asarray(floats.params[name]), dequantize(values, params)),
        )
    return found


def bytes_of(quantized: QuantizedModel) -> int:
    """Return the bytes of the constants of a quantized model, weights of fewer than 8 bits packed."""
    plan = quantized.plan
    narrow = {name: params.num_bits for name, params in plan.weights.items() if name in plan.weight_values}
    saved = sum(plan.weight_values[name].size * (WEIGHT_BITS - bits) // 8 for name, bits in narrow.items() if bits < WEIGHT_BITS)
    return quantized.constant_bytes - saved


def time_shares(explanation: Explanation) -> Mapping[str, float]:
    """Return the share of the modelled time that each op takes, by its result."""
    total = explanation.cycles
    return {op.tensor: op.cycles(is_integer=op.integer) / total for op in explanation.ops}


def float_ops_of(explanation: Explanation) -> tuple[FloatOpFigures, ...]:
    """Return the ops that stay float, what costs most first."""
    total = explanation.cycles
    found = [_float_op(op, total) for op in explanation.ops if not op.integer and op.op not in ("quantize", "dequantize")]
    return tuple(sorted(found, key=lambda each: -each.share))


def _float_op(op: ExplainedOp, total: float) -> FloatOpFigures:
    now = op.cycles(is_integer=False)
    return FloatOpFigures(
        tensor=op.tensor,
        name=op.source_name or op.tensor,
        op=op.op,
        reason=op.reason,
        macs=op.macs,
        share=now / total,
        saving=(now - op.cycles(is_integer=True)) / total,
    )
