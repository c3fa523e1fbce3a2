"""Corrections: what running a quantized model on samples tells of its parameters. Places no Q and DQ, and writes no graph."""

from .correct import Corrector, corrected_on

__all__ = ["Corrector", "corrected_on"]
