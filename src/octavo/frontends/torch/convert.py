"""Convert a torch.export program to Relax with TVM's importer, our converters in front. Importing this needs PyTorch.

The program's own FX graph is what is converted, so that its node names are the ids; only ops that neither we nor TVM know are
decomposed first (PyTorch's own decompositions), and graphs that write in place are made functional.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import GenericConst as Constant
from tvm.relax.frontend.torch import exported_program_translator

from ...errors import OctavoError, UnsupportedOpError
from ...ir.graph.nodes import constant
from ...ir.untyped import ops
from ..assemble import Assembled, assemble
from ..frontend import NewlyKnownError, RejectedOpError, conversion_errors, discard, quiet
from ..relax_ops import dtype_of, shape_of
from ..symbols import size_text
from .complex_numbers import BY_PARTS, COMPLEX, MAKERS, PARTS, Complex
from .constant_folding import computed, is_foldable
from .control_flow import describe
from .conv1d import CONV1D
from .conv3d import CONV3D
from .distances import DISTANCES
from .functionalize import functionalized, is_mutating
from .functions import ATTENTION, FUNCTIONS, NORMS
from .indexing import INDICES
from .open_shapes import ALIKE, OPEN_SHAPES
from .ops import CONVERTERS, Arguments, Converter, nothing
from .placing import PLACING
from .pt2e import PT2E
from .recurrent import RECURRENT, is_projected
from .resize import RESIZE
from .running import RUNNING
from .sizes import is_open_size
from .source import ORIGIN, TorchProgram, check_no_control_flow, dtype_name, read, source_tensors, to_numpy
from .torchao_affine import TORCHAO_AFFINE

_Frontend: Any = exported_program_translator.ExportedProgramImporter
_CONVERTERS: dict[str, Converter] = {
    **CONVERTERS,
    **CONV1D,
    **CONV3D,
    **RECURRENT,
    **MAKERS,
    **NORMS,
    **FUNCTIONS,
    **RUNNING,
    **DISTANCES,
    **ATTENTION,
    **ALIKE,
    **INDICES,
    **PLACING,
    **RESIZE,
    **PT2E,
    **TORCHAO_AFFINE,
}

_EINSUM = "aten.einsum.default"
"""Its decomposition has products, which quantize; TVM's converter leaves one op that it sums element by element."""


_LIBRARIES = ("aten.", "torchvision.")
"""Whose ops TVM's converters know."""


