"""Follows channels through a float graph: which ones can be scaled together so that what it computes stays the same.

What makes a tensor (a product by weights, a normalization) takes the factors into its constants, what multiplies it by weights
takes them out again. A group that reaches anything else keeps its factor 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import numpy as np
from tvm import relax
from tvm.relax import Expr, Var

from ...runtime.shapes import evaluated
from ...runtime.size import OpenSizeError, is_open, names_in
from ...target.op_facts import CLAMPS, NORMS
from ..composites.movement import IndexRun
from ..graph import Model
from ..graph.constants import Constant, Constants
from ..graph.dataflow import DataflowView, call_to, op_name, operand_vars, static_shape
from ..graph.moving import CONSTANT_MOVERS, apply_mover
from ..graph.rules import Rejection
from ..graph.weighted import CONVOLUTIONS, WEIGHTED, weighted
from ..qdq.functions import function_results
from ..qdq.matchers.move.gather import GATHER_OPS, maps_of
from .channel_groups import ChannelGroups, Groups, Reader, aligned

_HOMOGENEOUS = (
    "nn.relu",
    "nn.leakyrelu",
    "nn.prelu",
    "nn.max_pool2d",
    "nn.avg_pool2d",
    "nn.adaptive_avg_pool2d",
    "image.resize2d",
)
"""Ops that give of an operand times a positive number their result times that number, channel by channel."""
_SUMS = ("add", "subtract", "maximum", "minimum")
_DOUBLINGS = 16
"""How often a dimension of 2 is doubled until sizes that are computed of it hold elements."""
_REDUCTIONS = ("mean", "sum", "max", "min")
PICKS = tuple(name for name in GATHER_OPS if name not in ("nn.pad", "image.resize2d"))
"""Ops whose results are elements of what they read, by an index for each axis."""


def find_groups(model: Model, kept: Iterable[str] = (), *, has_functions: bool = True) -> ChannelGroups:
    """Find the groups of a model's tensors; variables of the names `kept` have to stay as they are.

    With `has_functions` kernels multiply the results of functions (SiLU, hard-swish) by factors before they round them.
    """
    finder = Finder(model)
    if has_functions:
        finder.functions = function_results(finder.view, finder.constants)
    return finder.found(kept)


class Finder:
    """Follows groups through a graph, variable by variable."""

    def __init__(self, model: Model) -> None:
        self.view = DataflowView(model.module["main"])
        self.constants = Constants(self.view, model.params)
        self.groups, self.functions = dict[Var, Groups](), dict[Var, Var]()
        self.readers, self.met = list[Reader](), list[tuple[int, int]]()
        self._parent, self._joins = [0], 0
        self._clamps, self._noise = dict[Var, float](), dict[Var, tuple[Var, ...]]()

    def found(self, kept: Iterable[str]) -> ChannelGroups:
        """Go through the graph, and return what was found, the numbers of groups made dense; see `find_groups`."""
        for binding in self.view.bindings:
            self.visit(binding.var, binding.value)
        names = set(kept)
        for var, groups in self.groups.items():
            if self.view.is_returned(var) or var.name in names:
                self.pin(groups)
        self._join_opposites()
        roots = np.array(self._parent, np.int64)
        while not np.array_equal(roots, roots[roots]):
            roots = roots[roots]
        of = {var: roots[groups] for var, groups in self.groups.items() if roots[groups].any()}
        used = np.unique(np.concatenate([np.zeros(1, np.int64), *(groups.reshape(-1) for groups in of.values())]))
        met = {roots[group]: roots[other] for pair in self.met for group, other in (pair, pair[::-1]) if roots[group]}
        return ChannelGroups(
            of={var: np.searchsorted(used, groups) for var, groups in of.items()},
            opposites={int(np.searchsorted(used, group)): int(np.searchsorted(used, other)) for group, other in met.items()},
            readers=tuple(reader for reader in self.readers if reader.data in of),
            clamps={var: bound for var, bound in self._clamps.items() if var in of},
            functions=frozenset(var for var in self.functions if var in of),
            noise=self._noise,
        )

    # ------------------------------------------------------------------------------------------------------------- groups

    def pin(self, groups: Groups | None) -> None:
        """Keep the factors of these groups 1."""
        for number in () if groups is None else {*groups.reshape(-1).tolist()}:
            self.join(0, number)

    def fresh(self, rank: int, axis: int, size: int) -> Groups:
        """Return new groups along an axis."""
        first = len(self._parent)
        self._parent.extend(range(first, first + size))
        shape = [1] * rank
        shape[axis] = size
        return np.arange(first, first + size, dtype=np.int64).reshape(shape)

    def root(self, number: int) -> int:
        """Return the number that stands for all that were joined with one."""
        while self._parent[number] != number:
            self._parent[number] = self._parent[self._parent[number]]
            number = self._parent[number]
        return number

    def join(self, first: int, second: int) -> None:
        """Let two groups be one."""
        one, other = sorted((self.root(first), self.root(second)))
        if one != other:
            self._parent[other] = one
            self._joins += 1

    def _join_opposites(self) -> None:
        """Join what is opposite to the same group; keep what is opposite to itself, or to what is kept."""
        before = -1
        while before != (before := self._joins):
            known: dict[int, int] = {}
            for pair in self.met:
                for group, other in (pair, pair[::-1]):
                    if self.root(group) in (0, self.root(other)):
                        self.join(0, other)
                    self.join(other, known.setdefault(self.root(group), other))

    def joined(self, first: Groups, second: Groups) -> Groups | None:
        """Join groups element by element; None, and nothing scaled, where the shapes don't fit."""
        rank = max(first.ndim, second.ndim)
        first, second = aligned(first, rank), aligned(second, rank)
        try:
            one, other = np.broadcast_arrays(first, second)
        except ValueError:
            self.pin(first)
            self.pin(second)
            return None
        for pair in {*zip(one.reshape(-1).tolist(), other.reshape(-1).tolist(), strict=True)}:
            self.join(*pair)
        return one

    # ---------------------------------------------------------------------------------------------------------------- ops

    def visit(self, var: Var, value: Expr) -> None:
        """Take one binding: give its result groups, or keep all that it reads as it is."""
        if self.view.is_unread(var):
            return
        read = [operand for operand in dict.fromkeys(operand_vars(value)) if operand in self.groups]
        has_weight = call_to(value, *WEIGHTED) is not None and self.constants.is_constant(value.args[1])
        if has_weight or call_to(value, *NORMS) is not None:
            found = self.product(var, value) if has_weight else self.norm(var, value)
            read = read if has_weight else []
            before: Iterable[Var] = ()
        else:
            found = self._passed(var, value)
            if found is None:
                for operand in read:
                    self.pin(self.groups[operand])
            before = dict.fromkeys(source for operand in read for source in self._noise.get(operand, ()))
            if var in self.functions:
                found, before = self._of_function(var), ()
        if found is not None:
            self.groups[var] = found
            self._noise[var] = (*before, *((var,) if self._is_rounded(var, value) else ()))

    def _passed(self, var: Var, value: Expr) -> Groups | None:
        try:
            return None if static_shape(var) is None else self.passed(var, value)
        except OpenSizeError:  # whose groups go on depends on the size
            return None

    def product(self, var: Var, call: Any) -> Groups | None:
        """Take the factors out of what a product reads, and give each of its outputs a group."""
        data = self.view.root_of(call.args[0]) if isinstance(call.args[0], Var) else None
        groups = None if data is None else self.groups.get(data)
        op = weighted(self.constants, call)
        if isinstance(op, str) or not self.is_read_once(op.weight):
            self.pin(groups)
            return None
        rank = len(static_shape(var) or ())
        channel_axis = op.output_axis if call_to(call, *CONVOLUTIONS) is not None else None if groups is None else groups.ndim - 1
        # Such a weight's axis of outputs has those of a group alone.
        grouped = call_to(call, "nn.conv2d_transpose") is not None and int(call.attrs.groups) > 1
        if groups is not None and data is not None:
            if grouped or any(size > 1 for axis, size in enumerate(groups.shape) if axis != channel_axis):
                self.pin(groups)
            else:
                self.readers.append(Reader(var=var, op=op, data=data))
        return self.fresh(rank, op.output_axis, op.channels) if op.has_channels and not grouped else None

    def _of_function(self, var: Var) -> Groups | None:
        """Give each channel of a function of a product's sums a group: the function's result is multiplied by factors."""
        source = self.groups.get(self.functions[var])
        if source is None or source.ndim != len(static_shape(var) or ()):
            return None
        axes = [axis for axis, size in enumerate(source.shape) if size > 1]
        return self.fresh(source.ndim, axes[0], source.shape[axes[0]]) if len(axes) == 1 else None

    def norm(self, var: Var, call: Any) -> Groups | None:
        """Give each channel of a normalization a group; what it normalizes is kept."""
        for operand in operand_vars(call.args[0]):
            self.pin(self.groups.get(operand))
        shape, axis = static_shape(var), self.norm_axis(var, call)
        return None if shape is None or axis is None else self.fresh(len(shape), axis, shape[axis])

    def norm_axis(self, var: Var, call: Any) -> int | None:
        """Return the axis of a normalization's channels; None where its constants can be no others, or it is over other axes."""
        constants, shape = [self.constants.find(arg) for arg in call.args[1:3]], static_shape(var)
        if shape is None or any(each is None or not self.can_be_own(each) for each in constants):
            return None
        if call_to(call, "nn.layer_norm") is None:
            return int(call.attrs.channel_axis) % len(shape)
        last = len(shape) - 1
        return last if [int(axis) % len(shape) for axis in call.attrs.axes] == [last] else None

    def passed(self, var: Var, value: Expr) -> Groups | None:
        """Return the groups of what an op makes of operands that have some; None where it has none, or needs them as they are."""
        if isinstance(value, Var):
            return self.groups.get(value)
        name, call = op_name(value), value
        assert not isinstance(call, Var)
        args: list[Any] = list(getattr(call, "args", []))
        if name == "concat":
            return self.concat(call, len(static_shape(var) or ()))
        if name in (*_SUMS, "multiply", "divide") and len(args) == 2:
            return self.binary(var, name, args)
        groups = self.groups.get(args[0]) if args and isinstance(args[0], Var) else None
        if name == "matmul":
            return self.of_product(var, call)
        if groups is None:
            return None
        if name in CONSTANT_MOVERS:
            return _through_view(call, groups)
        if name == "clip":
            low, high = (getattr(bound, "value", None) for bound in args[1:3])
            if low is None or float(low) != 0.0 or high is None or not float(high) > 0:
                return None
            self._clamps[var] = float(high)
            return groups
        if name in PICKS:
            maps = maps_of(self.view, call, static_shape(args[0]) or ())
            if isinstance(maps, Rejection):
                return None
            for axis, indices in enumerate(maps):
                if groups.shape[axis] == 1:
                    continue
                if isinstance(indices, IndexRun):
                    return None
                groups = groups.take(indices, axis)
            return groups
        if name in _HOMOGENEOUS:
            return groups if self._keeps_channels(name, call, groups) else None
        if name in _REDUCTIONS:
            return _reduced(call, groups)
        if name == "nn.pad":
            widths = [int(width) for width in call.attrs.pad_width]
            pads = [axis for axis in range(groups.ndim) if widths[2 * axis] or widths[2 * axis + 1]]
            zero = str(call.attrs.pad_mode) == "constant" and float(call.attrs.pad_value) == 0.0
            return groups if zero and len(args) < 2 and all(groups.shape[axis] == 1 for axis in pads) else None
        return None

    def _keeps_channels(self, name: str, call: Any, groups: Groups) -> bool:
        """Return whether an op combines only elements of one group, times numbers that don't depend on them."""
        if name in ("nn.relu", "nn.leakyrelu"):
            return True
        if name == "nn.prelu":
            return self.constants.is_constant(call.args[1])
        layout = str(call.attrs.layout)
        return len(layout) == groups.ndim and all(groups.shape[layout.index(axis)] == 1 for axis in "HW")

    def binary(self, var: Var, name: str, args: Sequence[Any]) -> Groups | None:
        """Return the groups of a sum, a product or a quotient."""
        rank = len(static_shape(var) or ())
        found = [self.groups.get(arg) if isinstance(arg, Var) else None for arg in args]
        first, second = (None if each is None else aligned(each, rank) for each in found)
        if first is not None and second is not None:
            if name == "multiply":  # one factor for both: that of the second passes
                self.pin(first)
                return second
            return self.joined(first, second) if name in _SUMS else None
        if first is None and second is None:
            return self.of_vector(rank, *args) if name == "multiply" else None
        groups, other = (first, args[1]) if first is not None else (second, args[0])
        if groups is None or (name == "divide" and first is None):
            return None
        if name in ("multiply", "divide"):
            return groups
        constant = self.constants.find(other)
        if constant is None or not self.can_be_own(constant) or name not in ("add", "subtract"):
            return None
        # The constant is divided where it lies: each of its numbers is of one group.
        shape = (1,) * (rank - len(constant.shape)) + constant.shape
        fits = all(mine in (1, theirs) for mine, theirs in zip(groups.shape, shape, strict=True))
        return groups if fits else None

    def of_vector(self, rank: int, *args: Any) -> Groups | None:
        """Give each channel of a product by one number for each a group, as the last step of a root mean square norm is."""
        for constant in (self.constants.find(arg) for arg in args):
            shape = () if constant is None else (1,) * (rank - len(constant.shape)) + constant.shape
            axes = [axis for axis, size in enumerate(shape) if size > 1]
            if constant is not None and self.is_read_once(constant) and len(axes) == 1:
                return self.fresh(rank, axes[0], shape[axes[0]])
        return None

    def of_product(self, var: Var, call: Any) -> Groups | None:
        """Return the groups of a product of two activations: those of the columns of the second, if it has such.

        Where both have groups along what is summed, those that meet become opposite.
        """
        rank = len(static_shape(var) or ())
        read = [self.groups.get(arg) for arg in call.args]
        first, second = (None if each is None else aligned(each, rank) for each in read)
        if rank < 2 or second is None:
            return None
        rows, columns = second.shape[rank - 2], second.shape[rank - 1]
        if rows == 1:
            self.pin(first)
            return second
        if first is None or columns > 1 or (first.shape[rank - 2], first.shape[rank - 1]) != (1, rows):
            return None
        pairs = np.broadcast_arrays(first, np.swapaxes(second, -1, -2))
        self.met += map(tuple, np.unique(np.stack([each.reshape(-1) for each in pairs]), axis=1).T.tolist())
        return np.zeros((1,) * rank, np.int64)

    def concat(self, call: Any, rank: int) -> Groups | None:
        """Return the groups of parts that are joined along an axis."""
        joined = self.view.definition(call.args[0])
        fields = list(joined.fields) if isinstance(joined, relax.Tuple) else []
        parts = [self.groups.get(each) if isinstance(each, Var) else None for each in fields]
        known = [part for part in parts if part is not None]
        if not known or isinstance(call.args[0], Var):
            return None
        axis = int(call.attrs.axis) % rank
        if any(part.shape[axis] > 1 for part in known):
            # Parts without groups of their own are kept.
            arrays = [np.zeros((1,) * rank, np.int64) if part is None else part for part in parts]
            other = np.broadcast_shapes(*((*part.shape[:axis], 1, *part.shape[axis + 1 :]) for part in arrays))
            sizes = [shape[axis] for each in fields if (shape := static_shape(each)) is not None]
            shapes = [(*other[:axis], size, *other[axis + 1 :]) for size in sizes]
            return np.concatenate([np.broadcast_to(part, shape) for part, shape in zip(arrays, shapes, strict=True)], axis)
        if len(known) < len(parts):
            return None
        for part in known[1:]:
            self.joined(known[0], part)
        return known[0]

    def can_be_own(self, constant: Constant) -> bool:
        """Return whether an op can have a constant of its own: files keep one vector for all that are alike."""
        return self.is_read_once(constant) or (not constant.moves and len(constant.shape) == 1)

    def is_read_once(self, constant: Constant | None) -> bool:
        """Return whether one op alone reads a constant."""
        return constant is not None and all(self.view.only_user(var) is not None for var in (constant.root, *constant.moves))

    def _is_rounded(self, var: Var, value: Expr) -> bool:
        """Return whether a tensor is rounded where it is made: it is computed, and no kernel goes on with it."""
        if op_name(value) in (*CONSTANT_MOVERS, *PICKS, "concat", "nn.pad", "nn.max_pool2d") or isinstance(value, Var):
            return False
        user = self.view.only_user(var)
        after = None if user is None else call_to(self.view.definition(user), *CLAMPS, "add")
        is_bias = after is not None and op_name(after) == "add" and any(self.constants.is_constant(arg) for arg in after.args)
        return after is None or (op_name(after) == "add" and not is_bias)


