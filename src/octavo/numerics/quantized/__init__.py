"""Oracles of ops on quantized tensors, one file for each family of ops; 8 and 16 bits stand side by side."""
