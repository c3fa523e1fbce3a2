"""Evaluation: whether a model is as good as another one, measured on samples, with a verdict."""

from .evaluate import Evaluation, OutputEvaluation, SampleEvaluation, evaluate
from .judges import Metric
from .opening import opened
from .peers import exact_session
from .runnable import Port, Runnable
from .tasks import TASKS
from .verdict import Verdict

__all__ = [
    "TASKS",
    "Evaluation",
    "Metric",
    "OutputEvaluation",
    "Port",
    "Runnable",
    "SampleEvaluation",
    "Verdict",
    "evaluate",
    "exact_session",
    "opened",
]
