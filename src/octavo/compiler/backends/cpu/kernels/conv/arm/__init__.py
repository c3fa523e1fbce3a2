"""Convolutions for ARM64, in vectors of 128 bits: products of bytes by the dot products that a CPU has, or by widening ones."""
