"""Kernels for x86, in vectors of 512 bits: vpdpbusd multiplies unsigned activations by signed weights, 64 products a cycle.

`narrow` cuts them down for CPUs with registers of 256 bits.
"""

from .conv2d import conv2d_x86, matmul_x86

__all__ = ["conv2d_x86", "matmul_x86"]
