"""A package, so that pytest keeps this folder off the import path: its onnx/, tflite/ and torch/ are not the libraries."""
