"""Report: results that people and machines read: the demo's table, the bench, and how they are laid out."""

from .bench import BenchReport, BenchRow, bench
from .demo import DemoReport, run_demo
from .peers import PEERS, PeerError
from .table import markdown_table, shortened
from .timing import Timing, time_alternating

__all__ = [
    "PEERS",
    "BenchReport",
    "BenchRow",
    "DemoReport",
    "PeerError",
    "Timing",
    "bench",
    "markdown_table",
    "run_demo",
    "shortened",
    "time_alternating",
]
