"""Writing kernel calls: activations in the layout that kernels read, constants packed, PrimFuncs collected by symbol.

Kernels enter as calls to external symbols, so that TVM's own passes over the float remainder leave them alone; `link` puts
them in afterwards.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm.relax import Expr, Var

from ....errors import CompileError
from ....ir.composites.attributes import Composite
from ....ir.composites.base import RELABELLING
from ....ir.graph.dataflow import BodyWriter, dtype_of, static_shape
from ....ir.graph.growing_states import GrowingState
from ....ir.graph.kernel_attributes import RESULT_ATTR
from ....ir.graph.nodes import constant, function_of, tensor_buffer
from ....ir.graph.sizes import buffers_and_dimensions, size_of
from ....ir.untyped import relax
from ....numerics.floats.half import HalfDtype
from ....runtime.shapes import TYPICAL
from ....runtime.size import Size, expressed_by, names_in
from ..external import External
from ..protocol import Backend, Code, CodeLayout, where_of
from ..tunable import Tunable
from .external_kernel import external_kernel
from .kernels import NO_SCHEDULES, Kernel, Schedules, WeightDtype, fits
from .storage import TO_NHWC, Storage, StorageLayout

_LONGEST = 80
"""Characters of a size in an error."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PlacedKernel:
    """A kernel in the module: its PrimFunc over tensors of the module's own shapes, and what `Kernel` says of it."""

    symbol: str
    func: tvm.tirx.PrimFunc
    name: str
    isa: str
    tunable: Tunable | None = None
    limits: tuple[tuple[Size, int], ...] = ()


@dataclass(slots=True)
class KernelTable:
    """The PrimFuncs of a module by symbol, and the functions that they call in other back ends' code."""

    placed: dict[str, PlacedKernel] = field(default_factory=dict[str, PlacedKernel])
    externals: dict[str, External] = field(default_factory=dict[str, External])
    constants: dict[tuple[str, bytes], Expr] = field(default_factory=dict[tuple[str, bytes], Expr])
    where: str = ""
    """What is being written, for errors: the kind of the op, and the tensor that it gives."""

    def shared(self, array: npt.NDArray[Any]) -> Expr:
        """Return the constant of an array that several ops may read: equal ones are one."""
        key = str(array.dtype), hashlib.sha256(array.tobytes()).digest()
        return self.constants.setdefault(key, constant(array))

    def add(self, name: str, kernel: Kernel, shapes: list[tuple[int, ...]], attrs: Mapping[str, Any]) -> str:
        """Place a kernel over buffers of these shapes and return its symbol, which ends in the result's name."""
        func: Any = with_shapes(kernel.func, shapes, f"{self.where or kernel.name}, tensor {name}")
        if attrs:
            func = func.with_attrs(attrs)
        symbol = f"octavo_{len(self.placed)}_{name}"
        facts: dict[str, Any] = {"name": kernel.name, "isa": kernel.isa, "tunable": kernel.tunable, "limits": kernel.limits}
        self.placed[symbol] = PlacedKernel(symbol=symbol, func=func, **facts)
        return symbol

    def describe(self, symbol: str, attrs: Mapping[str, Any]) -> None:
        """Give a kernel that was placed further attributes."""
        func: Any = self.placed[symbol].func
        self.placed[symbol] = replace(self.placed[symbol], func=func.with_attrs(attrs))


def with_shapes(func: tvm.tirx.PrimFunc, shapes: list[tuple[int, ...]], where: str) -> tvm.tirx.PrimFunc:
    """Give a PrimFunc over flat buffers the shapes of the tensors it is called with; the memory is the same.

    Each flat buffer becomes a view of the data of a buffer with the tensor's shape.

    Raises
    ------
    CompileError
        An open size is written in two ways that are not seen to be equal. `where` begins its message.
    """
    tir = tvm.tirx
    buffers, dimensions = buffers_and_dimensions(func)
    own: dict[str, Any] = {str(var.name): var for var in dimensions}
    params: list[Any] = []
    views: list[Any] = []
    with expressed_by(own.__getitem__):
        for flat, shape in zip(buffers, shapes, strict=True):
            ty = flat.ty
            size = size_of(ty.shape[0])
            check_count(math.prod(shape), size, f"{where}: argument {flat.name}")
            if len(shape) == 1:
                params.append(flat)
                continue
            shaped = tensor_buffer(flat.name, shape, str(ty.dtype))
            params.append(shaped)
            views.append(tir.DeclBuffer(flat, data=tir.buffer.buffer_data(shaped)))
        params[-1:-1] = dimensions
    return function_of(params, tir.SeqStmt([*views, func.body]) if views else func.body, func.ret_type, func.attrs)


