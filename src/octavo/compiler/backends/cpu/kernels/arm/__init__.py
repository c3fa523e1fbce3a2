"""Kernels for ARM64, in vectors of 128 bits: products of bytes by the dot products that a CPU has, or by widening ones."""

from .conv2d import conv2d_arm, matmul_arm

__all__ = ["conv2d_arm", "matmul_arm"]
