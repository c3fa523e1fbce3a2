"""Build: from a linked module to machine code, and the Executable that runs it. Decides nothing about quantization."""

from .codegen import Code, constant_bytes, generate, vm_passes
from .executable import BoundCall, Description, Executable, OutputSpec, memory_of
from .file import is_executable
from .layer_clock import TimedCalls, timed_calls
from .program import ConstantPool
from .runner import Runner, runner_of
from .sizes import is_of_sizes
from .tir_passes import llvm_module

__all__ = [
    "BoundCall",
    "Code",
    "ConstantPool",
    "Description",
    "Executable",
    "OutputSpec",
    "Runner",
    "TimedCalls",
    "constant_bytes",
    "generate",
    "is_executable",
    "is_of_sizes",
    "llvm_module",
    "memory_of",
    "runner_of",
    "timed_calls",
    "vm_passes",
]
