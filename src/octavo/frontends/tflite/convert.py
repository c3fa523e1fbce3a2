"""Convert a checked .tflite graph to Relax with TVM's importer and our converters of `ops`. Checks no bytes."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import tflite
from tvm import relax, tirx
from tvm.relax.frontend.tflite import from_tflite, tflite_frontend
from tvm_ffi import structural_walk

from ...errors import ModelError, OctavoError, UnsupportedOpError
from ...ir.graph.dataflow import static_shape
from ...ir.graph.nodes import constant
from ...ir.graph.sizes import size_of
from ...runtime.shapes import evaluated, without_sizes
from ...runtime.size import OpenSizeError, Size, expressed_by
from ..assemble import Assembled, assemble
from ..frontend import RejectedOpError, discard, quiet, reason
from ..input_shapes import InputShapes
from ..source_tensor import SourceTensor
from ..symbols import Symbols
from .counting import COUNTED_RESULTS
from .inputs import FIXED, with_names
from .ops import OpConverter
from .rounding import op_rounding
from .source import TfliteGraph, TfliteOp, TfliteSource

_WINDOWS = {
    **dict.fromkeys(("AVERAGE_POOL_2D", "CONV_2D", "CONV_3D", "DEPTHWISE_CONV_2D", "L2_POOL_2D", "MAX_POOL_2D"), 0),
    "TRANSPOSE_CONV": 2,
}
"""Ops whose windows slide over an image -> which operand that is."""


def _key(index: int) -> str:
    """Name under which TVM's importer knows a tensor: the index, for source names may be missing or occur twice."""
    return f"t{index}"


class _KeyedTensor(tflite.Tensor):
    """A tensor that goes by its key."""

    def __init__(self, index: int) -> None:
        self._index = index

    def Name(self) -> bytes:
        """Return the key."""
        return _key(self._index).encode()


class _KeyedSubGraph(tflite.SubGraph):
    """The subgraph, with tensors that go by their keys."""

    def Tensors(self, j: int) -> Any:
        """Return tensor `j`."""
        plain: Any = super().Tensors(j)
        tensor = _KeyedTensor(int(j))
        tensor.Init(plain._tab.Bytes, plain._tab.Pos)
        return tensor


class _KeyedModel(tflite.Model):
    """The file, with tensors that go by their keys."""

    def Subgraphs(self, j: int) -> Any:
        """Return subgraph `j`."""
        plain: Any = super().Subgraphs(j)
        graph = _KeyedSubGraph()
        graph.Init(plain._tab.Bytes, plain._tab.Pos)
        return graph


class _ConstantTable(tflite_frontend.ExprTable):
    """TVM's table of expressions, which also remembers which constant is which source tensor."""

    def __init__(self, exprs: dict[str, Any]) -> None:
        super().__init__()
        self.exprs = exprs
        self.constants: dict[str, Any] = {}

    def new_const(self, value: Any, shape: Any = None, dtype: str = "float32", source_name: bytes | None = None) -> Any:
        """Make a constant, or return the one made for that tensor before if it has the same shape."""
        key = source_name.decode() if source_name is not None else None
        known = self.constants.get(key) if key is not None else None
        if known is not None and [int(dim) for dim in known.ty.shape] == list(value.shape):
            return known
        made = constant(np.asarray(value, dtype))
        if key is not None:
            self.constants.setdefault(key, made)
        return made


