"""Warnings about the samples of a profile: data that are constant, or not what the network was trained on; ranges that grow.

Everything is read off the profile; the model does not run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from ..ir.graph import Model
from ..ir.graph.dataflow import DataflowView, call_to
from ..ir.graph.products import with_bias
from ..ir.identity import TensorId, readable_name
from ..profiling import Profile, TensorStatistics, adequacy_of
from ..target.op_facts import WEIGHTED

_SPANS = (1.3, 30.0)
"""Of the median channel's range behind the first convolution. Trained networks normalize there: seven of them lie between 3.4 and
17 on what they were trained on, and at 0.02 to 2.1 or 18 to 900 where inputs are scaled by an eighth, by eight or by 255."""
_CONVENTIONS = ((0.5, 3.0), (100.0, 256.0))
"""Largest magnitudes of pictures: of pixels from 0 or -1 to 1 or divided by a standard deviation, and of pixels as they are."""
_COLOURS = 3
_MIN_CHANNELS = 4
_MANY_GROW = 0.1
"""Share of the tensors that are inputs or activations."""
_NAMED = 3


def calibration_warnings(model: Model, profile: Profile) -> tuple[str, ...]:
    """Return the warnings about the samples of a profile, a line each, the gravest first; () where nothing is."""
    return (
        *_constant(profile),
        *_equal(profile),
        *_non_finite(profile),
        *_unnormalised(model, profile),
        *_uncovered(model, profile),
        *_growing(profile),
    )


def _name(value: TensorStatistics) -> str:
    return readable_name(value.source_name, value.id)


def _inputs(profile: Profile) -> list[TensorStatistics]:
    return [value for value in profile.values() if value.kind == "input"]


def _constant(profile: Profile) -> Iterable[str]:
    for value in _inputs(profile):
        # A scalar, a rate say, is the same for all samples.
        if value.count > profile.samples and value.minimum == value.maximum:
            yield f"input {_name(value)} is {value.minimum:g} everywhere, in all {profile.samples} samples: are these the data?"


def _equal(profile: Profile) -> Iterable[str]:
    kept = profile.kept_samples
    # Of equal samples a profile keeps one.
    if min(profile.samples, profile.keep_samples) > 1 and kept and all(all(map(np.array_equal, kept[0], each)) for each in kept):
        yield f"all {profile.samples} samples are the same one: give different samples"


def _non_finite(profile: Profile) -> Iterable[str]:
    found = [value for value in profile.values() if value.non_finite and value.kind != "constant"]
    if found:
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        yield f"{_name(found[0])}{more} held NaN or infinity: the float model itself fails on these samples"


def _unnormalised(model: Model, profile: Profile) -> Iterable[str]:
    said = "do they have the mean, the scale and the order of channels that the network was trained with"
    pictures = [value for value in _inputs(profile) if len(value.shape) == 4 and _COLOURS in (value.shape[1], value.shape[3])]
    for value in pictures:
        most = max(abs(value.minimum), abs(value.maximum))
        if most and not any(low <= most <= high for low, high in _CONVENTIONS):
            yield (
                f"input {_name(value)} looks unnormalised: pictures of [{value.minimum:.4g}; {value.maximum:.4g}] are neither "
                f"about -1 to 1 nor pixels of 0 to 255; {said}?"
            )
            return
    span, name = _first_span(model, profile)
    if span is not None and not _SPANS[0] <= span <= _SPANS[1]:
        yield (
            f"the samples look unnormalised for this network: behind its first layer, {name}, the median channel spans "
            f"{span:.3g}, where {_SPANS[0]:g} to {_SPANS[1]:g} is usual; {said}?"
        )


def _first_span(model: Model, profile: Profile) -> tuple[float | None, str]:
    """Return how wide the median channel behind the first convolution of a picture or a spectrum is, and its name."""
    view = DataflowView(model.module["main"])
    names = {value.id for value in profile.values() if value.kind == "input" and len(value.shape) == 4}
    if not names:
        return None, ""
    for binding in view.bindings:
        call: Any = call_to(binding.value, *WEIGHTED)
        if call is not None:
            var = with_bias(view, binding.var)
            while TensorId(var.name) not in profile:  # what a fused activation clamps has no name of its own
                users = view.users(var)
                if len(users) != 1:
                    return None, ""
                var = users[0]
            value = profile[TensorId(var.name)]
            low, high = value.channel_minimum, value.channel_maximum
            fired = np.isfinite(low) & (high > low)
            if fired.sum() < _MIN_CHANNELS:
                return None, ""
            return float(np.median((high - low)[fired])), _name(value)
    return None, ""


def _uncovered(model: Model, profile: Profile) -> Iterable[str]:
    """Yield the outputs that the samples hardly show: quantized layers saturate where others go further."""
    known = [profile[name] for name in model.output_ids if name in profile]
    for value in known:
        found = adequacy_of(value).convergence
        if found is not None and not found.covered:
            yield (
                f"the output {_name(value)}, in [{value.minimum:.4g}; {value.maximum:.4g}] on {profile.samples} samples, may go "
                f"{found.reach:.0%} of that further: do they hold what the network looks for?"
            )


def _growing(profile: Profile) -> Iterable[str]:
    tensors = [value for value in profile.values() if value.kind != "constant"]
    growths = [(found.growth, value) for value in tensors if (found := adequacy_of(value).convergence) and found.growing]
    if len(growths) > _MANY_GROW * len(tensors):
        growths.sort(key=lambda pair: (-pair[0], pair[1].id))
        names = ", ".join(
            f"{_name(value)} ({'from nothing' if math.isinf(growth) else f'+{growth:.0%}'})" for growth, value in growths[:_NAMED]
        )
        yield (
            f"{len(growths)} of {len(tensors)} ranges still grow with the samples, {names} first: profile more samples "
            "(octavo profile adequacy has the table)"
        )
