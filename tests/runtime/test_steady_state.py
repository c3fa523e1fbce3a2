"""Calls in a steady state: resident memory stays flat, bound or not. benchmarks/steady_state.py makes more of them."""

import pytest

import octavo
from octavo.ir.graph.inputs import random_inputs
from steady_state import growth_kib

CALLS = 200
ALLOWED_KIB = 256
"""What the allocator and Python move back and forth; an intermediate tensor leaked on each call would be 200 x 16 KiB."""


@pytest.mark.parametrize("threads", [1, 2])
def test_memory_is_flat_over_many_calls(shared, threads):
    model = octavo.load(shared / "models/tflite/resnet8_cifar10_int8.tflite")
    for kind, grown in growth_kib(octavo.compile(model, threads=threads), CALLS, random_inputs(model)).items():
        assert grown <= ALLOWED_KIB, f"{kind}: {grown} KiB after {CALLS} calls"
