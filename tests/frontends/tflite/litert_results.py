"""What LiteRT makes of a .tflite file."""

import numpy as np
from ai_edge_litert.interpreter import Interpreter


def litert(path, feeds):
    """Return LiteRT's results of inputs by name, by name."""
    interpreter = Interpreter(str(path))
    interpreter.allocate_tensors()
    for details in interpreter.get_input_details():
        interpreter.set_tensor(details["index"], feeds[details["name"]])
    interpreter.invoke()
    return {details["name"]: _given(interpreter, details) for details in interpreter.get_output_details()}


def _given(interpreter, details):
    """Return a result; LiteRT's Python hands out none that became empty."""
    if 0 in details["shape"]:
        return np.zeros(details["shape"], details["dtype"])
    return interpreter.get_tensor(details["index"])
