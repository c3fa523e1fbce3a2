"""Convolutions, and matmuls by constant weights, which are convolutions of 1 x 1: one entrance for each dtype."""
