"""The stage: a float model and its profile become a model in QDQ form. How is job.py's to say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

import numpy as np
from threadpoolctl import threadpool_limits

from ..graph.dataflow import DataflowView
from ..graph.lineage import announce, one_step
from ..graph.model import Model
from ..graph.tracking import Announced
from ..identity.relation import Relation
from ..target import CPU, TargetDescription
from .choice import ParamsOf
from .experiments import Corrector, Equalize, Experiments, FindCostliest, FindFunctions, FindRemedies
from .job import ClaimsOf, Job
from .parameters import Statistics
from .plan import QuantizationPlan, QuantizedModel
from .range_choice import with_best_ranges
from .recipe import AUTO, Recipe
from .remedies import Remedies
from .replay import Replay


def quantize(
    model: Model,
    profile: Statistics | None = None,
    *,
    target: TargetDescription = CPU,
    targets: Sequence[TargetDescription] = (),
    recipe: Recipe | None = None,
    params: ParamsOf | None = None,
    plan: QuantizationPlan | None = None,
    changes: Remedies | None = None,
    claims_of: ClaimsOf | None = None,
    equalize: Equalize | None = None,
    corrector_of: Callable[[Model], Corrector] | None = None,
    find_remedies: FindRemedies | None = None,
    find_costliest: FindCostliest | None = None,
    find_functions: FindFunctions | None = None,
) -> QuantizedModel:
    """Quantize a float model, by a profile or by a plan.

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
    params
        Asked for each tensor's parameters once all are chosen; what it returns is obeyed like `Recipe.tensors`.
    plan
        Layers, parameters and roundings that are taken as they are, in place of profile, recipe and params.
    changes
        Remedies that are known from the start. Of a plan ops stay integer where that still pays beside what they leave float.
    claims_of
        The target's integer ops. What they don't take gets no Q and DQ; without it, the target's description alone decides.
    equalize
        Says how channels are evened out before anything is quantized; without it none are.
    corrector_of
        Given the float model that was simplified, returns what runs quantized models of it; without it nothing is corrected.
    find_remedies
        Says what to change where a corrected model misses the recipe's `min_sqnr`; without it nothing is.
    find_costliest
        Says which activations the recipe's `wide_activations` are; without it none are.
    find_functions
        Says which functions the kernels of products compute of their own float sums; without it those that a target has no other
        integer kernel for.

    Returns
    -------
    QuantizedModel
        In QDQ form (see qdq.py), with its plan and a fingerprint of its own.

    Raises
    ------
    ProfileError
        If the profile belongs to another model.
    QuantizationError
        If the model is quantized already, the recipe excludes what the model doesn't have, or the plan is of another model or
        asks for what the target cannot take.
    """

    def made(wanted: Recipe, tunes: bool) -> QuantizedModel:
        for attempt in count():
            job = Job(
                model=model,
                profile=profile,
                target=target,
                targets=tuple(targets) or (target,),
                recipe=wanted,
                claims_of=claims_of,
                replay=None if plan is None else Replay(plan=plan, lets_go=changes is not None and changes.changes_layers),
                tunes=tunes,
                attempt=attempt,
            )
            job.remedies = job.remedies.with_more(changes or Remedies())
            quantized = job.finished(params, run)
            if job.holds(run):
                return quantized
        raise AssertionError("an equalization without factors holds")

    given = recipe or Recipe()
    run = Experiments(
        equalize=equalize,
        find_costliest=find_costliest,
        corrector_of=corrector_of,
        find_functions=find_functions,
        find_remedies=find_remedies,
    )
    # BLAS rounds sums by its number of threads: with one, any number gives the same bytes. Corrections have their own threads.
    with one_step(), threadpool_limits(1, "blas"):
        is_choice = given.range_estimator == AUTO and corrector_of is not None and plan is None
        quantized = with_best_ranges(given, made) if is_choice else made(given, False)
    announce("octavo.quantize", quantized.bound, {}, _announced(quantized))
    return quantized


def _announced(quantized: QuantizedModel) -> Announced:
    """Return what holds each tensor: the variable of its name, whose values are those of integers now."""
    view = DataflowView(quantized.module["main"])
    names = {var.name for var in (*view.function.params, *(binding.var for binding in view.bindings))}
    gone = {str(fold.gone): f"{fold.op} is folded: {fold.tensor} is computed without it" for fold in quantized.plan.folds}
    holders = {str(tensor): str(tensor) for tensor in quantized.tensors if tensor in names and tensor not in gone}
    relations: dict[str, Relation] = {}
    for tensor, factors in quantized.plan.equalization.factors.items():
        axes = [axis for axis, size in enumerate(factors.shape) if size > 1]
        if len(axes) > 1:
            gone[str(tensor)] = f"it is divided by factors along the axes {axes}"
        else:
            inverse = 1 / factors.reshape(-1).astype(np.float64)
            relations[str(tensor)] = Relation(axis=axes[0] if axes else None, factors=inverse)
    holders = {tensor: var for tensor, var in holders.items() if tensor not in gone}
    return Announced(holders=holders, fused_into={}, gone=gone, relations=relations)