def check_count(given: int | Size, wanted: int | Size | None, where: str) -> None:
    """Raise CompileError where a tensor has other values than its kernel takes, as far as the two open sizes tell."""
    if given == wanted:
        return
    assert wanted is not None, f"{where}: no size"
    assert names_in((given, wanted)), f"{where}: {given} values are not {wanted}"
    names = _deciding(given, wanted)
    sizes = ", ".join(f'"{name}": N' for name in names)
    options = " ".join(f"--size {name}=N" for name in names)
    raise CompileError(
        f"{where}: {_short(given)} values are not seen to be the {_short(wanted)} that its kernel takes, for all sizes; load the "
        f"model with sizes={{{sizes}}} in Python, {options} on the command line"
    )


def _deciding(one: int | Size, other: int | Size) -> list[str]:
    """Return the dimensions that leave open whether sizes are equal: with all others fixed, it still is; all where none does."""
    names = sorted(names_in((one, other)))

    def with_only(name: str) -> list[int | Size]:
        fixed = {each: TYPICAL for each in names if each != name}
        return [size.substitute(fixed) if isinstance(size, Size) else size for size in (one, other)]

    found = [name for name in names if len(set(with_only(name))) > 1]
    return found or names


def _short(size: int | Size) -> str:
    """Return a size as text that fits into a line."""
    text = str(size)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text)} characters)"


