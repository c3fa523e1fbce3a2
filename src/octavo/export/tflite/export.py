"""Writing a quantized model as a .tflite file: the whole file or nothing. What is in it, `rewrite` says."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Literal

from ...errors import QuantizationError, check_type
from ...ir.graph import Model
from ...quantizer.plan.plan import QuantizedModel
from ...runtime.atomic_write import write_atomically
from .decisions import Decisions, source_of
from .flatbuffer import write_tables
from .prune import prune
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


def _with_files(data: bytes, source: bytes) -> bytes:
    """Return a file with the archive of labels and vocabularies that TFLite's metadata tools append to one."""
    if not zipfile.is_zipfile(io.BytesIO(source)):
        return data
    result = io.BytesIO(data)
    with zipfile.ZipFile(io.BytesIO(source)) as old, zipfile.ZipFile(result, "a") as new:
        for entry in old.infolist():
            new.writestr(entry, old.read(entry))
    return result.getvalue()
