"""A target as the CPU, whose products always end in integers: for tests of what then happens to the outputs of a model."""

from dataclasses import replace

from octavo.target import CPU

INTEGER_RESULTS = replace(CPU, ops=tuple(replace(op, float_output=False) for op in CPU.ops))
