"""Report: results that people and machines read: the demo's table, pages of profiles, of quantized models and of the bench."""

from .bench_page import bench_page
from .demo import DemoReport, run_demo
from .profile_page import profile_page
from .quantization_figures import QuantizationFigures, quantization_figures
from .quantization_page import quantization_page

__all__ = [
    "DemoReport",
    "QuantizationFigures",
    "bench_page",
    "profile_page",
    "quantization_figures",
    "quantization_page",
    "run_demo",
]