def _through_view(call: Any, groups: Groups) -> Groups | None:
    """Return the groups of a permuted or reshaped tensor; None where they would differ along an open dimension.

    Along open dimensions groups are alike, so that any size of these shows where they go, of which each tensor has elements.
    """
    shape, result = static_shape(call.args[0]) or (), static_shape(call) or ()
    sizes = _shown_sizes(shape, result)
    if sizes is None:
        return None
    moved = _dense(apply_mover(call, np.broadcast_to(groups, evaluated(shape, sizes)), sizes))
    return None if any(is_open(dim) and size > 1 for dim, size in zip(result, moved.shape, strict=True)) else moved


def _shown_sizes(shape: tuple[int, ...], result: tuple[int, ...]) -> dict[str, int] | None:
    """Return sizes at which no open dimension of two shapes is below 2, and both hold as many elements; None: none was found."""
    for start in (2, 30):  # the second for what is a multiple of 3 or 5
        sizes = dict.fromkeys(names_in((*shape, *result)), start)
        for _ in range(_DOUBLINGS):
            small = [dim for dim in (*shape, *result) if is_open(dim) and evaluated([dim], sizes)[0] < 2]
            if not small:
                break
            sizes |= {name: 2 * sizes[name] for name in names_in(small)}
        else:
            continue
        if prod(evaluated(shape, sizes)) == prod(evaluated(result, sizes)):
            return sizes
    return None


def _dense(groups: Groups) -> Groups:
    """Return groups without the axes that they don't depend on."""
    for axis, size in enumerate(groups.shape):
        first = groups.take([0], axis) if size else groups
        groups = first if size and bool((groups == first).all()) else groups
    return np.ascontiguousarray(groups)


def _reduced(call: Any, groups: Groups) -> Groups | None:
    axes = tuple(range(groups.ndim)) if call.attrs.axis is None else tuple(int(axis) % groups.ndim for axis in call.attrs.axis)
    if any(groups.shape[axis] > 1 for axis in axes):
        return None
    return groups if call.attrs.keepdims else groups.reshape([size for axis, size in enumerate(groups.shape) if axis not in axes])
