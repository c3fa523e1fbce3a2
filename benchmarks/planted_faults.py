"""Faults planted in quantized networks: does `octavo.root_causes` name each first, with the right cause?

    python benchmarks/planted_faults.py                         three networks, 4 of each of the 5 faults: 20 trials each
    python benchmarks/planted_faults.py --networks resnet8 --rounds 1 --seed 7 --json trials.json

scale x4      an activation's scale (and of those that share its parameters) is four times what it was
scale /4      a quarter of it
bias          one channel's bias is off by a quarter of the range of its layer's results, in the integers alone
swap          two channels of a layer have each other's weight scale, these being unlike by 1.5 times at least. Every other time
              integers stay as they were rounded with the right scales, else they are rounded anew
unequalized   in the float network as the default evens it out, channels that can be scaled alike are made unlike by powers of
              two, 1/8 to 16; it is quantized without more equalization

Tensors and channels are drawn by a seeded generator. Not every draw is a fault: a bias may be that of a channel that a ReLU cuts
off anyway. So each is compiled and run on samples that calibration never saw, and one that takes less than --effect dB from the
outputs' SQNR is drawn anew: `root_causes` has no part in that. The other faults are planted in the network as `octavo.quantize`
makes it by default. "none" is that, where no row may be named a fault, but for biases whose correction does harm: without it
the outputs are nearer to the float model's on the same samples.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

import octavo
from octavo.compiler.text_table import markdown_table
from octavo.ir.channels import find_groups, find_sites, scaled
from octavo.ir.identity import TensorId
from octavo.numerics.statistics.metrics import sqnr_db
from octavo.profiling.kept_samples import KEEP_SAMPLES
from octavo.quantizer.causes import RootCause
from octavo.quantizer.causes.experiments import FAULTS
from octavo.quantizer.plan.entries import IntegerLayer
from octavo.quantizer.plan.plan import QuantizedModel
from octavo.quantizer.programs import Programs
from quality_networks import NETWORKS
from quantization_quality import Evaluation, octavo_input, octavo_run

UNLIKE = 1.5
MAX_SAMPLES = 256
"""Samples on which a fault's effect is measured."""
MAX_DRAWS = 50
CHOSEN = ("resnet8", "mobilenet_v1_0.25", "squeezenet")
UNEQUALIZED = octavo.Recipe(equalization="none")


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """What was planted: the names of which one has to be in the first row, its part, its cause; and the models."""

    names: frozenset[str]
    part: str
    cause: str
    model: octavo.Model
    sound: QuantizedModel
    faulty: QuantizedModel


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """One fault, and what the table of root causes has first."""

    network: str
    fault: str
    planted: str
    effect_db: float
    draws: int
    first: str
    place: int
    """Of the row that is right, from 1; 0 where there is none."""

    @property
    def is_right(self) -> bool:
        """Whether it was named first with its cause."""
        return self.place == 1


