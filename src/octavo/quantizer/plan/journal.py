"""The journal of a plan: steps that were tried, what the referee said of each, what was kept, as data. It decides nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class JournalEntry:
    """One step that was tried.

    Parameters
    ----------
    step
        Its name.
    proposal
        What it proposed, in words; "" where it had nothing to propose.
    gain_db, standard_error_db
        What the worst output's error on held-back samples was less with it, and the standard error of that over the samples;
        None where that was not scored.
    kept
        Whether the plan has it.
    seconds
        What it took: two entries that differ in that alone are equal.
    """

    step: str
    proposal: str
    gain_db: float | None
    standard_error_db: float | None
    kept: bool
    seconds: float = field(compare=False)

    @property
    def said(self) -> str:
        """One line."""
        verdict = "kept" if self.kept else "left out"
        if self.gain_db is None:
            left = f", {verdict}" if self.proposal and not self.kept else ""
            return f"{self.step}: {self.proposal or 'nothing to propose'}{left}"
        error = self.standard_error_db
        known = "unknown" if error is None or math.isinf(error) else f"{error:.2f}"
        gain = f"{self.gain_db:+.2f} dB ({known} standard error)"
        return f"{self.step}: {self.proposal}: {gain}, {verdict}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Journal:
    """What a plan's choices rest on.

    Parameters
    ----------
    held_back
        On how many samples plans were compared, that no step was fitted to; 0: nothing was verified.
    plain_db, sqnr_db
        Signal to noise ratio in dB of the worst output on these, without any step and with those that were kept; inf where
        outputs are equal, None where nothing was verified.
    agreement
        Share of these samples of which the model names the float model's class, in [0; 1]; None where outputs are no scores.
    entries
        Steps in the order in which they were tried.
    carried
        Inputs that look like state, which an output of the run before gives: each sample had the float model's. What errors
        add up to from run to run nobody saw.
    """

    held_back: int = 0
    plain_db: float | None = None
    sqnr_db: float | None = None
    agreement: float | None = None
    entries: tuple[JournalEntry, ...] = ()
    carried: tuple[str, ...] = ()

    @property
    def kept(self) -> list[str]:
        """Names of the steps that the plan has."""
        return [entry.step for entry in self.entries if entry.kept]

    @property
    def lines(self) -> tuple[str, ...]:
        """All in words: a line for each entry, and the summary."""
        steps = [f"{entry.said}, {entry.seconds:.1f} s" for entry in self.entries if entry.proposal]
        return tuple(each for each in (*steps, self.summary) if each)

    @property
    def summary(self) -> str:
        """Say what was kept, and how near the model is to the float one; "" of a plan that nothing was tried for."""
        if self.sqnr_db is None or self.plain_db is None:
            return ""
        kept = ", ".join(dict.fromkeys(self.kept)) or "no step"
        unseen = f"; each with the float model's {', '.join(self.carried)}: evaluate with --state" if self.carried else ""
        if self.sqnr_db == math.inf:
            return f"{kept} kept: outputs are the float model's on {self.held_back} samples held back{unseen}"
        gained = f" ({self.plain_db:.1f} dB without)" if math.isfinite(self.plain_db) and self.kept else ""
        return (
            f"{kept} kept: outputs {self.sqnr_db:.1f} dB above their error on {self.held_back} samples held back{gained}{unseen}"
        )
