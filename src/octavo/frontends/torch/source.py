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

from ...errors import ModelError, UnsupportedOpError
from ...runtime.mapped import may_be_mapped
from ..fingerprint import Fingerprint
from ..input_shapes import ShapeOption
from ..source_tensor import SourceTensor
from ..symbols import Size, SizeOption
from .control_flow import describe, without_control_flow
from .samples import leaves_batch_open
from .sizes import ORIGIN, ProgramSizes, open_dims, program_sizes
from .torchao_linear import unwrapped

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
        FX name -> shape and dtype of each tensor that the caller gives, in order. A batch of samples apart is 1.
    declared
        The same shapes with all names, whatever the caller says of them.
    literals
        FX name -> value of each argument that was no tensor when the program was exported (a number, None).
    constants
        FX name -> (qualified name, tensor) of each parameter, buffer and constant.
    outputs
        FX names of what the program returns, in order.
    sizes
        The open dimensions.
    any_batch
        Whether every input and output leaves its first dimension open and nothing else, one size for all, and each sample is
        computed by itself.
    batch_range
        The smallest and the largest batch then; None: no bound.
    """

    program: Any
    graph: Any
    inputs: dict[str, tuple[tuple[Size, ...], str]]
    declared: list[list[str]]
    literals: dict[str, Any]
    constants: dict[str, tuple[str, Any]]
    outputs: tuple[str, ...]
    sizes: ProgramSizes
    any_batch: bool
    batch_range: tuple[int, int | None]

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


def read(program: Any, shapes: Mapping[str, ShapeOption], sizes: Mapping[str, SizeOption]) -> TorchProgram:
    """Check a program and list what it takes, holds and returns.

    Raises
    ------
    ModelError
        If it changes its own buffers, holds values that are no tensors, or the given shapes and sizes do not fit it.
    """
    program = unwrapped(program)
    signature = program.graph_signature
    placeholders = {str(node.name): node for node in program.graph.nodes if node.op == "placeholder"}
    values: dict[str, Any] = {}
    literals: dict[str, Any] = {}
    constants: dict[str, tuple[str, Any]] = {}
    for spec in signature.input_specs:
        kind, name = spec.kind.name, str(spec.arg.name)
        if kind == "USER_INPUT":
            value: Any = placeholders[name].meta.get("val") if name in placeholders else None
            if type(spec.arg).__name__ == "ConstantArgument":
                literals[name] = spec.arg.value
            elif not hasattr(value, "dtype"):
                raise ModelError(f"{ORIGIN}: input {name!r} is no tensor but {type(value).__name__}; export it as a constant")
            else:
                values[name] = value
        elif kind in _STORED:
            constants[name] = (str(spec.target), _value_of(program, str(spec.target)))
        elif kind != "TOKEN":  # which orders ops that have effects: a converter refuses these
            raise ModelError(f"{ORIGIN}: input {name!r} is a {kind.lower()}, which is not supported")
    known = program_sizes(program, values, shapes, sizes, lambda symbol: _is_only_extended(symbol, values, placeholders))
    outputs = _outputs(signature.output_specs)
    graph = without_control_flow(program, constants)
    batch = None if shapes else _open_batch(graph, known, values, outputs)
    batch_range = (1, None) if batch is None else known.symbols.bounds[batch]
    declared = [[known.text(dim) for dim in value.shape] for value in values.values()]
    known = known if batch is None else known.of_batch(batch, 1)
    return TorchProgram(
        program=program,
        graph=graph,
        inputs={name: (known.shape(value), dtype_name(value.dtype, name)) for name, value in values.items()},
        declared=declared,
        literals=literals,
        constants=constants,
        outputs=outputs,
        sizes=known,
        any_batch=batch is not None,
        batch_range=batch_range,
    )


def _is_only_extended(symbol: str, values: Mapping[str, Any], placeholders: Mapping[str, Any]) -> bool:
    """Whether all that reads the inputs with a symbol, but for their shapes, joins others to them along its axis: a past."""
    places = [(name, axis) for name, axis, expr in open_dims(values) if symbol in map(str, expr.free_symbols)]
    for name, axis in places:
        rank = len(values[name].shape)
        readers = [node for node in placeholders[name].users if str(node.target) != "aten.sym_size.int"]
        for node in readers:
            along = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
            if str(node.target) != "aten.cat.default" or int(along) % rank != axis or set(node.args[0]) == {placeholders[name]}:
                return False
        if not readers:
            return False
    return bool(places)


def _open_batch(graph: Any, sizes: ProgramSizes, values: Mapping[str, Any], outputs: tuple[str, ...]) -> str | None:
    """Return the name of the batch where nothing else is open and each sample is computed by itself; else None."""
    is_alone = list(sizes.symbols.bounds) if len(sizes.symbols.bounds) == 1 else []
    if not is_alone or not leaves_batch_open(graph, values, outputs):
        return None
    return is_alone[0]


def _value_of(program: Any, target: str) -> Any:
    for place in (program.state_dict, program.constants):
        if target in place:
            return place[target]
    raise ModelError(f"{ORIGIN}: it holds no value of {target!r}")


def _outputs(specs: Any) -> tuple[str, ...]:
    """Return the names of what the caller gets. That an op in place overwrites an input is no result of the model's."""
    changed = [str(spec.target) for spec in specs if spec.kind.name in ("BUFFER_MUTATION", "PARAMETER_MUTATION")]
    specs = [spec for spec in specs if spec.kind.name not in ("TOKEN", "USER_INPUT_MUTATION")]
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
        advice = "give its parts, as torch.view_as_real does" if name.startswith("complex") else "convert the model to float32"
        raise ModelError(f"{ORIGIN}: {where!r} is {name}, which is not supported; {advice}")
    return name


def to_numpy(tensor: Any, where: str) -> npt.NDArray[Any]:
    """Return the values of a dense tensor."""
    dtype_name(tensor.dtype, where)
    try:
        values = np.ascontiguousarray(tensor.detach().cpu().contiguous().numpy()).reshape(tuple(tensor.shape))
    except (RuntimeError, TypeError, ValueError) as error:
        raise ModelError(f"{ORIGIN}: the values of {where!r} cannot be read: {error}") from None
    may_be_mapped(values)  # by safetensors
    return values


def check_no_control_flow(source: TorchProgram) -> None:
    """Raise UnsupportedOpError where the graph has other control flow, calls modules, or spells integers out."""
    for node in source.nodes:
        name = str(node.target)
        if node.op in ("call_module", "call_method") or name in ("map_impl", "scan"):
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
    dtypes = [dtype for _, dtype in source.inputs.values()]
    result.add([list(source.inputs), source.declared, dtypes, source.literals, source.outputs])
    for node in source.nodes:
        if node.op == "placeholder":
            name = str(node.name)
            if name in source.constants and node.users:
                target, tensor = source.constants[name]
                result.add([name, target])
                for part in (tensor.real, tensor.resolve_conj().imag) if tensor.is_complex() else (tensor,):
                    result.add_array(to_numpy(part, target))
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
