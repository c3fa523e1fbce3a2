"""Corrections: what running a quantized model on samples tells of its parameters. Places no Q and DQ, and writes no graph."""

from .correct import Corrector, corrected_on, samples_of
from .error import sqnr_by_result

__all__ = ["Corrector", "corrected_on", "samples_of", "sqnr_by_result"]
