"""NVIDIA GPUs as a back end: whole modules as launches of CUDA kernels.

A driver and a compiler of kernels are imported where they are used, so that neither is needed for the rest.
"""
