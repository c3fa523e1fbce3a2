"""Build: from a linked module to machine code, and the Executable that runs it. Decides nothing about quantization."""

from .codegen import constant_bytes, generate, vm_passes
from .executable import BoundCall, Description, Executable, OutputSpec
from .file import is_executable

__all__ = ["BoundCall", "Description", "Executable", "OutputSpec", "constant_bytes", "generate", "is_executable", "vm_passes"]
