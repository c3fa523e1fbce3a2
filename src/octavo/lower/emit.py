"""Composites -> kernel calls: specifies a kernel for each form and calls it on activations in the form kernels read.

Kernels enter as calls to external symbols, so that TVM's own passes over the float remainder leave them alone; `link` puts
them in afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm import relax as _relax
from tvm.relax import Expr, Var

from .. import kernels
from ..graph.dataflow import BodyWriter, dtype_of, static_shape
from ..graph.rules import Region
from ..kernels import (
    AddSpec,
    ConcatSpec,
    Conv2dSpec,
    DequantizeSpec,
    Kernel,
    Output,
    Pool2dSpec,
    QuantizeSpec,
    RequantizeSpec,
)
from ..numerics import QuantParams, check_accumulator
from .forms import (
    AddForm,
    ConcatForm,
    ConvForm,
    DequantizeForm,
    Form,
    MatmulForm,
    MoveForm,
    OutputForm,
    PoolForm,
    QuantizeForm,
    TensorForm,
    WeightForm,
)
from .storage import SOURCE, TO_NCHW, TO_NHWC, Storage
from .storage import Form as Stored

# TVM annotates its functions more narrowly than what they take (shapes as one-element tuples, say).
relax: Any = _relax


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PlacedKernel:
    """A kernel in the module: its PrimFunc over tensors of the module's own shapes, and what it is called for people."""

    symbol: str
    func: tvm.tirx.PrimFunc
    name: str
    isa: str


@dataclass(slots=True)
class KernelTable:
    """The PrimFuncs of a module by symbol."""

    placed: dict[str, PlacedKernel] = field(default_factory=dict[str, PlacedKernel])

    def add(self, name: str, kernel: Kernel, shapes: list[tuple[int, ...]], info: Any) -> str:
        """Place a kernel over buffers of these shapes and return its symbol, which ends in the result's name."""
        func: Any = with_shapes(kernel.func, shapes)
        if info is not None:
            func = func.with_attr("quantize_info", info)
        symbol = f"octavo_{len(self.placed)}_{name}"
        self.placed[symbol] = PlacedKernel(symbol=symbol, func=func, name=kernel.name, isa=kernel.isa)
        return symbol


def with_shapes(func: tvm.tirx.PrimFunc, shapes: list[tuple[int, ...]]) -> tvm.tirx.PrimFunc:
    """Give a PrimFunc over flat buffers the shapes of the tensors it is called with; the memory is the same.

    Each flat buffer becomes a view of the data of a buffer with the tensor's shape.
    """
    tir = tvm.tirx
    params: list[Any] = []
    views: list[Any] = []
    for flat, shape in zip(func.params, shapes, strict=True):
        size = int(flat.ty.shape[0])
        assert int(np.prod(shape)) == size, f"{flat.name}: {shape} is not {size} values"
        if len(shape) == 1:
            params.append(flat)
            continue
        shaped = tir.decl_buffer(shape, str(flat.ty.dtype), name=flat.name)
        params.append(shaped)
        views.append(tir.DeclBuffer(flat, data=tir.buffer.buffer_data(shaped)))
    return tir.PrimFunc(params, tir.SeqStmt([*views, func.body]) if views else func.body, func.ret_type, func.attrs)


