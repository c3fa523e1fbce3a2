"""The passes of partition in their order: from a QDQ module to one whose "main" calls composites. Knows no back end."""

from __future__ import annotations

from collections.abc import Collection

import tvm

from ..errors import CompileError
from ..graph.dataflow import DataflowView, dtype_of, op_name
from ..graph.rules import Partition
from ..graph.split import split_to_slices
from ..qdq.tensor_ids import tensors_of_variables
from ..target import TargetDescription
from ..target.precision import Precision
from .carry_stride import Carried, carry_strides
from .partition import partition_quantized
from .precision import Downcast, downcast
from .state import PartitionState, is_partitioned

__all__ = ["FLOAT_MODEL", "check_main", "integer_regions", "is_float", "is_partitioned", "partition_module"]

FLOAT_MODEL = "the model is float; this op can be integer once the model is profiled and quantized"
"""Reason of an op that has integer kernels, in a model that nothing quantized."""


def partition_module(
    module: tvm.IRModule, target: TargetDescription, ids: Collection[str] = (), precision: Precision | None = None
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

    Raises
    ------
    CompileError
        No function "main"; `precision` for a module that is quantized.
    """
    check_main(module)
    source = DataflowView(module["main"])
    carried = carry_strides(module)
    cast = _downcast(source, carried, precision)
    sources = {**carried.sources, **{new: carried.sources.get(old, old) for new, old in cast.sources.items()}}
    parts = partition_quantized(cast.module, target, ids, with_float=True, sources=sources, precision=precision)
    tensors = tensors_of_variables(source, ids)
    state = PartitionState(
        tensors=tensors,
        pixels_of={part: tensors.get(whole, whole) for part, whole in sources.items()},
        cuts=frozenset(carried.cuts),
        halves=frozenset(cast.halves),
        rejections={name: FLOAT_MODEL if is_float(source) else each.reason for name, each in parts.rejections.items()},
    )
    return state.written(parts.module)


def integer_regions(module: tvm.IRModule, target: TargetDescription, ids: Collection[str] = ()) -> Partition:
    """Outline the integer regions alone, and say of each region what it holds and of each op that stays float why."""
    check_main(module)
    return partition_quantized(module, target, ids)


def check_main(module: tvm.IRModule) -> None:
    """Raise CompileError unless the module has a function "main"."""
    if "main" not in {var.name_hint for var in module.get_global_vars()}:
        raise CompileError("the module has no function main")


def is_float(view: DataflowView) -> bool:
    """Return whether nothing in a function is quantized."""
    values = [*view.function.params, *(binding.var for binding in view.bindings)]
    if any(dtype_of(value) in ("int8", "uint8", "int16", "uint16") for value in values):
        return False
    return not any(op_name(binding.value) in ("quantize", "dequantize") for binding in view.bindings)


def _downcast(source: DataflowView, carried: Carried, precision: Precision | None) -> Downcast:
    """Downcast a module whose strides were carried up, as far as `precision` asks for it."""
    if precision is None:
        return Downcast(module=carried.module)
    if not is_float(source):
        raise CompileError(f"precision {precision.dtype!r} is for float models, and this one is quantized; compile it without")
    strided = {part: precision.kept[whole] for part, whole in carried.sources.items() if whole in precision.kept}
    return downcast(split_to_slices(carried.module), precision.dtype, {**precision.kept, **strided})
