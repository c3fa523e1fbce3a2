"""Equalization: which factors even out a model's channels, found by running it on samples. Quantizes nothing."""

from .equalizer import Equalizer

__all__ = ["Equalizer"]
