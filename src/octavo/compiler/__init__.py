"""Compiler: from a model to machine code: partition, back ends, code generation, and what is said of it."""
