"""SourceTensor: what a reader of one format learned of one tensor, before it has an id. Knows no file format."""

from __future__ import annotations

from dataclasses import dataclass

from ..ir.identity import TensorKind


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceTensor:
    """One tensor of the source graph; the fields mean what they mean in TensorEntry."""

    name: str
    kind: TensorKind
    shape: tuple[int | str, ...]
    dtype: str
    op: str = ""
    layer: str = ""
    is_output: bool = False
