"""Which tensors of a float graph can be rotated, channels by channels, so that what it computes stays the same. It rotates none.

What a product by weights writes is multiplied by an orthogonal matrix where its columns are, and what reads it by the inverse
where its rows are: values of attention's heads, or a whole residual stream with all that writes and reads it (Ashkboos et al.,
QuaRot, 2024; Liu et al., SpinQuant, 2024: R1 and R2). A norm commutes with a matrix that keeps the mean, once its own factors are
moved into what reads it (Ashkboos et al., SliceGPT, 2024). Channels that reach anything else, a function say, stay as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.relax import Expr, Var

from ..graph import Model
from ..graph.dataflow import call_to, op_name, operand_vars, static_shape
from ..graph.moving import CONSTANT_MOVERS
from ..graph.weighted import CONVOLUTIONS, bias_operand
from ..identity import TensorId
from .channel_groups import ChannelGroups, Groups, aligned
from .group_finder import PICKS, Finder
from .sites import Site, find_sites

_LINEAR = (
    *(*CONSTANT_MOVERS, *PICKS, "concat", "add", "subtract", "multiply", "divide", "matmul", "mean", "sum"),
    *("nn.avg_pool2d", "nn.adaptive_avg_pool2d", "image.resize2d", "nn.pad"),
)
"""Ops that give of a rotated operand their result rotated, where they don't mix channels or tell them apart."""
_SMALLEST = 4
"""Channels that are rotated at least."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rotation:
    """Which channels of a tensor are rotated (numerics/rotation.py): `size` along `axis` from each of `starts` on."""

    axis: int
    size: int
    starts: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RotationSite:
    """Tensors that are rotated together, in the order of the graph, and those of them that are rounded."""

    rotations: Mapping[TensorId, Rotation]
    rounded: tuple[TensorId, ...]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Norm:
    """The result of a norm whose channels have unlike factors, these, and what it adds to channels."""

    var: Var
    gain: Expr
    shift: Expr | None = None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Rotatable:
    """What of a model can be rotated.

    `norms` are by each variable that holds what one gives, moved or not: where that is rotated, its factors are of what reads it.
    """

    groups: ChannelGroups
    norms: Mapping[Var, Norm]

    def sites(self) -> list[RotationSite]:
        """Return what shares rotations."""
        found = (self._site(site) for site in find_sites(self.groups))
        return [site for site in found if site.rounded and not self.conflict(site.rotations)]

    def _site(self, site: Site) -> RotationSite:
        shapes = {var: self.groups.of[var].shape for var in site.tensors}
        axes = {var: max((axis for axis, size in enumerate(shape) if size > 1), default=0) for var, shape in shapes.items()}
        size = min((shapes[var][axis] for var, axis in axes.items()), default=0)
        rotations: dict[TensorId, Rotation] = {}
        for var, axis in axes.items():
            is_own = np.moveaxis(np.isin(self.groups.of[var], site.groups), axis, -1).reshape(-1, self.groups.of[var].shape[axis])
            starts = tuple(start for start in range(0, is_own.shape[1] - size + 1, size) if is_own[0, start])
            rotations[TensorId(var.name)] = Rotation(axis=axis, size=size, starts=starts)
        rounded = tuple(TensorId(var.name) for var in site.rounded) if size >= _SMALLEST else ()
        return RotationSite(rotations=rotations, rounded=rounded)

    def without_shifts(self, rotations: Mapping[TensorId, Rotation]) -> list[TensorId]:
        """Return the products that read rotated norms: what a norm adds is in their biases."""
        norms = [(reader.var, self.norms[reader.data]) for reader in self.groups.readers if reader.data in self.norms]
        return [TensorId(var.name) for var, norm in norms if norm.shift is not None and TensorId(norm.var.name) in rotations]

    def conflict(self, rotations: Mapping[TensorId, Rotation]) -> str:
        """Return a tensor whose channels are not rotated as those of others that they are made of, or make; "" for none."""
        left = dict(rotations)
        found = self.groups.numbers(lambda var: _places(self.groups.of[var], left.pop(TensorId(var.name), None)), 0)
        return found.name if isinstance(found, Var) else next(map(str, left), "")


def _places(groups: Groups, rotation: Rotation | None) -> npt.NDArray[np.int64] | None:
    """Return for each group with which others it is rotated, and as which of these, in one number; 0 where it is not."""
    found = np.zeros(groups.shape, np.int64)
    if rotation is None:
        return found
    axis, size = rotation.axis, rotation.size
    if axis >= groups.ndim or any(start < 0 or start + size > groups.shape[axis] for start in rotation.starts):
        return None
    for start in rotation.starts:
        some = tuple(slice(start, start + size) if each == axis else slice(None) for each in range(groups.ndim))
        own = np.moveaxis(groups[some], axis, -1)
        found[some] = np.moveaxis(own[..., :1] * 2**31 + np.arange(1, size + 1), -1, axis)
    return found


def find_rotatable(model: Model, kept: Iterable[str] = ()) -> Rotatable:
    """Find what of a model can be rotated; variables of these names have to stay as they are."""
    finder = _Finder(model)
    found = finder.found(kept)
    return Rotatable(groups=found, norms={var: norm for var, norm in finder.norms.items() if norm.var in found.of})


class _Finder(Finder):
    """Follows channels through ops that are linear in them."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.norms, self._squares = dict[Var, Norm](), dict[Var, Groups]()

    def visit(self, var: Var, value: Expr) -> None:
        """Take one binding; squares may be summed, and a norm's own factors be moved into products."""
        read = list(dict.fromkeys(operand_vars(value)))
        for each in read:
            if each in self._squares and not _sums_all(value, self._squares[each]):
                self.pin(self._squares[each])
        squared = self._squared(value)
        if squared is not None:
            self._squares[var] = squared
            return
        super().visit(var, value)
        norm = next((self.norms[each] for each in read if each in self.norms), None)
        if norm is None:
            return
        if var in self.groups and (isinstance(value, Var) or op_name(value) in (*CONSTANT_MOVERS, *PICKS)):
            self.norms[var] = norm
        elif not self._takes(norm, var):
            self.pin(self.groups[norm.var])

    def _squared(self, value: Any) -> Groups | None:
        """Return the groups of what an op squares."""
        power = call_to(value, "power")
        if power is not None:
            exponent = self.constants.numbers(power.args[1])
            is_square = exponent is not None and exponent.size == 1 and exponent.item() == 2
        else:
            is_square = call_to(value, "multiply") is not None and value.args[0].same_as(value.args[1])
        return self.groups.get(value.args[0]) if is_square and isinstance(value.args[0], Var) else None

    def _takes(self, norm: Norm, product: Var) -> bool:
        """Return whether a product can have a norm's factors in its weights, and what that adds in its bias."""
        reader = self.readers[-1] if self.readers and self.readers[-1].var.same_as(product) else None
        if reader is None or not np.array_equal(self.groups[reader.data].reshape(-1), self.groups[norm.var].reshape(-1)):
            return False
        shift = None if norm.shift is None else self.constants.find(norm.shift)
        if shift is None or not self.constants.value(shift).any():
            return True
        user = self.view.only_user(product)
        bias = None if user is None else bias_operand(self.view, self.constants, self.view.definition(user), product, reader.op)
        return bias is not None and call_to(reader.op.call, *CONVOLUTIONS) is None and self.can_be_own(bias.constant)

    def norm(self, var: Var, call: Any) -> Groups | None:
        """Let a norm over all channels of its last axis pass."""
        groups, is_layer = self.groups.get(call.args[0]), call_to(call, "nn.layer_norm") is not None
        if groups is None or not is_layer or self.norm_axis(var, call) is None or groups.size != groups.shape[-1]:
            self.pin(groups)
            return None
        self._note(Norm(var=var, gain=call.args[1], shift=call.args[2]))
        return groups

    def _note(self, norm: Norm) -> None:
        """Note a norm unless all its factors are one, which commutes with rotations."""
        gain = self.constants.find(norm.gain)
        if gain is not None and np.ptp(self.constants.value(gain)) != 0:
            self.norms[norm.var] = norm

    def passed(self, var: Var, value: Expr) -> Groups | None:
        """Return the groups of what is linear in them; rows of a table have some of their own."""
        name, rank = op_name(value), len(static_shape(var) or ())
        if name == "take":
            call: Any = value
            table = self.constants.find(call.args[0])
            if table is not None:
                is_rows = len(table.shape) == 2 and call.attrs.axis is not None and int(call.attrs.axis) == 0
                return self.fresh(rank, rank - 1, table.shape[1]) if is_rows and self.is_read_once(table) else None
        return super().passed(var, value) if isinstance(value, Var) or name in _LINEAR else None

    def binary(self, var: Var, name: str, args: Sequence[Any]) -> Groups | None:
        """Pass sums, and products by what is the same for all channels, or by a norm's factors."""
        if name not in ("multiply", "divide"):
            return super().binary(var, name, args)
        groups, rank = self.groups.get(args[0]), len(static_shape(var) or ())
        other = args[1]
        if name == "multiply" and groups is None:
            groups, other = self.groups.get(args[1]), args[0]
        shape = static_shape(other)
        if groups is None or shape is None or other in self.groups:
            return None
        groups, shape = aligned(groups, rank), (1,) * (rank - len(shape)) + shape
        if all(shape[axis] == 1 for axis, size in enumerate(groups.shape) if size > 1):
            return groups
        constant, over_last = self.constants.find(other), rank > 0 and groups.size == groups.shape[rank - 1]
        if name == "divide" or constant is None or not over_last or not self.can_be_own(constant):
            return None
        if constant.size != groups.size:
            return None
        self._note(Norm(var=var, gain=other))
        return groups

    def product(self, var: Var, call: Any) -> Groups | None:
        """Take what a product writes, but of convolutions in groups, and what a dense layer reads.

        What convolutions read is left to equalization: on no network measured was it better rotated, and to ask takes long.
        """
        if call_to(call, *CONVOLUTIONS) is not None:
            self.pin(self.groups.get(call.args[0]))
            if int(call.attrs.groups) > 1:
                return None
        return super().product(var, call)

    def of_product(self, var: Var, call: Any) -> Groups | None:
        """Rotate alike what a product of two activations sums over."""
        found = super().of_product(var, call)
        for pair in self.met:
            self.join(*pair)
        self.met.clear()
        return found

    def concat(self, call: Any, rank: int) -> Groups | None:
        """Give constants among the parts the groups of others, along another axis."""
        joined: Any = self.view.definition(call.args[0])
        parts = [each for each in getattr(joined, "fields", ()) if isinstance(each, Var)]
        known = next((self.groups[each] for each in parts if each in self.groups), None)
        given: list[Var] = []
        if known is not None and known.size == max(known.shape):
            axis = int(np.argmax(known.shape))
            for each in parts:
                constant = None if each in self.groups else self.constants.find(each)
                if constant is not None and self.is_read_once(constant) and constant.shape[axis] == known.size:
                    self.groups[each] = self.fresh(rank, axis, known.size)
                    given.append(each)
        found = super().concat(call, rank)
        for each in given:
            if found is None:
                self.pin(self.groups[each])
            del self.groups[each]
        return found


def _sums_all(value: Any, squared: Groups) -> bool:
    call = call_to(value, "mean", "sum")
    axes: Collection[int] = range(squared.ndim)
    if call is not None and call.attrs.axis is not None:
        axes = [int(axis) % squared.ndim for axis in call.attrs.axis]
    return call is not None and all(size == 1 or axis in axes for axis, size in enumerate(squared.shape))
