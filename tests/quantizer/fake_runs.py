"""Runs on samples that tell what a test wants them to tell, and run nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from octavo.quantizer.choices import Choices


class FakeRuns:
    """In place of SampleRuns.

    Parameters
    ----------
    corrector
        Corrects models and measures them.
    less_rounding
        In place of `SampleRuns.less_rounding`; by default there are none.
    """

    equalizer = None

    def __init__(self, corrector: Any, less_rounding: Callable[..., Choices] = lambda *_, **__: Choices()) -> None:
        self._corrector, self.less_rounding = corrector, less_rounding

    def corrector(self, simple: Any) -> Any:
        return self._corrector

    def ranked_by_effect(self, simple: Any, quantized: Any) -> list[Any]:
        return []

    def fused_functions(self, simple: Any, quantized: Any, able: Any) -> dict[Any, str]:
        return {}
