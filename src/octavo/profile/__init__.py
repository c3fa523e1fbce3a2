"""Profile: observers inside the graph, and the statistics they leave."""

# The stage
from .accumulator import Accumulator, Attach
from .collect import collect
from .images import ImageFolder
from .instrument import Instrumented, Observation, instrument

# Its product
from .profile import Profile, check_model
from .selection import select
from .statistics import NonFinite, TensorStatistics

__all__ = [
    "Accumulator",
    "Attach",
    "ImageFolder",
    "Instrumented",
    "NonFinite",
    "Observation",
    "Profile",
    "TensorStatistics",
    "check_model",
    "collect",
    "instrument",
    "select",
]
