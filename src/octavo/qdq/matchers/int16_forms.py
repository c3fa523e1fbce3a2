"""Rules of the ops without weights over int16 tensors; what they match is what the 8-bit rules match.

Kernels of sums, products, means and softmax compute as TFLite does, which the importer of such files asks for. From other sources
sums and products are formed in float32 within a kernel, as their frameworks have them; means and softmax are those of exact sums,
a step off what float32 sums give for one value in some thousands.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from tvm.relax import Var

from ...composites.base import QuantizedTensor
from ...composites.elementwise import PairwiseOp
from ...composites.int16 import (
    Int16ConcatOp,
    Int16ExactSoftmaxOp,
    Int16FloatPairwiseOp,
    Int16MeanOp,
    Int16Op,
    Int16PairwiseOp,
    Int16PoolOp,
    Int16RealMeanOp,
    Int16SoftmaxOp,
)
from ...composites.movement import ConcatOp
from ...composites.normalization import SoftmaxOp
from ...composites.reduction import Pool2dOp, ReduceOp
from ...graph.dataflow import DataflowView, call_to
from ...graph.rules import Region, Rejection
from ...numerics.limits import INT16_MAX_COUNT
from ...target import OpSupport
from ..rounding import is_fixed_int16
from .concat import match_concat
from .int16_reduce import match_int16_sum_or_extreme
from .pairwise import match_pairwise
from .pool2d import match_pool2d
from .reduce import match_reduce
from .softmax import match_softmax

Matcher = Callable[[DataflowView, Var, OpSupport], Region | Rejection]


def _with_form(region: Region, form: type[Int16Op]) -> Region:
    return replace(region, form=form(base=region.form))


def _problem(tensors: list[QuantizedTensor], *, symmetric: bool = False) -> Rejection | None:
    """Return why 16-bit kernels do not take these tensors together."""
    for tensor in tensors:
        if tensor.kernel_dtype != "int16":
            return Rejection(
                reason=f"activation {tensor.name} is {tensor.params.dtype} and others are int16; kernels take one dtype"
            )
        if symmetric and tensor.zero_point != 0:
            return Rejection(reason=f"the zero point of {tensor.name} is {tensor.zero_point}; the 16-bit kernel takes 0")
    return None


def match_int16_pairwise(view: DataflowView, core: Var, support: OpSupport) -> Region | Rejection:
    """Claim what `match_pairwise` claims: in fixed point where the source asks for it, else in float32 with any zero point.

    An extreme is one of integers.
    """
    found = match_pairwise(view, core, support)
    if isinstance(found, Rejection):
        return found
    form: PairwiseOp = found.form
    is_fixed = is_fixed_int16(view) and form.kind not in ("max", "min")
    problem = _problem([form.a.tensor, form.b.tensor, form.y.tensor], symmetric=is_fixed)
    if problem is not None:
        return problem
    region = _with_form(found, Int16PairwiseOp if is_fixed else Int16FloatPairwiseOp)
    return replace(region, attrs={**region.attrs, "quantize_info": region.form.quantize_info()})


def match_int16_pool2d(view: DataflowView, core: Var, support: OpSupport) -> Region | Rejection:
    """Claim what `match_pool2d` claims, but no sums in float32; means go to `match_int16_reduce`, a maximum keeps parameters."""
    if call_to(view.definition(core), "mean") is not None:
        return match_int16_reduce(view, core, support)
    found = match_pool2d(view, core, support)
    if isinstance(found, Rejection):
        return found
    form: Pool2dOp = found.form
    problem = _problem([form.x, form.y.tensor])
    if form.kind == "max" and form.x.params != form.y.tensor.params:
        problem = problem or Rejection(reason="it changes scale or zero point; the 16-bit maximum keeps them")
    if form.rounding == "float32":
        # With equal parameters every other window of an even count is a tie, which float32 rounding errors decide.
        problem = problem or Rejection(
            reason="windows of int16 are integer in TFLite files alone; ONNX Runtime sums them in float32"
        )
    if form.kernel[0] * form.kernel[1] > INT16_MAX_COUNT // 2:
        problem = problem or Rejection(
            reason=f"its window of {form.kernel[0]}x{form.kernel[1]} int16 values could overflow int32"
        )
    return problem or _with_form(found, Int16PoolOp)


def match_int16_reduce(view: DataflowView, core: Var, support: OpSupport) -> Region | Rejection:
    """Claim what `match_reduce` claims: means, in fixed point, of symmetric int16, where the source asks for it.

    Sums and extremes have a rule of their own.
    """
    if call_to(view.definition(core), "mean") is None:
        return match_int16_sum_or_extreme(view, core, support)
    found = match_reduce(view, core, support)
    if isinstance(found, Rejection):
        return found
    form: ReduceOp = found.form
    count, is_fixed = math.prod(form.x.shape[axis] for axis in form.axes), is_fixed_int16(view)
    problem = _problem([form.x, form.y.tensor], symmetric=is_fixed)
    most = INT16_MAX_COUNT if is_fixed else INT16_MAX_COUNT // 2
    if count > most:
        problem = problem or Rejection(reason=f"it averages {count} int16 values at once; the kernel takes {most}")
    return problem or _with_form(found, Int16MeanOp if is_fixed else Int16RealMeanOp)


def match_int16_softmax(view: DataflowView, core: Var, support: OpSupport) -> Region | Rejection:
    """Claim what `match_softmax` claims: in TFLite files to int16 of scale 1 / 32768, in others to any 16 bits."""
    found = match_softmax(view, core, support)
    if isinstance(found, Rejection):
        return found
    form: SoftmaxOp = found.form
    problem = _problem([form.x, form.y.tensor])
    if not is_fixed_int16(view):
        return problem or _with_form(found, Int16ExactSoftmaxOp)
    if float(form.y.tensor.params.scale) != 1 / 32768 or form.y.tensor.zero_point != 0:
        problem = problem or Rejection(reason="its result has another scale than 1 / 32768, or a zero point")
    return problem or _with_form(found, Int16SoftmaxOp)


def match_int16_concat(view: DataflowView, core: Var, support: OpSupport) -> Region | Rejection:
    """Claim what `match_concat` claims, where all tensors are int16."""
    found = match_concat(view, core, support)
    if isinstance(found, Rejection):
        return found
    form: ConcatOp = found.form
    problem = _problem([*form.inputs, form.y.tensor])
    return problem or _with_form(found, Int16ConcatOp)
