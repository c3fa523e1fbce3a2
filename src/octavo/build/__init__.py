"""Build: from a linked module to machine code, and the Executable that runs it. Decides nothing about quantization."""

from .codegen import Code, constant_bytes, generate, vm_passes
from .executable import BoundCall, Description, Executable, OutputSpec
from .file import is_executable
from .layer_clock import TimedCalls, timed_calls
from .runner import runner_of
from .tir_passes import llvm_module

__all__ = [
    "BoundCall",
    "Code",
    "Description",
    "Executable",
    "OutputSpec",
    "TimedCalls",
    "constant_bytes",
    "generate",
    "is_executable",
    "llvm_module",
    "runner_of",
    "timed_calls",
    "vm_passes",
]
