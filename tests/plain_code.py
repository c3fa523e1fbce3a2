"""Code that LLVM does not optimize: of what runs once, and of what optimized code is compared with, to the byte."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from octavo.compiler.codegen import tir_passes


@contextmanager
def plain_code() -> Iterator[None]:
    """Optimize no kernel. What other tests of a kernel compare with its definition is optimized; no bit depends on it."""
    with patch.object(tir_passes, "KERNEL_LEVEL", 0):  # of which the key of machine code knows
        yield
