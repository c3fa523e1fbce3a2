"""Profile: observers inside the graph, and the statistics they leave."""

# The stage
from .accumulator import Accumulator, Attach

# Its product, and what it tells
from .adequacy import Adequacy, TensorAdequacy, adequacy, adequacy_of, silent_channels
from .checkpoint import Checkpoint
from .collect import collect
from .compare import Move, ProfileDiff, check_model, check_same_model, diff
from .images import ImageFolder
from .instrument import Instrumented, Observation, instrument
from .profile import Profile
from .selection import select
from .statistics import NonFinite, TensorStatistics

__all__ = [
    "Accumulator",
    "Adequacy",
    "Attach",
    "Checkpoint",
    "ImageFolder",
    "Instrumented",
    "Move",
    "NonFinite",
    "Observation",
    "Profile",
    "ProfileDiff",
    "TensorAdequacy",
    "TensorStatistics",
    "adequacy",
    "adequacy_of",
    "check_model",
    "check_same_model",
    "collect",
    "diff",
    "instrument",
    "select",
    "silent_channels",
]
