"""The CPU's back end: composites become calls of kernels in TIR, by instruction set."""
