"""Which tensor is which: the id of every tensor of a source model, and what the source says of it.

This floor knows no compiler and no quantization.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NewType

TensorId = NewType("TensorId", str)
"""Stable key of one source tensor; also the name of the Relax variable that holds it."""

TensorKind = Literal["input", "activation", "constant"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorEntry:
    """What the source model says of one tensor.

    Parameters
    ----------
    id
        The key, a valid and unique Relax variable name.
    source_name
        The name in the source file, unchanged ("features.0/Conv_output_0").
    kind
        "input" of the graph, "activation" computed by an op, or "constant" (a weight).
    op
        Producing op in the source's own terms ("Conv", "CONV_2D"); "" for inputs and constants.
    layer
        Name of the producing node in the source, "" where it has none.
    shape
        Dimensions as the source states them, e.g. (1, 32, 112, 112); a symbolic one is its name, an unknown one "?".
    dtype
        NumPy name of the element type as the source states it ("float32", "uint8").
    is_output
        Whether the graph returns it.
    aliases
        Further source names that hold the very same value (the output of an Identity, say).
    in_module
        Whether a variable of the imported module is named by the id. False for a tensor that became a literal or an attribute
        (a scale, the shape of a reshape), was computed while importing, or that no output depends on.
    """

    id: TensorId
    source_name: str
    kind: TensorKind
    op: str = ""
    layer: str = ""
    shape: tuple[int | str, ...]
    dtype: str
    is_output: bool = False
    aliases: tuple[str, ...] = ()
    in_module: bool = True


class TensorTable(Mapping[TensorId, TensorEntry]):
    """An ordered map from TensorId to TensorEntry, in the order of the source graph."""

    def __init__(self, entries: Iterable[TensorEntry]) -> None:
        self._entries: dict[TensorId, TensorEntry] = {}
        self._by_source: dict[str, TensorId] = {}
        for entry in entries:
            assert entry.id not in self._entries, f"duplicate TensorId {entry.id}"
            self._entries[entry.id] = entry
            for name in (entry.source_name, *entry.aliases):
                self._by_source.setdefault(name, entry.id)

    def __getitem__(self, key: TensorId) -> TensorEntry:
        """Return the entry of an id; KeyError if the model has no such tensor."""
        return self._entries[key]

    def __iter__(self) -> Iterator[TensorId]:
        """Iterate over the ids in source order."""
        return iter(self._entries)

    def __len__(self) -> int:
        """Count the tensors."""
        return len(self._entries)

    def find(self, source_name: str) -> TensorId | None:
        """Return the id of the tensor that the source calls `source_name`, or None."""
        return self._by_source.get(source_name)