class KernelContext:
    """Writes the kernel calls of one function.

    Parameters
    ----------
    writer
        Receives the bindings.
    table
        Receives the kernels.
    isa
        Instruction set of the kernels.
    threads
        Chunks that large kernels are cut into.
    schedules
        Those that were measured to be best, by the kernels' keys.
    half
        What the module was downcast to; None where it was not.
    """

    def __init__(
        self,
        writer: BodyWriter,
        table: KernelTable,
        isa: str,
        threads: int,
        schedules: Schedules = NO_SCHEDULES,
        half: HalfDtype | None = None,
    ) -> None:
        self.writer = writer
        self.isa = isa
        self.threads = threads
        self.schedules = schedules
        self._half: HalfDtype | None = half
        self.kept: list[Var] = []
        self.growing: dict[Var, GrowingState] = {}
        """The results that extend an input and are to have room for more rows, by their variables in the source."""
        self._table = table
        self._attrs: dict[str, Any] = {}
        self._ran: Kernel | None = None
        self._symbols: dict[Var, str] = {}
        self._views: dict[Var, Var] = {}
        self._results: dict[Var, list[dict[str, Any]]] = {}
        self._entries: dict[Var, dict[str, Any]] = {}
        self.quantized: dict[tuple[Any, ...], list[Expr]] = {}
        """Activations quantized at run time: integers and parameters by variable and manner."""
        self.storage = Storage(self, isa, threads)

    def weight_dtype(self, weight: npt.NDArray[np.float32]) -> WeightDtype:
        """Return what a kernel of float32 stores weights as: those of a downcast module in 16 bits, where these hold them."""
        return self._half if self._half is not None and fits(weight, self._half) else "float32"

    def write(self, backend: Backend, composite: Composite, inputs: list[Var], output: Var) -> Kernel | None:
        """Let a back end write the kernel calls of one composite, whose result the source graph calls `output`.

        Returns the kernel that does its work, None where it only moves data.
        """
        self._ran = None
        self._attrs = composite.attrs
        self._table.where = where_of(composite)
        backend.emit(composite, self, dict(zip(composite.inputs, inputs, strict=True)), output)
        self._attrs, self._table.where = {}, ""
        return self._ran

    def call(
        self,
        name: str,
        kernel: Kernel,
        args: list[Expr],
        shape: tuple[int, ...],
        dtype: str = "uint8",
        constants: Sequence[Expr] | None = None,
    ) -> Var:
        """Call a kernel on activations that lie as it reads them; the result has `shape` and is bound to `name`.

        `constants` are those of the kernel, where other kernels share them.
        """
        shapes = [*(shape_of(arg) for arg in args), *(array.shape for array in kernel.constants), shape]
        symbol = self._table.add(name, kernel, shapes, self._attrs)
        if constants is None:
            constants = [constant(array) for array in kernel.constants]
        self._ran = kernel
        result = relax.TensorType(shape, dtype)
        var = self.writer.emit(name, relax.call_dps_packed(symbol, [*args, *constants], out_ty=result))
        self._symbols[var] = symbol
        return var

    def run(self, code: Code, composite: Composite, inputs: list[Var], output: Var) -> None:
        """Call code that another back end generated; it reads and writes the source's own integers."""
        shape = static_shape(output)
        if shape is None or names_in(shape):
            raise CompileError(
                f"{where_of(composite)}: its shape is symbolic; code of back end {composite.backend} has static ones"
            )
        is_nhwc = self._is_nhwc(code.layout or "source", composite, inputs)
        args = [self.storage.get(var, is_nhwc=is_nhwc and len(shape_of(var)) == 4, is_relabelled=False) for var in inputs]
        lying_shape = tuple(shape[axis] for axis in TO_NHWC) if is_nhwc and len(shape) == 4 else shape
        dtypes = [dtype_of(each) for each in (*inputs, output)]
        kernel, external = external_kernel(code, composite, [*(shape_of(arg) for arg in args), lying_shape], dtypes)
        if external is not None:
            self._table.externals.setdefault(external.key, external)
        constants = [self._table.shared(each) for each in kernel.constants]
        result = self.call(output.name, kernel, args, lying_shape, dtypes[-1], constants)
        self._put(output, StorageLayout(is_nhwc=is_nhwc and len(shape) == 4), result)

    def _is_nhwc(self, layout: CodeLayout, composite: Composite, inputs: list[Var]) -> bool:
        """Return whether code wants tensors of rank 4 permuted from the source's NCHW."""
        if layout == "any":
            return any(self.storage.is_kept_nhwc(var) for var in inputs if len(shape_of(var)) == 4)
        own = getattr(composite.op, "layout", None)
        if layout == "NHWC" and own is None:
            raise CompileError(f"{where_of(composite)}: layout 'NHWC' is for ops that have a layout, not for {composite.op_name}")
        return layout == "NHWC" and own == "NCHW"

    @contextmanager
    def converting(self, var: Var) -> Generator[None]:
        """Let the kernels called meanwhile bring the source graph's `var` into another layout: they belong to no composite."""
        attrs = self._attrs
        entry = self._entries.get(var) or _only_input(attrs)
        self._attrs = {} if entry is None else {"quantize_info": {"output": entry}}
        yield
        self._attrs = attrs

    def record(self, var: Var, layout: StorageLayout, value: Expr) -> None:
        """Record that `value` holds the source graph's `var` in a layout, on the kernel that wrote the memory.

        What is not recorded is no claim: results within a composite, and memory that no kernel of ours wrote.
        """
        entry = self._entries.get(var) or _only_input(self._attrs)
        root = self._views.get(value, value) if isinstance(value, Var) else None
        if entry is None or root is None or root not in self._symbols:
            return
        recorded = self._results.setdefault(root, [])
        recorded.append({**entry, "shape": list(shape_of(value)), **_storage_entry(layout, dtype_of(var))})
        self._table.describe(self._symbols[root], {RESULT_ATTR: recorded})

    @property
    def recorded(self) -> set[tuple[str, Var]]:
        """The tensors that kernels are recorded to hold, and the variable through which each is seen."""
        views: dict[Var, list[Var]] = {root: [root] for root in self._results}
        for view, root in self._views.items():
            views.setdefault(root, []).append(view)
        return {
            (str(entry["id"]), var)
            for root, entries in self._results.items()
            for entry in entries
            for var in views[root]
            if list(shape_of(var)) == entry["shape"]
        }

    def does_the_work(self, kernel: Kernel) -> None:
        """Say which kernel of a composite is told of it, where that is not the last one called."""
        self._ran = kernel

    def keep(self, result: Var) -> None:
        """Keep a call that nobody reads, for what it does beside: "main" returns its result too, behind all others."""
        self.kept.append(self.writer.emit(f"{result.name}_kept", result, is_output=True))

    def reshape(self, name: str, value: Expr, shape: tuple[int, ...]) -> Var:
        """See the same memory under another shape."""
        var = self.writer.emit(name, relax.op.reshape(value, shape))
        if isinstance(value, Var):
            self._views[var] = self._views.get(value, value)
        return var

    def permute(self, name: str, value: Expr, axes: tuple[int, ...]) -> Var:
        """Transpose 8-bit or float32 values."""
        return self.storage.permuted(name, value, axes)

    def put(self, output: Var, value: Expr, *, is_nhwc: bool) -> None:
        """Record a kernel's result as the source graph's `output`."""
        self._put(output, StorageLayout(is_nhwc, dtype_of(output) in RELABELLING), value)

    def _put(self, output: Var, layout: StorageLayout, value: Expr) -> None:
        self.storage.put(output, layout, value)
        entry = self._attrs.get("quantize_info", {}).get("output")
        if entry is not None:
            self._entries[output] = entry
            self.record(output, layout, value)


def _storage_entry(layout: StorageLayout, dtype: str) -> dict[str, Any]:
    """Say how a kernel's result lies in memory: the order of the source's axes, and what was added to its integers."""
    return {"axes": list(TO_NHWC) if layout.is_nhwc else None, "shift": RELABELLING[dtype] if layout.is_relabelled else 0}


def _only_input(attrs: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the entry of what a composite reads if that is one tensor."""
    entries = [entry for role, entry in attrs.get("quantize_info", {}).items() if role.startswith("input")]
    return entries[0] if len(entries) == 1 else None


def shape_of(expr: Expr) -> tuple[int, ...]:
    """Return the static shape of a tensor that a kernel reads or writes."""
    shape = static_shape(expr)
    if shape is None:
        name = expr.name if isinstance(expr, Var) else "a value"
        raise CompileError(
            f"tensor {name}: its shape is in no form that kernels take; load the model with sizes= in Python, --size on the "
            "command line, for the dimensions that it depends on"
        )
    return shape
