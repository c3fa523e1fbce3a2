"""Read a torch.export program: its tensors, where each value lies, and a fingerprint. Builds no Relax, imports no PyTorch.

PyTorch is an optional extra. A program object brings it along; everything here goes through the object's own attributes, so that
importing this module costs nothing and needs nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from mmap import mmap
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import ModelError, UnsupportedOpError, check_type
from ..fingerprint import Fingerprint
from ..source_tensor import SourceTensor
from .torchao_linear import unwrapped

ORIGIN = "torch program"
_STORED = frozenset({"PARAMETER", "BUFFER", "CONSTANT_TENSOR"})
_DTYPES = frozenset(
    {"bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64", "float16", "float32", "float64"}
)
_SUFFIXES = (".pt", ".pth", ".pt2")
_AFFINE = frozenset(f"torchao.{name}_affine.default" for name in ("choose_qparams", "quantize", "dequantize"))
_RETURNED = frozenset({"USER_OUTPUT", "LOSS_OUTPUT"})


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TorchProgram:
    """What conversion needs of an ExportedProgram.

    Parameters
    ----------
    program
        The ExportedProgram.
    graph
        Its FX graph, or what became of it.
    inputs
        FX name -> shape and dtype of each tensor that the caller gives, in order. Dimensions are numbers: a symbolic batch is 1
        unless the caller of `load` chose otherwise.
    literals
        FX name -> value of each argument that was no tensor when the program was exported (a number, None).
    constants
        FX name -> (qualified name, tensor) of each parameter, buffer and constant.
    outputs
        FX names of what the program returns, in order.
    any_batch
        Whether every input and output leaves its first dimension open, one size for all, and each sample is computed by itself.
    """

    program: Any
    graph: Any
    inputs: dict[str, tuple[tuple[int, ...], str]]
    literals: dict[str, Any]
    constants: dict[str, tuple[str, Any]]
    outputs: tuple[str, ...]
    any_batch: bool

    @property
    def nodes(self) -> list[Any]:
        """The FX nodes in order."""
        return list(self.graph.nodes)


def is_program(source: object) -> bool:
    """Whether `source` is a torch.export.ExportedProgram. It can be one only if its module has been imported."""
    module: Any = sys.modules.get("torch.export")
    return module is not None and isinstance(source, module.ExportedProgram)


def refuse_file(data: bytes | mmap, path: Path) -> None:
    """Raise ModelError for a file that PyTorch wrote: reading one unpickles it, which runs whatever code it holds."""
    is_archive = data[:4] == b"PK\x03\x04"
    is_pickle = data[:1] == b"\x80" and path.suffix in _SUFFIXES
    if is_archive or is_pickle:
        raise ModelError(
            f"{path}: looks like a file of PyTorch's, and loading those can run code; load it yourself if you trust it and give "
            "the program: octavo.load(torch.export.load(path))"
        )


def read(program: Any, shapes: Mapping[str, tuple[int, ...]] | None) -> TorchProgram:
    """Check a program and list what it takes, holds and returns.

    Raises
    ------
    ModelError
        If it changes its own buffers, holds values that are no tensors, or an input has a symbolic dimension without a size.
    """
    program = unwrapped(program)
    signature = program.graph_signature
    placeholders = {str(node.name): node for node in program.graph.nodes if node.op == "placeholder"}
    inputs: dict[str, tuple[tuple[int, ...], str]] = {}
    literals: dict[str, Any] = {}
    constants: dict[str, tuple[str, Any]] = {}
    wanted = dict(shapes or {})
    sizes = _symbol_sizes(placeholders, wanted)
    for spec in signature.input_specs:
        kind, name = spec.kind.name, str(spec.arg.name)
        if kind == "USER_INPUT":
            value: Any = placeholders[name].meta.get("val") if name in placeholders else None
            if type(spec.arg).__name__ == "ConstantArgument":
                literals[name] = spec.arg.value
            elif not hasattr(value, "dtype"):
                raise ModelError(f"{ORIGIN}: input {name!r} is no tensor but {type(value).__name__}; export it as a constant")
            else:
                inputs[name] = (_input_shape(name, value, wanted.pop(name, None), sizes), dtype_name(value.dtype, name))
        elif kind in _STORED:
            constants[name] = (str(spec.target), _value_of(program, str(spec.target)))
        else:
            raise ModelError(f"{ORIGIN}: input {name!r} is a {kind.lower()}, which is not supported")
    if wanted:
        raise ModelError(f"{ORIGIN}: no input {sorted(wanted)}; the inputs are {sorted(inputs)}")
    outputs = _outputs(signature.output_specs)
    return TorchProgram(
        program=program,
        graph=program.graph,
        inputs=inputs,
        literals=literals,
        constants=constants,
        outputs=outputs,
        any_batch=not shapes and _leaves_batch_open(program, inputs, outputs),
    )


def check_ranges(program: Any, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise ModelError for a size outside of what the program says of its dimension (torch.export.Dim)."""
    for node in program.graph.nodes:
        declared: list[Any] = list(getattr(node.meta.get("val"), "shape", ())) if str(node.name) in shapes else []
        for position, dim in enumerate(declared):
            size = shapes[str(node.name)][position]
            allowed = None if isinstance(dim, int) else program.range_constraints.get(dim.node.expr)
            if allowed is not None and not (allowed.lower <= size <= allowed.upper):
                raise ModelError(
                    f"{ORIGIN}: dimension {position} of input {str(node.name)!r} is {size}, the program was exported for "
                    f"[{allowed.lower}; {allowed.upper}]; give such a size or export with another torch.export.Dim"
                )


