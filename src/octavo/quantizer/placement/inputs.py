"""All that says how one model is quantized, an applied plan among it, and what names in it stand for. It places nothing."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from tvm.relax import Var

from ...errors import QuantizationError
from ...ir.graph.dataflow import DataflowView, op_name
from ...ir.identity import TensorEntry, TensorId, TensorTable
from ...target import BATCH_MATMUL, ELEMENTWISE, ELEMENTWISE_PAIR, TargetDescription
from ..choices import Choices
from ..equalized_float import EqualizedFloat
from ..plan import IntegerLayer, QuantizationPlan
from ..recipe import ANY, Override, Recipe, fits, has_wildcards
from ..request import Request, width_of
from .layer import Layer

_WIDE = 16
"""Bits of what is no usual activation."""
_READ_FLOAT = ("add", ELEMENTWISE, ELEMENTWISE_PAIR)
"""Layers that may read float sums of a product."""


@dataclass(frozen=True, kw_only=True, eq=False)
class AppliedPlan:
    """Makes `quantize` decide what a plan says, as it was made, or edited.

    With its own choices it is followed to the letter. With others only what activations are rounded by is the plan's, and which
    of them are: which ops run in integers is decided anew, for where some of these stay float, ops around them do not pay.
    """

    plan: QuantizationPlan

    def check_model(self, fingerprint: str) -> None:
        """Raise QuantizationError unless the plan is of a model."""
        if self.plan.fingerprint != fingerprint:
            raise QuantizationError(
                f"the plan belongs to another model: it was made for {self.plan.fingerprint}, this model is {fingerprint}; "
                "quantize this model by its profile, and save that plan"
            )

    def check(self, tensors: TensorTable, variables: Collection[str], targets: Sequence[str]) -> None:
        """Raise QuantizationError unless the plan names what the model, equalized by it, has, and is for these targets."""
        plan = self.plan
        given, factors = {**plan.activations, **plan.weights}, plan.equalization.factors
        outputs, floats = (layer.output for layer in plan.layers), (op.tensor for op in plan.float_ops)
        named: dict[str, Iterable[TensorId]] = {"activations": plan.activations, "weights": plan.weights}
        named |= {"equalization": factors, "rotations": plan.equalization.rotations}
        named |= {"layers": outputs, "float_ops": floats}
        for where, tensor in ((where, tensor) for where, names in named.items() for tensor in names):
            if tensor not in variables:
                raise QuantizationError(
                    f"the plan: {where}: the model has no tensor {tensor!r}; names are those that were saved; quantize anew if "
                    "the model changed, or how Octavo imports it"
                )
            entry, name = tensors.get(tensor), plan.names.get(tensor)
            if name is not None and (entry is None or entry.source_name != name):
                called = "has no name" if entry is None else f"is called {entry.source_name!r}"
                raise QuantizationError(f"the plan: {where}: {tensor} {called} in the source, got {name!r}: it is no choice")
        # Additions, and functions in the kernel of a product, read what layers leave in float32.
        reals = {layer.output for layer in plan.layers if layer.output not in plan.activations}
        for layer in plan.layers:
            if layer.target not in targets:
                raise QuantizationError(
                    f"the plan: layer {layer.op} {layer.output} is for target {layer.target!r}, and quantize was given "
                    f"{', '.join(map(repr, targets))}: pass its target"
                )
            in_float = {
                *(layer.per_row or (layer.inputs if layer.reads_reals else ())),
                *(reals if layer.op in _READ_FLOAT else ()),
            }
            read = (*(each for each in layer.inputs if each not in in_float), *layer.constants, layer.weight)
            missing = next((each for each in read if each is not None and each not in given), None)
            if missing is not None:
                raise QuantizationError(
                    f"the plan: layer {layer.op} {layer.output} reads {missing}, which has no parameters in the plan: give it "
                    "some, or take the layer out"
                )

    @cached_property
    def choices(self) -> Choices:
        """The parameters of all tensors as requests, and what else the plan chooses."""
        plan = self.plan
        given = {**plan.activations, **plan.weights}
        return Choices(
            equalization=plan.equalization,
            requests={str(name): Request(who="the plan", tensor=params) for name, params in given.items()},
            float_results={layer.output: "the plan says so" for layer in plan.layers if layer.leaves_copies},
            per_row={layer.output: "the plan says so" for layer in plan.layers if layer.per_row},
            corrections=plan.corrections,
        )

    @cached_property
    def _layers(self) -> Mapping[TensorId, IntegerLayer]:
        return {layer.output: layer for layer in self.plan.layers}

    def multiplies(self, constant: str) -> bool:
        """Return whether one of its products of two activations has a constant in place of one."""
        return any(layer.op == BATCH_MATMUL and constant in layer.constants for layer in self.plan.layers)

    def unlike(self, layer: Layer) -> str | None:
        """Return why a layer that a target could take is none of the plan's, or None."""
        wanted = self._layers.get(layer.name)
        if wanted is None:
            said = {op.tensor: op.reason for op in self.plan.float_ops}
            names = (layer.core.name, layer.name)
            return next((said[TensorId(name)] for name in names if name in said), "the plan has no layer for it")
        found = replace(layer.entry, bias=wanted.bias, source=wanted.source)
        return None if found == wanted else f"the plan has {_said(wanted)}, the model has {_said(found)}"

    def confirmed(self, made: QuantizationPlan) -> QuantizationPlan:
        """Return a plan of the model that was made by this one, with this one's reasons, and what it says was not as asked."""
        reasons = {op.tensor: op.reason for op in self.plan.float_ops}
        return replace(
            made,
            float_ops=tuple(replace(op, reason=reasons.get(op.tensor, op.reason)) for op in made.float_ops),
            adjustments=tuple(dict.fromkeys((*self.plan.adjustments, *made.adjustments))),
        )

    def check_made(self, made: QuantizationPlan) -> None:
        """Raise QuantizationError where the model that was made is not what the plan says of it."""
        # An op that is no layer runs in integers all the same if all around it is quantized.
        tensor = next((each for each in made.enclosed if each not in self.plan.enclosed), None)
        if tensor is not None:
            readers = [str(layer.output) for layer in self.plan.layers if not set(made.enclosed).isdisjoint(layer.inputs)]
            raise QuantizationError(
                f"the plan: {tensor} is no layer's and cannot stay float: what it reads and what reads it is quantized, so it "
                f"runs in integers; take out the layers that read what follows from it, too ({', '.join(readers)}), or none"
            )
        for layer in made.layers:
            planned = self._layers[layer.output]
            if planned.source != layer.source or (planned.bias is None) != (layer.bias is None):
                said, found = (f"source {each.source}, bias {each.bias}" for each in (planned, layer))
                raise QuantizationError(f"the plan: layer {layer.op} {layer.output} has {found}, got {said}: these are no choice")
        floats = {op.tensor for op in made.float_ops}
        other = next((entry for entry in self.plan.float_ops if entry.tensor not in floats), None)
        if other is not None:
            raise QuantizationError(f"the plan: float_ops: {other.tensor} is made by no op that stays float; take the entry out")


