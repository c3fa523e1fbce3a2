"""TFLite out: a float .tflite file quantized for LiteRT's integer kernels, and written as the file it was, in integers.

from octavo.export import tflite

quantized = tflite.quantize(model, profile)
tflite.export_tflite(quantized, "m.int8.tflite")
"""

from .export import EDGE_DTYPES, export_tflite, tflite_bytes
from .restrict import is_of_tflite, quantize, restricted, target_of

__all__ = ["EDGE_DTYPES", "export_tflite", "is_of_tflite", "quantize", "restricted", "target_of", "tflite_bytes"]