def batch_range(source: TorchProgram) -> tuple[int, int | None]:
    """Return the smallest and the largest batch that the program states for an open batch; None: no bound.

    A smallest of 2 is PyTorch's own (it specializes sizes 0 and 1), so one sample is allowed there.
    """
    name = next(iter(source.inputs), None)
    node = next((node for node in source.nodes if str(node.name) == name), None)
    if not source.any_batch or node is None:
        return 1, None
    allowed: Any = source.program.range_constraints.get(node.meta["val"].shape[0].node.expr)
    if allowed is None:
        return 1, None
    min_batch, max_batch = (int(bound) if bound.is_Integer else None for bound in (allowed.lower, allowed.upper))
    return (1 if min_batch is None or min_batch <= 2 else min_batch), max_batch


def _leaves_batch_open(program: Any, inputs: Mapping[str, Any], outputs: tuple[str, ...]) -> bool:
    """Whether one symbol is the first dimension of all inputs and outputs, and a dimension of all that is computed of inputs.

    A value without it, such as a mean over the batch or the scale of a whole tensor, is one for all samples.
    """
    values = {str(node.name): node.meta.get("val") for node in program.graph.nodes}
    ends: list[list[Any]] = [list(getattr(values.get(name), "shape", ()))[:1] for name in (*inputs, *outputs)]
    firsts: set[Any] = {None if not first or isinstance(first[0], int) else first[0].node.expr for first in ends}
    if len(firsts) != 1 or None in firsts:
        return False
    [batch] = firsts
    computed: set[str] = set(inputs)
    for node in program.graph.nodes:
        if not any(str(source.name) in computed for source in node.all_input_nodes):
            continue
        results: Any = node.meta.get("val")
        tensors = [value for value in (results if isinstance(results, tuple | list) else (results,)) if hasattr(value, "shape")]
        if tensors and node.op != "output":
            computed.add(str(node.name))
            if not all(any(batch in _symbols(dim) for dim in value.shape) for value in tensors):
                return False
    return batch.is_Symbol


def _symbols(dim: Any) -> Any:
    return () if isinstance(dim, int) else dim.node.expr.free_symbols


