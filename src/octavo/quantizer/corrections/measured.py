"""How near a quantized model is to the float one on the samples that a profile keeps. It corrects nothing."""

from __future__ import annotations

from contextlib import suppress

from ...compiler.float_values import FloatValues
from ...compiler.partition.pipeline import partition_module
from ...compiler.target_choice import ResolvedTarget
from ...errors import CompileError
from ...ir.graph import Model
from ...ir.graph.dataflow import DataflowView
from ...ir.graph.lineage import lineage_paused
from ...profiling import Profile
from ..plan.nearness import Nearness
from ..plan.plan import QuantizedModel
from .correct import samples_of
from .error import nearness
from .float_run import Runner


def measured_nearness(model: Model, quantized: QuantizedModel, profile: Profile, target: ResolvedTarget) -> Nearness:
    """Return how near a quantized model's outputs are to the float model's; nothing where it cannot be run, or without samples.

    The float model runs only where the profile has not kept what it gave.

    Raises
    ------
    ProfileError
        The samples are none of this model.
    """
    samples = samples_of(model, profile)
    if not samples:
        return Nearness()
    with lineage_paused(), suppress(CompileError):
        floats = FloatValues(target.host, target.isas, target.llvm)
        known = profile.kept_results or [results for results, _ in floats.on(model, [], samples)]
        results = Runner(partition_module(quantized.bound(), target.host), target).results(samples)
        return nearness(DataflowView(model.module["main"]), known, results)
    return Nearness()
