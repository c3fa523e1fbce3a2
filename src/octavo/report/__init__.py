"""Report: results that people and machines read: the demo's table, the bench, pages of profiles and quantized models."""

from .bench import BenchReport, BenchRow, bench
from .bench_page import bench_page
from .demo import DemoReport, run_demo
from .peers import PEERS, PeerError
from .profile_page import profile_page
from .quantization_figures import QuantizationFigures, quantization_figures
from .quantization_page import quantization_page
from .roofline import LayerTime, Roofline, roofline
from .table import markdown_table
from .timing import Timing, time_alternating
from .tuner import TunedKernel, TuningReport, tune

__all__ = [
    "PEERS",
    "BenchReport",
    "BenchRow",
    "DemoReport",
    "LayerTime",
    "PeerError",
    "QuantizationFigures",
    "Roofline",
    "Timing",
    "TunedKernel",
    "TuningReport",
    "bench",
    "bench_page",
    "markdown_table",
    "profile_page",
    "quantization_figures",
    "quantization_page",
    "roofline",
    "run_demo",
    "time_alternating",
    "tune",
]
