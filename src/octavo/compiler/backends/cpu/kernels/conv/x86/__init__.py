"""Convolutions for x86, in vectors of 512 bits: vpdpbusd multiplies unsigned activations by signed weights, 64 products a cycle.

`language.x86.narrow` cuts them down for CPUs with registers of 256 bits.
"""