class _Importer(_Frontend):
    """TVM's importer, driven node by node; every tensor that a node gives is bound to a variable, so that it can be named."""

    def __init__(self, source: TorchProgram) -> None:
        super().__init__()
        self._source = source
        self.block_builder = relax.BlockBuilder()
        self.steps: dict[str, dict[str, Any]] = {}
        self._known: dict[Any, Any] = {}

    def knows(self, node: Any) -> bool:
        """Whether there is a converter for the node, ours or TVM's."""
        if node.op != "call_function" or not _is_operator(node):
            return True
        if str(node.target) == _EINSUM or (
            str(node.target) in RECURRENT and is_projected(_by_name(node, tuple(node.args), dict(node.kwargs)))
        ):
            return False
        return str(node.target) in _CONVERTERS or self._of_tvm(node) is not None

    def run(self) -> tvm.IRModule:
        """Build the module; `env` then has what holds the value of each node."""
        # TVM's stub wants expressions for dimensions; numbers do.
        tensor_type: Any = relax.TensorType
        inputs = [relax.Var(name, tensor_type(list(shape), dtype)) for name, (shape, dtype) in self._source.inputs.items()]
        given = dict(zip(self._source.inputs, inputs, strict=True))
        builder: Any = self.block_builder
        with builder.function("main", params=inputs, attrs={"num_input": len(inputs)}):
            with builder.dataflow():
                checked = _checked_alone(self._source.nodes)
                for node in self._source.nodes:
                    if node.op == "placeholder":
                        self.env[node] = self._placeholder(node, given)
                    elif node.op != "output" and node not in checked:
                        self.env[node] = self._convert(node)
                named = {str(node.name): value for node, value in self.env.items()}
                results = [named[name] for name in self._source.outputs]
                for name, result in zip(self._source.outputs, results, strict=True):
                    if isinstance(result, Complex):
                        raise UnsupportedOpError(f"{ORIGIN}: output {name!r} is complex; return torch.view_as_real of it")
                outputs = builder.emit_output(results[0] if len(results) == 1 else relax.Tuple(results))
            builder.emit_func_output(outputs)
        return self.block_builder.get()

    def _placeholder(self, node: Any, given: dict[str, Any]) -> Any:
        name = str(node.name)
        if name in given:
            return given[name]
        if name in self._source.literals:
            return self._source.literals[name]
        if name not in self._source.constants:  # a token
            return None
        target, tensor = self._source.constants[name]
        if is_foldable(tensor):
            self._known[node] = tensor
        return _constant(tensor, target)

    def _convert(self, node: Any) -> Any:
        with conversion_errors(lambda: f"{ORIGIN}: {describe(node)}"):
            _check_dtypes(node)
            result = self._computed(node)
            if result is None:
                result = self._bind(self._result(node))
            if isinstance(result, int | float):
                self._known[node] = result
            return result

    def _computed(self, node: Any) -> Any:
        tensor = computed(node, self._known)
        if tensor is None:
            return None
        self._known[node] = tensor
        return _constant(tensor, str(node.name))

    def _result(self, node: Any) -> Any:
        if node.op != "call_function":
            raise RejectedOpError(f"nodes of kind {node.op} are not supported")
        arguments = self._retrieve_args(tuple(node.args))
        if not _is_operator(node):
            if node.target.__name__ == "getitem":
                return self._field(node, arguments)
            return self._of_sizes(node, arguments)
        if _is_size(node):
            return self._size(node, arguments)
        if self._is_complex(node) and str(node.target) in BY_PARTS:
            return self._by_parts(node)
        return self._called(node, arguments)

    def _called(self, node: Any, arguments: tuple[Any, ...]) -> Any:
        """Return what the first converter makes of an operator's node."""
        keywords = {str(key): self._retrieve_args(value) for key, value in node.kwargs.items()}
        named = Arguments(
            builder=self.block_builder,
            values=_by_name(node, arguments, keywords),
            steps=self.steps.setdefault(str(node.name), {}),
            sizes=self._source.sizes,
            result=node.meta.get("val"),
        )
        try:
            for converter in self._converters(node, arguments):
                result = converter(named)
                if result is not NotImplemented:
                    return result
            known = self._of_tvm(node)
            if known is None:
                raise RejectedOpError("there is no converter for this op")
            return known(node)
        except (OctavoError, RejectedOpError, NewlyKnownError):
            raise
        except Exception as error:
            if not self._source.sizes.is_open(named.result, arguments):
                raise
            raise RejectedOpError(f"it is not supported for open sizes; {named.symbols.advice()}") from error

    def _of_tvm(self, node: Any) -> Any:
        """Return TVM's converter, which goes by the name of an op: one of another library may be called the same."""
        return self.convert_map.get(node.target.__name__) if str(node.target).startswith(_LIBRARIES) else None

    def _size(self, node: Any, arguments: tuple[Any, ...]) -> Any:
        """Return a size; of a tensor that is of known booleans' choosing PyTorch does not know it."""
        if str(node.target) == "aten.sym_size.int":
            size = shape_of(arguments[0])[int(arguments[1])]
            if isinstance(size, int):
                return size
        return self._source.sizes.of(node.meta["val"])

    def _is_complex(self, node: Any) -> bool:
        """Whether a node reads or gives complex numbers."""
        gives = str(getattr(node.meta.get("val"), "dtype", "")).startswith("torch.complex")
        return gives or any(isinstance(self.env.get(source), Complex) for source in node.all_input_nodes)

    def _by_parts(self, node: Any) -> Any:
        """Do to each part what the op does to real numbers; real operands have the imaginary part 0."""
        if any(isinstance(argument, float) and argument for argument in node.args):
            raise RejectedOpError("it fills complex numbers by a number other than 0")
        values = {source: self.env[source] for source in node.all_input_nodes}
        named: dict[str, Any] = {}
        results: list[Any] = []
        for part in PARTS:
            self.env.update({source: self._part(value, part) for source, value in values.items()})
            result = self._bind(self._called(node, self._retrieve_args(tuple(node.args))))
            results.append(result)
            steps = self.steps.pop(str(node.name))
            named.update({f"{part}.{suffix}": value for suffix, value in steps.items()})
            if isinstance(result, relax.Var):
                named[part] = result
        self.env.update(values)
        self.steps[str(node.name)] = named
        if isinstance(results[0], tuple):
            return tuple(Complex(*parts) for parts in zip(*results, strict=True))
        return Complex(*results)

    def _part(self, value: Any, part: str) -> Any:
        if isinstance(value, Complex):
            found = getattr(value, part)
            return self.block_builder.emit(ops.zeros_like(value.real)) if found is None else found
        is_real = part == "imag" and isinstance(value, relax.Expr) and dtype_of(value).startswith("float")
        return self.block_builder.emit(ops.zeros_like(value)) if is_real else value

    def _converters(self, node: Any, arguments: tuple[Any, ...]) -> list[Converter]:
        """Return our converters of a node in the order in which they are asked."""
        name = str(node.target)
        if self._is_complex(node):
            converter = COMPLEX.get(name, MAKERS.get(name))
            if converter is None and name not in BY_PARTS:
                raise RejectedOpError("complex numbers are not supported here; write it with real and imaginary parts")
            if converter is not None:
                return [converter]
        is_open = self._source.sizes.is_open(node.meta.get("val"), arguments)
        found = (OPEN_SHAPES.get(name) if is_open else None, _CONVERTERS.get(name))
        return [converter for converter in found if converter is not None]

    def _of_sizes(self, node: Any, arguments: tuple[Any, ...]) -> Any:
        """Return what Python's own arithmetic makes of sizes; of an order that is open nothing, for only asserts read it."""
        if _is_size(node):
            return self._source.sizes.of(node.meta["val"])
        if any(argument is None or is_open_size(argument) for argument in arguments):
            if node.users and type(node.meta.get("val")).__name__ != "SymBool":
                advice = self._source.sizes.symbols.advice()
                raise RejectedOpError(f"a number that is computed of open sizes is no size; {advice}")
            return None
        return node.target(*arguments)

    def _field(self, node: Any, arguments: tuple[Any, ...]) -> Any:
        value, index = arguments
        if isinstance(value, tuple | list):
            if value[index] is None and node.users:
                raise RejectedOpError(f"result {index} of {node.args[0].name!r} is not supported")
            return value[index]
        return self._getitem(node)

    def _bind(self, result: Any) -> Any:
        if isinstance(result, tuple | list):
            return tuple(self._bind(field) for field in result)
        if isinstance(result, relax.Call | relax.TupleGetItem):
            return self.block_builder.emit(result)
        return result


