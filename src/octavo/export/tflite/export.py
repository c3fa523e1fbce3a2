"""Writing a quantized model as a .tflite file: the whole file or nothing. What is in it, `rewrite` says."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterable
from mmap import mmap
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ...errors import QuantizationError, check_type
from ...frontends.tflite.flatbuffer import Table, write_tables
from ...ir.graph import Model
from ...quantizer.plan.plan import QuantizedModel
from ...runtime.atomic_write import write_atomically
from .decisions import Decisions, source_of
from .rewrite import Rewriter

EdgeDtype = Literal["float32", "int8", "uint8", "int16"]
EDGE_DTYPES = ("float32", "int8", "uint8", "int16")
"""What inputs and outputs of real numbers can be in the file."""


def export_tflite(model: Model, path: str | Path, *, inputs: EdgeDtype = "float32", outputs: EdgeDtype = "float32") -> None:
    """Write a quantized model as a .tflite file, which LiteRT runs: the whole file or nothing.

    Parameters
    ----------
    model
        What `export.tflite.quantize` returned, of a model loaded from a .tflite file. Of the file's names, signatures and
        metadata everything is kept.
    path
        The file to write.
    inputs, outputs
        What the file takes and gives: real numbers, or the integers that stand for them.

    Raises
    ------
    QuantizationError
        If the model is not quantized, not from a .tflite file, or has activations that TFLite has not (uint8); if an input or
        output cannot be what is asked for; or if the path cannot be written.
    """
    data = tflite_bytes(model, inputs=inputs, outputs=outputs)
    write_atomically(path, data, QuantizationError, "the .tflite file")


def tflite_bytes(model: Model, *, inputs: EdgeDtype = "float32", outputs: EdgeDtype = "float32") -> bytes:
    """Return the bytes that `export_tflite` writes; raises as it does."""
    check_type(model, Model, QuantizationError, "a Model that octavo.export.tflite.quantize returned")
    for dtype in (inputs, outputs):
        if dtype not in EDGE_DTYPES:
            raise QuantizationError(f"inputs and outputs can be {', '.join(EDGE_DTYPES)}, got {dtype!r}")
    source = source_of(model)
    if not isinstance(model, QuantizedModel):
        raise QuantizationError("the model is not quantized; give what octavo.export.tflite.quantize returned")
    tables = Rewriter(model=model, decisions=Decisions.of(model), inputs=inputs, outputs=outputs).run()
    prune(tables)
    return _with_files(write_tables(tables), source.graph.data)


def _with_files(data: bytes, source: bytes | mmap) -> bytes:
    """Return a file with the archive of labels and vocabularies that TFLite's metadata tools append to one."""
    if not zipfile.is_zipfile(io.BytesIO(source)):
        return data
    result = io.BytesIO(data)
    with zipfile.ZipFile(io.BytesIO(source)) as old, zipfile.ZipFile(result, "a") as new:
        for entry in old.infolist():
            new.writestr(entry, old.read(entry))
    return result.getvalue()


def prune(model: Table) -> None:
    """Take out of a model of one subgraph what its outputs do not depend on; inputs and named tensors stay."""
    [graph] = model["Subgraphs"]
    _drop_dead_ops(graph)
    signatures = [entry for each in model["SignatureDefs"] or [] for entry in [*(each["Inputs"] or []), *(each["Outputs"] or [])]]
    lists = [(op, name) for op in graph["Operators"] for name in ("Inputs", "Outputs", "Intermediates")]
    lists += [(graph, "Inputs"), (graph, "Outputs")]
    used = {int(index) for table, name in lists for index in _list(table, name)}
    used |= {entry.number("TensorIndex") for entry in signatures}
    places = _kept(graph, "Tensors", used)
    for table, name in lists:
        if table[name] is not None:
            table[name] = np.array([places[int(index)] for index in table[name]], np.int32)
    for entry in signatures:
        entry["TensorIndex"] = places[entry.number("TensorIndex")]
    _prune_buffers(model, graph)
    codes = _kept(model, "OperatorCodes", {op.number("OpcodeIndex") for op in graph["Operators"]})
    for op in graph["Operators"]:
        op["OpcodeIndex"] = codes[op.number("OpcodeIndex")]


def _list(table: Table, name: str) -> Any:
    return () if table[name] is None else table[name]


def _drop_dead_ops(graph: Table) -> None:
    live = {int(index) for index in graph["Outputs"]}
    kept: list[Table] = []
    for op in reversed(graph["Operators"]):
        if live.intersection(int(index) for index in op["Outputs"]):
            live.update(int(index) for index in _list(op, "Inputs"))
            kept.append(op)
    graph["Operators"] = kept[::-1]


def _prune_buffers(model: Table, graph: Table) -> None:
    """Keep the buffers of tensors and of metadata, and the first, which is empty."""
    metadata = model["Metadata"] or []
    numbers = [int(index) for index in _list(model, "MetadataBuffer")]
    used = {0, *numbers, *(each.number("Buffer") for each in (*graph["Tensors"], *metadata))}
    places = _kept(model, "Buffers", used)
    for each in (*graph["Tensors"], *metadata):
        each["Buffer"] = places[each.number("Buffer")]
    if numbers:
        model["MetadataBuffer"] = np.array([places[number] for number in numbers], np.int32)


def _kept(table: Table, name: str, used: Iterable[int]) -> dict[int, int]:
    """Keep the entries of a list that are used; return their new places by the old ones, and -1 for what is absent."""
    chosen = sorted(index for index in used if index >= 0)
    table[name] = [table[name][index] for index in chosen]
    return {-1: -1, **{old: new for new, old in enumerate(chosen)}}
