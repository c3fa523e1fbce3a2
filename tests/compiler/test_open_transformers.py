"""Quantized transformers of open sizes: one executable gives what the executable of each size gives, byte for byte."""

from __future__ import annotations

import numpy as np
import pytest

import octavo
from octavo.ir.graph import Model
from octavo.runtime.size import Size
from open_transformer import ALL, BATCH, KINDS, OPEN, PAST, SEQUENCE, draw, loaded, quantized


def ops_of(model: Model) -> list[tuple[str, str, bool, bool]]:
    return [(op.op, op.tensor, op.integer, bool(op.kernel)) for op in octavo.explain(model).ops]


@pytest.mark.parametrize("has_past", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_any_size_equals_the_executable_of_that_size(kind: str, has_past: bool, rng: np.random.Generator) -> None:
    module = quantized(kind, has_past=has_past)
    threads = 1 + (kind == "per row")
    sizes = {number: Size.parse(name) for number, name in OPEN.items() if has_past or number in (BATCH, SEQUENCE)}
    model = loaded(module, sizes)
    executable = octavo.compile(model, threads=threads)
    assert ops_of(model) == ops_of(octavo.load(module)), "an op has a kernel of its own wherever that of one size has"
    past = int(rng.integers(1, 40)) if has_past else None
    # Each kind at one token and at more, and both with and without a past.
    is_one = (list(KINDS).index(kind) + has_past) % 2 == 0
    batch, sequence = (1, 1) if is_one else (int(rng.integers(1, 5)), int(rng.integers(2, 70)))
    known = {ALL: sequence + (past or 0), BATCH: batch, SEQUENCE: sequence, PAST: past}
    static = octavo.compile(loaded(module, {number: known[number] for number in sizes}), threads=threads)
    data = draw(rng, batch, sequence, past)
    for own, given in zip(static(data).values(), executable(data).values(), strict=True):
        np.testing.assert_array_equal(given, own, err_msg=f"{batch, sequence, past}")
