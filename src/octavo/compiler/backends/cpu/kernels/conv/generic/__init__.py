"""Convolutions of the "generic" ISA: plain TIR that any LLVM target compiles."""
