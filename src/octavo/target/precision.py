"""What a float32 module is downcast to, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..numerics.floats.half import HalfDtype


@dataclass(frozen=True, kw_only=True, slots=True)
class Precision:
    """What a float model is downcast to.

    Parameters
    ----------
    dtype
        Of the tensors.
    kept
        Why the tensors with these ids stay float32.
    has_products
        Whether the machine multiplies such numbers itself; else kernels widen them.
    """

    dtype: HalfDtype
    kept: Mapping[str, str] = field(default_factory=dict[str, str])
    has_products: bool = False
