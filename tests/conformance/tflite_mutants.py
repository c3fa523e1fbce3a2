"""Damaged TFLite files from sound ones: bytes flipped, cut short, and fields of the FlatBuffer changed. No Octavo here."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import flatbuffers
from ai_edge_litert import schema_py_generated as schema

EXTREMES = (0, 1, 2, 3, 7, -1, -2, 127, 128, 255, 65535, 1 << 20, (1 << 31) - 1, -(1 << 31))
FLOATS = (0.0, -1.0, 1e-30, 1e30, float("nan"), float("inf"))


def mutants(data: bytes, count: int, seed: int) -> Iterator[bytes]:
    """Yield `count` damaged files; every third has bytes changed, is cut short, or has fields changed and is packed again."""
    for number in range(count):
        rng = random.Random(seed * 100_003 + number)
        kind = number % 4
        if kind == 0:
            yield data[: rng.randrange(len(data))]
        elif kind == 1:
            yield flipped(data, rng)
        else:
            yield changed(data, rng)


def flipped(data: bytes, rng: random.Random) -> bytes:
    """Change one to eight bytes."""
    result = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 8])):
        at = rng.randrange(len(result))
        result[at] = rng.choice([result[at] ^ 1 << rng.randrange(8), 0, 0x7F, 0x80, 0xFF, rng.randrange(256)])
    return bytes(result)


def changed(data: bytes, rng: random.Random) -> bytes:
    """Change one to three fields, so that the file stays a sound FlatBuffer of a senseless model."""
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAsModel(data, 0))
    for _ in range(rng.choice([1, 1, 2, 3])):
        _change(model, rng)
    builder = flatbuffers.Builder(len(data) + 1024)
    try:
        builder.Finish(model.Pack(builder), b"TFL3")
    except Exception:
        # What cannot be written (a number too large for its field) is no file; bytes are changed instead.
        return flipped(data, rng)
    return bytes(builder.Output())


def _change(model: Any, rng: random.Random) -> None:
    graph = model.subgraphs[0]
    target = rng.choice(
        ["tensor", "tensor", "quantization", "operator", "operator", "options", "options", "code", "graph", "buffer"]
    )
    if target == "tensor":
        tensor = rng.choice(graph.tensors)
        field = rng.choice(["shape", "type", "buffer", "name"])
        if field == "shape":
            tensor.shape = _list(tensor.shape, rng)
        elif field == "name":
            tensor.name = rng.choice([None, b"", b"x", rng.choice(graph.tensors).name])
        else:
            setattr(tensor, field, rng.choice([*range(17), len(model.buffers), len(model.buffers) - 1]))
    elif target == "quantization":
        chosen = rng.choice(graph.tensors)
        if chosen.quantization is None:
            chosen.quantization = schema.QuantizationParametersT()
        field = rng.choice(["scale", "zeroPoint", "quantizedDimension", "none"])
        if field == "none":
            chosen.quantization = None
        elif field == "scale":
            chosen.quantization.scale = [rng.choice(FLOATS) for _ in range(rng.choice([0, 1, 1, 2, 5]))]
        elif field == "zeroPoint":
            chosen.quantization.zeroPoint = [rng.choice(EXTREMES) for _ in range(rng.choice([0, 1, 1, 2, 5]))]
        else:
            chosen.quantization.quantizedDimension = rng.choice(EXTREMES)
    elif target == "operator":
        operator = rng.choice(graph.operators)
        field = rng.choice(["inputs", "outputs", "opcodeIndex", "swap"])
        if field == "opcodeIndex":
            operator.opcodeIndex = rng.randrange(len(model.operatorCodes) + 1)
        elif field == "swap":
            other = rng.choice(graph.operators)
            operator.inputs, other.inputs = other.inputs, operator.inputs
        else:
            setattr(operator, field, _list(getattr(operator, field), rng, limit=len(graph.tensors)))
    elif target == "options":
        _change_options(rng.choice(graph.operators), rng)
    elif target == "code":
        code = rng.choice(model.operatorCodes)
        code.builtinCode = code.deprecatedBuiltinCode = rng.randrange(127)
    elif target == "graph":
        field = rng.choice(["inputs", "outputs"])
        setattr(graph, field, _list(getattr(graph, field), rng, limit=len(graph.tensors)))
    else:
        buffer = rng.choice(model.buffers)
        if buffer.data is not None and len(buffer.data):
            buffer.data = buffer.data[: rng.randrange(len(buffer.data))]


def _change_options(operator: Any, rng: random.Random) -> None:
    options = operator.builtinOptions
    names = [name for name, value in vars(options).items() if isinstance(value, int | float)] if options is not None else []
    if not names or rng.randrange(4) == 0:
        operator.builtinOptions, operator.builtinOptionsType = None, 0
        return
    name = rng.choice(names)
    if isinstance(getattr(options, name), float):
        setattr(options, name, rng.choice(FLOATS))
    else:
        setattr(options, name, rng.choice(EXTREMES))


def _list(values: Any, rng: random.Random, limit: int = 0) -> list[int]:
    result = [int(value) for value in (values if values is not None else [])]
    number = rng.choice([rng.choice(EXTREMES), rng.randrange(limit + 1)])
    action = rng.randrange(4)
    if action == 0 or not result:
        return [*result, number]
    at = rng.randrange(len(result))
    if action == 1:
        return result[:at] + result[at + 1 :]
    if action == 2:
        return result[::-1]
    return [*result[:at], number, *result[at + 1 :]]
