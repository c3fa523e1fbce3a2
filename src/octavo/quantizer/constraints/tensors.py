"""The constraints of every tensor that integer ops read or make: collected op by op, so that a later op that asks for what an
earlier one excludes can be left float. It chooses no range and rewrites nothing.

Three things tie tensors together: ops of `same_params` give theirs one set of parameters, a weight has one set whichever layers
read it, and kernels compute at one width, so all activations of an op have 8 bits or all have 16:
but for what a product leaves in float32, and additions that can read such.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tvm.relax import Var

from ...ir.identity import TensorId
from ...target import TargetDescription
from ..placement.layer import Layer
from ..ranges import QuantScheme
from ..recipe import Recipe
from .demand import Demand, Demands, width_of
from .request import Request, Requests

Key = Var | TensorId


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Group:
    """Tensors of one set of parameters, and what is asked of these."""

    keys: tuple[Key, ...]
    demands: Demands

    @property
    def name(self) -> str:
        shared = " (of one scale and zero point)" if len(self.keys) > 1 else ""
        return ", ".join(map(_name, self.keys[:3])) + (" ..." if len(self.keys) > 3 else "") + shared

    @property
    def widths(self) -> frozenset[int]:
        return frozenset(map(width_of, self.demands.schemes()))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Widths:
    """The widths that tensors may have, and what leaves only one where there is one."""

    allowed: frozenset[int] = frozenset((8, 16))
    because: str = ""


@dataclass(kw_only=True, slots=True)
class TensorConstraints:
    """What the ops added so far ask of their tensors.

    Parameters
    ----------
    target
        The description that the model is quantized for.
    recipe
        As the user gave it: a dtype in it is asked for, too.
    requests
        What is asked of single tensors.
    preferred
        The dtype of activations that nothing restricts.
    """

    target: TargetDescription
    recipe: Recipe
    requests: Requests = field(default_factory=dict[str, "Request"])
    preferred: str = field(init=False)
    _groups: dict[Key, _Group] = field(default_factory=dict["Key", _Group])
    _parent: dict[Key, Key] = field(default_factory=dict["Key", "Key"])
    """Of tensors of one width: towards the one that `_widths` names."""
    _asked: tuple[Layer, tuple[list[_Group], _Widths] | str] | None = None
    """The layer that `conflict` was asked of last, and what it found."""
    _widths: dict[Key, _Widths] = field(default_factory=dict["Key", _Widths])

    def __post_init__(self) -> None:
        """Ask the recipe for its dtype."""
        self.preferred = self.recipe.preferred_dtype(self.target)

    def conflict(self, layer: Layer) -> str | None:
        """Return why the tensors of a layer cannot be what it and the layers before ask of them, None where they can."""
        found = self._joined(layer)
        self._asked = layer, found
        return found if isinstance(found, str) else None

    def add(self, layer: Layer) -> None:
        """Note what a layer without a conflict asks for."""
        found = self._asked[1] if self._asked is not None and self._asked[0] is layer else self._joined(layer)
        self._asked = None
        assert not isinstance(found, str), "the caller asks for conflicts first"
        groups, widths = found
        for group in groups:
            self._groups.update(dict.fromkeys(group.keys, group))
        activations = self._activations(layer)
        if layer.takes_floats or not activations:
            return
        first, *others = map(self._root, activations)
        self._parent.update(dict.fromkeys(others, first))
        self._parent.pop(first, None)
        self._widths[first] = widths

    def add_quantize(self, var: Var) -> None:
        """Note what the target asks of a tensor that is quantized from float, where nothing else speaks against it."""
        support, group = self.target.support("quantize"), self._groups[var]
        if support is not None:
            asked = Demand.of(f"quantize {var.name}", support.tensor("output"))
            demands = group.demands.and_also(asked.only(("schemes", "granularity", "power_of_two", "scale", "zero_point")))
            group = _Group(keys=group.keys, demands=demands)
            if self._widths.get(self._root(var), _Widths()).allowed <= group.widths:
                self._groups.update(dict.fromkeys(group.keys, group))

    def shared(self) -> tuple[tuple[TensorId, ...], ...]:
        """Return the tensors that have one set of parameters, group by group, by name."""
        groups = {id(group): group for group in self._groups.values() if len(group.keys) > 1}
        return tuple(sorted(tuple(sorted(TensorId(_name(key)) for key in group.keys)) for group in groups.values()))

    def scheme(self, key: Key) -> QuantScheme:
        """Return what the integers of a tensor shall be."""
        schemes = self._groups[key].demands.schemes()
        widths = self._widths.get(self._root(key))
        if widths is None or width_of(self.preferred) in widths.allowed:
            width = width_of(self.preferred)
        else:
            [width] = widths.allowed
        found = [scheme for dtype, scheme in schemes.items() if widths is None or width_of(dtype) == width]
        return next((scheme for scheme in found if scheme.dtype == self.preferred), found[0])

    def _root(self, key: Key) -> Key:
        while key in self._parent:
            key = self._parent[key]
        return key

    def _activations(self, layer: Layer) -> list[Key]:
        read = [key for key in layer.operands if key not in layer.float_inputs]
        return list(dict.fromkeys((*read, *(() if layer.leaves_float else (layer.output,)))))

    def _joined(self, layer: Layer) -> tuple[list[_Group], _Widths] | str:
        """Return the groups that a layer's tensors would be in, and the widths of its activations, or why there are none."""
        asked: dict[Key, list[Demand]] = {}
        for key, demand in self._demands(layer):
            asked.setdefault(key, []).append(demand)
        activations = self._activations(layer)
        groups = [
            self._group(keys, asked) for keys in ([activations] if layer.support.same_params else [[k] for k in activations])
        ]
        weights = [self._group([key], {key: demands}) for key, demands in self._weights(layer)]
        for group in (*groups, *weights):
            problem = group.demands.conflict(group.name)
            if problem is not None:
                return problem
        widths = self._joined_widths(layer, activations, groups)
        return widths if isinstance(widths, str) else ([*groups, *weights], widths)

    def _group(self, keys: list[Key], asked: dict[Key, list[Demand]]) -> _Group:
        """Return the group of some tensors, joined with those that they are in, once each asks what it asks."""
        earlier = {id(group): group for key in keys if (group := self._groups.get(key)) is not None}
        joined = tuple(dict.fromkeys((*(key for group in earlier.values() for key in group.keys), *keys)))
        entries = [entry for group in earlier.values() for entry in group.demands.entries]
        return _Group(keys=joined, demands=Demands().and_also(*entries, *(demand for key in keys for demand in asked[key])))

    def _joined_widths(self, layer: Layer, activations: list[Key], groups: list[_Group]) -> _Widths | str:
        """Return the widths that a layer's activations may have, all the same, or why there is none."""
        earlier = [(self._widths.get(self._root(key), _Widths()), _name(key)) for key in activations]
        found = [(group.widths, f"{group.name} needs {{}} bits for {group.demands.restricts_width()}") for group in groups]
        found += [(each.allowed, each.because or f"{name} has {{}} bits") for each, name in earlier]
        if layer.takes_floats:
            return _Widths()
        allowed = frozenset((8, 16)).intersection(*(widths for widths, _ in found))
        single = {min(widths): because for widths, because in reversed(found) if len(widths) == 1}
        if not allowed:
            said = ", but ".join(because.format(width) for width, because in sorted(single.items()))
            return f"its kernel would compute at two widths: {said}"
        return _Widths(allowed=allowed, because=next(iter(single.values()), ""))

    def _demands(self, layer: Layer) -> Iterator[tuple[Key, Demand]]:
        """Yield what a layer asks of each activation, and of constants among its operands."""
        support, who = layer.support, _who(layer)
        bias = None if layer.bias is None else support.tensor("bias")
        for index, key in enumerate(layer.operands):
            if key in layer.float_inputs:
                continue
            role = "input" if len(layer.operands) == 1 else f"input{index}"
            tensor = support.tensor(role, is_constant=not isinstance(key, Var))
            yield from self._of_recipe(key)
            yield key, Demand.of(who, tensor)
            among = support.tensor(role).schemes
            if not isinstance(key, Var) and not set(among or ()).isdisjoint(tensor.schemes or ()):
                yield key, Demand(who=who, schemes=among)  # it stands among activations
            if bias is not None and bias.scales == "power_of_two":
                yield key, Demand(who=who, power_of_two=True)  # the bias's scale is a product with this one
        if not layer.leaves_float:
            yield from self._of_recipe(layer.output)
            yield layer.output, Demand.of(who, support.tensor("output"))

    def _of_recipe(self, key: Key) -> Iterator[tuple[Key, Demand]]:
        if self.recipe.activation_dtype is not None:
            yield key, Demand(who="the recipe", dtypes=(self.recipe.activation_dtype,))
        if _name(key) in self.requests:
            yield key, self.requests[_name(key)].of_activation(_name(key))

    def _weights(self, layer: Layer) -> Iterator[tuple[Key, list[Demand]]]:
        """Yield what a layer asks of its weight; how fine its scales are is for others."""
        if layer.op is None:
            return
        support, name = layer.support, layer.op.weight.name
        asked = Demand.of(_who(layer), support.tensor("weight"), narrow=support.weight_range == "narrow")
        made = Demand(who="the recipe", dtypes=(self.recipe.weight_dtype,), schemes=("symmetric",))
        is_exact = layer.bias is not None and support.tensor("bias").scales == "power_of_two"
        bias = [Demand(who=_who(layer), power_of_two=True)] if is_exact else []
        requested = [self.requests[name].of_weight()] if name in self.requests else []
        fields = ("dtypes", "schemes", "power_of_two", "narrow", "scale", "zero_point")
        yield name, [made, *(each.only(fields) for each in (asked, *requested)), *bias]


def _who(layer: Layer) -> str:
    return f"{layer.support.op} {layer.name}"


def _name(key: Key) -> str:
    return key.name if isinstance(key, Var) else str(key)
