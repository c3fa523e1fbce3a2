"""Quantizing for TFLite: a recipe is held to what LiteRT's kernels compute before anything is chosen. It writes no file.

So all that quantizing optimises, ranges, rounding, biases, is within their bounds, and nothing is clipped afterwards.
"""

from __future__ import annotations

from dataclasses import replace

import tflite

from ...errors import QuantizationError
from ...frontends.tflite.source import TfliteOp, TfliteSource
from ...ir.graph import Model
from ...ir.identity import TensorId
from ...profiling import Profile
from ...quantizer.plan.plan import QuantizationPlan, QuantizedModel
from ...quantizer.quantize import quantize as quantize_model
from ...quantizer.recipe import Override, Preset, Recipe
from ...quantizer.request import ParamsOf
from ...target import TargetDescription
from ...target.tflite import TFLITE_INT8, TFLITE_INT16
from ...target.vocabulary import HALF_EVEN, HALF_UP
from .decisions import Decisions, source_of
from .kernels import KERNELS, WEIGHTED


def quantize(
    model: Model,
    profile: Profile | None = None,
    *,
    recipe: Recipe | None = None,
    params: ParamsOf | None = None,
    plan: QuantizationPlan | str | None = None,
    preset: Preset = "balanced",
) -> QuantizedModel:
    """Quantize a model from a float .tflite file as LiteRT's integer kernels compute it.

    Activations are int8, or int16 where the recipe's `activation_dtype` says so; weights int8. Parameters are those of
    `octavo.quantize`. An op without integer kernel in LiteRT stays float.

    Raises
    ------
    QuantizationError
        A model that is not from a .tflite file, or quantized already; uint8 activations.
    ProfileError
        A profile of another model, or none where there is no plan.
    """
    source_of(model)
    wanted = recipe or Recipe()
    if wanted.activation_dtype not in (None, "int8", "int16"):
        raise QuantizationError(f"TFLite's activations are int8 or int16, the recipe asks for {wanted.activation_dtype}")
    if plan is not None:
        known = plan if isinstance(plan, QuantizationPlan) else QuantizationPlan.load(plan)
        target = target_of(known.recipe)
        return quantize_model(model, profile, target=target, plan=known, recipe=recipe, params=params, preset=preset)
    target = target_of(wanted)
    limited = restricted(model, wanted)
    quantized = quantize_model(model, profile, target=target, recipe=limited, params=params, preset=preset)
    if unequal_clamps(quantized):
        limited = replace(limited, equalization="none")
        quantized = quantize_model(model, profile, target=target, recipe=limited, params=params, preset=preset)
    rounded = _with_roundings(quantized)
    return quantized if rounded is None else quantize_model(model, target=target, plan=rounded)


def is_of_tflite(plan: QuantizationPlan) -> bool:
    """Return whether a plan was made for LiteRT's kernels, by `quantize`."""
    named = {layer.target for layer in plan.layers}
    return bool(named) and named <= {TFLITE_INT8.name, TFLITE_INT16.name}


def _with_roundings(quantized: QuantizedModel) -> QuantizationPlan | None:
    """Return the plan with the roundings of single functions, which no description knows by name; None where it has them."""
    source, plan = source_of(quantized), quantized.plan
    names = [source.ids[index] for op in source.graph.ops if op.name == "LEAKY_RELU" for index in op.outputs]
    found = {name: HALF_UP for name in names if plan.roundings.get(name) == HALF_EVEN}
    return replace(plan, roundings={**plan.roundings, **found}) if found else None


def target_of(recipe: Recipe) -> TargetDescription:
    """Return the description of LiteRT's kernels for the activations that a recipe asks for."""
    return TFLITE_INT16 if recipe.activation_dtype == "int16" else TFLITE_INT8


def restricted(model: Model, recipe: Recipe) -> Recipe:
    """Return the recipe, less what LiteRT has no integer kernel for, and with the scales that its kernels fix."""
    source, dtype = source_of(model), recipe.activation_dtype or "int8"
    excluded, tensors = list(recipe.exclude), dict(recipe.tensors)
    overrides: dict[str, Override] = {}
    for op in source.graph.ops:
        entries = [model.tensors[source.ids[index]] for index in op.outputs]
        # DEQUANTIZE of weights that a file keeps in 16 bits is none of the module.
        names = [entry.id for entry in entries if entry.in_module and entry.kind != "constant"]
        kernel = KERNELS.get(op.name)
        if kernel is None or dtype not in kernel.versions or _multiplies_computed(model, source, op):
            excluded += [name for name in names if name not in model.input_ids]
            continue
        fixed = kernel.fixed_output(dtype)
        if fixed is not None:
            for name in names:
                tensors.setdefault(str(name), fixed)
        if op.name == "BATCH_MATMUL":
            overrides |= {str(name): Override(weight_granularity="per_tensor") for name in names}
    overrides |= recipe.overrides
    equalization = "factors" if recipe.equalization == "auto" else recipe.equalization  # files name the source's own tensors
    return replace(recipe, exclude=tuple(excluded), tensors=tensors, overrides=overrides, equalization=equalization)


def _multiplies_computed(model: Model, source: TfliteSource, op: TfliteOp) -> bool:
    """Return whether an op has a weight that is computed of what is fed, with which the file has it in float."""
    if op.name not in WEIGHTED:
        return False
    entry = model.tensors[source.ids[op.inputs[WEIGHTED[op.name][1]]]]
    return entry.in_module and entry.kind != "constant"


def unequal_clamps(quantized: QuantizedModel) -> list[TensorId]:
    """Return the tensors whose channels were divided by factors before a clamp that the file says for all channels alike.

    Integers saturate below the bounds of all channels: there a ReLU is enough.
    """
    source, factors = source_of(quantized), quantized.plan.equalization.factors
    integer = Decisions.of(quantized).integer
    found: list[TensorId] = []
    for place, op in enumerate(source.graph.ops):
        activation = op.options.get("FusedActivationFunction", 0)
        is_clamp = activation in _CLAMPS or op.name in _CLAMP_OPS
        can_be_relu = place in integer and (activation == _RELU6 or op.name == "RELU6")
        if is_clamp and not can_be_relu:
            found += [source.ids[index] for index in op.outputs if source.ids[index] in factors]
    return found


_RELU6 = tflite.ActivationFunctionType.RELU6
_CLAMPS = (_RELU6, tflite.ActivationFunctionType.RELU_N1_TO_1)
_CLAMP_OPS = ("RELU6", "RELU_N1_TO_1", "RELU_0_TO_1")
