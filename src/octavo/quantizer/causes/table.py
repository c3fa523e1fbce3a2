"""The table of root causes: every rounding of a quantized model, what it alone does to the outputs, why, and what would help."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from ...errors import QuantizationError
from ...ir.graph import Model
from ...ir.graph.dataflow import DataflowView, call_to, dtype_of
from ...ir.graph.inputs import input_specs
from ...ir.graph.model import checked_model
from ...ir.identity import TensorId
from ...ir.qdq.values import params_of
from ...numerics.arrays import Samples
from ...runtime.inputs import split_batches
from ..plan.plan import QuantizationPlan, QuantizedModel
from ..programs import Programs
from ..referee import Referee
from ..referee.score import in_db
from .experiments import FAULTS, MENDABLE, Experiments, RootCause

_MIN_GAIN_DB = 0.5
"""What can be mended at the same width comes first where it brings this much; so do biases of which samples alone tell."""
_LOOKED_INTO = 24
"""So many rows, those of the largest shares; behind them only what does not fit."""
_SAMPLES = 32
"""On which roundings are told apart, at most."""


def root_causes(model: Model, quantized: Model, batches: Iterable[Any]) -> tuple[RootCause, ...]:
    """Find by experiment why a quantized model's outputs are off, and what would help most.

    Each rounding is done alone, in float, on a few samples, 3 to 32 (see `octavo.quantizer.referee`); what it does to the
    outputs counts, not what it does to its own tensor. A tensor that is only moved (reshaped, cut, joined) from others,
    which have its steps, is rounded once: it has no row. Where a rounding does much, or does not fit its values, experiments
    tell why: other parameters, each channel with its own, the mean error taken off, weights rounded anew.

    Parameters
    ----------
    model
        The float model.
    quantized
        What `octavo.quantize` made of it, changed since or not.
    batches
        Arrays or {input name: array}, as the model was calibrated on; first dimensions may be multiples of the model's. Ranges
        are judged on all of them.

    Returns
    -------
    tuple
        One RootCause for each rounding: parameters that do not fit first, then what a better quantization of the same width
        takes away, then the rest, each by gain or share.

    Raises
    ------
    QuantizationError
        `quantized` is none of this model, or TVM's virtual machine alone can run it.
    DataError
        A batch that does not fit the model.
    """
    checked_model(model)
    if not isinstance(quantized, QuantizedModel) or quantized.plan.fingerprint != model.fingerprint:
        raise QuantizationError("give the float model, and what octavo.quantize made of this very model")
    return tuple(table(model, quantized, split_batches(input_specs(model), batches)))


def table(model: Model, quantized: QuantizedModel, samples: Samples, programs: Programs | None = None) -> list[RootCause]:
    """Return the rows of `root_causes` on samples of the model.

    Parameters
    ----------
    programs
        Of the model, where some are known.
    """
    programs = programs or Programs.of_model(model, quantized.plan)
    simple, plan = programs.equalized(plan_of(quantized))
    try:
        referee = Referee(programs.rounded(simple, plan), samples, few=_SAMPLES)
    except NotImplementedError:
        raise QuantizationError(
            "the model has steps that only TVM's virtual machine can run: layer_errors looks at such"
        ) from None
    return _rows(model, Experiments(referee, simple, plan))


def plan_of(quantized: QuantizedModel) -> QuantizationPlan:
    """Return a plan with the parameters and integers that a module in QDQ form really has, which may be others."""
    plan = quantized.plan
    activations, weights, biases = dict(plan.activations), dict(plan.weights), dict(plan.biases)
    values = dict(plan.weight_values)
    view = DataflowView(quantized.module["main"])
    for binding in view.bindings:
        made, read = call_to(binding.value, "quantize"), call_to(binding.value, "dequantize")
        if made is not None:
            name, params = TensorId(str(made.args[0].name)), params_of(made, dtype_of(binding.var))
            if params is not None and name in activations:
                activations[name] = params
        elif read is not None and TensorId(str(getattr(read.args[0], "name", ""))) in quantized.params:
            params = params_of(read, dtype_of(read.args[0]))
            if params is not None:
                name = TensorId(binding.var.name)
                known = name if name in weights else TensorId(name.removesuffix("_weight"))
                values[known] = quantized.params[TensorId(str(read.args[0].name))]
                for each in (weights, biases):  # their widths are the plan's: a module has dtypes alone
                    if known in each and np.size(each[known].scale) == np.size(params.scale):
                        each[known] = replace(each[known], scale=np.reshape(params.scale, np.shape(each[known].scale)))
    return replace(plan, activations=activations, weights=weights, biases=biases, weight_values=values)


def _rows(model: Model, experiments: Experiments) -> list[RootCause]:
    effects = experiments.effects()
    total = sum(effect for effect in effects.values() if math.isfinite(effect)) or 1.0
    rows: list[RootCause] = []
    for place, ((part, name), effect) in enumerate(sorted(effects.items(), key=lambda item: -item[1])):
        share = effect / total if math.isfinite(effect) else 1.0
        entry = model.tensors.get(name)
        source_name, op = ("", "") if entry is None else (entry.source_name, entry.op)
        row = RootCause(id=name, source_name=source_name, op=op, part=part, sqnr_db=in_db(effect), share=share)
        is_shown = effect and (place < _LOOKED_INTO or experiments.is_unfit(part, name))
        rows.append(experiments.explained(row, effect) if is_shown else row)

    def rank(row: RootCause) -> tuple[int, float]:
        # That a bias is better left as it was, samples alone tell: what certainly does not fit comes before it.
        if row.cause in FAULTS and not (row.part == "weights" and row.id in experiments.wrong_biases):
            return 0, -row.gain_db
        if row.cause in (*FAULTS, *MENDABLE) and row.gain_db >= _MIN_GAIN_DB:
            return 1, -row.gain_db
        return (3 if row.cause is None else 2), -row.share

    return sorted(rows, key=rank)