class Emitter:
    """Writes the kernel calls of one function.

    Parameters
    ----------
    writer
        Receives the bindings.
    isa
        Instruction set of the kernels.
    threads
        Chunks that large kernels are cut into.
    """

    def __init__(self, writer: BodyWriter, table: KernelTable, isa: str, threads: int) -> None:
        self._writer = writer
        self._table = table
        self._isa = isa
        self._threads = threads
        self._info: Any = None
        self._ran: Kernel | None = None
        self.storage = Storage(writer, self._call, isa, threads)

    def emit(self, region: Region, inputs: list[Var], output: Var) -> Kernel | None:
        """Write the kernel calls of one composite, whose result the source graph calls `output`.

        Returns the kernel that does its work, None where it only moves data.
        """
        self._ran = None
        by_name = {inner.name: outer for inner, outer in zip(region.inputs, inputs, strict=True)}
        self._info = region.attrs["quantize_info"]
        form: Form = region.form
        match form:
            case ConvForm():
                self._conv2d(form, by_name, output)
            case MatmulForm():
                self._matmul(form, by_name, output)
            case AddForm():
                self._add(form, by_name, output)
            case PoolForm():
                self._pool2d(form, by_name, output)
            case ConcatForm():
                self._concat(form, by_name, output)
            case MoveForm():
                self._move(form, by_name, output)
            case QuantizeForm():
                self._quantize(form, inputs[0], output)
            case DequantizeForm():
                self._dequantize(form, by_name, output)
        self._info = None
        return self._ran

    def _call(self, name: str, kernel: Kernel, args: list[Expr], shape: tuple[int, ...], dtype: str) -> Var:
        shapes = [*(_shape(arg) for arg in args), *(array.shape for array in kernel.constants), shape]
        symbol = self._table.add(name, kernel, shapes, self._info)
        constants = [relax.const(array) for array in kernel.constants]
        result = relax.TensorType(shape, dtype)
        self._ran = kernel
        return self._writer.emit(name, relax.call_dps_packed(symbol, [*args, *constants], out_ty=result))

    def _put(self, output: Var, value: Var, *, is_nhwc: bool) -> None:
        self.storage.put(output, Stored(is_nhwc, dtype_of(output) == "int8"), value)

    def _conv2d(self, form: ConvForm, by_name: dict[str, Var], output: Var) -> None:
        is_nhwc = form.layout == "NCHW"
        x = self.storage.get(by_name[form.x.name], is_nhwc=is_nhwc)
        batch, height, width, channels = _shape(x)
        _check_overflow(form.weight, form.x, output.name)
        spec = Conv2dSpec(
            batch=batch,
            in_height=height,
            in_width=width,
            in_channels=channels,
            out_channels=form.weight.values.shape[3],
            kernel=(form.weight.values.shape[0], form.weight.values.shape[1]),
            strides=form.strides,
            padding=form.padding,
            dilation=form.dilation,
            groups=form.groups,
            input_zero_point=_zero_point(form.x.params),
            output=_output(form.y),
            threads=self._threads,
        )
        kernel = kernels.conv2d(
            spec,
            weight=form.weight.values,
            weight_zero_point=_weight_zero_point(form.weight),
            bias=form.weight.bias,
            multiplier=form.weight.multiplier,
            isa=self._isa,
        )
        shape = (batch, spec.out_height, spec.out_width, spec.out_channels)
        self._put(output, self._call(output.name, kernel, [x], shape, "uint8"), is_nhwc=is_nhwc)

    def _matmul(self, form: MatmulForm, by_name: dict[str, Var], output: Var) -> None:
        x = self.storage.get(by_name[form.x.name], is_nhwc=False)
        _check_overflow(form.weight, form.x, output.name)
        inputs, outputs = form.weight.values.shape
        kernel = kernels.matmul(
            rows=int(np.prod(form.x.shape[:-1])),
            in_features=inputs,
            out_features=outputs,
            input_zero_point=_zero_point(form.x.params),
            output=_output(form.y),
            threads=self._threads,
            weight=form.weight.values,
            weight_zero_point=_weight_zero_point(form.weight),
            bias=form.weight.bias,
            multiplier=form.weight.multiplier,
            isa=self._isa,
        )
        self._put(output, self._call(output.name, kernel, [x], form.y.tensor.shape, "uint8"), is_nhwc=False)

    def _add(self, form: AddForm, by_name: dict[str, Var], output: Var) -> None:
        a_var, b_var = by_name[form.a.name], by_name.get(form.b.name)
        same = form.a.shape == form.b.shape and b_var is not None
        is_nhwc = same and any(self.storage.is_kept_nhwc(var) for var in (a_var, b_var) if var is not None)
        a = self.storage.get(a_var, is_nhwc=is_nhwc)
        if form.b_values is not None:
            b: Expr = relax.const(_as_uint8(form.b_values))
        else:
            assert b_var is not None
            b = self.storage.get(b_var, is_nhwc=is_nhwc)
        spec = AddSpec(
            size=int(np.prod(form.a.shape)),
            b_size=int(np.prod(form.b.shape)),
            a_scale=float(form.a.params.scale),
            a_zero_point=_zero_point(form.a.params),
            b_scale=float(form.b.params.scale),
            b_zero_point=_zero_point(form.b.params),
            out_scale=float(form.y.tensor.params.scale),
            output=_output(form.y),
            threads=self._threads,
        )
        kernel = kernels.add(spec, isa=self._isa)
        self._put(output, self._call(output.name, kernel, [a, b], _shape(a), "uint8"), is_nhwc=is_nhwc)

    def _pool2d(self, form: PoolForm, by_name: dict[str, Var], output: Var) -> None:
        is_nhwc = form.layout == "NCHW"
        x = self.storage.get(by_name[form.x.name], is_nhwc=is_nhwc)
        batch, height, width, channels = _shape(x)
        in_zero, out_form = _zero_point(form.x.params), _output(form.y)
        multiplier = _ratio(form.x.params, form.y.tensor.params)
        # A maximum keeps scale and zero point; a change of them is a second kernel.
        changes = form.kind == "max" and (multiplier != 1.0 or in_zero != out_form.zero_point)
        spec = Pool2dSpec(
            kind=form.kind,
            batch=batch,
            in_height=height,
            in_width=width,
            channels=channels,
            kernel=form.kernel,
            strides=form.strides,
            padding=form.padding,
            dilation=form.dilation,
            out_height=form.out_height,
            out_width=form.out_width,
            count_include_pad=form.count_include_pad,
            multiplier=1.0 if form.kind == "max" else multiplier,
            input_zero_point=in_zero,
            output=Output(zero_point=in_zero) if changes else out_form,
            threads=self._threads,
        )
        shape = (batch, form.out_height, form.out_width, channels)
        kernel = kernels.pool2d(spec, isa=self._isa)
        value = self._call(f"{output.name}_max" if changes else output.name, kernel, [x], shape, "uint8")
        if changes:
            value = self._requantized(output.name, value, form.x.params, form.y)
        # A mean without kept dimensions drops the two axes of size 1, which leaves memory as it is.
        if len(form.y.tensor.shape) != 4:
            value = self._writer.emit(f"{output.name}_flat", relax.op.reshape(value, form.y.tensor.shape))
            is_nhwc = False
        self._put(output, value, is_nhwc=is_nhwc)

    def _concat(self, form: ConcatForm, by_name: dict[str, Var], output: Var) -> None:
        variables = [by_name[tensor.name] for tensor in form.inputs]
        is_nhwc = len(form.y.tensor.shape) == 4 and any(self.storage.is_kept_nhwc(var) for var in variables)
        args = [self.storage.get(var, is_nhwc=is_nhwc) for var in variables]
        shape = form.y.tensor.shape
        axis = form.axis
        if is_nhwc:
            shape, axis = tuple(shape[a] for a in TO_NHWC), TO_NHWC.index(axis)
        spec = ConcatSpec(
            outer=int(np.prod(shape[:axis], dtype=np.int64)),
            inners=tuple(int(np.prod(_shape(arg)[axis:], dtype=np.int64)) for arg in args),
            multipliers=tuple(_ratio(tensor.params, form.y.tensor.params) for tensor in form.inputs),
            zero_points=tuple(_zero_point(tensor.params) for tensor in form.inputs),
            output=_output(form.y),
            threads=self._threads,
        )
        kernel = kernels.concat(spec, isa=self._isa)
        self._put(output, self._call(output.name, kernel, args, shape, "uint8"), is_nhwc=is_nhwc)

    def _move(self, form: MoveForm, by_name: dict[str, Var], output: Var) -> None:
        var = by_name[form.x.name]
        keeps_shape = form.axes is None and form.x.shape == form.y.tensor.shape
        is_nhwc = self.storage.is_kept_nhwc(var) and (keeps_shape or form.axes == TO_NHWC or _is_flat_image(form))
        value = self.storage.get(var, is_nhwc=is_nhwc)
        if form.axes is not None and not is_nhwc:
            value = self._writer.emit(f"{output.name}_moved", relax.op.permute_dims(value, list(form.axes)))
        elif _shape(value) != form.y.tensor.shape and not (is_nhwc and keeps_shape):
            value = self._writer.emit(f"{output.name}_moved", relax.op.reshape(value, form.y.tensor.shape))
        if self._changes(form):
            value = self._requantized(output.name, value, form.x.params, form.y)
        self._put(output, _as_var(value), is_nhwc=is_nhwc and keeps_shape)

    def _changes(self, form: MoveForm) -> bool:
        x, y = form.x.params, form.y.tensor.params
        full = (_zero_point(x), _ratio(x, y)) == (_zero_point(y), 1.0)
        bounds = _output(form.y)
        return not (full and (bounds.qmin, bounds.qmax) == (0, 255))

    def _requantized(self, name: str, value: Expr, params: QuantParams, y: OutputForm) -> Var:
        spec = RequantizeSpec(
            size=int(np.prod(_shape(value))),
            multiplier=_ratio(params, y.tensor.params),
            input_zero_point=_zero_point(params),
            output=_output(y),
            threads=self._threads,
        )
        return self._call(name, kernels.requantize(spec, isa=self._isa), [value], _shape(value), "uint8")

    def _quantize(self, form: QuantizeForm, source: Var, output: Var) -> None:
        x = self.storage.source(source)
        spec = QuantizeSpec(
            size=int(np.prod(form.y.tensor.shape)),
            scale=float(form.y.tensor.params.scale),
            zero_point=_zero_point(form.y.tensor.params),
            dtype="uint8",
            threads=self._threads,
        )
        kernel = kernels.quantize(spec, isa=self._isa)
        self._put(output, self._call(output.name, kernel, [x], form.y.tensor.shape, "uint8"), is_nhwc=False)

    def _dequantize(self, form: DequantizeForm, by_name: dict[str, Var], output: Var) -> None:
        var = by_name[form.x.name]
        is_nhwc = self.storage.is_kept_nhwc(var)
        x = self.storage.get(var, is_nhwc=is_nhwc)
        spec = DequantizeSpec(
            size=int(np.prod(form.x.shape)),
            scale=float(form.x.params.scale),
            zero_point=_zero_point(form.x.params),
            dtype="uint8",
            threads=self._threads,
        )
        value = self._call(output.name, kernels.dequantize(spec, isa=self._isa), [x], _shape(x), "float32")
        if is_nhwc:
            value = self._writer.emit(f"{output.name}_nchw", relax.op.permute_dims(value, list(TO_NCHW)))
        self.storage.put(output, SOURCE, value)


