"""Plans and other tools' files of parameters: AIMET's encodings, TensorRT's calibration cache. In and out, by tensor names.

A file holds less than a plan: what it does not say of a tensor stays as the plan has it (narrow range, rounding, signed or
unsigned integers). It never replaces a plan's own file.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import QuantizationError
from ..ir.identity import TensorId
from ..numerics import QuantParams
from ..profiling.encodings import Malformed, aimet, tensorrt
from ..profiling.encodings.quant_params import encoded, encodings_of_cache, params_of
from ..quantizer.plan import QuantizationPlan
from ..runtime.atomic_write import read_text, write_atomically
from ..target.vocabulary import HALF_EVEN

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
    equalized = _equalized(plan)
    notes = [f"{key}: its channels are rotated or divided by factors, which has no place there" for key in equalized]
    plan = replace(
        plan,
        activations={key: value for key, value in plan.activations.items() if key not in equalized},
        weights={key: value for key, value in plan.weights.items() if key not in equalized},
    )
    try:
        text = _cache(plan, notes) if form == "tensorrt" else _aimet(plan, form.removeprefix("aimet-"), notes)
    except Malformed as error:
        raise QuantizationError(f"{path}: cannot write the encodings: {error}") from error
    write_atomically(path, text, QuantizationError, "the encodings")
    return tuple(notes)


def _equalized(plan: QuantizationPlan) -> dict[TensorId, None]:
    """Return the tensors of a plan that were rotated or scaled, and weights that have that in them."""
    changed = {*plan.equalization.factors, *plan.equalization.rotations}
    weights = [layer.weight for layer in plan.layers if not changed.isdisjoint((layer.output, *layer.inputs))]
    return dict.fromkeys([*(key for key in plan.activations if key in changed), *(each for each in weights if each is not None)])


def _aimet(plan: QuantizationPlan, version: str, notes: list[str]) -> str:
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
        if params.num_bits != tensorrt.BITS:
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
    text = read_text(path, QuantizationError, "the encodings")
    try:
        found = encodings_of_cache(text) if text.startswith("TRT-") else aimet.read_encodings(text)
    except Malformed as error:
        raise QuantizationError(f"{path}: no valid encodings: {error}; known are {', '.join(FORMATS)}, aimet-2.0.0") from error
    given, equalized = {**plan.activations, **plan.weights}, _equalized(plan)
    by_name = {**{str(key): key for key in given}, **{name: key for key, name in plan.names.items()}}
    unmatched = [f"{name}: {why}" for name, why in found.left_out.items()]
    params: dict[TensorId, QuantParams] = {}
    for name, entry in found.tensors.items():
        key = by_name.get(name)
        if key is None:
            unmatched.append(f"{name}: the plan gives no parameters to a tensor of this name")
            continue
        if key in equalized:
            unmatched.append(
                f"{name}: the plan has its channels rotated or divided; quantize with equalization and rotation 'none'"
            )
            continue
        read = params_of(entry, given[key], is_weight=key in plan.weights)
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