@dataclass(frozen=True, kw_only=True, eq=False)
class PlanInputs:
    """What is decided of, and by what.

    Parameters
    ----------
    form
        The float model as it is quantized.
    recipe
        With the range estimator that is chosen.
    target, targets
        Who takes what targets share, and who may take an op, in the order in which they choose.

    Raises
    ------
    QuantizationError
        The recipe names what the model does not have.
    """

    form: EqualizedFloat
    recipe: Recipe
    choices: Choices
    target: TargetDescription
    targets: tuple[TargetDescription, ...]
    applied: AppliedPlan | None

    def __post_init__(self) -> None:
        """Look up the names of the recipe."""
        self._check_names(self.recipe.exclude, "exclude")
        self._check_names(self.recipe.overrides.keys(), "overrides", takes_tensors=True)
        self._check_names(self._named_widths.keys(), "weight_bits")

    def _check_names(self, names: Collection[str], field: str, *, takes_tensors: bool = False) -> None:
        """Raise QuantizationError for a name in a field of the recipe that fits no op, or tensor, of the model."""
        if not names:
            return
        known = {name for binding in self.form.view.bindings for name in (binding.var.name, op_name(binding.value))}
        for entry in self.form.model.tensors.values():
            if takes_tensors or entry.kind == "activation":
                known.update(_names_of(entry))
        unknown = [name for name in names if not any(fits(name, each) for each in known)]
        if unknown:
            hint = _hint(unknown[0], sorted(known))
            what = "op or tensor" if takes_tensors else "op or result"
            raise QuantizationError(f"recipe: {field} names {unknown[0]!r}, but the model has no such {what}; {hint}")

    @cached_property
    def _made_by(self) -> dict[str, tuple[str, ...]]:
        """By variables the tensors that are computed by them in the source: of ops that were folded, steps of one op."""
        made = _made_by_unnamed(self.form.view, self.form.model.tensors)
        for fold in self.form.folds:
            if fold.op in ("nn.batch_norm", "squeeze") and fold.gone != fold.tensor:
                made[fold.tensor] = (*made.get(fold.tensor, ()), str(fold.gone))
        return made

    def named(self, names: Collection[str], op: str, members: Iterable[str]) -> str | None:
        """Return the first of some names that an op, made of the variables `members`, answers to, or None.

        It answers to TensorIds, source names of tensors, op names in the source's terms or Relax's; in names * and ? stand for
        other characters. A convolution that took over a normalization answers to its own name.
        """
        if not names:
            return None
        known = {op, *members}
        for name in members:
            for key in (name, *self._made_by.get(name, ())):
                entry = self.form.model.tensors.get(TensorId(key))
                known.update(() if entry is None else _names_of(entry))
        return next((name for name in names if any(fits(name, each) for each in known)), None)

    @property
    def _named_widths(self) -> Mapping[str, int]:
        bits = self.recipe.weight_bits
        return {name: each for name, each in bits.items() if name != ANY} if isinstance(bits, Mapping) else {}

    def named_width(self, layer: Layer) -> int | None:
        """Return the width of a layer's weights that the recipe says by name."""
        widths = self._named_widths
        name = self.named(widths.keys(), layer.support.op, [var.name for var in layer.members])
        return None if name is None else widths[name]

    def override(self, op: str, members: Iterable[str]) -> Override:
        """Return what is said of an op, by its kind or by the tensors `members` in it; or of one tensor, of no `op`.

        Of several overrides that fit the later one counts, field by field.
        """
        members, found = tuple(members), Override()
        for name, said in self.recipe.overrides.items():
            found = found if self.named((name,), op, members) is None else replace(found, **said.given)
        return found

    def override_of(self, layer: Layer) -> Override:
        """Return what is said of an integer op, by a name of its weight, too."""
        weight = () if layer.op is None else (str(layer.op.weight.name),)
        return self.override(layer.support.op, [*(var.name for var in layer.members), *weight])

    def overridden(self, layers: Collection[Layer]) -> dict[Var, Override]:
        """Return what is said of each activation that integer ops read or make, where it is anything."""
        if not self.recipe.overrides:
            return {}
        maker = {layer.output: layer for layer in layers}
        read = dict.fromkeys(var for layer in layers for var in (*layer.quantized_inputs, layer.output))
        said = {var: self.override_of(maker[var]) if var in maker else self.override("", [var.name]) for var in read}
        return {var: each for var, each in said.items() if each != Override()}

    @cached_property
    def followed(self) -> AppliedPlan | None:
        """The plan whose layers are made, and no others: nothing is chosen that decides these but what it says."""
        own = Choices() if self.applied is None else self.applied.choices
        names = ("requests", "float_tensors", "float_results", "per_row")
        is_own = all(getattr(self.choices, name) == getattr(own, name) for name in names)
        return self.applied if is_own else None

    def has_range(self, var: Var) -> bool:
        """Return whether the range of a variable is known."""
        if self.applied is not None:
            return TensorId(var.name) in self.applied.plan.activations
        return self.form.sources.source(var) is not None

    @cached_property
    def requested(self) -> Mapping[str, int | None]:
        """The tensors that are quantized where that is possible, for somebody says what they are, with their bits where he does.

        Where a plan is not followed, only its 16 bits are.
        """
        is_anew = self.applied is not None and self.followed is None
        return {name: each.width for name, each in self.choices.requests.items() if not is_anew or each.width == _WIDE}

    def request_of_weight(self, layer: Layer) -> Request | None:
        """Return what is asked of the weight of a layer."""
        return None if layer.op is None else self.choices.requests.get(layer.op.weight.name)

    @cached_property
    def preferred(self) -> str:
        """The dtype of activations that nothing restricts."""
        return self.recipe.preferred_dtype(self.target)

    @property
    def is_wide(self) -> bool:
        """Whether activations have 16 bits where the target lets them."""
        return width_of(self.preferred) > 8


