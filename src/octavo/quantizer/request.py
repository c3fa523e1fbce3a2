"""What somebody other than the target asks of single tensors: a recipe, a callback, a plan. It decides nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..numerics import QuantParams
from ..target.tensor_support import TensorSupport
from .ranges import QuantScheme


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What one tensor must be.

    Parameters
    ----------
    who
        Who asks, as reasons name it: "the recipe".
    tensor
        What it may be, or what it must be exactly.
    """

    who: str
    tensor: TensorSupport | QuantParams

    @property
    def params(self) -> QuantParams | None:
        """The very parameters, where they are asked for."""
        return self.tensor if isinstance(self.tensor, QuantParams) else None

    @property
    def width(self) -> int | None:
        """The bits that it must have as an activation; None where that is open."""
        dtypes = (self.tensor.dtype,) if isinstance(self.tensor, QuantParams) else self.tensor.dtypes
        widths = {width_of(dtype) for dtype in dtypes or ()}
        return widths.pop() if len(widths) == 1 else None


Requests = Mapping[str, Request]
"""By the name of the tensor in the module."""


def width_of(dtype: str) -> int:
    """Return how many bits a dtype of activations has."""
    return QuantScheme(dtype=dtype).num_bits
