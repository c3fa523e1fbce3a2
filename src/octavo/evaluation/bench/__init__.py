"""Bench: a model timed against other runtimes, and against the machine's limits."""

from .bench import BenchReport, BenchRow, bench
from .peers import PEERS, PeerError
from .roofline import LayerTime, Roofline, roofline
from .timing import Timing, time_alternating

__all__ = [
    "PEERS",
    "BenchReport",
    "BenchRow",
    "LayerTime",
    "PeerError",
    "Roofline",
    "Timing",
    "bench",
    "roofline",
    "time_alternating",
]
