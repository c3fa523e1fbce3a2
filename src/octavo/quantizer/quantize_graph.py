"""A float model and statistics of its tensors become a model in QDQ form, in one step. How is tune.py's to say."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache

import numpy as np
from threadpoolctl import ThreadpoolController

from ..compiler.target_choice import ResolvedTarget, TargetLike, resolve_target
from ..ir.channels import find_rotatable
from ..ir.graph.dataflow import DataflowView
from ..ir.graph.lineage import announce, one_step
from ..ir.graph.model import Model
from ..ir.graph.tracking import Announced
from ..ir.identity.relation import Relation
from ..profiling import Profile
from ..runtime.heap import trim_heap
from .choices import Choices
from .placement import AppliedPlan
from .plan import QuantizationPlan, QuantizedModel
from .planner import Planner
from .programs import Programs
from .recipe import Recipe
from .request import ParamsOf
from .tune import confirmed, planned_plainly, planned_with


def quantize_graph(
    model: Model,
    profile: Profile | None = None,
    *,
    target: TargetLike | ResolvedTarget = None,
    recipe: Recipe | None = None,
    params: ParamsOf | None = None,
    changes: Choices | None = None,
) -> QuantizedModel:
    """Quantize a float model by a profile alone: nothing is run, and no step tried.

    Parameters
    ----------
    model, profile, recipe, params
        As `octavo.quantize` takes them.
    target
        As `octavo.quantize` takes it: what its integer ops don't take gets no Q and DQ. Where several share the model, each op
        goes to the first that takes it.
    changes
        Choices that are known from the start.

    Returns
    -------
    QuantizedModel
        In QDQ form (see qdq.py), with its plan and a fingerprint of its own.
    """
    with quantizing():
        planner = planner_of(model, profile, target, recipe or Recipe())
        quantized = confirmed(planner, planned_plainly(planner, None, params, changes))
    return announced(planner, quantized)


def apply_plan(model: Model, plan: QuantizationPlan, *, target: TargetLike | ResolvedTarget = None) -> QuantizedModel:
    """Return a float model quantized as a plan says: the same plan, the same bytes; see `octavo.quantize`."""
    with quantizing():
        planner = planner_of(model, None, target, plan.recipe, plan)
        quantized = confirmed(planner, planned_with(planner, planner.first_choices))
    return announced(planner, replace(quantized, plan=replace(quantized.plan, journal=plan.journal)))


@contextmanager
def quantizing() -> Generator[None, None, None]:
    """Let BLAS use one thread, for it rounds sums by their number: any number of Octavo's own threads gives the same bytes."""
    with one_step(), _blas().limit(limits=1, user_api="blas"):
        yield


@cache
def _blas() -> ThreadpoolController:
    """Return what controls the libraries that NumPy loaded: to look through all of a process, with its kernels, takes 2 ms."""
    return ThreadpoolController()


def planner_of(
    model: Model,
    profile: Profile | None,
    target: TargetLike | ResolvedTarget,
    recipe: Recipe,
    plan: QuantizationPlan | None = None,
    programs: Programs | None = None,
) -> Planner:
    """Return what makes quantized models of a float one, which programs may have simplified, by its profile, or by a plan."""
    programs = Programs.of_model(model, plan) if programs is None else programs
    trim_heap(model.constant_bytes)
    chosen = resolve_target(target)
    applied = None if plan is None else AppliedPlan(plan=plan)
    return Planner(
        model=model, simple=programs.simple, folds=programs.folds, profile=profile, chosen=chosen, recipe=recipe, applied=applied
    )


def announced(planner: Planner, quantized: QuantizedModel) -> QuantizedModel:
    """Return the model once it is announced what holds each tensor: the variable of its name, of integers now."""
    names = {*DataflowView(quantized.module["main"]).names}
    folds = quantized.plan.folds
    gone = {
        str(each.gone): f"{each.op} is folded: {each.tensor} is computed without it" for each in folds if each.op != "squeeze"
    }
    if rotations := quantized.plan.equalization.rotations:
        shifted = find_rotatable(planner.simple).without_shifts(rotations)
        gone |= {str(tensor): "what a norm before it adds to it is in its bias" for tensor in shifted}
        gone |= {str(tensor): "its channels are rotated" for tensor in rotations}
    relations: dict[str, Relation] = {}
    for tensor, factors in quantized.plan.equalization.factors.items():
        axes = [axis for axis, size in enumerate(factors.shape) if size > 1]
        if str(tensor) in gone:
            continue
        if len(axes) > 1:
            gone[str(tensor)] = f"it is divided by factors along the axes {axes}"
        else:
            inverse = 1 / factors.reshape(-1).astype(np.float64)
            relations[str(tensor)] = Relation(axis=axes[0] if axes else None, factors=inverse)
    holders = {str(tensor): str(tensor) for tensor in quantized.tensors if tensor in names and tensor not in gone}
    of_rows = {str(each.gone): str(each.tensor) for each in folds if each.op == "squeeze" and each.tensor in names}
    holders |= {rows: image for rows, image in of_rows.items() if rows not in gone}
    relations |= {rows: relations[image] for rows, image in of_rows.items() if image in relations}
    found = Announced(holders=holders, fused_into={}, gone=gone, relations=relations)
    announce("octavo.quantize", quantized.bound, {}, found)
    return quantized
