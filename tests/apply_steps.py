"""Steps applied to a model whatever they gain, fitted to all samples that its profile keeps: for tests of what a step does."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.compiler.target_choice import TargetLike
from octavo.ir.graph import Model
from octavo.profiling import Profile, samples_of
from octavo.quantizer import tune
from octavo.quantizer.plan.plan import QuantizedModel
from octavo.quantizer.programs import Programs
from octavo.quantizer.quantize_graph import planner_of, quantizing
from octavo.quantizer.recipe import Recipe
from octavo.quantizer.sample_runs import runs_on
from octavo.quantizer.steps import Evidence, Step, equalize, order


def with_steps(
    model: Model,
    profile: Profile,
    steps: Sequence[Step] | None = None,
    *,
    recipe: Recipe | None = None,
    target: TargetLike = "cpu",
) -> QuantizedModel:
    """Return the model quantized with these steps, in their order, or with those of `default_steps`.

    Parameters
    ----------
    profile
        It keeps a sample at least.
    """
    recipe, samples = recipe or Recipe(), samples_of(model, profile)
    with quantizing():
        planner = planner_of(model, profile, target, recipe)
        runs = runs_on(planner, profile, samples, range(len(samples)), Programs(simple=planner.simple))
        planned = tune.planned_plainly(planner, runs)
        for step in sorted(default_steps(recipe) if steps is None else steps, key=lambda each: order().index(type(each))):
            evidence = Evidence(planner=planner, runs=runs)
            choices = step.propose(planned, evidence)
            planned = planned if choices is None else tune.planned_with(planner, choices)
    return tune.confirmed(planner, planned)


def default_steps(recipe: Recipe) -> list[Step]:
    """Return the first step of a recipe of each kind that evens out channels, or corrects weights and biases."""
    return [kind.of(recipe)[0] for kind in (equalize.Equalize, order()[-1]) if kind.of(recipe)]
