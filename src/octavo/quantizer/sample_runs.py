"""What running models on the samples that a profile keeps tells of how to quantize one."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field

from ..compiler.float_values import FloatValues
from ..compiler.target_choice import ResolvedTarget
from ..errors import CompileError
from ..ir.graph import Model
from ..numerics.arrays import Samples
from ..profiling import Profile
from .corrections import Corrector, corrected_on
from .equalization import Equalizer
from .equalization.rotating import rotated
from .plan import QuantizationPlan
from .plan.corrections import Corrections
from .recipe import Recipe
from .referee import Referee, RoundedProgram


@dataclass(kw_only=True, slots=True, eq=False)
class Programs:
    """Builds what runs a float model rounded as plans say, on a target: once, unless a plan rounds more than those before."""

    target: ResolvedTarget
    _plans: list[QuantizationPlan] = field(default_factory=list[QuantizationPlan])
    _known: dict[Hashable, RoundedProgram] = field(default_factory=dict["Hashable", RoundedProgram])
    _refusal: str = ""

    def of(self, simple: Model, plan: QuantizationPlan) -> RoundedProgram:
        """Return that of a simplified float model, always the same one, rotated as the plan says.

        Raises
        ------
        NotImplementedError
            TVM's virtual machine alone can run it, or nothing.
        """
        key = tuple(plan.equalization.rotations.items())
        known = self._known.get(key)
        if not self._refusal and (known is None or not known.can_round(plan)):
            self._plans.append(plan)
            self._known = {each: program for each, program in self._known.items() if not each}
            try:
                known = self._known[key] = RoundedProgram(rotated(simple, plan.equalization.rotations), self._plans, self.target)
            except (NotImplementedError, CompileError) as error:  # what cannot be compiled is for `compile` to say
                self._refusal = str(error)
        if known is None or self._refusal:
            raise NotImplementedError(self._refusal)
        return known


@dataclass(kw_only=True, slots=True, eq=False)
class SampleRuns:
    """Samples of one float model, and what runs that on them.

    Parameters
    ----------
    samples
        The model's inputs, sample by sample; one at least.
    few
        Those of them that say how to correct weights and biases.
    programs
        Of the model; other samples may have them, too.
    equalizer
        Chooses the factors that even out channels; None where a plan has them.
    """

    samples: Samples
    few: Samples
    programs: Programs
    equalizer: Equalizer | None = None
    _referee: Referee | None = None
    _corrector: Corrector | None = None

    def referee(self, simple: Model, plan: QuantizationPlan) -> Referee | None:
        """Return what scores plans that round no more than this one; None where TVM's virtual machine alone can run the model.

        Parameters
        ----------
        simple
            The float model, simplified and not equalized.
        """
        try:
            program = self.programs.of(simple, plan)
        except NotImplementedError:
            return None
        if self._referee is None or self._referee.program is not program:
            self._referee = Referee(program, self.samples)
        return self._referee

    def corrections(self, simple: Model, plan: QuantizationPlan, kept: Collection[str]) -> Corrections:
        """Return weights and biases with which a plan's outputs are nearer; none where TVM's virtual machine alone can run it.

        Parameters
        ----------
        simple
            As `referee` takes it.
        kept
            What keeps its parameters.
        """
        try:
            program = self.programs.of(simple, plan)
        except NotImplementedError:
            return Corrections()
        if self._corrector is None or self._corrector.program is not program:
            self._corrector = Corrector(program, self.few)
        return self._corrector.corrections(plan, kept)


def runs_on(
    places: Sequence[int],
    profile: Profile,
    samples: Samples,
    recipe: Recipe,
    *,
    programs: Programs,
    has_functions: bool,
) -> SampleRuns:
    """Return what runs models on some of the samples that a profile keeps, on this machine.

    Parameters
    ----------
    places
        Of those samples.
    samples
        All that the profile keeps, as the model takes them.
    programs
        Of the model.
    has_functions
        See `Equalizer`.
    """
    chosen, here = [samples[place] for place in places], programs.target
    equalizer = Equalizer(
        profile,
        chosen,
        FloatValues(here.host, here.isas, here.llvm),
        results=[profile.kept_results[place] for place in places] if profile.kept_results else (),
        only_ranges=recipe.has_plain_ranges,
        has_functions=has_functions,
    )
    few = corrected_on(chosen, recipe)
    return SampleRuns(samples=chosen, few=few, programs=programs, equalizer=equalizer)
