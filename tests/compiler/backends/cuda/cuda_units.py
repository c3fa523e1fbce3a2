"""Many kernels as one translation unit, each compiled to what it is alone: NVRTC reads headers once, nvdisasm starts once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from octavo.compiler.backends.cuda import compiler
from octavo.compiler.backends.cuda.compiler import DEVICE, Usage, disassembled, ptx
from octavo.compiler.backends.cuda.isa import Isa
from octavo.compiler.backends.cuda.kernel import Kernel, translation_unit


class Unit:
    """Kernels compiled for an ISA; they are asked for by their symbols.

    Parameters
    ----------
    folder
        Where nvdisasm's input lies.
    """

    def __init__(self, kernels: Sequence[Kernel], isa: Isa, folder: Path | None = None) -> None:
        self._kernels, self._isa, self._folder = list(kernels), isa, folder
        self._cubin, log = compiler._compiled(translation_unit(kernels), isa, isa.arch, DEVICE)
        self.usage: dict[str, Usage] = compiler._usage(log)
        assert self.usage.keys() == {kernel.symbol for kernel in kernels}

    @cached_property
    def texts(self) -> dict[str, str]:
        """Each kernel's machine code as nvdisasm prints it; of sm_61, which that reads no longer, PTX."""
        if self._isa.capability < 75:
            parts = re.split(r"^\.visible \.entry (\w+)\(", ptx(self._kernels, self._isa), flags=re.MULTILINE)
        else:
            assert self._folder is not None
            parts = re.split(r"^\t\.section\t\.text\.(\w+),.*\n", disassembled(self._cubin, self._folder), flags=re.MULTILINE)
        texts = dict(zip(parts[1::2], parts[2::2], strict=True))
        assert texts.keys() == self.usage.keys()
        return texts
