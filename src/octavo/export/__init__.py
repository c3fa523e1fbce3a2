"""Export: a model leaves Octavo: as ONNX, as .tflite, as a C library, as one file for several CPUs."""