def _checked_alone(nodes: Sequence[Any]) -> set[Any]:
    """Return what checks values when a program runs, and what is computed for that alone."""
    found: set[Any] = set()
    for node in reversed(nodes):
        is_check = _CONVERTERS.get(str(node.target)) is nothing
        if node.op == "call_function" and (is_check or (node.users and all(user in found for user in node.users))):
            found.add(node)
    return found


def _constant(tensor: Any, where: str) -> Any:
    """Return a parameter, or what follows from known values; `where` names it in errors."""
    if not tensor.is_complex():
        return constant(to_numpy(tensor, where))
    return Complex(*(constant(to_numpy(part.resolve_neg(), where)) for part in (tensor.real, tensor.resolve_conj().imag)))


def _check_dtypes(node: Any) -> None:
    """Raise ModelError where a node gives numbers that are rounded as ours would not be: bfloat16, 8-bit floats."""
    result: Any = node.meta.get("val")
    for value in result if isinstance(result, tuple | list) else (result,):
        dtype = getattr(value, "dtype", None)
        if dtype is not None and not dtype.is_complex:
            dtype_name(dtype, str(node.name))


def _is_size(node: Any) -> bool:
    """Whether the value of a node is a size."""
    value = node.meta.get("val")
    return type(value).__name__ == "SymInt" or (isinstance(value, int) and not isinstance(value, bool))


