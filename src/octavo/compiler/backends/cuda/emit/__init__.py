"""Emitters: which launches compute a composite op. One table, by the op's class."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .....ir.composites.base import CompositeOp
from .....ir.composites.elementwise import (
    AddOp,
    CompareOp,
    LogicalOp,
    LookupOp,
    MixedElementwiseOp,
    PairLookupOp,
    PairwiseOp,
    SelectOp,
)
from .....ir.composites.float_ops import ObserveOp
from .....ir.composites.movement import ConcatOp, DequantizeOp, GatherOp, MoveOp, QuantizeOp, TakeOp, TopkOp
from .....ir.composites.normalization import GroupNormOp, L2NormalizeOp, LayerNormOp, SoftmaxOp
from .....ir.composites.reduction import ArgReduceOp, FloatResizeOp, Pool2dOp, ReduceOp, ResizeOp
from .....ir.composites.weighted import BatchMatmulOp, Conv2dOp, Conv2dTransposeOp, DynamicTensor, MatmulOp
from ..emission import Emission, ResultType, Value
from ..kernels.conv.spec import has_own_zero_points
from .batch_matmul import emit_batch_matmul
from .channels import emit_conv2d_of_channels
from .conv2d import emit_conv2d, emit_conv2d_transpose, emit_matmul
from .dynamic import emit_dynamic_conv2d, emit_dynamic_matmul
from .elementwise import (
    emit_add,
    emit_compare,
    emit_logical,
    emit_lookup,
    emit_mixed_elementwise,
    emit_pair_lookup,
    emit_pairwise,
    emit_select,
)
from .move import emit_concat, emit_gather, emit_move, emit_take
from .norms import emit_group_norm, emit_l2_normalize, emit_layer_norm, emit_softmax
from .observe import emit_observe
from .quantize import emit_dequantize, emit_quantize
from .reduce import emit_arg_reduce, emit_pool2d, emit_reduce, emit_topk
from .resize import emit_resize
from .tail import Followers

Emitter = Callable[[Any, Emission, Mapping[str, Value]], Value]
"""Given an op, where to write, and the tensors it reads by the names that the op calls them; returns the result."""

EMITTERS: dict[type[CompositeOp], Emitter] = {
    Conv2dOp: emit_conv2d,
    Conv2dTransposeOp: emit_conv2d_transpose,
    MatmulOp: emit_matmul,
    AddOp: emit_add,
    PairwiseOp: emit_pairwise,
    CompareOp: emit_compare,
    LogicalOp: emit_logical,
    SelectOp: emit_select,
    LookupOp: emit_lookup,
    PairLookupOp: emit_pair_lookup,
    MixedElementwiseOp: emit_mixed_elementwise,
    Pool2dOp: emit_pool2d,
    ReduceOp: emit_reduce,
    SoftmaxOp: emit_softmax,
    ConcatOp: emit_concat,
    MoveOp: emit_move,
    GatherOp: emit_gather,
    TakeOp: emit_take,
    ResizeOp: emit_resize,
    FloatResizeOp: emit_resize,
    LayerNormOp: emit_layer_norm,
    GroupNormOp: emit_group_norm,
    L2NormalizeOp: emit_l2_normalize,
    QuantizeOp: emit_quantize,
    DequantizeOp: emit_dequantize,
    BatchMatmulOp: emit_batch_matmul,
    ObserveOp: emit_observe,
}

PRODUCTS: dict[type[CompositeOp], Callable[[Any, Emission, Mapping[str, Value], Followers], Value]] = {
    Conv2dOp: emit_conv2d,
    MatmulOp: emit_matmul,
    BatchMatmulOp: emit_batch_matmul,
}
"""Emitters whose kernels compute what follows, too."""


AT_RUN_TIME: dict[type[CompositeOp], Emitter] = {Conv2dOp: emit_dynamic_conv2d, MatmulOp: emit_dynamic_matmul}
"""Emitters of ops whose input is quantized at run time."""

PLACES: dict[type[CompositeOp], Callable[[Any, Emission, Mapping[str, Value], ResultType], Value]] = {
    ArgReduceOp: emit_arg_reduce,
    TopkOp: emit_topk,
}
"""Emitters of ops that don't say themselves what their result is."""


def emitter_of(op: CompositeOp, result: ResultType) -> Emitter | None:
    """Return the emitter of an op with such a result, None where it has no kernel."""
    if isinstance(getattr(op, "x", None), DynamicTensor):
        return AT_RUN_TIME.get(type(op))
    if isinstance(op, Conv2dOp) and has_own_zero_points(op.x):
        return emit_conv2d_of_channels
    emit = PLACES.get(type(op))
    return EMITTERS.get(type(op)) if emit is None else lambda op, emission, inputs: emit(op, emission, inputs, result)
