"""Export: a model leaves Octavo: ONNX, .tflite, C libraries, other tools' encodings, one file for several CPUs."""
