"""Plans and other tools' files of parameters: AIMET's encodings, TensorRT's calibration cache. In and out, by tensor names.

A file holds less than a plan: what it does not say of a tensor stays as the plan has it (narrow range, rounding, signed or
unsigned integers). It never replaces a plan's own file.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ..errors import QuantizationError, check_path
from ..ir.identity import TensorId
from ..numerics import INTEGER_RANGE, PerAxis, PerTensor, QuantParams
from ..profiling.encodings import Encoded, Encodings, Malformed, aimet, tensorrt
from ..runtime.atomic_write import write_atomically
from ..target.vocabulary import ACTIVATION_DTYPES, HALF_EVEN
from .plan import QuantizationPlan
from .recipe import WEIGHT_BITS, bits_of

FORMATS = ("aimet-0.6.1", "aimet-1.0.0", "tensorrt")
"""Files that are written. They are read, too, and AIMET's version 2.0.0."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class EncodedPlan:
    """A plan with the parameters of a file.

    Parameters
    ----------
    plan
        To be handed to `octavo.quantize`, which checks that the target takes them.
    unmatched
        Tensors of the file whose parameters it has not taken, each with the reason.
    kept
        Tensors of the plan of which the file says nothing: they have the plan's parameters, or follow a tensor that they share
        them with.
    """

    plan: QuantizationPlan
    unmatched: tuple[str, ...]
    kept: tuple[TensorId, ...]


def write_encodings(plan: QuantizationPlan, path: str | Path, form: str) -> tuple[str, ...]:
    """Write the parameters of a plan's activations and weights as another tool keeps them, by their names in the source.

    Parameters
    ----------
    form
        One of FORMATS. TensorRT's holds symmetric int8 activations alone.

    Returns
    -------
    tuple[str, ...]
        What the file does not say, or says otherwise, of which tensor.

    Raises
    ------
    QuantizationError
        An unknown format, a file that cannot be written, or that cannot hold a name.
    """
    if form not in FORMATS:
        raise QuantizationError(f"encodings are written as one of {', '.join(FORMATS)}, got {form!r}")
    divided = _divided(plan)
    notes = [f"{key}: its channels are divided by factors, which have no place there" for key in divided]
    plan = replace(
        plan,
        activations={key: value for key, value in plan.activations.items() if key not in divided},
        weights={key: value for key, value in plan.weights.items() if key not in divided},
    )
    try:
        text = _cache(plan, notes) if form == "tensorrt" else _aimet(plan, form.removeprefix("aimet-"), notes)
    except Malformed as error:
        raise QuantizationError(f"{path}: cannot write the encodings: {error}") from error
    write_atomically(path, text, QuantizationError, "the encodings")
    return tuple(notes)


def _divided(plan: QuantizationPlan) -> dict[TensorId, None]:
    """Return the tensors of a plan whose values are the source's divided by factors, and weights that have such in them."""
    factors = plan.equalization.factors
    weights = [layer.weight for layer in plan.layers if not factors.keys().isdisjoint((layer.output, *layer.inputs))]
    return dict.fromkeys([*(key for key in plan.activations if key in factors), *(each for each in weights if each is not None)])


def _aimet(plan: QuantizationPlan, version: str, notes: list[str]) -> str:
    def encoded(params: QuantParams) -> Encoded:
        bits = _bits(params.dtype)
        if params.dtype == "int8" and params.is_symmetric and params.qmin == -params.qmax:
            bits = bits_of(params)
        lowest = -(2 ** (bits - 1)) if params.dtype.startswith("int") else 0
        is_strict = params.is_symmetric and params.qmin == lowest + 1
        return Encoded(
            scales=tuple(np.atleast_1d(params.scale).astype(float).tolist()),
            offsets=tuple(int(lowest - point) + is_strict for point in np.atleast_1d(params.zero_point)),
            symmetric=params.is_symmetric and lowest < 0,
            per_channel=isinstance(params.granularity, PerAxis),
            bits=bits,
        )

    activations, weights = (
        {plan.names.get(key, str(key)): encoded(params) for key, params in group.items()}
        for group in (plan.activations, plan.weights)
    )
    roundings = sorted(set(plan.roundings.values()) - {HALF_EVEN})
    notes += [f"roundings have no field: {', '.join(roundings)}"] if roundings else []
    return aimet.write(activations, weights, version)


def _cache(plan: QuantizationPlan, notes: list[str]) -> str:
    amplitudes: dict[str, float] = {}
    for key, params in plan.activations.items():
        name, scale, point = plan.names.get(key, str(key)), float(params.scale), int(params.zero_point)
        if _bits(params.dtype) != tensorrt.BITS:
            notes.append(f"{key}: {params.dtype} has no scale there, which is one of int8")
            continue
        if params.dtype == "int8" and point == 0:
            amplitudes[name] = scale * tensorrt.STEPS
            continue
        amplitudes[name] = max(params.qmax - point, point - params.qmin) * scale
        notes.append(f"{key}: {params.dtype} with zero point {point} becomes symmetric int8 that covers its range")
    notes += [f"{len(plan.weights)} weights have no place there"] if plan.weights else []
    return tensorrt.write_cache(amplitudes)


