"""The constraints of every tensor that integer ops read or make: collected op by op, so that a later op that asks for what an
earlier one excludes can be left float. It chooses no range and rewrites nothing.

Three things tie tensors together: ops of `same_params` give theirs one set of parameters, a weight has one set whichever layers
read it, and kernels compute at one width, so all activations of an op have 8 bits or all have 16:
but for what a product leaves in float32, and additions that can read such.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations

import numpy as np
from tvm.relax import Var

from ..ir.identity import TensorId
from ..numerics import INTEGER_RANGE
from ..target.tensor_support import TensorSupport
from .placement import Layer, PlanInputs
from .ranges import QuantScheme
from .request import Request, width_of

Key = Var | TensorId

_MADE = (("uint8", "asymmetric"), ("int8", "asymmetric"), ("int8", "symmetric"), ("int16", "symmetric"))
"""The integers that quantize makes, and with which schemes; of one dtype the better one first."""
_FIELDS = ("scale", "zero_point", "dtypes", "schemes", "granularity", "scales")
"""Of a TensorSupport, in the order in which reasons name them."""
LARGEST_SCALE = 2.0**60
"""Fixed scales within its reciprocal and it: products of two of them are normal float32 numbers, and so are their ratios."""
_POWER_OF_TWO = TensorSupport(scales="power_of_two")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Group:
    """Tensors of one set of parameters, and what all ask of these, in the order in which it came."""

    keys: tuple[Key, ...]
    requests: tuple[Request, ...]

    @property
    def name(self) -> str:
        shared = " (of one scale and zero point)" if len(self.keys) > 1 else ""
        return ", ".join(map(_name, self.keys[:3])) + (" ..." if len(self.keys) > 3 else "") + shared

    @property
    def schemes(self) -> Mapping[str, QuantScheme]:
        """By dtype what the integers can be, the dtypes in the order of the first that prefers one."""
        return _schemes(self.requests)

    @property
    def widths(self) -> frozenset[int]:
        return frozenset(map(width_of, self.schemes))

    def with_more(self, *more: Request) -> _Group:
        """Return the group with more requests; one that says what another has said is left out."""
        return _Group(keys=self.keys, requests=tuple(dict.fromkeys((*self.requests, *more))))

    def restricts_width(self) -> str:
        """Return who leaves only one width, as reasons name it."""
        alone = (each.who for each in self.requests if len(set(map(width_of, _schemes((each,))))) == 1)
        return next(alone, "its ops together")

    def conflict(self) -> str | None:
        """Return why nothing satisfies all: which ops ask for what, as few of them as say it; None where something does."""
        if self.schemes:
            return None
        for count in (1, 2, len(self.requests)):
            for chosen in combinations(self.requests, count):
                for fields in (each for count in range(1, len(_FIELDS) + 1) for each in combinations(_FIELDS, count)):
                    if not _schemes(tuple(each.only(*fields) for each in chosen)):
                        return self._said([(each.who, each.describe(fields)) for each in chosen])
        raise AssertionError("the last try is all requests with all fields")

    def _said(self, asked: list[tuple[str, str]]) -> str:
        asked = [(who, words) for who, words in asked if words]
        if len(asked) > 1:
            return f"{self.name} cannot be all that its ops need: " + ", ".join(f"{who} {words}" for who, words in asked)
        [(who, words)] = asked
        return f"{who} needs {words} for {self.name}; quantize makes uint8, int8 and symmetric int16, one scale per tensor"


_Widths = tuple[frozenset[int], str]
"""The widths that a tensor may have, and what leaves only one where there is one."""
_ANY: _Widths = frozenset((8, 16)), ""


@dataclass(kw_only=True, slots=True)
class TensorConstraints:
    """What the ops added so far ask of their tensors, and a recipe and requests of theirs."""

    inputs: PlanInputs
    _groups: dict[Key, _Group] = field(default_factory=dict["Key", _Group])
    _parent: dict[Key, Key] = field(default_factory=dict["Key", "Key"])
    """Of tensors of one width: towards the one that `_widths` names."""
    _widths: dict[Key, _Widths] = field(default_factory=dict["Key", _Widths])

    def add(self, layer: Layer, refuse: Callable[[Layer], str | None] = lambda _: None) -> str | None:
        """Note what a layer asks for; return why its tensors cannot be that beside what others ask, or why it is refused else."""
        asked: dict[Key, list[Request]] = {}
        for key, request in self._asked(layer):
            asked.setdefault(key, []).append(request)
        read = [key for key in layer.operands if key not in layer.float_inputs]
        activations: list[Key] = list(dict.fromkeys((*read, *(() if layer.leaves_float else (layer.output,)))))
        groups = [
            self._group(keys, asked) for keys in ([activations] if layer.support.same_params else [[k] for k in activations])
        ]
        weights = [] if layer.op is None else [self._group([layer.op.weight.name], asked)]
        of_one_width = [] if layer.takes_floats else activations
        problem = next((problem for group in (*groups, *weights) if (problem := group.conflict()) is not None), None)
        widths = self._common_widths(of_one_width, groups) if problem is None and of_one_width else _ANY
        problem = problem or (widths if isinstance(widths, str) else refuse(layer))
        if problem is not None or isinstance(widths, str):
            return problem
        for group in (*groups, *weights):
            self._groups.update(dict.fromkeys(group.keys, group))
        if of_one_width:
            first, *others = map(self._root, of_one_width)
            self._parent.update(dict.fromkeys(others, first))
            self._parent.pop(first, None)
            self._widths[first] = widths
        return None

    def add_quantize(self, var: Var) -> None:
        """Note what the target asks of a tensor that is quantized from float, where nothing else speaks against it."""
        support, group = self.inputs.target.support("quantize"), self._groups[var]
        if support is not None:
            asked = Request(who=f"quantize {var.name}", tensor=support.tensor("output"))
            group = group.with_more(asked.only("schemes", "granularity", "scales", "scale", "zero_point"))
            if self._widths.get(self._root(var), _ANY)[0] <= group.widths:
                self._groups.update(dict.fromkeys(group.keys, group))

    def alike(self, key: Key) -> tuple[Key, ...]:
        """Return the tensors that have one set of parameters with this one, itself among them."""
        return self._groups[key].keys

    def shared(self) -> tuple[tuple[TensorId, ...], ...]:
        """Return the tensors that have one set of parameters, group by group, by name."""
        groups = {id(group): group for group in self._groups.values() if len(group.keys) > 1}
        return tuple(sorted(tuple(sorted(TensorId(_name(key)) for key in group.keys)) for group in groups.values()))

    def scheme(self, key: Key) -> QuantScheme:
        """Return what the integers of a tensor shall be."""
        preferred, widths = self.inputs.preferred, self._widths.get(self._root(key))
        width = width_of(preferred)
        if widths is not None and width not in widths[0]:
            [width] = widths[0]
        schemes = self._groups[key].schemes
        found = [scheme for dtype, scheme in schemes.items() if widths is None or width_of(dtype) == width]
        return next((scheme for scheme in found if scheme.dtype == preferred), found[0])

    def _root(self, key: Key) -> Key:
        while key in self._parent:
            key = self._parent[key]
        return key

    def _group(self, keys: list[Key], asked: dict[Key, list[Request]]) -> _Group:
        """Return the group of some tensors, joined with those that they are in, once each asks what it asks."""
        earlier = {id(group): group for key in keys if (group := self._groups.get(key)) is not None}.values()
        joined = tuple(dict.fromkeys((*(key for group in earlier for key in group.keys), *keys)))
        known = _Group(keys=joined, requests=tuple(each for group in earlier for each in group.requests))
        return known.with_more(*(request for key in keys for request in asked[key]))

    def _common_widths(self, activations: list[Key], groups: list[_Group]) -> _Widths | str:
        """Return the widths that a layer's activations may have, all the same, or why there is none."""
        earlier = [(self._widths.get(self._root(key), _ANY), _name(key)) for key in activations]
        found = [(group.widths, f"{group.name} needs {{}} bits for {group.restricts_width()}") for group in groups]
        found += [(widths, because or f"{name} has {{}} bits") for (widths, because), name in earlier]
        allowed = _ANY[0].intersection(*(widths for widths, _ in found))
        single = {min(widths): because for widths, because in reversed(found) if len(widths) == 1}
        if not allowed:
            said = ", but ".join(because.format(width) for width, because in sorted(single.items()))
            return f"its kernel would compute at two widths: {said}"
        return allowed, next(iter(single.values()), "")

    def _asked(self, layer: Layer) -> Iterator[tuple[Key, Request]]:
        """Yield what a layer, recipe and requests ask of each activation, of constants among operands, and of the weight."""
        support, who = layer.support, f"{layer.support.op} {layer.name}"
        exact = is_exact(layer)
        for index, key in enumerate(layer.operands):
            if key in layer.float_inputs:
                continue
            role = "input" if len(layer.operands) == 1 else f"input{index}"
            tensor = support.tensor(role, is_constant=not isinstance(key, Var))
            yield from self._asked_besides(key)
            yield key, Request(who=who, tensor=tensor)
            among = support.tensor(role).schemes
            if not isinstance(key, Var) and not set(among or ()).isdisjoint(tensor.schemes or ()):
                yield key, Request(who=who, tensor=TensorSupport(schemes=among))  # it stands among activations
            if exact:
                yield key, Request(who=who, tensor=_POWER_OF_TWO)  # the bias's scale is a product with this one
        if not layer.leaves_float:
            yield from self._asked_besides(layer.output)
            yield layer.output, Request(who=who, tensor=support.tensor("output"))
        if layer.op is None:
            return
        name, request = layer.op.weight.name, self.inputs.choices.requests.get(layer.op.weight.name)
        made = TensorSupport(dtypes=(self.inputs.recipe.weight_dtype,), schemes=("symmetric",))
        asked = [Request(who=who, tensor=support.tensor("weight"), narrow=support.weight_range == "narrow")]
        asked += [] if request is None else [request]  # of parameters that are given whole, weights.py looks at the rest
        yield name, Request(who="the recipe", tensor=made)
        for each in asked:  # how fine its scales are is for others
            yield name, each.only("dtypes", "schemes", "scales", "scale", "zero_point")
        if exact:
            yield name, Request(who=who, tensor=_POWER_OF_TWO)

    def _asked_besides(self, key: Key) -> Iterator[tuple[Key, Request]]:
        dtype, request = self.inputs.recipe.activation_dtype, self.inputs.choices.requests.get(_name(key))
        if dtype is not None:
            yield key, Request(who="the recipe", tensor=TensorSupport(dtypes=(dtype,)))
        if request is not None:
            yield key, request.of_activation(_name(key))


