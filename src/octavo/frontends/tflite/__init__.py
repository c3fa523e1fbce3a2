"""TFLite frontend: a .tflite file is read, checked and converted to Relax; see ops.py for the converters."""
