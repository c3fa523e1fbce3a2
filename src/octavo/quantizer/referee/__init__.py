"""The referee: how far a model's outputs are off if it is quantized by a plan, without compiling that."""

from .referee import Referee, score_of
from .rounded_program import RoundedProgram
from .score import Gain, Score, sqnr_by_result

__all__ = ["Gain", "Referee", "RoundedProgram", "Score", "score_of", "sqnr_by_result"]