def _is_operator(node: Any) -> bool:
    """Whether the node calls an op of PyTorch's, rather than a function on Python numbers or tuples."""
    return hasattr(node.target, "_schema")


def _by_name(node: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments by their names in the op's schema, with its defaults."""
    values: dict[str, Any] = {}
    for position, parameter in enumerate(node.target._schema.arguments):
        if position < len(arguments):
            values[parameter.name] = arguments[position]
        elif parameter.name in keywords:
            values[parameter.name] = keywords[parameter.name]
        else:
            values[parameter.name] = parameter.default_value if parameter.has_default_value() else None
    return values


def _prepared(source: TorchProgram) -> TorchProgram:
    """Return the program with unknown ops decomposed and in-place ones made functional; most need neither."""
    importer = _Importer(source)
    done: set[Any] = set()
    writes = any(is_mutating(node) for node in source.nodes)
    if writes:
        functional = functionalized(source)
        if functional is not None:
            source, importer, writes = functional, _Importer(functional), False
    while True:
        # What an op decomposes into may need the same again.
        unknown = {node.target for node in source.nodes if not importer.knows(node)} - done
        table = _decompositions(unknown)
        if not table and not writes and not any(map(_is_composed, unknown)):
            return source
        done |= set(table) | unknown
        writes = False
        program = source.program.run_decompositions(_decompositions(done))
        anew = read(program, {}, {})
        source = replace(source, program=anew.program, graph=anew.graph, constants=anew.constants, outputs=anew.outputs)


def _is_composed(op: Any) -> bool:
    """Whether PyTorch composes an op of others, always: those that give another view of a tensor are in no table."""
    keys: Any = importlib.import_module("torch._C").DispatchKey
    return hasattr(op, "has_kernel_for_dispatch_key") and op.has_kernel_for_dispatch_key(keys.CompositeImplicitAutograd)


@cache
def _all_decompositions() -> dict[Any, Any]:
    """Return PyTorch's table. It asks for every op of every library, which takes longer than to import a program."""
    return dict(importlib.import_module("torch.export").default_decompositions().items())


def _decompositions(unknown: set[Any]) -> dict[Any, Any]:
    """Return the decompositions of those of these ops that have one."""
    if not unknown:
        return {}
    if not unknown <= set(_all_decompositions()):
        _all_decompositions.cache_clear()  # a library may have been loaded since
    table = _all_decompositions()
    return {op: table[op] for op in unknown if op in table}


def convert(source: TorchProgram) -> Assembled:
    """Build the named module of a program.

    Raises
    ------
    UnsupportedOpError
        If a node has an op or a form that no converter takes.
    """
    check_no_control_flow(source)
    with quiet():
        source = _prepared(source)
        importer = _Importer(source)
        try:
            module = importer.run()
        except Exception:
            discard(importer.block_builder)
            raise
    holders = {str(node.name): value for node, value in importer.env.items()}
    for name, steps in importer.steps.items():
        holders.update({f"{name}.{suffix}": value for suffix, value in steps.items()})
    types = {name: (_dims(value), str(value.ty.dtype)) for name, value in holders.items() if _is_tensor(value)}
    listed = source_tensors(source, types)
    positions = {name: position for position, (name, _) in enumerate(listed)}
    sources = [tensor for _, tensor in listed]
    outputs = [positions[name] for name in source.outputs]
    # Norms cast to float32 and back whatever they are given. In other formats such casts stay: plans of before name them.
    return assemble(module, sources, [holders[name] for name, _ in listed], outputs, drops_casts=True)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, relax.Var | Constant) and isinstance(value.ty, relax.TensorType) and value.ty.shape is not None


def _dims(value: Any) -> tuple[int | str, ...]:
    return tuple(int(dim) if isinstance(dim, tvm.tirx.IntImm | np.integer | int) else size_text(dim) for dim in value.ty.shape)
