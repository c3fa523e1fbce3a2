"""Running with checks on: which tensors of a network leave the range that calibration gave them, and how much of them saturates.

The network runs on samples with an observer in front of every quantization, which sees the numbers as they are before they
saturate; between two quantizations it computes in float what the integer kernels stand for. So a check costs a float profile's
time, and what ships is not touched. How observers work is `profile`'s business.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from .errors import ProfileError, check_type
from .graph import Model
from .graph.dataflow import DataflowView, call_to, dtype_of
from .identity import TensorId
from .lower.values import params_of
from .numerics.histogram_estimates import share_outside
from .pipeline import Profile, checked_model, profile
from .profile import TensorStatistics, check_model


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
        A quantized model, from `quantize` or an ONNX file in QDQ form: the ranges are those of its quantizations. Or a float
        model, with `calibration`.
    batches, threads, progress
        As `profile` takes them.
    calibration
        Of a float model: the profile whose ranges are to hold.

    Raises
    ------
    ProfileError
        A float model without a calibration, another model's calibration, or a model none of whose float tensors is quantized
        (TFLite's hold integers alone).
    DataError
        As `profile` raises it.
    """
    check_type(calibration, Profile | None, ProfileError, "a Profile to check against")
    if calibration is not None:
        check_model(calibration, checked_model(model))
        observed = {key: value for key, value in calibration.items() if value.kind != "constant" and value.finite}
        ranges = {key: (value.minimum, value.maximum, 0.0) for key, value in observed.items()}
    else:
        ranges = _quantized_ranges(checked_model(model))
    if not ranges:
        raise ProfileError(
            "no tensor of the model is quantized from float numbers: give a quantized model (octavo.quantize, or an ONNX file in "
            "QDQ form), or a float model and the profile it was calibrated with"
        )
    seen = profile(model, batches, tensors=sorted(ranges), threads=threads, progress=progress)
    checks = [_check(seen[key], ends) for key, ends in ranges.items() if key in seen]
    return RangeChecks(samples=seen.samples, tensors=tuple(sorted(checks, key=lambda check: -check.outside)))


def _quantized_ranges(model: Model) -> dict[TensorId, tuple[float, float, float]]:
    """Return low, high and half a step of each source tensor that a quantize op reads."""
    view = DataflowView(model.bound()["main"])
    ranges: dict[TensorId, tuple[float, float, float]] = {}
    for binding in view.bindings:
        call: Any = call_to(binding.value, "quantize")
        if call is None:
            continue
        bound = view.binding_of(call.args[0])
        source = call.args[0] if bound is None else bound
        params = params_of(call, dtype_of(binding.var))
        key = TensorId(str(getattr(source, "name", "")))
        entry = model.tensors.get(key)
        if params is None or params.scale.size != 1 or entry is None or entry.kind == "constant":
            continue
        scale, zero_point = float(params.scale.reshape(-1)[0]), int(params.zero_point.reshape(-1)[0])
        ranges[key] = ((params.qmin - zero_point) * scale, (params.qmax - zero_point) * scale, scale / 2)
    return ranges


def _check(seen: TensorStatistics, ends: tuple[float, float, float]) -> RangeCheck:
    low, high, slack = ends
    return RangeCheck(
        id=seen.id,
        source_name=seen.source_name,
        op=seen.op,
        low=low,
        high=high,
        minimum=seen.minimum,
        maximum=seen.maximum,
        values=seen.count,
        outside=share_outside(seen.histogram, seen.minimum, seen.maximum, low - slack, high + slack),
        non_finite=seen.non_finite,
    )
