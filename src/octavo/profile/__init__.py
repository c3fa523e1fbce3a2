"""Profile: observers inside the graph, and the statistics they leave."""

# The stage
from .accumulator import Accumulator, Run, collect
from .instrument import Instrumented, Observation, instrument

# Its product
from .profile import Profile, check_model
from .statistics import TensorStatistics

__all__ = [
    "Accumulator",
    "Instrumented",
    "Observation",
    "Profile",
    "Run",
    "TensorStatistics",
    "check_model",
    "collect",
    "instrument",
]
