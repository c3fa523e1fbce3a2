"""ONNX frontend: a ModelProto is read, made canonical, prepared and converted to Relax; see convert.py for the ops."""
