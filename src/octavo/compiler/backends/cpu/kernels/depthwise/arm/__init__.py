"""Depthwise convolutions for ARM64: four taps at once by dot products, or one by one by widening products."""
