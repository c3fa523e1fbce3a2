"""A recipe says what it cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.errors import QuantizationError
from octavo.quantizer.recipe import Recipe


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"activation_dtype": "uint16"}, "activation_dtype must be one of uint8, int8, int16 or None, got 'uint16'"),
        ({"weight_dtype": "uint8"}, "weight_dtype must be one of int8, got 'uint8'"),
        ({"weight_range": "least"}, "weight_range must be one of auto, max, mse, got 'least'"),
        ({"weight_granularity": "per_channel"}, "weight_granularity must be one of per_axis, per_tensor"),
        ({"range_estimator": "magic"}, "range_estimator must be one of min_max, percentile"),
        ({"percentile": 101}, r"percentile must lie in \[50; 100\], got 101"),
        ({"percentile": float("nan")}, "percentile"),
        ({"percentile": "99"}, "percentile"),
        ({"exclude": "conv1"}, "exclude must be a tuple of names, got 'conv1'"),
        ({"exclude": (1,)}, "exclude must be a tuple"),
        ({"float_ops": "nn.softmax"}, "float_ops must be a tuple of names"),
    ],
)
def test_unsupported_values_are_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(QuantizationError, match=message):
        Recipe(**fields)


def test_exclude_takes_any_collection_of_names() -> None:
    assert Recipe(exclude=["conv1", "Softmax"]).exclude == ("conv1", "Softmax")  # type: ignore[arg-type]
