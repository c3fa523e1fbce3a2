"""Profile: observers inside the graph, and the statistics they leave."""

# The stage
from .accumulator import Accumulator, Attach
from .checkpoint import Checkpoint
from .collect import collect

# Its product
from .compare import Move, ProfileDiff, check_model, check_same_model, diff
from .images import ImageFolder
from .instrument import Instrumented, Observation, instrument
from .profile import Profile
from .selection import select
from .statistics import NonFinite, TensorStatistics

__all__ = [
    "Accumulator",
    "Attach",
    "Checkpoint",
    "ImageFolder",
    "Instrumented",
    "Move",
    "NonFinite",
    "Observation",
    "Profile",
    "ProfileDiff",
    "TensorStatistics",
    "check_model",
    "check_same_model",
    "collect",
    "diff",
    "instrument",
    "select",
]
