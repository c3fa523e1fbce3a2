"""What a quantized file says of tensors whose channels equalization scaled: which of the source each was, and by what factors.

Such a tensor is another one than the source's: it is named `<name>_divided`, and the file's metadata has the factors, so that
layers of the file can be compared with the float model's. No runtime reads them. It computes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

METADATA_KEY = "octavo.divided"
SUFFIX = "_divided"
ROTATED = "_rotated"
"""Of a tensor whose channels are rotated: nothing else says of what."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EqualizedTensor:
    """A tensor of a file: its name in the float model, and what its channels are divided by there, of a shape to divide by."""

    source_name: str
    factors: npt.NDArray[np.float32]


def equalized_metadata(found: Mapping[str, EqualizedTensor]) -> str:
    """Return the metadata of tensors by their names in the file."""
    values = {
        name: {
            "source": each.source_name,
            "shape": list(each.factors.shape),
            # The shortest decimals that give the same float32.
            "factors": [float(str(factor)) for factor in each.factors.reshape(-1)],
        }
        for name, each in found.items()
    }
    return json.dumps(values, separators=(",", ":"))
