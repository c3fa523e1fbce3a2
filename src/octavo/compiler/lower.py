"""Lower: from a model to composites, and from composites to calls of kernels."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import tvm

from ..ir.graph import Model
from ..ir.graph.model import checked_model, with_model
from ..ir.graph.passes import run_as_pass
from ..target import TargetDescription
from ..target.precision import Precision
from .backends.cpu.kernels import NO_SCHEDULES, Schedules
from .backends.cpu.link import link
from .backends.cpu.lowering import Lowered, lower_composites
from .backends.protocol import Backend
from .explanation import names_before_quantizing
from .partition.pipeline import is_partitioned, partition_module
from .target_choice import TargetLike, resolve_target


def partition(model: Model, *, target: TargetLike = None) -> tvm.IRModule:
    """Outline what a target computes in kernels of its own: composites that are complete in their attributes.

    Each composite is a private function with attributes that a code generator reads (see `octavo.ir.composites.attributes`). The
    module is TVM's own: it can be saved, loaded and printed, and ``octavo.compile(octavo.load(module))`` gives the same bytes as
    compiling the model.

    Parameters
    ----------
    model
        In QDQ form or float.
    target
        As `compile` takes it.

    Raises
    ------
    TargetError
        An unknown target.
    """
    checked = checked_model(model)
    chosen = resolve_target(target)
    has_kernels = chosen.device is None
    parts = partition_module(
        checked.bound(), chosen.host, checked.tensors, **_choosers(chosen.backends), float_kernels=has_kernels
    )
    return with_model(parts, replace(checked, shown_names=tuple(names_before_quantizing(checked).items())))


def lower(
    module: tvm.IRModule,
    target: TargetDescription,
    isas: tuple[str, ...],
    threads: int,
    ids: Collection[str] = (),
    precision: Precision | None = None,
    schedules: Schedules = NO_SCHEDULES,
    backends: Sequence[Backend] = (),
) -> Lowered:
    """Partition a module whose constants are bound, where it is not yet, and lower its composites to kernel calls.

    `ids` are the source model's TensorIds; `backends` choose their ops before `target`, the host's; see `partition_module` and
    `lower_composites` for the rest.
    """
    parts = module if is_partitioned(module) else partition_module(module, target, ids, precision, **_choosers(backends))
    lowered: list[Lowered] = []

    def lower_parts(parts: tvm.IRModule) -> tvm.IRModule:
        lowered.append(lower_composites(parts, target, isas, threads, precision, schedules, backends))
        return lowered[0].module

    run_as_pass("lower", parts, lower_parts)
    return lowered[0]


def _choosers(backends: Sequence[Backend]) -> dict[str, Any]:
    """Return what partition is told of back ends: who chooses before the host, and for whom the host computes."""
    simulated = [backend.description.name for backend in backends if not backend.has_own_code]
    return {"vendors": [backend.description for backend in backends], "simulated": simulated}


def linked(lowered: Lowered, target: tvm.target.Target) -> tvm.IRModule:
    """Return a lowered module with its kernels in it."""
    return run_as_pass("link", lowered.module, lambda module: link(lowered, target))
