"""Kernels for x86 with AVX-512 VNNI: vpdpbusd multiplies unsigned activations by signed weights, 64 products a cycle."""

from .conv2d import conv2d_avx512_vnni, matmul_avx512_vnni

__all__ = ["conv2d_avx512_vnni", "matmul_avx512_vnni"]
