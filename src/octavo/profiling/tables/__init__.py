"""Tables of ranges as neighbours keep them: ONNX Runtime, TensorRT, AIMET. A range for each tensor, by its name in the source."""

from .exchange import FORMATS, Encoded, from_table, read_table, write_table

__all__ = ["FORMATS", "Encoded", "from_table", "read_table", "write_table"]