def _shape(expr: Expr) -> tuple[int, ...]:
    shape = static_shape(expr)
    assert shape is not None, "kernels are specified for static shapes"
    return shape


def _as_var(value: Expr) -> Var:
    assert isinstance(value, Var)
    return value


def _zero_point(params: QuantParams) -> int:
    """Return the zero point as kernels see it, in the uint8 domain."""
    return int(params.zero_point) + (128 if params.dtype == "int8" else 0)


def _output(y: OutputForm) -> Output:
    moved = 128 if y.tensor.params.dtype == "int8" else 0
    return Output(zero_point=_zero_point(y.tensor.params), qmin=y.qmin + moved, qmax=y.qmax + moved)


def _as_uint8(values: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    return (values.astype(np.int16) + 128).astype(np.uint8) if values.dtype == np.int8 else values.astype(np.uint8)


def _ratio(x: QuantParams, y: QuantParams) -> float:
    return float(np.float32(x.scale) / np.float32(y.scale))


def _weight_zero_point(weight: WeightForm) -> int | npt.NDArray[np.int32]:
    first = int(weight.zero_point[0])
    return first if bool((weight.zero_point == first).all()) else weight.zero_point


def _check_overflow(weight: WeightForm, x: TensorForm, name: str) -> None:
    check_accumulator(weight.values, weight.zero_point, weight.bias, _zero_point(x.params), 0, 255, where=name)


def _is_flat_image(form: MoveForm) -> bool:
    """Return whether an NCHW image is reshaped in a way that NHWC memory serves as well: height and width are 1."""
    return form.axes is None and len(form.x.shape) == 4 and form.x.shape[2] == form.x.shape[3] == 1