def is_exact(layer: Layer) -> bool:
    """Return whether the scales of a layer's input and weight must be powers of two for that of its bias, their product."""
    return layer.bias is not None and layer.support.tensor("bias").scales == "power_of_two"


@lru_cache(maxsize=4096)
def _schemes(requests: tuple[Request, ...]) -> Mapping[str, QuantScheme]:
    """Return by dtype what satisfies all requests; empty where nothing does."""
    tensors = [each.support for each in requests]
    scales = {np.float32(each.scale): each.scale for each in tensors if each.scale is not None}
    zero_points = {each.zero_point for each in tensors if each.zero_point is not None}
    power_of_two = any(each.scales == "power_of_two" for each in tensors)
    if len(scales) > 1 or len(zero_points) > 1 or not all("per_tensor" in (e.granularity or ("per_tensor",)) for e in tensors):
        return {}
    scale, zero_point = next(iter(scales.values()), None), next(iter(zero_points), None)
    if scale is not None and not (
        1 / LARGEST_SCALE <= scale <= LARGEST_SCALE and (not power_of_two or np.frexp(scale)[0] == 0.5)
    ):
        return {}
    found: dict[str, QuantScheme] = {}
    for dtype, scheme in _MADE:
        qmin, qmax = INTEGER_RANGE[dtype]
        if zero_point is not None and not (qmin <= zero_point <= qmax and (scheme == "asymmetric" or zero_point == 0)):
            continue
        if dtype in found or any(dtype not in (e.dtypes or (dtype,)) or scheme not in (e.schemes or (scheme,)) for e in tensors):
            continue
        found[dtype] = QuantScheme(
            dtype=dtype,
            symmetric=scheme == "symmetric",
            narrow=any(each.narrow for each in requests),
            power_of_two=power_of_two,
            scale=scale,
            zero_point=zero_point,
        )
    requested = next((each.dtypes for each in tensors if each.dtypes), ())
    return {dtype: found[dtype] for dtype in (*requested, *found) if dtype in found}


def _name(key: Key) -> str:
    return key.name if isinstance(key, Var) else str(key)