def _symbol_sizes(placeholders: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Return the size of each symbol that the given shapes name: inputs that share one share its size."""
    sizes: dict[str, int] = {}
    for name, given in dict[str, Any](shapes).items():
        expected = f"a tuple of whole numbers as the shape of input {name!r}"
        check_type(given, tuple | list, ModelError, expected)
        for size in given:
            check_type(size, int | np.integer, ModelError, expected)
        value: Any = placeholders[name].meta.get("val") if name in placeholders else None
        symbols: tuple[Any, ...] = tuple(getattr(value, "shape", ()))
        for declared, size in zip(symbols, given, strict=False):
            if not isinstance(declared, int) and sizes.setdefault(str(declared), int(size)) != size:
                raise ModelError(
                    f"{ORIGIN}: dimension {declared} of input {name!r} is {size}, and {sizes[str(declared)]} elsewhere; "
                    "give one size"
                )
    return sizes


def _input_shape(name: str, value: Any, wanted: tuple[int, ...] | None, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return a shape of numbers; what is symbolic comes from `wanted` or another input, the batch (the first) is 1 without."""
    declared: tuple[Any, ...] = tuple(value.shape)
    if wanted is not None:
        fits = len(wanted) == len(declared) and all(
            not isinstance(s, int) or s == w for s, w in zip(declared, wanted, strict=False)
        )
        if not fits or any(size < 1 for size in wanted):
            raise ModelError(f"{ORIGIN}: input {name!r} has shape {_text(declared)}; {tuple(wanted)} does not fit it")
        return tuple(int(size) for size in wanted)
    declared = tuple(size if isinstance(size, int) else sizes.get(str(size), size) for size in declared)
    if any(not isinstance(size, int) for size in declared[1:]):
        raise ModelError(
            f"{ORIGIN}: input {name!r} has shape {_text(declared)}; give its sizes: load(..., shapes={{{name!r}: (...)}})"
        )
    return tuple(size if isinstance(size, int) else 1 for size in declared)


def _text(shape: tuple[Any, ...]) -> str:
    return f"({', '.join(str(size) for size in shape)})"


def _value_of(program: Any, target: str) -> Any:
    for place in (program.state_dict, program.constants):
        if target in place:
            return place[target]
    raise ModelError(f"{ORIGIN}: it holds no value of {target!r}")


def _outputs(specs: Any) -> tuple[str, ...]:
    """Return the names of what the caller gets. That an op in place overwrites an input is no result of the model's."""
    changed = [str(spec.target) for spec in specs if spec.kind.name in ("BUFFER_MUTATION", "PARAMETER_MUTATION")]
    specs = [spec for spec in specs if spec.kind.name != "USER_INPUT_MUTATION"]
    if changed:
        raise ModelError(f"{ORIGIN}: it changes {changed[0]!r} while it runs; call model.eval() before torch.export.export")
    for position, spec in enumerate(specs):
        if spec.kind.name not in _RETURNED or type(spec.arg).__name__ != "TensorArgument":
            raise ModelError(f"{ORIGIN}: output {position} is no tensor; return tensors only")
    if not specs:
        raise ModelError(f"{ORIGIN}: it returns nothing")
    return tuple(str(spec.arg.name) for spec in specs)


def dtype_name(dtype: Any, where: str) -> str:
    """Return NumPy's name of a torch dtype; `where` names the tensor in the error."""
    name = str(dtype).removeprefix("torch.")
    if name not in _DTYPES:
        raise ModelError(f"{ORIGIN}: {where!r} is {name}, which is not supported; convert the model to float32")
    return name


def to_numpy(tensor: Any, where: str) -> npt.NDArray[Any]:
    """Return the values of a dense tensor."""
    dtype_name(tensor.dtype, where)
    try:
        return np.ascontiguousarray(tensor.detach().cpu().contiguous().numpy()).reshape(tuple(tensor.shape))
    except (RuntimeError, TypeError, ValueError) as error:
        raise ModelError(f"{ORIGIN}: the values of {where!r} cannot be read: {error}") from None


def describe(node: Any) -> str:
    """Return "node 'conv2d' (aten.conv2d.default)"."""
    return f"node {node.name!r} ({node.target})"


def check_no_control_flow(source: TorchProgram) -> None:
    """Raise UnsupportedOpError where the graph has control flow, calls modules, or spells integers out (reference form)."""
    for node in source.nodes:
        name = str(node.target)
        if node.op in ("call_module", "call_method") or name in ("cond", "while_loop", "map_impl", "scan"):
            raise UnsupportedOpError(f"{ORIGIN}: {describe(node)}: control flow and calls of modules are not supported")
        if (name.startswith("torchao.") and name not in _AFFINE) or name == "aten._int_mm.default":
            raise UnsupportedOpError(
                f"{ORIGIN}: {describe(node)}: this form of torchao's quantize_ is not supported; linear layers of 8-bit weights "
                "are. Quantize with PT2E (prepare_pt2e, convert_pt2e), or load the float program and call octavo.quantize"
            )
        if name == "out_dtype":
            raise UnsupportedOpError(
                f"{ORIGIN}: {describe(node)}: the reference representation of a quantized model is not supported; "
                "call convert_pt2e without use_reference_representation"
            )


def source_tensors(
    source: TorchProgram, types: Mapping[str, tuple[tuple[int | str, ...], str]]
) -> list[tuple[str, SourceTensor]]:
    """List every tensor of the program with its FX name: parameters by qualified name, inputs and results by FX name.

    `types` has shape and dtype of each FX node that holds a tensor; the placeholder of a parameter is a second name of it. Steps
    that a converter named are there as NODE.STEP, which no FX node is called.
    """
    result: list[tuple[str, SourceTensor]] = []
    steps: dict[str, list[str]] = {}
    for name in types:
        node_name, dot, _ = name.partition(".")
        if dot:
            steps.setdefault(node_name, []).append(name)
    for node in source.nodes:
        name = str(node.name)
        for step in steps.get(name, ()):
            shape, dtype = types[step]
            named = SourceTensor(name=step, kind="activation", shape=shape, dtype=dtype, op=str(node.target), layer=_layer(node))
            result.append((step, named))
        if name not in types:
            continue
        shape, dtype = types[name]
        if name in source.constants:
            for known_as in (source.constants[name][0], name):
                result.append((name, SourceTensor(name=known_as, kind="constant", shape=shape, dtype=dtype)))
        else:
            is_input = name in source.inputs
            tensor = SourceTensor(
                name=name,
                kind="input" if is_input else "activation",
                shape=shape,
                dtype=dtype,
                op="" if is_input else str(node.target),
                layer=_layer(node),
                is_output=name in source.outputs,
            )
            result.append((name, tensor))
    return result


def _layer(node: Any) -> str:
    """Return the qualified name of the innermost module that the node comes from, "" if the program doesn't say."""
    stack = node.meta.get("nn_module_stack") or {}
    names = [str(value[0]) for value in stack.values() if isinstance(value, tuple)]
    return names[-1] if names else ""


def fingerprint(source: TorchProgram) -> str:
    """Hash a program: nodes with their arguments, the shapes it takes, and every constant that a node reads."""
    result = Fingerprint("torch")
    result.add([source.inputs, source.literals, source.outputs])
    for node in source.nodes:
        if node.op == "placeholder":
            name = str(node.name)
            if name in source.constants and node.users:
                target, tensor = source.constants[name]
                result.add([name, target])
                result.add_array(to_numpy(tensor, target))
        elif node.op != "output":
            result.add([node.name, str(node.target), _plain(node.args), _plain(node.kwargs)])
    return result.digest()


def _plain(value: Any) -> Any:
    """Turn arguments of a node into values that hash the same in every process."""
    if isinstance(value, dict):
        return {str(key): _plain(field) for key, field in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(field) for field in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)
