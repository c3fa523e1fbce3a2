"""Language models: perplexity, KL divergence and the next token, over windows of tokens. It runs nothing.

Windows are all that a decoder sees: each begins with an empty past, and what it says of a token is scored by the token behind it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import DataError
from ..numerics.arrays import Array
from ..runtime.inputs import InputSpec
from ..runtime.shapes import evaluated
from ..runtime.size import Size, names_in
from .task_evaluators import Decisions, Metric

WINDOW = 256
"""Tokens of a window, of a model that leaves their number open."""
LOGITS = "logits"
_BLOCK = 1 << 22
"""Scores that are looked at at once: a row may have a hundred thousand."""
_POSITIONS = ("position_ids", "positions")
_MASKS = ("attention_mask",)
_TYPES = ("token_type_ids",)
_FILLED = (*_POSITIONS, *_MASKS, *_TYPES)
"""Names of inputs, in files that transformers' exporters write, that follow from the tokens."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenWindows:
    """Makes the inputs of a language model of tokens alone.

    Parameters
    ----------
    specs
        The model's inputs: tokens [batch, sequence]; positions, which count from 0; an attention mask, of ones; token types, of
        zeros; states of earlier tokens, which have no rows.
    """

    specs: Sequence[InputSpec]

    @property
    def tokens(self) -> InputSpec:
        """The input that takes tokens. DataError where there is not exactly one that may be it."""
        found = [
            spec
            for spec in self.specs
            if spec.dtype in ("int32", "int64") and len(spec.shape) == 2 and spec.source_name not in _FILLED
        ]
        if len(found) != 1:
            listed = ", ".join(map(str, self.specs))
            raise DataError(f"a language model takes tokens, int64 [batch,sequence], by one input; this model takes {listed}")
        return found[0]

    def batches(self, tokens: Array, where: str) -> Iterator[dict[str, Array]]:
        """Cut tokens into windows, [windows, tokens] or the tokens of one text, whose last window may be shorter or is left out.

        Raises
        ------
        DataError
            No whole numbers; fewer than a window has; an input for which nothing says what it takes.
        """
        if tokens.dtype.kind not in "iu" or tokens.ndim not in (1, 2) or not tokens.size:
            raise DataError(
                f"{where}: tokens are whole numbers, [tokens] or [windows, tokens], got {tokens.dtype} {list(tokens.shape)}"
            )
        samples, length = self.tokens.shape
        count = 1 if isinstance(samples, Size) else samples
        if tokens.ndim == 2:
            rows = list(tokens)
        else:
            size = WINDOW if isinstance(length, Size) else length
            rows = [tokens[start : start + size] for start in range(0, len(tokens), size)]
            is_short = len(rows[-1]) < (2 if isinstance(length, Size) else size)
            rows = rows[:-1] if is_short else rows
        if len(rows) < count:
            raise DataError(f"{where}: {tokens.size} tokens are less than a run of the model takes, {self.tokens}")
        for start in range(0, len(rows) - count + 1, count):
            yield self._inputs(np.stack(rows[start : start + count]))

    def _inputs(self, tokens: Array) -> dict[str, Array]:
        named = self.tokens
        sizes = {str(dim): size for dim, size in zip(named.shape, tokens.shape, strict=True) if isinstance(dim, Size)}
        return {spec.source_name: self._values(spec, tokens, sizes) for spec in self.specs}

    def _values(self, spec: InputSpec, tokens: Array, sizes: Mapping[str, int]) -> Array:
        shape = evaluated(spec.shape, {**dict.fromkeys(names_in(spec.shape), 0), **sizes})
        if spec == self.tokens:
            return tokens.astype(spec.dtype)
        if spec.source_name in _POSITIONS:
            return np.broadcast_to(np.arange(tokens.shape[1], dtype=spec.dtype), shape).copy()
        if spec.source_name in (*_MASKS, *_TYPES):
            return np.full(shape, spec.source_name in _MASKS, spec.dtype)
        if 0 in shape:
            return np.zeros(shape, spec.dtype)
        raise DataError(f"nothing says what input {spec} takes for tokens: give arrays of all inputs, {{name: array}} or .npz")


@dataclass(slots=True)
class LanguageEvaluator:
    """Scores of the next token at each step, [samples, steps, tokens].

    Parameters
    ----------
    windows
        Makes inputs of tokens.
    vocabulary
        How many tokens there are.
    """

    windows: TokenWindows
    vocabulary: int
    _tokens: deque[Array] = field(default_factory=deque[Array])
    """Of each sample that was handed out and has no scores yet."""
    _steps: int = 0
    _same: int = 0
    _divergence: float = 0.0
    _known: int = 0
    _losses: tuple[float, float] = (0.0, 0.0)

    def followed(self, data: Any) -> Iterator[dict[str, Array]]:
        """Return batches of all inputs, of tokens (an array, or several) or of what is such already, and remember the tokens."""
        name = self.windows.tokens.source_name
        listed: Iterable[Any] = [data] if isinstance(data, np.ndarray | Mapping) else data
        for number, given in enumerate(listed):
            where = f"batch {number}"
            batches = self.windows.batches(given, where) if isinstance(given, np.ndarray) else [given]
            for batch in batches:
                tokens = np.asarray(batch.get(name, ()))
                if tokens.size and not 0 <= int(tokens.min()) <= int(tokens.max()) < self.vocabulary:
                    wrong = int(tokens.min()) if tokens.min() < 0 else int(tokens.max())
                    raise DataError(f"{where}: input {name} holds token {wrong}, the model's are 0 to {self.vocabulary - 1}")
                self._tokens.extend(tokens)
                yield batch

    def add(self, reference: Sequence[Array], candidate: Sequence[Array]) -> None:
        """See TaskEvaluator."""
        for first, second in zip(reference[0], candidate[0], strict=True):
            tokens = self._tokens.popleft()
            size = max(1, _BLOCK // self.vocabulary)
            for start in range(0, len(first), size):
                self._add_rows(first[start : start + size], second[start : start + size], tokens[start + 1 : start + size + 1])

    def _add_rows(self, first: Array, second: Array, following: Array) -> None:
        """Take scores of some steps, and the tokens behind them: one less where the text ends."""
        one, other = _log_shares(first), _log_shares(second)
        self._steps += len(one)
        self._same += int((one.argmax(axis=1) == other.argmax(axis=1)).sum())
        shares = np.exp(one)
        # A share of 0 counts for nothing, whatever its logarithm is.
        self._divergence += float((shares * np.where(shares > 0, one - other, 0)).sum())
        rows = np.arange(len(following))
        self._known += len(following)
        self._losses = (
            self._losses[0] - float(one[rows, following].sum()),
            self._losses[1] - float(other[rows, following].sum()),
        )

    def decisions(self) -> Decisions:
        """See TaskEvaluator."""
        if not self._steps:
            return Decisions()
        return Decisions(
            agreement=self._same / self._steps, what="next token", kl_divergence=max(0.0, self._divergence / self._steps)
        )

    def metric(self) -> Metric | None:
        """Return the perplexity: how many tokens, all alike, would be as hard to choose among; exp of the mean loss in nats."""
        if not self._known:
            return None
        first, second = (_exp(loss / self._known) for loss in self._losses)
        return Metric(name="perplexity", reference=first, candidate=second, unit=" tokens", lower_is_better=True)


def _log_shares(scores: Array) -> Array:
    """Return the logarithm of the softmax of each row, float64."""
    values = scores.astype(np.float64)
    values -= values.max(axis=1, keepdims=True)
    return values - np.log(np.exp(values).sum(axis=1, keepdims=True))


def _exp(loss: float) -> float:
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf
