"""The referee: how far a model's outputs are off if it is quantized by a plan, without compiling that."""

from .referee import Referee, score_of
from .score import Gain, Score

__all__ = ["Gain", "Referee", "Score", "score_of"]
