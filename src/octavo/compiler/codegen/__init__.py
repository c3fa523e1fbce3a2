"""Code generation: from a linked module to machine code. Decides nothing about quantization."""
