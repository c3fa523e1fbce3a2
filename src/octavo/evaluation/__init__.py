"""Evaluation: whether a model is as good as another one, measured on samples, with a verdict."""

from .advice import has_scale_to_blame
from .doubts import doubts
from .evaluate import Evaluation, OutputEvaluation, SampleEvaluation, evaluate
from .judges import Metric
from .opening import opened
from .peers import exact_session
from .runnable import Port, Runnable
from .tasks import TASKS
from .verdict import WORDS, Verdict, better, level_of_agreement, level_of_sqnr

__all__ = [
    "TASKS",
    "WORDS",
    "Evaluation",
    "Metric",
    "OutputEvaluation",
    "Port",
    "Runnable",
    "SampleEvaluation",
    "Verdict",
    "better",
    "doubts",
    "evaluate",
    "exact_session",
    "has_scale_to_blame",
    "level_of_agreement",
    "level_of_sqnr",
    "opened",
]
