"""Kernels by family: from an op's facts to a `Kernel` and the constants that it reads."""