def read_encodings(path: str | Path, plan: QuantizationPlan) -> EncodedPlan:
    """Return a plan with the scales and zero points that a file gives to its tensors, by their source names or TensorIds.

    Tensors that share parameters with one that the file names follow it. Integers stay signed or unsigned as the plan has them:
    the zero point of symmetric encodings, TensorRT's among them, is 0, or 128 of uint8.

    Raises
    ------
    QuantizationError
        No such file, none of the formats, or no tensor of the plan in it.
    """
    source = check_path(path, QuantizationError, "the path of AIMET's encodings or TensorRT's calibration cache")
    try:
        text = source.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror or str(error) if isinstance(error, OSError) else "it is not text"
        raise QuantizationError(f"{path}: cannot read the encodings: {reason}") from error
    try:
        found = _cached(text) if text.startswith("TRT-") else aimet.read_encodings(text)
    except Malformed as error:
        raise QuantizationError(f"{path}: no valid encodings: {error}; known are {', '.join(FORMATS)}, aimet-2.0.0") from error
    given, divided = {**plan.activations, **plan.weights}, _divided(plan)
    by_name = {**{str(key): key for key in given}, **{name: key for key, name in plan.names.items()}}
    unmatched = [f"{name}: {why}" for name, why in found.left_out.items()]
    params: dict[TensorId, QuantParams] = {}
    for name, entry in found.tensors.items():
        key = by_name.get(name)
        if key is None:
            unmatched.append(f"{name}: the plan gives no parameters to a tensor of this name")
            continue
        if key in divided:
            unmatched.append(f"{name}: the plan has its channels divided by factors; quantize with equalization 'none'")
            continue
        read = _params(entry, given[key], is_weight=key in plan.weights)
        if isinstance(read, str):
            unmatched.append(f"{name}: {read}")
        else:
            params[key] = read
    if not params:
        some = f": {unmatched[0]}" if unmatched else ""
        raise QuantizationError(
            f"{path}: none of its {len(found.tensors)} tensors is one of the plan's; is it of another model{some}?"
        )
    kept = tuple(key for key in given if key not in params)
    return EncodedPlan(plan=plan.with_params(params), unmatched=tuple(unmatched), kept=kept)


def _cached(text: str) -> Encodings:
    scales = {name: amplitude / tensorrt.STEPS for name, amplitude in tensorrt.read_cache(text).items()}
    signed = -(2 ** (tensorrt.BITS - 1))
    return Encodings(
        tensors={
            name: Encoded(scales=(scale,), offsets=(signed,), symmetric=True, per_channel=False)
            for name, scale in scales.items()
            if scale > 0
        },
        left_out={name: "its scale is 0" for name, scale in scales.items() if not scale > 0},
    )


def _params(entry: Encoded, now: QuantParams, *, is_weight: bool) -> QuantParams | str:
    """Return what an entry makes of a tensor's parameters, or why nothing."""
    is_axis = isinstance(now.granularity, PerAxis)
    if len(entry.scales) > 1 and (not is_axis or len(entry.scales) != now.scale.size):
        has = f"{now.scale.size} along axis {now.granularity.axis}" if isinstance(now.granularity, PerAxis) else "one"
        return f"it has {len(entry.scales)} scales there, the plan's tensor has {has}"
    is_few = is_weight and 2 <= entry.bits < _bits(now.dtype) == WEIGHT_BITS  # in the storage of 8
    dtype = now.dtype if is_few else f"{'u' if now.dtype.startswith('u') else ''}int{entry.bits}"
    if dtype not in ACTIVATION_DTYPES:
        return f"it has {entry.bits} bits, expected 8 or 16"
    lowest, highest = (-(2 ** (entry.bits - 1)), 2 ** (entry.bits - 1) - 1) if is_few else INTEGER_RANGE[dtype]
    # AIMET's strict symmetric encodings count from -127: the zero point is 0, and the least integer is left out.
    is_strict = entry.symmetric and lowest < 0 and set(entry.offsets) == {lowest + 1}
    points = np.array([0 if is_strict else lowest - offset for offset in entry.offsets], np.int64)
    if points.min() < lowest or points.max() > highest:
        return f"its offset {entry.offsets[0]} is a zero point beyond [{lowest}; {highest}] of {dtype}"
    is_narrow = not points.any() and (is_strict or now.qmin == -now.qmax)
    shape = now.scale.shape if len(entry.scales) == now.scale.size and (entry.per_channel or not is_axis) else ()
    return QuantParams(
        dtype=dtype,
        scale=np.array(entry.scales, np.float32).reshape(shape),
        zero_point=points.astype(np.int32).reshape(shape),
        granularity=now.granularity if shape else PerTensor(),
        qmin=lowest + 1 if is_weight and is_narrow else lowest,
        qmax=highest,
    )


def _bits(dtype: str) -> int:
    return int(dtype.removeprefix("u").removeprefix("int"))
