"""load: a model file or object becomes a Model. Decides the format by content; the formats' own modules do the work.

Loading reads data only: nothing of a file is executed, and the file is not changed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import tvm

from ..errors import ModelError, OctavoError, UnsupportedOpError, check_path, check_type, shape_advice
from ..ir.graph import Model
from ..ir.graph.model import read_model
from . import relax_source
from .frontend import reason
from .onnx import canonicalize, prepare
from .onnx import convert as onnx_convert
from .onnx import source as onnx_source
from .onnx.batch import batch_obstacle
from .tflite import convert as tflite_convert
from .tflite import source as tflite_source
from .torch import source as torch_source

_PROTO = "ONNX model"


def load(
    source: str | Path | onnx.ModelProto | tvm.IRModule | Any, *, shapes: Mapping[str, tuple[int, ...]] | None = None
) -> Model:
    """Import a model.

    Parameters
    ----------
    source
        Path of a .onnx or .tflite file (its content decides, not its name), an onnx.ModelProto, a
        torch.export.ExportedProgram, or an IRModule: what octavo.partition returned, or one whose tensors and results go by the
        names of the variables that hold them.
    shapes
        Shapes of ONNX inputs by source name, e.g. {"input": (1, 3, 224, 224)}, in place of those the model states; of a torch
        program's inputs, for dimensions it leaves open. Without one, a symbolic first dimension (the batch) becomes 1.

    Returns
    -------
    Model
        Its module holds one variable for each tensor of the source that has a value at run time.

    Raises
    ------
    ModelError
        If there is no such file, or it is no complete and valid model, or a shape is missing or does not fit.
    UnsupportedOpError
        If an op cannot be imported; the message names it and its output tensor.
    """
    check_type(shapes, Mapping | None, ModelError, "shapes as a dict of input name: shape")
    if isinstance(source, tvm.IRModule):
        _no_shapes(shapes, "an IRModule")
        known = read_model(source)
        if known is not None:
            return known
        assembled = relax_source.convert(source)
        return assembled.model(relax_source.relax_fingerprint(assembled), "relax")
    if isinstance(source, onnx.ModelProto):
        return _load_onnx(source, shapes, _PROTO, None)
    if torch_source.is_program(source):
        return _load_torch(source, shapes)
    if not isinstance(source, str | os.PathLike):
        given = type(source).__name__
        raise ModelError(f"cannot load a {given}; give a path, an onnx.ModelProto, a torch.export.ExportedProgram or an IRModule")
    path = check_path(source, ModelError, "the path of a .onnx or .tflite file")
    data = _read(path)
    _refuse_archive(data, path)
    torch_source.refuse_file(data, path)
    if tflite_source.is_tflite(data):
        _no_shapes(shapes, f"{path}: a .tflite file")
        graph = tflite_source.read(data, str(path))
        assembled, kept = tflite_convert.convert(graph, str(path))
        return assembled.model(tflite_source.fingerprint(graph), "tflite", kept)
    return _load_onnx(onnx_source.parse(data, str(path)), shapes, str(path), path.parent)


def _load_torch(program: Any, shapes: Mapping[str, tuple[int, ...]] | None) -> Model:
    from .torch import convert as torch_convert

    source = torch_source.read(program, shapes)
    torch_source.check_ranges(program, shapes or {})
    model = torch_convert.convert(source).model(torch_source.fingerprint(source), "torch")
    return replace(model, any_batch=source.any_batch, batch_range=torch_source.batch_range(source))


def _read(path: Path) -> bytes:
    if path.is_dir():
        raise ModelError(f"{path}: is a folder; give the path of a .onnx or .tflite file")
    if path.is_char_device():  # /dev/zero has no end
        raise ModelError(f"{path}: is a device; give the path of a .onnx or .tflite file")
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise ModelError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not data:
        raise ModelError(f"{path}: the file is empty")
    return data


def _refuse_archive(data: bytes, path: Path) -> None:
    archives = {b"\x1f\x8b": "gunzip", b"BZh": "bunzip2", b"\xfd7zXZ": "unxz", b"\x28\xb5\x2f\xfd": "unzstd"}
    command = next((command for magic, command in archives.items() if data.startswith(magic)), None)
    if command is not None:
        raise ModelError(f"{path}: is compressed; unpack it first: {command} {path.name}")


def _no_shapes(shapes: Mapping[str, tuple[int, ...]] | None, what: str) -> None:
    if shapes:
        raise ModelError(f"{what} fixes its shapes; shapes can be given for ONNX models and torch programs only")


def _load_onnx(proto: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]] | None, origin: str, folder: Path | None) -> Model:
    onnx_source.load_external_data(proto, folder, origin)
    onnx_source.check(proto, origin)
    try:
        fingerprint = onnx_source.fingerprint(proto)
        proto = canonicalize.canonicalize(proto, shapes, onnx_convert.supported, origin)
        prepared = prepare.prepare(proto, shapes, onnx_convert.supported, origin)
    except OctavoError:
        raise
    except Exception as error:
        # What the checker lets pass and protobuf or ONNX's shape inference then stumble over: names that are no UTF-8, say.
        raise ModelError(f"{origin}: invalid ONNX model: {reason(error)}") from error
    try:
        model = onnx_convert.convert(prepared, origin).model(fingerprint, "onnx", proto)
    except UnsupportedOpError as error:
        if not shapes:
            raise
        given = "; ".join(shape_advice(name, tuple(shape)) for name, shape in shapes.items())
        raise UnsupportedOpError(f"{error}; do the shapes that are given fit the network ({given})?") from error
    if not prepare.leaves_batch_open(proto.graph, shapes or {}):
        return model
    obstacle = batch_obstacle(proto, onnx_convert.supported, origin)
    return replace(model, any_batch=not obstacle, batch_obstacle=obstacle)
