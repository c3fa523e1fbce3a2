"""Signal to noise ratio of each quantized tensor, and no more: a fraction of what the whole table of layer errors takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ...compiler.float_values import FloatValues
from ...compiler.target_choice import TargetLike, resolve_target
from ...ir.graph import Model
from ...ir.graph.dataflow import DataflowView
from ...ir.graph.inputs import input_specs
from ...ir.graph.model import checked_model
from ...ir.identity import TensorId
from ...numerics.statistics.metrics import ratio_db
from ...runtime.inputs import split_batch
from .blocks import find_blocks
from .modules import build_runner, quantized_outputs


def tensor_ratios(
    model: Model, quantized: Model, batches: Iterable[Any], *, target: TargetLike = None
) -> Mapping[TensorId, float]:
    """Return the `sqnr_db` of each quantized tensor, as `layer_errors` would; tensors within blocks are left out.

    The quantized model must have no channels divided by factors (`Recipe(equalization="none")`).
    """
    floats = DataflowView(checked_model(model).bound()["main"])
    view = DataflowView(checked_model(quantized).bound()["main"])
    blocks = find_blocks(model, floats, quantized, view)
    assert not blocks.divisors, "what was divided cannot be compared with what was not"
    run = build_runner(quantized_outputs(view, blocks), target)
    specs, host = input_specs(model), resolve_target(None)
    listed = [batches] if isinstance(batches, (np.ndarray, Mapping)) else batches
    samples = [arrays for index, batch in enumerate(listed) for arrays in split_batch(specs, batch, where=f"batch {index}")]
    sums = dict.fromkeys(blocks.quantized, (0.0, 0.0))
    reals = FloatValues(host.host, host.isas, host.llvm).on(model, [str(each) for each in blocks.quantized], samples)
    for arrays, (_, real) in zip(samples, reals, strict=True):
        for tensor, value, made in zip(blocks.quantized, real, run(arrays), strict=True):
            reference = value.astype(np.float64)
            signal, noise = sums[tensor]
            sums[tensor] = signal + float(np.sum(reference**2)), noise + float(np.sum(np.square(reference - made)))
    return {tensor: ratio_db(signal, noise) for tensor, (signal, noise) in sums.items()}
