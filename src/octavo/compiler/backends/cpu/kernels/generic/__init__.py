"""Kernels of the "generic" ISA: plain TIR that any LLVM target compiles."""

from .conv2d import conv2d_generic

__all__ = ["conv2d_generic"]
