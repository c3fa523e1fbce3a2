"""Rules of the ops without weights over int16 tensors; what they match is what the 8-bit rules match.

Kernels of sums, products, means and softmax compute as TFLite does, which the importer of such files asks for. From other sources
sums and products are formed in float32 within a kernel, as their frameworks have them; means and softmax are those of exact sums,
a step off what float32 sums give for one value in some thousands.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt
from tvm import relax
from tvm.relax import Expr, Var

from ..graph.dataflow import DataflowView, call_to
from ..graph.rules import Region, Rejection
from ..kernels.int16_elementwise import INT16_MAX_COUNT, int16_concat, int16_lookup, int16_mean, int16_pairwise
from ..kernels.int16_exact_softmax import Int16ExactSoftmaxSpec, int16_exact_softmax
from ..kernels.int16_float import int16_float_pairwise
from ..kernels.int16_pool2d import int16_pool2d
from ..kernels.int16_softmax import int16_softmax
from ..kernels.int16_spec import Int16FloatPairwiseSpec, Int16LookupSpec, Int16MeanSpec, Int16PairwiseSpec, Int16SoftmaxSpec
from ..kernels.spec import ConcatSpec, Kernel, Output, Pool2dSpec
from ..numerics import lookup_table
from ..target import OpSupport
from .concat import ConcatForm, match_concat
from .context import KernelContext, ratio, shape_of
from .forms import Form, OutputForm, TensorForm
from .int16_reduce import match_int16_sum_or_extreme
from .pairwise import Operand, PairwiseForm, match_pairwise
from .pool2d import PoolForm, match_pool2d
from .reduce import ReduceForm, Run, match_reduce, run_of
from .rounding import is_fixed_int16
from .softmax import SoftmaxForm, match_softmax, write_rows
from .storage import TO_NHWC

Matcher = Callable[[DataflowView, Var, OpSupport], Region | Rejection]


def output_spec(y: OutputForm) -> Output:
    """Return a result as 16-bit kernels take it."""
    return y.spec()


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Int16Form(Form):
    """An op whose facts the 8-bit rule found."""

    base: Any

    def quantize_info(self) -> dict[str, Any]:
        """Return its tensors by role."""
        return self.base.quantize_info()


class Int16PairwiseForm(_Int16Form):
    """a op b + clamp."""

    __slots__ = ()

    def write(self, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
        """Write the kernel call."""
        base: PairwiseForm = self.base
        is_nhwc = base.is_nhwc(context, inputs)
        a, b = (_read(context, inputs, operand, is_nhwc=is_nhwc) for operand in (base.a, base.b))
        spec = Int16PairwiseSpec(
            kind=cast(Literal["add", "sub", "mul"], base.kind),
            a_shape=shape_of(a),
            b_shape=shape_of(b),
            a_scale=float(base.a.tensor.params.scale),
            b_scale=float(base.b.tensor.params.scale),
            out_scale=float(base.y.tensor.params.scale),
            output=output_spec(base.y),
            threads=context.threads,
        )
        shape = base.y.tensor.shape
        shape = tuple(shape[axis] for axis in TO_NHWC) if is_nhwc else shape
        kernel = int16_pairwise(spec, isa=context.isa)
        context.put(output, context.call(output.name, kernel, [a, b], shape, "int16"), is_nhwc=is_nhwc)


class Int16FloatPairwiseForm(_Int16Form):
    """a op b + clamp of real numbers in float32; the greater or the lesser of integers."""

    __slots__ = ()

    def quantize_info(self) -> dict[str, Any]:
        """Return its tensors by role, and how it is computed."""
        return {**self.base.quantize_info(), **({} if self.base.kind in ("max", "min") else {"rounding": "float32"})}

    def write(self, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
        """Write the kernel call."""
        base: PairwiseForm = self.base
        is_nhwc = base.is_nhwc(context, inputs)
        a, b = (_read(context, inputs, operand, is_nhwc=is_nhwc) for operand in (base.a, base.b))
        spec = Int16FloatPairwiseSpec(
            kind=base.kind,
            a_shape=shape_of(a),
            b_shape=shape_of(b),
            a_scale=float(base.a.tensor.params.scale),
            a_zero_point=base.a.tensor.zero_point,
            b_scale=float(base.b.tensor.params.scale),
            b_zero_point=base.b.tensor.zero_point,
            out_scale=float(base.y.tensor.params.scale),
            output=output_spec(base.y),
            threads=context.threads,
        )
        shape = base.y.tensor.shape
        shape = tuple(shape[axis] for axis in TO_NHWC) if is_nhwc else shape
        kernel = int16_float_pairwise(spec, isa=context.isa)
        context.put(output, context.call(output.name, kernel, [a, b], shape, "int16"), is_nhwc=is_nhwc)


def _read(context: KernelContext, inputs: dict[str, Var], operand: Operand, *, is_nhwc: bool) -> Expr:
    if operand.values is None:
        return context.storage.get(inputs[operand.tensor.name], is_nhwc=is_nhwc)
    values: npt.NDArray[Any] = (operand.values.astype(np.int32) + operand.tensor.relabelling).astype(np.int16)
    if is_nhwc:
        values = values.reshape((1,) * (4 - values.ndim) + values.shape).transpose(TO_NHWC)
    return relax.const(np.ascontiguousarray(values))


class Int16PoolForm(_Int16Form):
    """Average or max pooling."""

    __slots__ = ()

    def write(self, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
        """Write the kernel call."""
        base: PoolForm = self.base
        is_nhwc = base.layout == "NCHW"
        x = context.storage.get(inputs[base.x.name], is_nhwc=is_nhwc)
        batch, height, width, channels = shape_of(x)
        away = base.rounding == "half_away"
        spec = Pool2dSpec(
            kind=base.kind,
            batch=batch,
            in_height=height,
            in_width=width,
            channels=channels,
            kernel=base.kernel,
            strides=base.strides,
            padding=base.padding,
            dilation=base.dilation,
            out_height=base.out_height,
            out_width=base.out_width,
            count_include_pad=base.count_include_pad,
            multiplier=1.0 if away or base.kind == "max" else ratio(base.x.params, base.y.tensor.params),
            input_zero_point=base.x.zero_point,
            output=output_spec(base.y),
            rounding="half_away" if away else "half_even",
            threads=context.threads,
        )
        shape = (batch, base.out_height, base.out_width, channels)
        kernel = int16_pool2d(spec, isa=context.isa)
        context.put(output, context.call(output.name, kernel, [x], shape, "int16"), is_nhwc=is_nhwc)


class Int16MeanForm(_Int16Form):
    """The mean over axes that lie next to each other in memory, or are brought there."""

    __slots__ = ()

    def write(self, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
        """Write the kernel call."""
        base: ReduceForm = self.base
        run = run_of(context, inputs[base.x.name], base.x.shape, base.axes, f"{output.name}_rows")
        shape = base.y.tensor.shape
        is_nhwc = run.is_nhwc and len(shape) == 4
        shape = tuple(shape[axis] for axis in TO_NHWC) if is_nhwc else shape
        value = context.call(output.name, self._kernel(context, run), [run.value], shape, "int16")
        context.put(output, value, is_nhwc=is_nhwc)

    def _kernel(self, context: KernelContext, run: Run) -> Kernel:
        base: ReduceForm = self.base
        spec = Int16MeanSpec(
            outer=run.outer,
            count=run.extent,
            inner=run.inner,
            in_scale=float(base.x.params.scale),
            out_scale=float(base.y.tensor.params.scale),
            output=output_spec(base.y),
            threads=context.threads,
        )
        return int16_mean(spec, isa=context.isa)


class Int16RealMeanForm(Int16MeanForm):
    """The mean, half to even, of tensors with any zero point: one window over each column of the elements side by side."""

    __slots__ = ()

    def _kernel(self, context: KernelContext, run: Run) -> Kernel:
        base: ReduceForm = self.base
        spec = Pool2dSpec(
            kind="avg",
            batch=run.outer,
            in_height=run.extent,
            in_width=1,
            channels=run.inner,
            kernel=(run.extent, 1),
            out_height=1,
            out_width=1,
            multiplier=ratio(base.x.params, base.y.tensor.params),
            input_zero_point=base.x.zero_point,
            output=output_spec(base.y),
            threads=context.threads,
        )
        return int16_pool2d(spec, isa=context.isa)


class Int16SoftmaxForm(_Int16Form):
    """softmax(beta * x) along an axis."""

    __slots__ = ()

    def write(self, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
        """Write the kernel call."""
        base: SoftmaxForm = self.base
        columns = base.x.shape[base.axis]
        spec = Int16SoftmaxSpec(
            rows=math.prod(base.x.shape) // columns,
            columns=columns,
            scale=float(base.x.params.scale),
            beta=base.beta,
            output=output_spec(base.y),
            threads=context.threads,
        )
        kernel = int16_softmax(spec, isa=context.isa)
        write_rows(context, inputs[base.x.name], output, base.axis, kernel, "int16")


class Int16ExactSoftmaxForm(_Int16Form):
    """softmax(beta * x) along an axis, to any scale: the probabilities themselves, rounded once."""

    __slots__ = ()

    def write(self, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
        """Write the kernel call."""
        base: SoftmaxForm = self.base
        columns = base.x.shape[base.axis]
        spec = Int16ExactSoftmaxSpec(
            rows=math.prod(base.x.shape) // columns,
            columns=columns,
            scale=float(np.float32(base.x.params.scale) * np.float32(base.beta)),
            out_scale=float(base.y.tensor.params.scale),
            output=output_spec(base.y),
            threads=context.threads,
        )
        kernel = int16_exact_softmax(spec, isa=context.isa)
        write_rows(context, inputs[base.x.name], output, base.axis, kernel, "int16")


class Int16ConcatForm(_Int16Form):
    """Concatenation; tensors of another scale or zero point than the result's go through a table first."""

    __slots__ = ()

    def write(self, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
        """Write the kernel call."""
        base: ConcatForm = self.base
        shape, axis = base.y.tensor.shape, base.axis
        args, is_nhwc = base.operands(context, inputs)
        for place, (tensor, arg) in enumerate(zip(base.inputs, args, strict=True)):
            if tensor.params != base.y.tensor.params:
                args[place] = _requantized(context, f"{output.name}_part{place}", arg, tensor, base.y)
        if is_nhwc:
            shape, axis = tuple(shape[a] for a in TO_NHWC), TO_NHWC.index(axis)
        spec = ConcatSpec(
            outer=math.prod(shape[:axis]),
            inners=tuple(math.prod(shape_of(arg)[axis:]) for arg in args),
            multipliers=(1.0,) * len(args),
            zero_points=(0,) * len(args),
            output=output_spec(base.y),
            threads=context.threads,
        )
        kernel = int16_concat(spec, isa=context.isa)
        context.put(output, context.call(output.name, kernel, args, shape, "int16"), is_nhwc=is_nhwc)


def _requantized(context: KernelContext, name: str, value: Expr, x: TensorForm, y: OutputForm) -> Expr:
    """Write a change of parameters between int16 tensors: a table with an entry for every integer."""
    table = lookup_table(lambda real: real, x.params, y.tensor.params).astype(np.int32) + y.tensor.relabelling
    spec = Int16LookupSpec(size=math.prod(shape_of(value)), x_dtype="int16", y_dtype="int16", threads=context.threads)
    kernel = int16_lookup(spec, table=table.astype(np.int16), isa=context.isa)
    return context.call(name, kernel, [value], shape_of(value), "int16")


def _with_form(region: Region, form: type[_Int16Form]) -> Region:
    return replace(region, form=form(base=region.form))


def _problem(tensors: list[TensorForm], *, symmetric: bool = False) -> Rejection | None:
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
    form: PairwiseForm = found.form
    is_fixed = is_fixed_int16(view) and form.kind not in ("max", "min")
    problem = _problem([form.a.tensor, form.b.tensor, form.y.tensor], symmetric=is_fixed)
    if problem is not None:
        return problem
    region = _with_form(found, Int16PairwiseForm if is_fixed else Int16FloatPairwiseForm)
    return replace(region, attrs={**region.attrs, "quantize_info": region.form.quantize_info()})


def match_int16_pool2d(view: DataflowView, core: Var, support: OpSupport) -> Region | Rejection:
    """Claim what `match_pool2d` claims, but no sums in float32; means go to `match_int16_reduce`, a maximum keeps parameters."""
    if call_to(view.definition(core), "mean") is not None:
        return match_int16_reduce(view, core, support)
    found = match_pool2d(view, core, support)
    if isinstance(found, Rejection):
        return found
    form: PoolForm = found.form
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
    return problem or _with_form(found, Int16PoolForm)


def match_int16_reduce(view: DataflowView, core: Var, support: OpSupport) -> Region | Rejection:
    """Claim what `match_reduce` claims: means, in fixed point, of symmetric int16, where the source asks for it.

    Sums and extremes have a rule of their own.
    """
    if call_to(view.definition(core), "mean") is None:
        return match_int16_sum_or_extreme(view, core, support)
    found = match_reduce(view, core, support)
    if isinstance(found, Rejection):
        return found
    form: ReduceForm = found.form
    count, is_fixed = math.prod(form.x.shape[axis] for axis in form.axes), is_fixed_int16(view)
    problem = _problem([form.x, form.y.tensor], symmetric=is_fixed)
    most = INT16_MAX_COUNT if is_fixed else INT16_MAX_COUNT // 2
    if count > most:
        problem = problem or Rejection(reason=f"it averages {count} int16 values at once; the kernel takes {most}")
    return problem or _with_form(found, Int16MeanForm if is_fixed else Int16RealMeanForm)


def match_int16_softmax(view: DataflowView, core: Var, support: OpSupport) -> Region | Rejection:
    """Claim what `match_softmax` claims: in TFLite files to int16 of scale 1 / 32768, in others to any 16 bits."""
    found = match_softmax(view, core, support)
    if isinstance(found, Rejection):
        return found
    form: SoftmaxForm = found.form
    problem = _problem([form.x, form.y.tensor])
    if not is_fixed_int16(view):
        return problem or _with_form(found, Int16ExactSoftmaxForm)
    if float(form.y.tensor.params.scale) != 1 / 32768 or form.y.tensor.zero_point != 0:
        problem = problem or Rejection(reason="its result has another scale than 1 / 32768, or a zero point")
    return problem or _with_form(found, Int16SoftmaxForm)


def match_int16_concat(view: DataflowView, core: Var, support: OpSupport) -> Region | Rejection:
    """Claim what `match_concat` claims, where all tensors are int16."""
    found = match_concat(view, core, support)
    if isinstance(found, Rejection):
        return found
    form: ConcatForm = found.form
    problem = _problem([*form.inputs, form.y.tensor])
    return problem or _with_form(found, Int16ConcatForm)
