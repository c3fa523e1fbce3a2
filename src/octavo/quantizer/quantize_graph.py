"""A float model and statistics of its tensors become a model in QDQ form, by the best of estimators. How is job.py's to say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count

import numpy as np
from threadpoolctl import threadpool_limits

from ..compiler.target_choice import ResolvedTarget
from ..ir.graph.dataflow import DataflowView
from ..ir.graph.lineage import announce, one_step
from ..ir.graph.model import Model
from ..ir.graph.tracking import Announced
from ..ir.identity.relation import Relation
from ..target import CPU, TargetDescription
from .applied_plan import AppliedPlan
from .job import Job
from .parameters import Statistics
from .plan import QuantizationPlan, QuantizedModel
from .recipe import AUTO, Recipe
from .remedies import Remedies
from .sample_runs import SampleRuns
from .tensor_choice import ParamsOf


def quantize_graph(
    model: Model,
    profile: Statistics | None = None,
    *,
    target: TargetDescription | ResolvedTarget = CPU,
    recipe: Recipe | None = None,
    params: ParamsOf | None = None,
    plan: QuantizationPlan | None = None,
    changes: Remedies | None = None,
    runs: SampleRuns | None = None,
    chooses_ranges: bool = True,
) -> QuantizedModel:
    """Quantize a float model, by statistics of its tensors or by a plan.

    Parameters
    ----------
    model
        As it was imported.
    profile
        Of this model: a Profile, or statistics from elsewhere.
    target
        What the hardware can do; decides which ops become integer. Of a resolved one what its integer ops don't take gets no Q
        and DQ; a description alone is taken at its word. Where several share the model, each op goes to the first that takes it.
    recipe
        The user's wishes; Recipe() by default.
    params
        Asked for each tensor's parameters once all are chosen; what it returns is obeyed like `Recipe.tensors`.
    plan
        Layers, parameters and roundings that are taken as they are, in place of profile, recipe and params.
    changes
        Remedies that are known from the start. Of a plan ops stay integer where that still pays beside what they leave float.
    runs
        Of the model on samples: what they tell corrects weights, biases and ranges. Without it none are corrected.
    chooses_ranges
        Whether a recipe that leaves the choice of the range estimator open has several tried on the samples.

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

    if isinstance(target, TargetDescription):
        description, targets, vendors = target, (target,), None
    else:
        description, targets = target.description, target.described or (target.description,)
        vendors = tuple(backend.description.name for backend in target.backends if backend.has_own_code)

    def made(wanted: Recipe, tunes: bool) -> QuantizedModel:
        for attempt in count():
            job = Job(
                model=model,
                profile=profile,
                target=description,
                targets=targets,
                recipe=wanted,
                vendors=vendors,
                runs=runs,
                replay=None if plan is None else AppliedPlan(plan=plan, lets_go=changes is not None and changes.changes_layers),
                tunes=tunes,
                attempt=attempt,
            )
            job.remedies = job.remedies.with_more(changes or Remedies())
            quantized = job.finished(params)
            if job.holds():
                return quantized
        raise AssertionError("an equalization without factors holds")

    given = recipe or Recipe()
    # BLAS rounds sums by its number of threads: with one, any number gives the same bytes. Corrections have their own threads.
    with one_step(), threadpool_limits(1, "blas"):
        is_choice = given.range_estimator == AUTO and runs is not None and plan is None and chooses_ranges
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


Make = Callable[[Recipe, bool], QuantizedModel]
"""Quantizes by a recipe; the flag says whether single ranges are chosen by simulation, too."""

_CANDIDATES = (
    ("min_max", False),
    ("min_max", True),
    ("mean", False),
    ("mean", True),
    ("mse", False),
    ("percentile:99.99", False),
)
"""Estimators, and whether what they give is tuned: first those that clip less; the first is the default."""
_TUNED = "{}, tuned"


def with_best_ranges(recipe: Recipe, make: Make) -> QuantizedModel:
    """Return the model quantized with the ranges that leave the least error on the samples that the profile keeps.

    Ranges and weights were fitted to these samples, and what is clipped costs others more: of those that are no more than one
    standard error from the best the first is taken (Breiman et al., Classification and Regression Trees, 1984, section 3.4.3).
    Its plan names the estimator, and its corrections the signal to noise ratio of each that was tried.
    """
    found = {
        _TUNED.format(name) if tunes else name: make(replace(recipe, range_estimator=name), tunes) for name, tunes in _CANDIDATES
    }
    measured = {name: each.plan.corrections.nearness for name, each in found.items()}
    best = max(measured.values(), key=lambda each: each.sqnr_db)
    chosen = found[next(name for name, each in measured.items() if not best.is_surely_nearer(each))]
    tried = {name: each.sqnr_db for name, each in measured.items()}
    return replace(chosen, plan=replace(chosen.plan, corrections=replace(chosen.plan.corrections, tried=tried)))
