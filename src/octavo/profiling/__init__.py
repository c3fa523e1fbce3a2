"""Profiling: observers inside the graph, and the statistics they leave."""

# What is observed, and by what
from .accumulator import Accumulator, Attach

# Its product, and what it tells
from .adequacy import Adequacy, TensorAdequacy, adequacy, adequacy_of, silent_channels
from .carried import Carried
from .checkpoint import Checkpoint
from .collect import checked_batches, collect, preprocessing_of
from .compare import ProfileDiff, TensorChange, check_model, check_same_model, diff
from .half_ranges import unfit_tensors
from .images import ImageFolder, ImagePreprocessing
from .instrument import Instrumented, Observation, instrument
from .kept_samples import KEEP_SAMPLES, check_keep
from .model_profile import Profile
from .model_samples import samples_of
from .rows import Rows
from .samples_file import samples_path
from .selection import select
from .statistics import NonFinite, TensorStatistics

# Its ranges as neighbours keep them
from .tables import FORMATS, from_table, read_table, write_table

__all__ = [
    "FORMATS",
    "KEEP_SAMPLES",
    "Accumulator",
    "Adequacy",
    "Attach",
    "Carried",
    "Checkpoint",
    "ImageFolder",
    "ImagePreprocessing",
    "Instrumented",
    "NonFinite",
    "Observation",
    "Profile",
    "ProfileDiff",
    "Rows",
    "TensorAdequacy",
    "TensorChange",
    "TensorStatistics",
    "adequacy",
    "adequacy_of",
    "check_keep",
    "check_model",
    "check_same_model",
    "checked_batches",
    "collect",
    "diff",
    "from_table",
    "instrument",
    "preprocessing_of",
    "read_table",
    "samples_of",
    "samples_path",
    "select",
    "silent_channels",
    "unfit_tensors",
    "write_table",
]
