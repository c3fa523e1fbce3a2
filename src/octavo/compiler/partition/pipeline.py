"""From a model to composites, and on to calls of kernels: the passes of partition in their order, then the back ends.

`PASSES` is the one place that says the order, and why; `octavo passes` prints it. No pass knows a back end.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import tvm

from ...errors import CompileError
from ...ir.composites.attributes import HOST
from ...ir.graph import Model
from ...ir.graph.computed_indices import last_rows
from ...ir.graph.dataflow import DataflowView, dtype_of, last_view_kept, op_name, static_shape, view_of_main
from ...ir.graph.lineage import is_listening
from ...ir.graph.model import checked_model, with_model
from ...ir.graph.needed_sizes import needed_sizes
from ...ir.graph.partition_state import is_partitioned
from ...ir.graph.passes import GraphPass, run_as_pass, run_passes
from ...ir.graph.rules import Claims, Partition
from ...ir.graph.sizes import sizes_of
from ...ir.graph.split_to_slices import split_to_slices
from ...ir.qdq.tensor_ids import tensors_of_variables
from ...ir.simplify.sink_squeeze import sink_squeeze
from ...runtime.shapes import typical
from ...runtime.size import Size, is_surely
from ...target import TargetDescription
from ...target.precision import Precision
from ..backends.cpu.kernels import NO_SCHEDULES, Schedules
from ..backends.cpu.kernels.language.vectors import without_bodies
from ..backends.cpu.link import link
from ..backends.cpu.lowering import Lowered, lower_composites
from ..backends.op_records import OpRecord
from ..backends.protocol import Backend
from ..explanation import names_before_quantizing
from ..target_choice import TargetLike, resolve_target
from .add_masks import add_masks
from .attach_state import attach_state
from .carry_strides import carry_strides
from .context import PartitionContext
from .decompose_batch_norm import decompose_batch_norm
from .downcast import downcast
from .fuse_norms import fuse_norms
from .hoist_quantize import hoist_quantize
from .outline_boundary import outline_boundary
from .outline_float import outline_float
from .outline_integer import claim_integer, outline_integer
from .separate_topk import separate_topk
from .share_matrices import share_matrices
from .share_zero_points import share_zero_points
from .sink_dequantize import sink_dequantize
from .split_blocks import split_blocks

_SHRINK = (
    GraphPass(
        function=sink_squeeze,
        reason="before carry_strides and the outlines, which know what stands behind a convolution, and no squeeze between them",
    ),
    GraphPass(
        function=carry_strides,
        reason="before the others, for it knows the ops of the source, which later passes take apart or put casts around",
        uses_context=True,
    ),
)
_CANONICALIZE = (
    GraphPass(
        function=decompose_batch_norm,
        reason="before outline_integer, which has kernels for a product and a sum by channel and none for a normalization",
    ),
    GraphPass(
        function=fuse_norms,
        reason="before sink_dequantize, which would move into the steps, and the outlines, which know the one op",
    ),
    GraphPass(function=split_blocks, reason="before outline_integer, which rejects scales that vary within an output channel"),
    GraphPass(
        function=split_to_slices,
        reason="before downcast, sink_dequantize and the outlines, which know slices and no op with several results",
    ),
    GraphPass(function=separate_topk, reason="before outline_integer, which has kernels for values or places and none for both"),
    GraphPass(function=share_matrices, reason="before the outlines, which would make kernels of the copies"),
    GraphPass(
        function=downcast,
        reason="after carry_strides, so that only pixels that are read get casts; after split_to_slices: slices move 16 bits",
        uses_context=True,
    ),
    GraphPass(
        function=add_masks,
        reason="after downcast, which leaves what float32 kernels take; before the outlines, which know a softmax's addend",
    ),
    GraphPass(function=share_zero_points, reason="before outline_integer, which rejects zero points that differ by channel"),
    GraphPass(
        function=hoist_quantize,
        reason="before sink_dequantize, which leaves an op alone whose result is quantized right away: both are one kernel",
    ),
    GraphPass(
        function=sink_dequantize,
        reason="before outline_integer: an op between a dequantize and an op that reads integers is one of integers then",
    ),
)
_OUTLINE_INTEGER = GraphPass(
    function=outline_integer,
    reason="before the other outlines: an op that can run in integers does",
    uses_context=True,
)
_OUTLINE_FLOAT = GraphPass(function=outline_float, reason="after outline_integer, for what no integer op took", uses_context=True)
_OUTLINE_BOUNDARY = GraphPass(
    function=outline_boundary,
    reason="after the other outlines: a quantize or dequantize inside a composite costs nothing, the others get kernels",
    uses_context=True,
)
_ATTACH_STATE = GraphPass(function=attach_state, reason="last: it writes down what the others found out", uses_context=True)

PASSES = (*_SHRINK, *_CANONICALIZE, _OUTLINE_INTEGER, _OUTLINE_FLOAT, _OUTLINE_BOUNDARY, _ATTACH_STATE)
"""All passes of `partition_module`, in order."""


@last_view_kept()
def partition_module(
    module: tvm.IRModule,
    target: TargetDescription,
    ids: Collection[str] = (),
    precision: Precision | None = None,
    vendors: Sequence[TargetDescription] = (),
    simulated: Collection[str] = (),
    *,
    float_kernels: bool = True,
) -> tvm.IRModule:
    """Return the module with calls of composites in "main", complete in its attributes: it can be saved and lowered elsewhere.

    Parameters
    ----------
    module
        In QDQ form or float, its constants bound.
    ids
        TensorIds of the source model, by which composites name tensors.
    precision
        What a float module is downcast to; None leaves it as it is.
    vendors
        Targets that choose their ops before `target`, which is the host's.
    simulated
        The names of those vendors whose ops the host's kernels compute.
    float_kernels
        Whether the host has kernels of Octavo's for float ops, too; else they stay Relax ops, for TVM to compile, and observers
        of tensors alone are outlined.

    Raises
    ------
    CompileError
        No function "main"; `precision` for a module that is quantized.
    """
    check_main(module)
    source = view_of_main(module)
    context = PartitionContext(
        target=target,
        vendors=vendors,
        simulated=simulated,
        ids=ids,
        precision=precision,
        is_float=_is_float(source),
        source_tensors=tensors_of_variables(source, ids),
        float_kernels=float_kernels,
    )
    if precision is not None and not context.is_float:
        raise CompileError(f"precision {precision.dtype!r} is for float models, and this one is quantized; compile it without")
    return run_passes(PASSES, module, context)


@last_view_kept()
def integer_claims(module: tvm.IRModule, *targets: TargetDescription, vendors: Collection[str] = ()) -> Claims:
    """Return the integer ops that partition outlines, without outlining them; quantize and dequantize are none.

    Parameters
    ----------
    targets
        In the order in which they choose.
    vendors
        Names of those with code of their own: what that rounds, the host's kernels need not.
    """
    context = PartitionContext(target=targets[-1])
    with sizes_of(module["main"]):
        for each in _CANONICALIZE:
            module = each(module, context)
        return claim_integer(module, context, [(each, each.name if each.name in vendors else HOST) for each in targets])


@last_view_kept()
def integer_regions(module: tvm.IRModule, target: TargetDescription, ids: Collection[str] = ()) -> Partition:
    """Outline the integer regions alone, and say of each region what it holds and of each op that stays float why."""
    check_main(module)
    context = PartitionContext(target=target, ids=ids)
    module = run_passes((*_CANONICALIZE, _OUTLINE_INTEGER, _OUTLINE_BOUNDARY), module, context)
    return Partition(module=module, regions=context.regions, rejections=context.rejections)


def check_main(module: tvm.IRModule) -> None:
    """Raise CompileError unless the module has a function "main"."""
    if "main" not in {var.name_hint for var in module.get_global_vars()}:
        raise CompileError("the module has no function main")


def _is_float(view: DataflowView) -> bool:
    """Return whether nothing in a function is quantized."""
    values = [*view.function.params, *(binding.var for binding in view.bindings)]
    if any(dtype_of(value) in ("int8", "uint8", "int16", "uint16") for value in values):
        return False
    return not any(op_name(binding.value) in ("quantize", "dequantize") for binding in view.bindings)


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
    return replace(lowered[0], extents=_extents(module, lowered[0].module), counts=_counts(lowered[0]))


def _extents(source: tvm.IRModule, lowered: tvm.IRModule) -> tuple[Size, ...]:
    """Return, each once, what must be at least 1: sizes of tensors, how many rows a table has from the last picked one on, what
    ops need.
    """
    shapes = [static_shape(binding.var) or () for binding in DataflowView(lowered["main"]).bindings]
    sizes = [*(dim for shape in shapes for dim in shape), *(each.rows - each.last for each in last_rows(source))]
    negative = [size for size in sizes if isinstance(size, Size) and size.may_be_negative]
    return tuple(dict.fromkeys([*negative, *needed_sizes(source)]))


def _counts(lowered: Lowered) -> tuple[Size, ...]:
    """Return how many elements tensors of open sizes have, without those that are surely no more than others.

    States with room for more rows are a session's, which knows how many.
    """
    main, others = lowered.module["main"], {name for state in lowered.states for name in (state.capacity, state.in_place)}
    values = [*main.params, *(binding.var for binding in DataflowView(main).bindings)]
    counts = {math.prod(static_shape(each) or ()) for each in values}
    found = [count for count in counts if isinstance(count, Size) and count.names.isdisjoint(others)]
    most: list[Size] = []
    for count in sorted(found, key=lambda each: (-typical(each), str(each))):
        if not any(is_surely(other, count) for other in most):
            most.append(count)
    return tuple(most)


def op_records(
    module: tvm.IRModule,
    target: TargetDescription,
    isas: tuple[str, ...],
    ids: Collection[str],
    precision: Precision | None,
    backends: Sequence[Backend],
) -> tuple[OpRecord, ...]:
    """Return what `lower` says of each op. Kernels that nobody runs are left without bodies; a Lineage would run them."""
    with nullcontext() if is_listening() else without_bodies():
        return lower(module, target, isas, 1, ids, precision, backends=backends).records


def _choosers(backends: Sequence[Backend]) -> dict[str, Any]:
    """Return what partition is told of back ends: who chooses before the host, and for whom the host computes."""
    simulated = [backend.description.name for backend in backends if not backend.has_own_code]
    return {"vendors": [backend.description for backend in backends], "simulated": simulated}


def linked(lowered: Lowered, target: tvm.target.Target) -> tvm.IRModule:
    """Return a lowered module with its kernels in it."""
    return run_as_pass("link", lowered.module, lambda module: link(lowered, target))