class Planting:
    """A network, as it is by default or by a recipe, and what can be planted in it."""

    def __init__(self, evaluation: Evaluation, rng: np.random.Generator, recipe: octavo.Recipe | None = None) -> None:
        self.name, self._rng, self._evaluation = evaluation.name, rng, evaluation
        self.model, self._profile, _ = evaluation.profiled
        self.batches = [octavo_input(feed) for feed in evaluation.calibration]
        self.sound = octavo.quantize(self.model, self._profile, recipe=recipe)
        self._even, _ = Programs.of_model(self.model).equalized(self.sound.plan)
        sites = find_sites(find_groups(self._even))
        self._sites = [site for site in sites if site.rounded and site.readers and site.groups.size > 1]
        self._decibels: dict[int, float] = {}

    @cached_property
    def _unequalized(self) -> QuantizedModel:
        return octavo.quantize(self._even, self._profile_of(self._even), recipe=UNEQUALIZED)

    def _profile_of(self, model: octavo.Model) -> octavo.Profile:
        return octavo.profile(model, self.batches, keep_samples=KEEP_SAMPLES)

    def _drawn(self, items: Any) -> Any:
        listed = list(items)
        return listed[int(self._rng.integers(len(listed)))]

    def scaled(self, factor: float) -> Fault:
        """Plant an activation's scale."""
        plan = self.sound.plan
        name = self._drawn(plan.activations)
        group = next((group for group in plan.shared if name in group), (name,))
        params = plan.activations[name]
        other = replace(params, scale=np.float32(params.scale * factor))
        faulty = octavo.quantize(self.model, plan=plan.with_params({name: other}))
        return self._fault(faulty, group, "activation", "coarse scale" if factor > 1 else "clipping")

    def shifted_bias(self) -> Fault:
        """Plant a channel's bias."""
        plan = self.sound.plan
        layer = self._drawn(each for each in plan.layers if each.bias in plan.biases and each.output in plan.activations)
        result = plan.activations[layer.output]
        integers = self.sound.params[TensorId(f"{layer.bias}_q")].copy()
        steps = np.broadcast_to(plan.biases[layer.bias].scale, integers.shape)
        channel = int(self._rng.integers(integers.size))
        shift = self._drawn((-1, 1)) * 0.25 * float(result.scale) * (result.qmax - result.qmin)
        integers.reshape(-1)[channel] += np.rint(shift / steps.reshape(-1)[channel]).astype(np.int32)
        faulty = replace(self.sound, params={**self.sound.params, TensorId(f"{layer.bias}_q"): integers})
        return self._fault(faulty, (layer.output,), "weights", "bias")

    def swapped(self, *, keeps_integers: bool) -> Fault:
        """Plant two scales of a layer's weights."""
        plan = self.sound.plan

        def pairs(layer: IntegerLayer) -> list[tuple[int, int]]:
            scale = np.ravel(plan.weights[layer.weight].scale) if layer.weight in plan.weights else np.ones(1)
            return list(zip(*np.nonzero(scale[:, None] > UNLIKE * scale), strict=True))

        layer = self._drawn(each for each in plan.layers if pairs(each))
        channels = list(self._drawn(pairs(layer)))
        params = plan.weights[layer.weight]
        scale = np.array(params.scale)
        scale.reshape(-1)[channels] = scale.reshape(-1)[channels[::-1]]
        other = plan.with_params({layer.weight: replace(params, scale=scale)})
        if keeps_integers:
            values = {**plan.corrections.weight_values, layer.weight: self.sound.params[TensorId(f"{layer.weight}_q")]}
            other = replace(other, corrections=replace(other.corrections, weight_values=values))
        return self._fault(octavo.quantize(self.model, plan=other), (layer.output,), "weights", "weight scale")

    def unequalized(self) -> Fault:
        """Plant unlike channels in the float network."""
        site, found = self._drawn(self._sites), find_groups(self._even)
        by_group = np.ones(1 + max(int(groups.max()) for groups in found.of.values()))
        by_group[site.groups] = 2.0 ** self._rng.integers(-3, 5, site.groups.size)
        of = {var.name: groups for var, groups in found.of.items()}
        factors = {TensorId(var.name): by_group[of[var.name]].astype(np.float32) for var in site.tensors}
        model = scaled(self._even, factors, exact=False)
        faulty = octavo.quantize(model, self._profile_of(model), recipe=UNEQUALIZED)
        names = frozenset(var.name for var in site.tensors)
        return Fault(names=names, part="activation", cause="unlike channels", model=model, sound=self._unequalized, faulty=faulty)

    def harms(self, row: RootCause) -> bool:
        """Return whether outputs are nearer, on samples that calibration never saw, without a layer's correction of its bias."""
        corrections = self.sound.plan.corrections
        if row.cause != "bias" or row.id not in corrections.bias_shifts:
            return False
        shifts = {name: shift for name, shift in corrections.bias_shifts.items() if name != row.id}
        plan = replace(self.sound.plan, corrections=replace(corrections, bias_shifts=shifts))
        exact, without = self._outputs(self.model), octavo.quantize(self.model, plan=plan)
        return self._sqnr_db(exact, without) > self._sqnr_db(exact, self.sound)

    def _fault(self, faulty: QuantizedModel, names: Any, part: str, cause: str) -> Fault:
        named = frozenset(map(str, names))
        return Fault(names=named, part=part, cause=cause, model=self.model, sound=self.sound, faulty=faulty)

    def effect_db(self, fault: Fault) -> float:
        """Return what a fault takes from the SQNR of the outputs, on samples that calibration never saw."""
        exact = self._outputs(fault.model)
        return self._sqnr_db(exact, fault.sound) - self._sqnr_db(exact, fault.faulty)

    def _sqnr_db(self, exact: np.ndarray, quantized: QuantizedModel) -> float:
        return float(sqnr_db(exact, self._outputs(quantized)))

    def _outputs(self, model: octavo.Model) -> np.ndarray:
        feeds = self._evaluation.feeds[:: max(len(self._evaluation.feeds) // MAX_SAMPLES, 1)][:MAX_SAMPLES]
        return self._evaluation.network.outputs(octavo_run(model), feeds).astype(np.float64)


FAULTS_PLANTED: dict[str, Callable[[Planting, int], Fault]] = {
    "scale x4": lambda planting, _: planting.scaled(4),
    "scale /4": lambda planting, _: planting.scaled(1 / 4),
    "bias": lambda planting, _: planting.shifted_bias(),
    "swap": lambda planting, number: planting.swapped(keeps_integers=number % 2 == 1),
    "unequalized": lambda planting, _: planting.unequalized(),
}


def sound_trial(planting: Planting) -> Trial:
    """Return what is said where nothing was planted: right is that nothing is named a fault."""
    rows = octavo.root_causes(planting.model, planting.sound, planting.batches)
    accused = [row for row in rows if row.cause in FAULTS and not planting.harms(row)]
    first = rows[0] if not accused else accused[0]
    return Trial(
        network=planting.name,
        fault="none",
        planted="",
        effect_db=0.0,
        draws=1,
        first=f"{first.id} {first.part}: {first.cause}",
        place=0 if accused else 1,
    )


def trial(planting: Planting, fault: str, number: int, least_effect: float) -> Trial:
    """Plant a fault that does something, and look for it."""
    effect, draws = -np.inf, 0
    while effect < least_effect:
        if draws == MAX_DRAWS:
            raise RuntimeError(f"{planting.name}: none of {MAX_DRAWS} draws of {fault!r} takes {least_effect} dB")
        draws += 1
        planted = FAULTS_PLANTED[fault](planting, number)
        effect = planting.effect_db(planted)
    rows = octavo.root_causes(planted.model, planted.faulty, planting.batches)
    right = [str(row.id) in planted.names and (row.part, row.cause) == (planted.part, planted.cause) for row in rows]
    first = rows[0]
    return Trial(
        network=planting.name,
        fault=fault,
        planted=min(planted.names),
        effect_db=effect,
        draws=draws,
        first=f"{first.id} {first.part}: {first.cause}",
        place=right.index(True) + 1 if True in right else 0,
    )


def planted_trials(
    planting: Planting, *, rounds: int, least_effect: float, faults: Sequence[str] = tuple(FAULTS_PLANTED)
) -> list[Trial]:
    """Return the trials of one network: each fault in each round, and one without any."""
    trials = [sound_trial(planting)]
    for number in range(rounds):
        trials += [trial(planting, fault, number, least_effect) for fault in faults]
    return trials


def cells(each: Trial) -> tuple[str, ...]:
    """Return one row of the table."""
    said = "yes" if each.is_right else f"NO, in row {each.place}" if each.place else "NO"
    return each.network, each.fault, each.planted, f"{each.effect_db:.1f}", str(each.draws), each.first, said


COLUMNS = ("network", "fault", "planted in", "effect dB", "draws", "first row", "right")


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = partial(str.split, sep=",")
    parser.add_argument("--networks", type=names, default=list(CHOSEN), help=f"comma-separated: {', '.join(NETWORKS)}")
    parser.add_argument("--rounds", type=int, default=4, help="of the five faults (default: 4)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--effect", type=float, default=0.5, help="dB that a fault must take from the outputs (default: 0.5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the trials there, too")
    options = parser.parse_args(arguments)
    trials: list[Trial] = []
    for name in options.networks:
        if name not in NETWORKS:
            parser.error(f"--networks: {name!r} is none of {', '.join(NETWORKS)}")
        with tempfile.TemporaryDirectory() as folder:
            planting = Planting(Evaluation(name, Path(folder), limit=None), np.random.default_rng(options.seed))
            found = planted_trials(planting, rounds=options.rounds, least_effect=options.effect)
        trials += found
        print(markdown_table(COLUMNS, [cells(each) for each in found], numbers=(3, 4)))
        right = [each.is_right for each in found if each.planted]
        print(f"{name}: {sum(right)} of {len(right)} named first with the right cause\n", flush=True)
        if options.json is not None:
            options.json.write_text(json.dumps([asdict(each) for each in trials], indent=1), encoding="utf-8")
    return 0 if all(each.is_right for each in trials) else 1


if __name__ == "__main__":
    sys.exit(main())
