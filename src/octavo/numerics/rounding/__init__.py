"""Rounding: how accumulators become integers of the output, by float32 and by fixed-point multipliers."""
