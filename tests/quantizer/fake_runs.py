"""Runs on samples that tell what a test wants them to tell, and run nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from octavo.quantizer.remedies import Remedies


class FakeRuns:
    """In place of SampleRuns.

    Parameters
    ----------
    corrector
        Corrects models and measures them.
    remedies
        In place of `SampleRuns.remedies`; by default there are none.
    """

    equalizer = None

    def __init__(self, corrector: Any, remedies: Callable[..., Remedies] = lambda *_, **__: Remedies()) -> None:
        self._corrector, self.remedies = corrector, remedies

    def corrector(self, simple: Any) -> Any:
        return self._corrector

    def ranked_by_effect(self, simple: Any, quantized: Any) -> list[Any]:
        return []

    def fused_functions(self, simple: Any, quantized: Any, able: Any) -> dict[Any, str]:
        return {}
