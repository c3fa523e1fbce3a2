"""load: a model file or object becomes a Model. Decides the format by content; the formats' own modules do the work.

Loading reads data only: nothing of a file is executed, and the file is not changed. Large files are mapped, not read.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import onnx
import tvm

from ..errors import ModelError, OctavoError, UnsupportedOpError, check_path, check_type, shape_advice
from ..ir.graph import Model
from ..ir.graph.model import read_model
from ..ir.graph.unbound import UnboundModel
from ..runtime.mapped import contents
from . import relax_source
from .assemble import Assembled
from .frontend import NewlyKnownError, UnknownOpError
from .frontend import reason as reason_of
from .input_shapes import Asked, InputShapes
from .onnx import canonicalize, prepare
from .onnx import convert as onnx_convert
from .onnx import source as onnx_source
from .onnx.accuracy_levels import block_activations
from .onnx.batch import batch_obstacle
from .onnx.fed_values import deciding_inputs, with_values
from .onnx.graph import dtype_name, graph_inputs
from .onnx.inputs import input_shapes
from .onnx.large_tensors import OnnxSource
from .onnx.sparse import with_dense
from .symbols import SizeOption
from .tflite import convert as tflite_convert
from .tflite import fed_values as tflite_values
from .tflite import inputs as tflite_inputs
from .tflite import source as tflite_source
from .tflite.batch import obstacle as batch_obstacle_of
from .tflite.source import TfliteGraph
from .torch import source as torch_source

_Result = TypeVar("_Result")
_PROTO = "ONNX model"
ShapeOptions = Mapping[str, Sequence[int | str]]
SizeOptions = Mapping[str, SizeOption]


def load(
    source: str | Path | onnx.ModelProto | tvm.IRModule | Any,
    *,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    sizes: Mapping[str, SizeOption] | None = None,
    values: Mapping[str, Any] | None = None,
    signature: str | None = None,
) -> Model:
    """Import a model.

    Parameters
    ----------
    source
        Path of a .onnx or .tflite file (its content decides, not its name), an onnx.ModelProto, a
        torch.export.ExportedProgram, or an IRModule: what octavo.partition returned, or one whose tensors and results go by the
        names of the variables that hold them. Constants of files of more than 64 MiB (of an ONNX model, or its external data)
        are read where they lie as long as the model is in use: such a file may be replaced meanwhile, but not written to. So are
        large parameters of a program, which may lie in a file that safetensors mapped: they must not change meanwhile.
    shapes
        Shapes of ONNX or TFLite inputs by source name, e.g. {"input": (1, 3, 224, 224)}, in place of those the model states; a
        string in place of a size names a dimension that stays open. Of a torch program's inputs, for dimensions it leaves open.
    sizes
        Sizes of dimensions that a model or a torch program leaves open, by name (that of its torch.export.Dim):
        {"sequence": 128} fixes one, {"sequence": (1, 512)} gives it inclusive bounds, of which either may be None. A dimension
        without a name is called by its input and axis, "input_dim2", in a .tflite file the first one "batch".
        Open dimensions are symbols of the module. But where only the batch is open and each sample is computed from that sample
        alone, the module is of batch 1 and the Model says so.
    values
        Values of ONNX or TFLite inputs by name, which are constants then: {"sr": 16000}.
    signature
        Of a .tflite file that has several, such as "encode" and "decode", the one that is meant; that of its first subgraph else.

    Returns
    -------
    Model
        Its module holds one variable for each tensor of the source that has a value at run time. Where shapes or branches of the
        graph of a file depend on the values of small inputs (the shape that a Reshape is fed) and `values` does not say these, an
        UnboundModel, which knows no more than the names of these: `octavo.compile` compiles it anew for each value.

    Raises
    ------
    ModelError
        If there is no such file, or it is no complete and valid model, or a shape is missing or does not fit.
    UnsupportedOpError
        If an op cannot be imported; the message names it and its output tensor.
    """
    check_type(shapes, Mapping | None, ModelError, "shapes as a dict of input name: shape")
    check_type(sizes, Mapping | None, ModelError, "sizes as a dict of dimension name: size or bounds")
    check_type(values, Mapping | None, ModelError, "values as a dict of input name: array")
    check_type(signature, str | None, ModelError, "signature as the name of one in a .tflite file")
    shapes, sizes, values = shapes or {}, sizes or {}, values or {}
    if not isinstance(source, str | os.PathLike):
        _no_signature(signature)
    if isinstance(source, tvm.IRModule):
        _no_shapes(shapes or sizes, "an IRModule")
        _no_values(values, "an IRModule")
        known = read_model(source)
        if known is not None:
            return known
        assembled = relax_source.convert(source)
        return assembled.model(relax_source.relax_fingerprint(assembled), "relax")
    if isinstance(source, onnx.ModelProto):
        return _load_onnx(onnx_source.of_proto(source, _PROTO), Asked(shapes, sizes, _PROTO), values, None)
    if torch_source.is_program(source):
        _no_values(values, "a torch program")
        return _load_torch(source, shapes, sizes)
    if not isinstance(source, str | os.PathLike):
        given = type(source).__name__
        raise ModelError(f"cannot load a {given}; give a path, an onnx.ModelProto, a torch.export.ExportedProgram or an IRModule")
    path = check_path(source, ModelError, "the path of a .onnx or .tflite file")
    data = _read(path)
    _refuse_archive(data, path)
    torch_source.refuse_file(data, path)
    if tflite_source.is_tflite(data):
        return _load_tflite(data, Asked(shapes, sizes, str(path)), values, signature)
    _no_signature(signature)
    return _load_onnx(onnx_source.parse(data, str(path)), Asked(shapes, sizes, str(path)), values, path.parent)


def _load_tflite(data: bytes | mmap.mmap, asked: Asked, values: Mapping[str, Any], signature: str | None) -> Model:
    graph = tflite_source.read(data, asked.origin, signature)
    if values:
        fixed = tflite_values.checked_values(graph, values, asked.origin)
        graph = tflite_source.read(data, asked.origin, signature, fixed)
        asked = replace(asked, shapes={name: shape for name, shape in asked.shapes.items() if name not in values})
    deciding = tflite_values.deciding_inputs(graph)
    if not deciding:
        load = partial(_load_tflite_graph, graph, is_bound=bool(values))
        try:
            return load(asked)
        except UnsupportedOpError as error:
            in_file = {graph.tensors[index].name: graph.tensors[index].shape for index in graph.inputs}
            raise _with_least(error, asked, in_file, load) from error.__cause__
    tensors = [graph.tensors[index] for index in graph.inputs]
    ports = {tensor.name: (tensor.dtype, _numbers(asked.shapes.get(tensor.name, tensor.shape))) for tensor in tensors}
    bind = partial(_bind_tflite, data, asked, dict(values), signature)
    reason = f"{asked.origin}: shapes of results or steps of loops follow from {', '.join(deciding)}"
    return UnboundModel(inputs=ports, deciding=deciding, reason=reason, make=bind)


def _bind_tflite(
    data: bytes | mmap.mmap,
    asked: Asked,
    known: Mapping[str, Any],
    signature: str | None,
    values: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
) -> Model:
    """Return the model in which more inputs have values, and more of them one shape."""
    return _load_tflite(data, replace(asked, shapes={**asked.shapes, **shapes}), {**known, **values}, signature)


def _load_tflite_graph(graph: TfliteGraph, asked: Asked, *, is_bound: bool) -> Model:
    inputs = tflite_inputs.input_shapes(graph, asked)
    assembled, kept = tflite_convert.convert(graph, asked.origin, inputs, is_bound=is_bound)
    bounds = {} if inputs is None else inputs.symbols.bounds
    model = assembled.model(tflite_source.fingerprint(graph), "tflite", kept, bounds)
    ids = {graph.tensors[index].name: str(kept.ids[index]) for index in graph.inputs}
    model = replace(model, starts={ids[name]: value for name, value in graph.starts.items() if name in ids})
    if asked.shapes or inputs is not None or is_bound or not tflite_inputs.has_open_batch(graph):
        return model
    with_any = tflite_inputs.input_shapes(graph, Asked({}, {tflite_inputs.BATCH: (1, None)}, asked.origin))
    try:
        obstacle = batch_obstacle_of(tflite_convert.convert(graph, asked.origin, with_any)[0].module)
    except OctavoError as error:
        obstacle = str(error)
    return replace(model, any_batch=not obstacle, batch_obstacle=obstacle)


def _load_torch(program: Any, shapes: ShapeOptions, sizes: SizeOptions) -> Model:
    from .torch import convert as torch_convert

    source = torch_source.read(program, shapes, sizes)
    assembled = torch_convert.convert(source)
    model = assembled.model(torch_source.fingerprint(source), "torch", sizes=source.sizes.symbols.bounds)
    return replace(model, any_batch=source.any_batch, batch_range=source.batch_range)


def _read(path: Path) -> bytes | mmap.mmap:
    if path.is_dir():
        raise ModelError(f"{path}: is a folder; give the path of a .onnx or .tflite file")
    if path.is_char_device():  # /dev/zero has no end
        raise ModelError(f"{path}: is a device; give the path of a .onnx or .tflite file")
    try:
        with path.open("rb") as file:
            data = contents(file)
    except FileNotFoundError:
        raise ModelError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not data:
        raise ModelError(f"{path}: the file is empty")
    return data


def _refuse_archive(data: bytes | mmap.mmap, path: Path) -> None:
    archives = {b"\x1f\x8b": "gunzip", b"BZh": "bunzip2", b"\xfd7zXZ": "unxz", b"\x28\xb5\x2f\xfd": "unzstd"}
    command = next((command for magic, command in archives.items() if data[: len(magic)] == magic), None)
    if command is not None:
        raise ModelError(f"{path}: is compressed; unpack it first: {command} {path.name}")


def _no_shapes(given: Mapping[str, Any], what: str) -> None:
    if given:
        raise ModelError(f"{what} fixes its shapes; shapes can be given for files of models and torch programs only")


def _no_values(given: Mapping[str, Any], what: str) -> None:
    if given:
        raise ModelError(f"values are given to inputs of ONNX models and .tflite files alone, and this is {what}")


def _no_signature(given: str | None) -> None:
    if given is not None:
        raise ModelError(f"signature {given!r} is asked for, and .tflite files alone have some: leave it out")


def _load_onnx(given: OnnxSource, asked: Asked, values: Mapping[str, Any], folder: Path | None) -> Model:
    source, origin = onnx_source.load_external_data(given, folder, asked.origin), asked.origin
    onnx_source.check(source.proto, origin)
    source = replace(source, proto=with_dense(source.proto, origin))
    if values:
        source = replace(source, proto=with_values(source.proto, values, origin))
        asked = replace(asked, shapes={name: shape for name, shape in asked.shapes.items() if name not in values})
    inputs = input_shapes(source.proto.graph, asked)
    try:
        return _load_bound(source, inputs, asked)
    except UnsupportedOpError as error:
        expanded = _checked(lambda: canonicalize.expanded(source.proto, onnx_convert.supported), origin)
        deciding = deciding_inputs(expanded.graph, inputs.shapes)
        gives_tensors = all(value.type.HasField("tensor_type") for value in source.proto.graph.output)
        if not deciding or not gives_tensors or not canonicalize.is_known(expanded, onnx_convert.supported):
            in_file = {
                value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
                for value in graph_inputs(source.proto.graph)
            }
            raise _with_least(error, asked, in_file, partial(_load_open, source)) from error.__cause__
        ports = {
            value.name: (dtype_name(value.type.tensor_type.elem_type), _numbers(inputs.shapes[value.name]))
            for value in graph_inputs(source.proto.graph)
        }
        bind = partial(_bind, source, asked, dict(values), folder)
        return UnboundModel(inputs=ports, deciding=deciding, reason=str(error), make=bind)


def _load_open(source: OnnxSource, asked: Asked) -> Model:
    return _load_bound(source, input_shapes(source.proto.graph, asked), asked)


def _with_least(
    error: UnsupportedOpError, asked: Asked, in_file: Mapping[str, Sequence[int | str]], again: Callable[[Asked], Model]
) -> UnsupportedOpError:
    """Return an error that names the size that is too small, should one be: how large it must be shows where it is open."""
    wider, fixed = asked.with_open(in_file)
    if not fixed or isinstance(error, UnknownOpError):
        return error
    try:
        bounds = again(wider).sizes
    except OctavoError:
        return error
    small = [(name, size, bounds[name][0]) for name, size in fixed.items() if name in bounds and size < bounds[name][0]]
    most = {name: " at most" for name, size in asked.sizes.items() if not isinstance(size, int)}
    said = "; ".join(
        f"dimension {name} is {size}{most.get(name, '')} and must be at least {least}" for name, size, least in small
    )
    return UnsupportedOpError(f"{error}; {said}") if small else error


def _bind(
    source: OnnxSource,
    asked: Asked,
    known: Mapping[str, Any],
    folder: Path | None,
    values: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
) -> Model:
    """Return the model in which more inputs have values, and more of them one shape."""
    return _load_onnx(source, replace(asked, shapes={**asked.shapes, **shapes}), {**known, **values}, folder)


def _numbers(shape: Sequence[Any]) -> tuple[int | None, ...]:
    return tuple(size if isinstance(size, int) else None for size in shape)


def _load_bound(source: OnnxSource, inputs: InputShapes, asked: Asked) -> Model:
    """Load a graph all of whose shapes and branches are known, but for open sizes."""
    proto, shapes, origin = source.proto, asked.shapes, asked.origin
    fingerprint = _checked(lambda: onnx_source.fingerprint(proto), origin)
    batch = inputs.open_batch if not shapes else None
    obstacle = ""
    if batch is not None:
        single = inputs.of_batch(1)
        canonical = _checked(lambda: canonicalize.canonicalize(proto, single.shapes, onnx_convert.supported, origin), origin)
        obstacle = batch_obstacle(canonical, inputs, onnx_convert.supported, origin)
        if not obstacle:
            model = _convert_onnx(canonical, single, origin).model(fingerprint, "onnx", OnnxSource(canonical, source.values))
            levels = block_activations(canonical.graph, model.tensors)
            return replace(model, any_batch=True, batch_range=inputs.symbols.bounds[batch], block_activations=levels)
    try:
        while True:
            canonical = _checked(lambda: canonicalize.canonicalize(proto, inputs.shapes, onnx_convert.supported, origin), origin)
            try:
                assembled = _convert_onnx(canonical, inputs, origin)
                break
            except NewlyKnownError:
                continue
    except UnsupportedOpError as error:
        if not shapes or isinstance(error, UnknownOpError):
            raise
        shown = "; ".join(shape_advice(name, tuple(shape)) for name, shape in shapes.items())
        raise UnsupportedOpError(f"{error}; do the shapes that are given fit the network ({shown})?") from error
    model = assembled.model(fingerprint, "onnx", OnnxSource(canonical, source.values), inputs.symbols.bounds)
    levels = block_activations(canonical.graph, model.tensors)
    return replace(model, batch_obstacle=obstacle if inputs.is_static else "", block_activations=levels)


def _convert_onnx(canonical: onnx.ModelProto, inputs: InputShapes, origin: str) -> Assembled:
    prepared = _checked(lambda: prepare.prepare(canonical, inputs.shapes, onnx_convert.supported, origin), origin)
    return onnx_convert.convert(prepared, inputs, origin)


def _checked(step: Callable[[], _Result], origin: str) -> _Result:
    """Return what a step gives; ModelError for what the checker lets pass and protobuf or ONNX's shape inference stumble over."""
    try:
        return step()
    except OctavoError:
        raise
    except Exception as error:  # names that are no UTF-8, say
        raise ModelError(f"{origin}: invalid ONNX model: {reason_of(error)}") from error
