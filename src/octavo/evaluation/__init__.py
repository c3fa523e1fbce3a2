"""Evaluation: whether a model is as good as another one, measured on samples, with a verdict."""

from .advice import has_scale_to_blame
from .calibration_warnings import calibration_warnings
from .evaluate import Evaluation, OutputEvaluation, SampleEvaluation, evaluate
from .inference_model import InferenceModel, Port
from .language import TokenWindows
from .load_inference_model import load_inference_model
from .peers import exact_session
from .task_evaluators import Metric
from .tasks import TASKS
from .verdict import WORDS, Verdict, better, level_of_agreement, level_of_sqnr

__all__ = [
    "TASKS",
    "WORDS",
    "Evaluation",
    "InferenceModel",
    "Metric",
    "OutputEvaluation",
    "Port",
    "SampleEvaluation",
    "TokenWindows",
    "Verdict",
    "better",
    "calibration_warnings",
    "evaluate",
    "exact_session",
    "has_scale_to_blame",
    "level_of_agreement",
    "level_of_sqnr",
    "load_inference_model",
]