class _GraphConverter(OpConverter):
    """Runs the ops; binds each result to a variable, and names the op and its tensor in every error."""

    def __init__(self, graph: TfliteGraph, shaping: _Shaping, origin: str, *args: Any) -> None:
        super().__init__(*args)
        self.graph, self.declared, self.known = graph, shaping.declared, shaping.known
        self._symbols = shaping.symbols
        self._batches = _batches(graph, shaping.shapes)
        self._is_bound = shaping.declared is not None and not shaping.shapes
        self._origin = origin
        self.exp_tab = _ConstantTable(self.exp_tab.exprs)

    def holder(self, index: int) -> Any:
        """Return what holds tensor `index`; None if nothing does."""
        expr = self.exp_tab.exprs.get(_key(index))
        return expr if expr is not None else self.exp_tab.constants.get(_key(index))

    def check_unsupported_ops(self) -> None:
        """Raise for the first op that there is no converter for, or none for quantized tensors."""
        for op in self.graph.ops:
            if op.name not in self.convert_map:
                raise UnsupportedOpError(f"{self._describe(op)} is not supported by the importer{self._advice(op)}")
            readers = [each.name for each in self.graph.ops if op.name in COUNTED_RESULTS and op.outputs[0] in each.inputs]
            if readers:
                why = f"the shape of its result, which op {readers[0]} reads, depends on data"
                raise UnsupportedOpError(
                    f"{self._describe(op)}: {why}; let it be an output of the model, and pick what it names yourself"
                )
            for name, value in op.options.items():
                if isinstance(value, float) and not math.isfinite(value):
                    raise UnsupportedOpError(f"{self._describe(op)} has option {name} = {value}; it must be finite")
            tensors = [self.graph.tensors[index] for index in (*op.inputs, *op.outputs) if index >= 0]
            if not any(tensor.scale for tensor in tensors):
                continue
            if op.name not in self.OWN_OPS:
                raise UnsupportedOpError(f"{self._describe(op)} is not supported by the importer on quantized tensors")

    def _advice(self, op: TfliteOp) -> str:
        """Say what to do about an op: what a custom one computes the runtime knows that it was made for, and no file."""
        before = [self.graph.tensors[index].name for index in op.inputs if index >= 0 and self.graph.tensors[index].value is None]
        ends = f" at {before[0]!r}" if before else ""
        why = "only the runtime that it was made for knows what it computes: " if op.name.startswith("CUSTOM") else ""
        return f"; {why}convert the model with other ops in its place, or end it before this op{ends} and compute the op yourself"

    def convert_op_to_relax(self) -> None:
        """Convert op after op."""
        for index, op in enumerate(self.graph.ops):
            self.rounding = op_rounding(op, self.graph)
            self._reads_others = self.declared is not None and (self._is_bound or any(map(self._is_other, op.inputs)))
            try:
                result = self._empty(op)
                result = self.convert_map[op.name](op=self.subgraph.Operators(index)) if result is None else result
                if result is not None:
                    result = self.bb.normalize(result)
                    self._learn_bounds(op, result)
                    self._check_result(op, result)
                    self._set_outputs(op, result)
            except RejectedOpError as error:
                raise UnsupportedOpError(f"{self._describe(op)}: {error}, which is not supported{self._advice(op)}") from None
            except OpenSizeError as error:
                raise UnsupportedOpError(f"{self._describe(op)}: {self._open_advice(str(error))}") from None
            except OctavoError:
                raise
            except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, AssertionError) as error:
                # What a converter stumbles over that takes an operand, a shape or an option for granted.
                form = f"{len(op.inputs)} inputs, {len(op.outputs)} results and its options"
                raise UnsupportedOpError(f"{self._describe(op)} cannot be imported with {form}: {reason(error)}") from error
            except Exception as error:
                raise UnsupportedOpError(f"{self._describe(op)} cannot be imported: {reason(error)}") from error

    def _empty(self, op: TfliteOp) -> Any:
        """Return an op's result where it has no elements, at the sizes of the file; else None."""
        made = [self.graph.tensors[index] for index in op.outputs]
        if op.name in COUNTED_RESULTS or self.declared is not None or len(made) != 1 or math.prod(made[0].shape):
            return None
        return relax.const(np.zeros(made[0].shape, made[0].dtype))

    def _open_advice(self, problem: str) -> str:
        """Say of a problem with open sizes what to do: fix one by its name, or leave the file's sizes as they are."""
        found = [name for name in self.declared or () if name in re.findall(r"\w+", problem)]
        names = [name for name in found if not FIXED.fullmatch(name)]
        advice = "leave out shapes and sizes: the graph is written for those of the file"
        if found and self._batches.issuperset(found):
            advice = "leave out this size: the graph is of one sample, and an executable takes any number, one after another"
        elif names:
            advice = f'fix {" or ".join(names)}: sizes={{"{names[0]}": N}} in Python, --size {names[0]}=N on the command line'
        return f"{FIXED.sub(_size_in, problem)}; {advice}"

    def _is_other(self, index: int) -> bool:
        """Return whether a tensor has another shape than the file states."""
        expr = None if index < 0 else self.exp_tab.exprs.get(_key(index))
        return expr is not None and static_shape(expr) != self.graph.tensors[index].shape

    def _check_result(self, op: TfliteOp, result: Any) -> None:
        """Reject a result that is not what the file states: then operands or options are not what they were meant to be."""
        types: list[Any] = list(result.ty.fields) if isinstance(result.ty, relax.TupleType) else [result.ty]
        if len(types) != len(op.outputs):
            raise RejectedOpError(f"{len(op.outputs)} results where it has {len(types)}")
        for found, index in zip(types, op.outputs, strict=True):
            declared = self.graph.tensors[index]
            shape = self._at_declared_sizes(index, found) if isinstance(found.shape, relax.ShapeExpr) else None
            # Some writers state no shape at all.
            wanted = () if op.name in COUNTED_RESULTS else declared.shape
            if (wanted and shape is not None and shape != declared.shape) or str(found.dtype) != declared.dtype:
                raise RejectedOpError(f"a result {declared.dtype} {declared.shape} where it computes {found.dtype} {shape}")

    def _learn_bounds(self, op: TfliteOp, result: Any) -> None:
        """Raise UnsupportedOpError where nothing is left of an image; bounds of open sizes become those that leave something."""
        types: list[Any] = list(result.ty.fields) if isinstance(result.ty, relax.TupleType) else [result.ty]
        shapes = [[self._symbols.simplify(size) for size in each.shape.values] for each in types if _has_shape(each)]
        try:
            if op.name in _WINDOWS:
                image = self.exp_tab.exprs[_key(op.inputs[_WINDOWS[op.name]])].ty.shape.values
                self._symbols.be_pixels([self._symbols.simplify(size) for size in image][1:-1], shapes[0][1:-1])
            for size in itertools.chain(*shapes):
                self._symbols.be_size(size)
        except RejectedOpError as error:
            raise UnsupportedOpError(f"{self._describe(op)}: {error}") from None

    def _at_declared_sizes(self, index: int, found: Any) -> tuple[int, ...] | None:
        """Return a result's shape at the sizes that the file states; None where inputs have others of known size."""
        if self.declared is None:
            return tuple(int(dim) for dim in found.shape)
        sizes = tuple(size_of(dim) for dim in found.shape)
        if None in sizes or not self.declared:
            known = self.known.get(index)
            if known is not None and sizes != known:
                raise RejectedOpError(f"a result of shape {known} where it computes {sizes}")
            return None
        return evaluated([size for size in sizes if size is not None], self.declared)

    def _set_outputs(self, op: TfliteOp, result: Any) -> None:
        """Bind the result, or each of several, to a variable that the tensor's key leads to."""
        if len(op.outputs) == 1:
            self.exp_tab.set_expr(_key(op.outputs[0]), self.bb.emit(result) if isinstance(result, relax.Call) else result)
            return
        full = result if isinstance(result, relax.Tuple) else self.bb.emit(result)
        for position, index in enumerate(op.outputs):
            field = full[position]
            named = field if isinstance(field, relax.Var) else self.bb.emit(field)
            self.exp_tab.set_expr(_key(index), named)

    def _describe(self, op: TfliteOp) -> str:
        output = self.graph.tensors[op.outputs[0]].name if op.outputs else ""
        return f"{self._origin}: op {op.name} (output tensor {output!r})"


