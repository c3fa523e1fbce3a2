"""The cores that tiles are chosen for: those of narrower vectors count instructions, three of 256 bits a cycle."""

from __future__ import annotations

from ...language.isa import AVX2, AVX512_VNNI, AVX_VNNI
from ..loops.tiles import Core

CORES = {
    AVX512_VNNI: Core(accumulators=24, registers=31),
    AVX_VNNI: Core(accumulators=7, registers=7),
    # Words: two multiplications of the two ports that have them, and two sums.
    AVX2: Core(accumulators=6, registers=7, product_cycles=1.25, weight_cycles=0.5, activation_cycles=0.1, end_factor=2.0),
}
"""By ISA."""

FLOAT_256 = Core(
    accumulators=7,
    registers=7,
    near_bytes=16 * 1024,
    far_cycles=0.5,
    unsplit_bytes=64 * 1024,
    far_block_bytes=512 * 1024,
)
"""Of float32 in 256 bits, whose product is one instruction."""
