"""State that goes from call to call: inputs of one sample that are outputs of the sample before. It compiles nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import DataError
from ..numerics.arrays import Array
from ..runtime.inputs import InputSpec, first_state, split_batch
from .collect import checked_batches, preprocessing_of


class Carried:
    """Batches without the inputs that carry state, as batches with them: what the source states, or zeros, then what it gave.

    Parameters
    ----------
    specs
        All inputs of the model.
    outputs
        Names of its outputs.
    run
        The float model: inputs by name to outputs by name.
    batches
        Samples in their order, of the other inputs.
    state
        {output: input}.

    Raises
    ------
    DataError
        `state` names what the model does not have.
    """

    def __init__(
        self,
        specs: Sequence[InputSpec],
        outputs: Sequence[str],
        run: Callable[[dict[str, Array]], Mapping[str, Array]],
        batches: Any,
        state: Mapping[str, str],
    ) -> None:
        inputs = {spec.source_name: spec for spec in specs}
        for kind, names, known in (("output", state, outputs), ("input", state.values(), inputs)):
            for name in names:
                if name not in known:
                    raise DataError(f"state names the {kind} {name}, which the model does not have; it has {', '.join(known)}")
        self._run, self._batches, self._state = run, batches, dict(state)
        self._given = [spec for spec in specs if spec.source_name not in state.values()]
        self._states = [inputs[name] for name in state.values()]
        self.preprocessing = preprocessing_of(batches)

    def __iter__(self) -> Iterator[dict[str, Array]]:
        """Yield the inputs of one run after the other."""
        values: dict[str, Array] | None = None
        for index, batch in enumerate(checked_batches(self._batches)):
            for arrays in split_batch(self._given, batch, where=f"batch {index}"):
                values = first_state(self._states, self._given, arrays) if values is None else values
                feed = {spec.source_name: array for spec, array in zip(self._given, arrays, strict=True)} | values
                yield feed
                results = self._run(feed)
                values = {name: np.array(results[output]) for output, name in self._state.items()}