def _has_shape(ty: Any) -> bool:
    return isinstance(ty.shape, relax.ShapeExpr)


def convert(
    graph: TfliteGraph, origin: str, inputs: InputShapes | None = None, *, is_bound: bool = False
) -> tuple[Assembled, TfliteSource]:
    """Build the named module of a checked file; `origin` names it in messages, `inputs` are shapes in place of the file's.

    Where values were given to inputs (`is_bound`), shapes follow from these, and not from what the file states of results.

    Also say which id each of the file's tensors has.

    Raises
    ------
    UnsupportedOpError
        If an op has no converter, or a form that none takes.
    ModelError
        If the graph makes no sense to TVM.
    """
    shaping = _Shaping(declared={} if is_bound else None) if inputs is None else _shaping(graph, origin, inputs)
    module, converter = _imported(graph, origin, shaping)
    order = _source_order(graph)
    sources = _sources(graph)
    if shaping.declared is not None:
        for index, source in enumerate(sources):
            holder = converter.holder(index)
            shape = None if holder is None else static_shape(holder)
            sources[index] = source if shape is None else replace(source, shape=tuple(without_sizes(shape)))
    assembled = assemble(
        module,
        [sources[index] for index in order],
        [converter.holder(index) for index in order],
        [order.index(index) for index in graph.outputs],
    )
    ids = dict(zip(order, assembled.ids, strict=True))
    return assembled, TfliteSource(graph=graph, ids=tuple(ids[index] for index in range(len(graph.tensors))))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Shaping:
    """Shapes in place of the file's.

    Parameters
    ----------
    shapes
        Of inputs, by name.
    declared
        The size that the file states of each open dimension; empty where one is fixed anew and where values of inputs decide,
        None where the file's shapes hold.
    known
        Shapes of tensors by index, where one is fixed anew.
    symbols
        What is known of the open dimensions of `shapes`.
    """

    shapes: Mapping[str, tuple[Any, ...]] = field(default_factory=dict[str, tuple[Any, ...]])
    declared: Mapping[str, int] | None = None
    known: Mapping[int, tuple[int | Size, ...]] = field(default_factory=dict[int, "tuple[int | Size, ...]"])
    symbols: Symbols = field(default_factory=lambda: Symbols(()))


def _shaping(graph: TfliteGraph, origin: str, inputs: InputShapes) -> _Shaping:
    named, values = with_names(graph, inputs)
    first = _Shaping(shapes=named.shapes, declared=_declared_sizes(graph, named.shapes), symbols=named.symbols)
    if not values:
        return replace(first, shapes=inputs.shapes, symbols=inputs.symbols)
    _, converter = _imported(graph, origin, first)
    known: dict[int, tuple[int | Size, ...]] = {}
    for index in range(len(graph.tensors)):
        holder = converter.holder(index)
        shape = None if holder is None else static_shape(holder)
        if shape is not None:
            known[index] = tuple(size.substitute(values) if isinstance(size, Size) else size for size in shape)
    return _Shaping(shapes=inputs.shapes, declared={}, known=known, symbols=inputs.symbols)


def _imported(graph: TfliteGraph, origin: str, shaping: _Shaping) -> tuple[Any, _GraphConverter]:
    """Return the module that TVM's importer makes with our converter, and that."""
    converters: list[_GraphConverter] = []

    def make(*args: Any) -> _GraphConverter:
        converters.append(_GraphConverter(graph, shaping, origin, *args))
        return converters[0]

    make_converter: Any = make
    # TVM's importer asks a tflite.Model by its methods.
    root: Any = tflite.Model.GetRootAs(graph.data, 0)
    model = _KeyedModel()
    model.Init(root._tab.Bytes, root._tab.Pos)
    shapes = shaping.shapes
    try:
        keyed = {_key(index): shapes[name] for index, name in _input_names(graph).items() if name in shapes}
        with quiet(), expressed_by(_variables(shapes).__getitem__):
            return from_tflite(model, shape_dict=keyed, op_converter=make_converter), converters[0]
    except Exception as error:
        for converter in converters:
            discard(converter.bb)
        if isinstance(error, OctavoError):
            raise
        raise ModelError(f"{origin}: TVM's TFLite importer cannot read the graph: {reason(error)}") from error


def _size_in(name: re.Match[str]) -> str:
    """Return the size that the name of a fixed dimension ends in."""
    return name[1]


def _input_names(graph: TfliteGraph) -> dict[int, str]:
    return {index: graph.tensors[index].name for index in graph.inputs}


def _variables(shapes: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
    """Return the variables of open dimensions, by their names."""
    found: dict[str, Any] = {}
    for dim in (dim for shape in shapes.values() for dim in shape if isinstance(dim, tirx.Expr)):
        structural_walk(dim, (tirx.Var, lambda var: found.__setitem__(str(var.name), var)))
    return found


def _declared_sizes(graph: TfliteGraph, shapes: Mapping[str, tuple[Any, ...]]) -> dict[str, int]:
    """Return the size that the file states of each open dimension."""
    declared: dict[str, int] = {}
    for index, name in _input_names(graph).items():
        for size, dim in zip(shapes[name], graph.tensors[index].shape, strict=True):
            if isinstance(size, tirx.Var):
                declared.setdefault(str(size.name), dim)
    return declared


def _batches(graph: TfliteGraph, shapes: Mapping[str, tuple[Any, ...]]) -> set[str]:
    """Return the open dimensions that stand for the one sample that a file is of, whose results an executable can join."""
    if any(graph.tensors[index].shape[:1] != (1,) for index in graph.outputs):
        return set()
    tensors = {name: graph.tensors[index] for index, name in _input_names(graph).items()}
    first = {name: shape[0] for name, shape in shapes.items() if shape and isinstance(shape[0], tirx.Var)}
    return {
        str(size.name) for name, size in first.items() if tensors[name].shape[0] == 1 and -1 not in tensors[name].signature[:1]
    }


def _source_order(graph: TfliteGraph) -> list[int]:
    """Order of the table: inputs, then for each op its constants and its outputs, then what nothing reads."""
    order: dict[int, None] = dict.fromkeys(graph.inputs)
    for op in graph.ops:
        order.update(dict.fromkeys(index for index in (*op.inputs, *op.outputs) if index >= 0))
    order.update(dict.fromkeys(range(len(graph.tensors))))
    return list(order)


def _sources(graph: TfliteGraph) -> list[SourceTensor]:
    makers = {index: op.name for op in graph.ops for index in op.outputs}
    return [
        SourceTensor(
            name=tensor.name or f"tensor {index}",
            kind="input" if index in graph.inputs else "activation" if index in makers else "constant",
            op=makers.get(index, ""),
            shape=tensor.shape,
            dtype=tensor.dtype,
            is_output=index in graph.outputs,
        )
        for index, tensor in enumerate(graph.tensors)
    ]
