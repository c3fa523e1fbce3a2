"""Equalization: which factors even out a model's channels, found by running it on samples. Quantizes nothing."""

from .equalizer import equalizer

__all__ = ["equalizer"]
