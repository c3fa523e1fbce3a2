"""The fingerprint of a quantized model."""

from __future__ import annotations

import hashlib
import json

from ..graph.model import Model
from .plan import QuantizationPlan


def quantized_fingerprint(model: Model, plan: QuantizationPlan) -> str:
    """Return the fingerprint of a quantized model: of the float model, the parameters, and which ops they make integer."""
    factors = {str(key): value.tolist() for key, value in plan.equalization.factors.items()}
    content = {
        "model": model.fingerprint,
        "activations": {str(key): value.to_json() for key, value in plan.activations.items()},
        "weights": {str(key): value.to_json() for key, value in plan.weights.items()},
        "biases": {str(key): value.to_json() for key, value in plan.biases.items()},
        "bias_shifts": {str(key): value.tolist() for key, value in plan.corrections.bias_shifts.items()},
        "weight_values": {
            str(key): hashlib.sha256(value.tobytes()).hexdigest() for key, value in plan.corrections.weight_values.items()
        },
        **({"equalization": factors} if factors else {}),
        "roundings": {str(key): value for key, value in plan.roundings.items()},
        "layers": [str(layer) for layer in plan.layers],
    }
    return f"sha256:{hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()}"
