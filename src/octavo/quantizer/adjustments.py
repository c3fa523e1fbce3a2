"""What a plan says of single tensors besides their parameters: idle requests, and what no estimator of ranges chose."""

from __future__ import annotations

from collections.abc import Iterator

from ..ir.identity import TensorId
from .parameters import Parameters
from .placement import PlanInputs
from .plan import Adjustment
from .qdq import Emitted


def unused(inputs: PlanInputs, parameters: Parameters, emitted: Emitted) -> Iterator[Adjustment]:
    """Yield the tensors of which something is requested and that no integer op reads or makes."""
    used = {var.name for var in parameters.activations} | set(parameters.weights)
    for name, request in inputs.requests.items():
        why = "a bias has the scale of its input times that of its weight"
        if name not in emitted.biases:
            why = "no integer op reads or makes it: see why its ops stay float"
        if name in emitted.biases or name not in used:
            yield Adjustment(tensor=TensorId(name), message=f"{request.who} says what it must be, and {why}")


def chosen_otherwise(inputs: PlanInputs, parameters: Parameters) -> Iterator[Adjustment]:
    """Yield the activations whose range is no estimator's, and the weights that keep 8 bits."""
    for name, reason in inputs.choices.wide_weights.items():
        if name in parameters.weights:
            yield Adjustment(tensor=name, message=reason)
    made = {TensorId(var.name) for var in parameters.activations}
    for name, (low, high) in inputs.choices.ranges.items():
        if name in made:
            message = f"its range is [{low:.5g}; {high:.5g}]: rounded so, it costs the model's outputs least"
            yield Adjustment(tensor=name, message=message)


def per_row_or_not(inputs: PlanInputs, emitted: Emitted) -> Iterator[Adjustment]:
    """Yield the results of layers that were to quantize activations per row when run: why they do, or that none can."""
    for layer in emitted.layers:
        reason = inputs.choices.per_row.get(layer.output)
        if reason is not None and layer.per_row:
            is_one = len(layer.inputs) == 1
            how = "its input is quantized per row" if is_one else "its inputs are quantized per row and per column"
            yield Adjustment(tensor=layer.output, message=f"{how}, when run: {reason}")
        elif reason is not None:
            refusal = f"target {layer.target} quantizes no input of {layer.op} per row when run"
            yield Adjustment(tensor=layer.output, message=f"its input has static parameters, for {refusal} ({reason})")
