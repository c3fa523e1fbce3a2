"""Corrections: what running a quantized model on samples tells of its parameters. Places no Q and DQ, and writes no graph."""

from .correct import Corrector, samples_of
from .error import sqnr_by_result
from .float_run import MEAN_SAMPLES, Samples
from .measured import measured_nearness

__all__ = ["MEAN_SAMPLES", "Corrector", "Samples", "measured_nearness", "samples_of", "sqnr_by_result"]
