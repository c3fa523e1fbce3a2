"""Weights that are packed into the block of a program's constants are in memory once, and count like any others."""

from __future__ import annotations

import numpy as np
import pytest

import octavo
from nets import mlp, residual_net
from octavo.compiler import constant_block
from octavo.compiler.codegen.constants import Constants
from octavo.compiler.constant_block import current_block, packed_array
from octavo.ir.graph.inputs import random_inputs


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give programs of any size a block."""
    monkeypatch.setattr(constant_block, "MAPPED_BYTES", 1)


def arrays() -> list[np.ndarray]:
    """Return what is packed and what is not; the last is a view of the first."""
    packed = packed_array(1000, np.float32)
    packed[:] = np.arange(1000)
    other = packed_array(300, np.int8)
    other[:] = 7
    return [packed, np.arange(5, dtype=np.int32), other, packed[16:32]]


def check(constants: Constants, values: list[np.ndarray]) -> None:
    numbers = [constants.add(value) for value in values]
    placed = constants.placed()
    for number, value in zip(numbers, values, strict=True):
        start = placed.offsets[number]
        assert start % 64 == 0
        np.testing.assert_array_equal(placed.blob[start : start + value.nbytes].view(value.dtype), value)


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize(("weights", "unused", "is_in_place"), [(10_000, 0, True), (2_150, 0, False), (10_000, 2_000, False)])
def test_constants_stay_where_they_were_packed_unless_that_wastes_or_lacks_room(weights: int, unused: int, is_in_place: bool):
    with constant_block.constant_block(weights):
        values = arrays()
        packed_array(max(unused, 1), np.uint8)
        block, constants = current_block(), Constants()
        assert block is not None
        check(constants, values)
        blob = constants.placed().blob
    assert (block.offset_of(blob) == 0) == is_in_place


def test_small_programs_have_no_block():
    with constant_block.constant_block(constant_block.MAPPED_BYTES - 1):
        assert current_block() is None
        check(Constants(), arrays())


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("is_integer", [False, True])
def test_a_program_with_a_block_computes_the_same(is_integer: bool, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch):
    model = mlp(rng) if is_integer else residual_net()
    inputs = random_inputs(model)
    profile = octavo.profile(model, [inputs])  # by a block, too
    with_block = octavo.compile(model, profile=profile) if is_integer else octavo.compile(model)
    monkeypatch.undo()
    without = octavo.compile(model, profile=profile) if is_integer else octavo.compile(model)
    np.testing.assert_array_equal(*with_block(inputs).values(), *without(inputs).values())
