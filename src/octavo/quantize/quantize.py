"""The stage: a float model and its profile become a model in QDQ form. Each step is its own module; this is their order."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import tvm

from ..errors import QuantizationError
from ..graph.dataflow import DataflowView, op_name
from ..graph.lineage import announce, one_step
from ..graph.model import Model, check_fingerprint
from ..graph.rules import Claims
from ..graph.tracking import Announced
from ..identity import TensorId
from ..target import CPU, TargetDescription
from .constraints import TensorConstraints
from .parameters import ParameterChooser, Parameters, Statistics
from .placement import Exclusion, Placer, rejected_layers, split_enclosed
from .plan import Adjustment, QuantizationPlan, QuantizedModel
from .qdq import QdqWriter
from .ranges import RangeSources
from .recipe import Recipe
from .refusals import Refusals
from .simplify import simplify
from .weights.constants import Constants
from .weights.weight_params import WeightParameters

ClaimsOf = Callable[[tvm.IRModule], Claims]
"""Says what is one integer op of a QDQ module with bound constants, as compiling finds it later."""


def quantize(
    model: Model,
    profile: Statistics,
    *,
    target: TargetDescription = CPU,
    targets: Sequence[TargetDescription] = (),
    recipe: Recipe | None = None,
    claims_of: ClaimsOf | None = None,
) -> QuantizedModel:
    """Quantize a float model.

    Parameters
    ----------
    model
        As it was imported.
    profile
        Of this model.
    target
        What the hardware can do; decides which ops become integer.
    targets
        Where several share the model, `target` being all of them: each op goes to the first that takes it, and obeys that one.
    recipe
        The user's wishes; Recipe() by default.
    claims_of
        The target's integer ops. What they don't take gets no Q and DQ; without it, the target's description alone decides.

    Returns
    -------
    QuantizedModel
        In QDQ form (see qdq.py), with its plan and a fingerprint of its own.

    Raises
    ------
    ProfileError
        If the profile belongs to another model.
    QuantizationError
        If the model is quantized already, or the recipe excludes what the model doesn't have.
    """
    with one_step():
        quantized = _quantized(model, profile, target, tuple(targets) or (target,), recipe or Recipe(), claims_of)
    announce("octavo.quantize", quantized.bound, {}, _announced(quantized))
    return quantized


def _quantized(
    model: Model,
    profile: Statistics,
    target: TargetDescription,
    targets: tuple[TargetDescription, ...],
    recipe: Recipe,
    claims_of: ClaimsOf | None,
) -> QuantizedModel:
    simple, folds = simplify(model)
    if isinstance(model, QuantizedModel) or _is_quantized(simple):
        raise QuantizationError("the model is quantized already; compile it as it is, or quantize the float model it came from")
    check_fingerprint(model, profile.fingerprint)
    view = DataflowView(simple.module["main"])
    constants = Constants(view, simple.params)
    recipe = recipe.resolved(_names(simple))
    exclusion = Exclusion(recipe.exclude, simple.tensors, folds, view)
    sources = RangeSources(view, profile)
    refusals = Refusals(last=targets[-1].name)
    while True:
        weights = WeightParameters(constants=constants, params=simple.params, recipe=recipe)
        constraints = TensorConstraints(target=target, recipe=recipe)
        chooser = ParameterChooser(
            params=simple.params, statistics=profile, recipe=recipe, target=target, sources=sources, weights=weights
        )
        placement = Placer(
            view=view,
            constants=constants,
            tensors=simple.tensors,
            exclusion=exclusion,
            targets=targets,
            recipe=recipe,
            preferred=constraints.preferred,
            has_range=chooser.has_range,
            refuse=partial(refusals.refuse, weights, constraints),
            declined=refusals.declined,
        ).place()
        if refusals.take_changes():
            continue
        parameters = chooser.choose(placement)
        if refusals.reject(placement, parameters.rejected):
            continue
        emitted = QdqWriter(model=simple, target=target, view=view, placement=placement, parameters=parameters).write()
        claims = None if claims_of is None else claims_of(emitted.model.bound())
        again = {} if claims is None else rejected_layers(placement, claims)
        if not refusals.reject(placement, again):
            break
    float_ops, enclosed = split_enclosed(placement.float_ops, claims)
    plan = QuantizationPlan(
        activations={TensorId(var.name): params for var, params in parameters.activations.items()},
        weights=parameters.weights,
        biases=emitted.biases,
        weight_values={**parameters.weight_values, **emitted.bias_values},
        layers=emitted.layers,
        float_ops=float_ops,
        enclosed=enclosed,
        folds=folds,
        adjustments=(*parameters.adjustments, *_unused(recipe, parameters)),
    )
    return QuantizedModel.of(replace(emitted.model, fingerprint=_fingerprint(model, plan)), plan)


def _names(model: Model) -> dict[str, str]:
    """Map the names that tensors have in their source, and their ids, to the ids."""
    return {
        **{entry.source_name: str(name) for name, entry in model.tensors.items()},
        **{str(name): str(name) for name in model.tensors},
    }


def _unused(recipe: Recipe, parameters: Parameters) -> Iterator[Adjustment]:
    """Yield the tensors of a recipe that no integer op reads or makes."""
    used = {var.name for var in parameters.activations} | set(parameters.weights)
    for name in recipe.tensors:
        if name not in used:
            message = "the recipe says what it must be, and no integer op reads or makes it: see why its ops stay float"
            yield Adjustment(tensor=TensorId(name), message=message)


def _announced(quantized: QuantizedModel) -> Announced:
    """Return what holds each tensor: the variable of its name, whose values are those of integers now."""
    view = DataflowView(quantized.module["main"])
    names = {var.name for var in (*view.function.params, *(binding.var for binding in view.bindings))}
    gone = {str(fold.gone): f"{fold.op} is folded: {fold.tensor} is computed without it" for fold in quantized.plan.folds}
    holders = {str(tensor): str(tensor) for tensor in quantized.tensors if tensor in names and tensor not in gone}
    return Announced(holders=holders, fused_into={}, gone=gone)


def _is_quantized(model: Model) -> bool:
    view = DataflowView(model.module["main"])
    return any(op_name(binding.value) in ("quantize", "dequantize") for binding in view.bindings)


def _fingerprint(model: Model, plan: QuantizationPlan) -> str:
    """Return the fingerprint of a quantized model: of the float model, the parameters, and which ops they make integer."""
    content = {
        "model": model.fingerprint,
        "activations": {str(key): value.to_json() for key, value in plan.activations.items()},
        "weights": {str(key): value.to_json() for key, value in plan.weights.items()},
        "biases": {str(key): value.to_json() for key, value in plan.biases.items()},
        "layers": [str(layer) for layer in plan.layers],
    }
    return f"sha256:{hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()}"
