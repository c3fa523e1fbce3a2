"""Kernels as machine code: each compiles for two generations of chips, each family for all, and spills no register."""

from dataclasses import replace

import pytest
import test_cuda_functions
import test_moves
import test_norms
import test_pairs
import test_places
import test_pools
import test_run_time_inputs
from cuda_units import Unit
from emulated_ops import emitted

from octavo.compiler.backends.cuda.isa import ISAS

PRODUCTS = ("conv2d", "depthwise")
"""Names of kernels whose own tests compile them."""


def cases():
    yield from list(test_pairs.add_cases())[:7:2]
    yield from list(test_pairs.pairwise_cases())[::9]
    yield from list(test_pairs.choice_cases())[:5:2]
    yield from list(test_cuda_functions.function_cases())[:9:2]
    yield from list(test_cuda_functions.mixed_cases())[11::3]
    yield from list(test_moves.move_cases())[5::11]
    yield from list(test_moves.gather_cases())[::9]
    yield from list(test_moves.concat_cases())[:3]
    yield from list(test_moves.edge_cases())[:8:3]
    yield from list(test_places.place_cases())[11:20:4]
    yield from list(test_places.topk_cases())[10:18:3]
    yield from list(test_pools.pool_cases())[::4]
    yield from list(test_pools.softmax_cases())[:4:3]
    yield from list(test_pools.reduce_cases())[:8:3]
    yield from list(test_norms.norm_cases())[:6:2]
    yield from list(test_norms.l2_cases())[2:20:8]
    yield from list(test_pools.log_softmax_cases())[:4:3]
    yield from list(test_run_time_inputs.conv2d_cases())[::5]
    yield from list(test_norms.resize_cases())[:9:3]
    yield from list(test_norms.take_cases())[:3:2]


@pytest.mark.parametrize("name", ISAS)
def test_no_kernel_spills(name):
    own = list(cases())[list(ISAS).index(name) % 2 :: 2]  # each for an older chip and a newer one
    launched = [kernel for case in own for kernel in emitted(replace(case, isa=ISAS[name])).kernels]
    usages = Unit([kernel for kernel in launched if not kernel.name.startswith(PRODUCTS)], ISAS[name]).usage
    assert {symbol: usage for symbol, usage in usages.items() if usage.spill_bytes or usage.stack_bytes} == {}
    assert max(usage.registers for usage in usages.values()) <= 64