def _hint(name: str, known: list[str]) -> str:
    """Return what to write in place of a name that fits nothing: names are whole ones."""
    part = f"*{name.strip('*')}*"
    within = [each for each in known if fits(part, each)] if name.strip("*") else []
    near = difflib.get_close_matches(name, known, n=3)
    if within and (has_wildcards(name) or not near):
        return f"{part!r} fits {len(within)}, {within[0]} first"
    return f"did you mean {' or '.join(near)}?" if near else "give the name of an op's result, or a kind of op such as Conv"


def _made_by_unnamed(view: DataflowView, tensors: TensorTable) -> dict[str, tuple[str, ...]]:
    """Return for each variable that the source does not know the tensors that it is computed for: an LSTM is written as many ops.

    Where those are of ops of several kinds it is none's own.
    """
    found: dict[str, tuple[str, ...]] = {}
    for binding in reversed(view.bindings):
        name = binding.var.name
        if TensorId(name) in tensors:
            continue
        made: dict[str, None] = {}
        for user in view.users(binding.var):
            made |= dict.fromkeys((user.name,) if TensorId(user.name) in tensors else found.get(user.name, ()))
        if len({tensors[TensorId(each)].op for each in made}) == 1:
            found[name] = tuple(made)
    return found


def _names_of(entry: TensorEntry) -> Iterator[str]:
    yield from (str(entry.id), entry.source_name, *entry.aliases)
    if entry.op:
        yield entry.op


def _said(layer: IntegerLayer) -> str:
    reads = ", ".join((*layer.inputs, *layer.constants, *(() if layer.weight is None else (layer.weight,))))
    how = ", per row when run," if layer.per_row else ""
    how += f" in blocks of {layer.block}" if layer.block else ""
    return f"{' + '.join((layer.op, *layer.fused))} of {reads}{how} for {layer.target}"
