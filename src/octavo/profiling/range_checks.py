"""Running with checks on: which tensors of a network leave the range that calibration gave them, and how much of them saturates.

The network runs on samples with an observer in front of every quantization, which sees the numbers as they are before they
saturate; between two quantizations it computes in float what the integer kernels stand for. So a check costs a float profile's
time, and what ships is not touched. How observers work is `profile`'s business.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from tvm.relax import Var

from ..errors import ProfileError, check_type
from ..ir.graph import Model
from ..ir.graph.dataflow import DataflowView, call_to, dtype_of, static_shape
from ..ir.graph.model import checked_model
from ..ir.identity import TensorEntry, TensorId, TensorTable
from ..ir.qdq.values import params_of
from ..numerics.statistics.histogram_estimates import share_outside
from . import TensorStatistics, check_model
from .model_profile import Profile
from .profile import profile

_RELU6 = 6.0
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, kw_only=True, slots=True)
class RangeCheck:
    """One tensor on the samples of a check.

    Parameters
    ----------
    id, source_name, op
        As in the model.
    low, high
        The range: what the quantization's integers stand for, or what the calibration saw.
    minimum, maximum
        Seen, exact; 0.0 where no value was finite.
    values
        Values seen.
    outside
        Share of them outside the range by more than rounding brings back (half a step of the quantization), in [0; 1]; within the
        histogram's bin that an end falls into, values are taken as evenly spread.
    non_finite
        Values that were NaN or infinite.
    """

    id: TensorId
    source_name: str
    op: str
    low: float
    high: float
    minimum: float
    maximum: float
    values: int
    outside: float
    non_finite: int

    @property
    def left(self) -> bool:
        """Whether any value was outside, or not finite."""
        return self.outside > 0 or self.non_finite > 0

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {**asdict(self), "left": self.left}


@dataclass(frozen=True, kw_only=True, slots=True)
class RangeChecks:
    """Every checked tensor, the one with most of it outside first."""

    samples: int
    tensors: tuple[RangeCheck, ...]

    @property
    def left(self) -> tuple[RangeCheck, ...]:
        """Tensors that left their range."""
        return tuple(tensor for tensor in self.tensors if tensor.left)


def check_ranges(
    model: Model,
    batches: Any,
    *,
    calibration: Profile | None = None,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> RangeChecks:
    """Run a model on samples and say which tensors leave their ranges.

    Parameters
    ----------
    model
        A quantized model, from `quantize`, an ONNX file in QDQ form or a TFLite file: the ranges are those of its quantizations;
        what an op's fused activation clamps is not outside. Or a float model, with `calibration`.
    batches, threads, progress
        As `profile` takes them.
    calibration
        Of a float model: the profile whose ranges are to hold.

    Raises
    ------
    ProfileError
        A float model without a calibration, or another model's calibration.
    DataError
        As `profile` raises it.
    """
    check_type(calibration, Profile | None, ProfileError, "a Profile to check against")
    if calibration is not None:
        check_model(calibration, checked_model(model))
        ranges = {
            key: _Range(tensor=model.tensors[key], low=value.minimum, high=value.maximum)
            for key, value in calibration.items()
            if value.kind != "constant" and value.finite
        }
    else:
        ranges = _quantized_ranges(checked_model(model))
    if not ranges:
        raise ProfileError(
            "no tensor of the model is quantized: give a quantized model (octavo.quantize, an ONNX file in QDQ form, a .tflite), "
            "or a float model and the profile it was calibrated with"
        )
    named = sorted(ranges)
    observed = profile(_with_entries(model, ranges), batches, tensors=named, threads=threads, progress=progress, keep_samples=0)
    checks = [_check(observed[key], found) for key, found in ranges.items() if key in observed]
    return RangeChecks(samples=observed.samples, tensors=tuple(sorted(checks, key=lambda check: -check.outside)))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Range:
    """The range of one tensor.

    Parameters
    ----------
    tensor
        Whose it is. Of a source that names the integers alone, the numbers in front of them are another variable.
    below, above
        How far beyond an end values may be: half a step of the quantization; infinity where the network itself clamps.
    """

    tensor: TensorEntry
    low: float
    high: float
    below: float = 0.0
    above: float = 0.0


def _quantized_ranges(model: Model) -> dict[TensorId, _Range]:
    """Return the range of each variable that a quantize op reads, if that or the op's result is a tensor of the source."""
    view = DataflowView(model.bound()["main"])
    ranges: dict[TensorId, _Range] = {}
    for binding in view.bindings:
        call: Any = call_to(binding.value, "quantize")
        if call is None:
            continue
        bound = view.binding_of(call.args[0])
        source = call.args[0] if bound is None else bound
        params = params_of(call, dtype_of(binding.var))
        key = TensorId(str(getattr(source, "name", "")))
        entry = model.tensors.get(key)
        if params is None or params.scale.size != 1 or (entry is not None and entry.kind == "constant"):
            continue
        scale, zero_point = float(params.scale.reshape(-1)[0]), int(params.zero_point.reshape(-1)[0])
        low, high = (params.qmin - zero_point) * scale, (params.qmax - zero_point) * scale
        if entry is not None:
            ranges[key] = _Range(tensor=entry, low=low, high=high, below=scale / 2, above=scale / 2)
            continue
        clamp_var, clamp = _integer_clamp(view, binding.var)
        entry = model.tensors.get(TensorId(str(clamp_var.name)))
        if entry is None or static_shape(source) is None:
            continue
        # TFLite fuses a RELU as a clamp of the integers at the one that stands for 0, and a RELU6 at 6, too.
        below = math.inf if clamp and clamp[0] == zero_point else scale / 2
        above = math.inf if clamp and (clamp[1] < params.qmax or abs(high - _RELU6) <= scale / 2) else scale / 2
        ranges[key] = _Range(tensor=entry, low=low, high=high, below=below, above=above)
    return ranges


def _integer_clamp(view: DataflowView, var: Var) -> tuple[Var, tuple[float, float] | None]:
    """Return the variable that holds `var` clamped, and the bounds; `var` itself and None where nothing clamps it."""
    user = view.only_user(var)
    call: Any = None if user is None else call_to(view.definition(user), "clip")
    bounds: list[Any] = [getattr(arg, "value", None) for arg in call.args[1:3]] if call is not None else [None]
    if user is None or None in bounds:
        return var, None
    return user, (float(bounds[0]), float(bounds[1]))


def _with_entries(model: Model, ranges: Mapping[TensorId, _Range]) -> Model:
    """Return the model with every variable to be observed among its tensors."""
    missing = {key: found.tensor for key, found in ranges.items() if key not in model.tensors}
    if not missing:
        return model
    variables = {str(var.name): var for var in (binding.var for binding in DataflowView(model.module["main"]).bindings)}
    entries = [
        replace(entry, id=key, shape=static_shape(variables[key]) or (), dtype=dtype_of(variables[key]), is_output=False)
        for key, entry in missing.items()
    ]
    return replace(model, tensors=TensorTable([*model.tensors.values(), *entries]))


def _check(observed: TensorStatistics, found: _Range) -> RangeCheck:
    low, high = (max(-_LARGEST, found.low - found.below), min(_LARGEST, found.high + found.above))
    return RangeCheck(
        id=found.tensor.id,
        source_name=found.tensor.source_name,
        op=found.tensor.op,
        low=found.low,
        high=found.high,
        minimum=observed.minimum,
        maximum=observed.maximum,
        values=observed.count,
        outside=share_outside(observed.histogram, observed.minimum, observed.maximum, low, high),
        non_finite=observed.non_finite,
    )
