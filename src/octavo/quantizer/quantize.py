"""Quantize: a float model, by its profile and the samples that it keeps, or by a plan, becomes a model in QDQ form.

`octavo.quantize` stands here. What runs on samples is sample_runs.py's, the order of all steps tune.py's.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ..compiler.target_choice import ResolvedTarget, TargetLike, resolve_target
from ..errors import ProfileError, QuantizationError, QuantizationWarning, check_type, check_value, is_number
from ..ir.graph import Model
from ..ir.graph.model import checked_model
from ..numerics.arrays import Samples
from ..profiling import Profile, check_model, samples_of
from ..profiling.profile import forget_profilers
from ..runtime.heap import trim_heap
from .choices import Choices
from .plan import QuantizationPlan, QuantizedModel
from .planner import Planner
from .programs import Programs
from .quantize_graph import announced, apply_plan, planner_of, quantizing
from .ranges import takes_only_ends
from .recipe import Preset, Recipe
from .request import ParamsOf
from .sample_runs import SampleRuns, may_divide, runs_on
from .steps import FORMER, order
from .tune import MIN_SAMPLES, Split, confirmed, is_tried, places_held_back, planned_plainly, tuned
from .uncovered_outputs import uncovered_outputs


def quantize(
    model: Model,
    profile: Profile | None = None,
    *,
    target: TargetLike = "cpu",
    recipe: Recipe | None = None,
    params: ParamsOf | None = None,
    plan: QuantizationPlan | str | Path | None = None,
    preset: Preset = "balanced",
    seconds: float | None = None,
) -> QuantizedModel:
    """Quantize a float model to QDQ form, where the target has integer kernels.

    Parameters
    ----------
    profile
        Of this very model; another one's is refused (ProfileError).
    target
        As `compile` takes it: what its description can run in integers is quantized.
    recipe
        The user's wishes; the defaults are per-axis symmetric int8 weights, per-tensor asymmetric uint8 activations, min-max.
    params
        Called with a `TensorChoice` (TensorId, name, op, statistics of the profile, the parameters that it would get) for each
        activation and weight, it returns QuantParams, a TensorSupport, or None to keep them. As with `Recipe.tensors`, what the
        target asks besides still counts: where both can't be, the op stays float with the reason.
    plan
        What an earlier call decided (`QuantizedModel.plan`), as it was or edited, or the path of its file: these layers with
        these parameters, and no others. In place of profile, recipe and params.
    preset
        How much to try. "fast" corrects biases by what the profile says, and runs nothing. "balanced" tries steps: it corrects
        biases, rounds weights by what their layers read, rotates channels and evens them out, narrows ranges, and keeps what
        brings the outputs nearer to the float model's on samples that no step is fitted to; the plan's journal says what that
        was. "best" also tries several ranges of activations. What the recipe says other than by default counts.
    seconds
        What all may take: no step is tried that would end later, and the best that was found is returned. None: as long as it
        takes. To plan the model without any step is not left out.

    Raises
    ------
    ProfileError
        A profile of another model, or none where there is no plan.
    QuantizationError
        An unknown preset; seconds that are no positive number; a recipe or params that ask for what there is not; a plan that
        cannot be read, or that model or target cannot take.
    """
    checked, chosen = checked_model(model), resolve_target(target)
    if plan is not None:
        if any(given is not None for given in (profile, recipe, params, seconds)) or preset != "balanced":
            raise QuantizationError("a plan says all that profile, recipe, preset and params decide: give it alone")
        read = plan if isinstance(plan, QuantizationPlan) else QuantizationPlan.load(plan)
        known = [kind.name for kind in order()]
        unknown = next((entry.step for entry in read.journal.entries if entry.step not in (*known, *FORMER)), None)
        if unknown is not None:
            raise QuantizationError(
                f"the plan's journal names a step {unknown!r}, and there is none here: register it (register_step), or take its "
                f"entry out; known are {', '.join(known)}"
            )
        forget_profilers(checked)
        return apply_plan(checked, read, target=chosen)
    profile = check_subject(checked, profile, recipe)
    is_fine = seconds is None or (is_number(seconds) and 0 < seconds < math.inf)
    check_value(is_fine, QuantizationError, "seconds", "a positive number, or None for as long as it takes", seconds)
    check_type(params, Callable | None, QuantizationError, "a function of a TensorChoice that returns QuantParams or None")
    found = by_profile(chosen, checked, profile, (recipe or Recipe()).with_preset(preset), params, seconds=seconds)
    trim_heap(checked.constant_bytes)  # of what was tried
    return found


def check_subject(model: Model, profile: Profile | None, recipe: Recipe | None) -> Profile:
    """Return a profile, which is one of this float model; ModelError, ProfileError or QuantizationError for anything else."""
    checked_model(model)
    check_type(profile, Profile, ProfileError, "a Profile, which octavo.profile returns and Profile.load reads")
    check_type(recipe, Recipe | None, QuantizationError, "an octavo.Recipe")
    assert profile is not None, "its type was checked"
    check_model(profile, model)
    return profile


def by_profile(
    target: ResolvedTarget,
    model: Model,
    profile: Profile,
    recipe: Recipe | None,
    params: ParamsOf | None = None,
    seconds: float | None = None,
    programs: Programs | None = None,
) -> QuantizedModel:
    """Quantize a float model by its profile, with what running the samples that it keeps tells.

    Parameters
    ----------
    programs
        Of the model: what is compiled is left there for others. See `quantize` for the rest.
    """
    started, recipe = time.monotonic(), recipe or Recipe()
    _check_ranges_suffice(profile, recipe)
    forget_profilers(model)  # their constants need not be there once more while the model is quantized
    samples = samples_of(model, profile)
    if len(samples) < MIN_SAMPLES and is_tried(recipe):
        count = f"keeps {len(samples)} sample{'s' if len(samples) > 1 else ''}, fewer than {MIN_SAMPLES}"
        said = (
            "nothing was tried to bring the model's outputs nearer, for nothing could be verified: the profile "
            f"{count if samples else 'keeps no samples'}; profile the model with keep_samples=64 on as many samples, or say "
            'preset="fast"'
        )
        warnings.warn(said, QuantizationWarning, stacklevel=3)
    with quantizing():
        planner = planner_of(model, profile, target, recipe, programs=programs)
        known = known_choices(planner, profile) if params is None else Choices()
        if len(samples) < MIN_SAMPLES:
            quantized = confirmed(planner, planned_plainly(planner, None, params, known))
        else:
            deadline = math.inf if seconds is None else started + seconds
            # What a callback says of a tensor is said of the tensor as it is.
            split = split_of(planner, profile, samples, programs, equalizes=params is None, deadline=deadline)
            quantized = tuned(planner, split, planned_plainly(planner, split.every, params, known))
    return announced(planner, quantized)


def known_choices(planner: Planner, profile: Profile) -> Choices:
    """Return what is chosen whatever samples tell."""
    if planner.has_functions and not planner.chosen.backends and planner.recipe.may_leave_float:
        return Choices(float_tensors=uncovered_outputs(planner.model, profile))
    return Choices()


def split_of(
    planner: Planner,
    profile: Profile,
    samples: Samples,
    programs: Programs | None = None,
    *,
    compared: Samples | None = None,
    equalizes: bool = True,
    deadline: float = math.inf,
) -> Split:
    """Return what runs the model on all samples that the profile keeps, one at least.

    Plans are compared on `compared`; without it some of the samples are held back for that, or all serve where they are too few.
    `programs` are those of the planner's model where others have some.
    """
    known, every = programs or Programs(simple=planner.simple), range(len(samples))

    def runs(places: Sequence[int]) -> SampleRuns:
        found = runs_on(planner, profile, samples, places, known)
        return found if equalizes and may_divide(planner.simple, len(samples)) else replace(found, equalizer=None)

    all_runs = runs(every)
    if compared is not None or len(samples) < MIN_SAMPLES:
        return Split(fitted=[all_runs], held_back=[compared or samples], every=all_runs, deadline=deadline)
    folds = places_held_back(len(samples))
    fitted = [runs([place for place in every if place not in places]) for places in folds]
    held_back = [[samples[place] for place in places] for places in folds]
    return Split(fitted=fitted, held_back=held_back, every=all_runs, deadline=deadline)


def _check_ranges_suffice(profile: Profile, recipe: Recipe) -> None:
    """Raise QuantizationError for an estimator that a profile made of another tool's ranges has nothing for."""
    names = [recipe.range_estimator, *(said.range_estimator for said in recipe.overrides.values() if said.range_estimator)]
    unfit = next((name for name in names if not takes_only_ends(name)), None)
    if profile.ranges_alone_from and unfit is not None:
        raise QuantizationError(
            f"the profile holds ranges alone, from {profile.ranges_alone_from}, and {unfit} needs histograms: take min_max, or "
            "profile the model on samples"
        )
