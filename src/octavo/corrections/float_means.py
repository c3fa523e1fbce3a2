"""Means of a float model's tensors by channel over samples. It runs the model and corrects nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm import relax
from tvm.relax import Expr, Var

from ..backends.cpu.link import link
from ..backends.cpu.lowering import lower_composites
from ..build import generate, runner_of
from ..graph import Model
from ..graph.dataflow import BodyWriter, DataflowView, replace_operands, with_main
from ..partition.pipeline import partition_module
from ..target_choice import ResolvedTarget

Samples = Sequence[Sequence[npt.NDArray[Any]]]


def float_means(
    model: Model, axes: Mapping[str, int], samples: Samples, target: ResolvedTarget
) -> dict[str, npt.NDArray[np.float64]]:
    """Return the means of variables over samples and all axes but one.

    Parameters
    ----------
    axes
        The axis of the channels, by the name of the variable.
    samples
        The model's inputs, sample by sample.

    Returns
    -------
    dict
        (channels,) by name.
    """
    names = list(axes)
    lowered = lower_composites(partition_module(_with_results(model, names), target.host), target.host, target.isas, 1)
    run = runner_of(generate(link(lowered, target.llvm), target.llvm))
    sums: dict[str, Any] = dict.fromkeys(names, 0.0)
    counts = dict.fromkeys(names, 0)
    for arrays in samples:
        results = run([tvm.runtime.tensor(np.asarray(array, order="C")) for array in arrays])
        for name, result in zip(names, results, strict=True):
            value: Any = np.from_dlpack(result)
            others = tuple(axis for axis in range(value.ndim) if axis != axes[name])
            sums[name] = sums[name] + value.sum(axis=others, dtype=np.float64)
            counts[name] += value.size // value.shape[axes[name]]
    return {name: sums[name] / counts[name] for name in names}


def _with_results(model: Model, names: Sequence[str]) -> tvm.IRModule:
    """Return the model with these variables as its results, and what they don't need left out."""
    module = model.bound()
    view = DataflowView(module["main"])

    def body(writer: BodyWriter) -> Expr:
        new: dict[Var, Expr] = {}
        by_name: dict[str, Expr] = {}
        for binding in view.bindings:
            value = replace_operands(binding.value, lambda var: new.get(var, var))
            by_name[binding.var.name] = new[binding.var] = writer.emit(
                binding.var.name, value, is_output=binding.var.name in names
            )
        return relax.Tuple([by_name[name] for name in names])

    return relax.transform.DeadCodeElimination(["main"])(with_main(module, body))
