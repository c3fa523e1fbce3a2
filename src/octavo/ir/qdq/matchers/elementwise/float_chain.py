"""Chains of float32 ops of single elements: what they compute of the tensors that they read, as one branch-free program.

Before::

    s = R.sigmoid(x); y = R.multiply(x, s)

After: a `FloatChain` that reads x and ends in y, of the steps sigmoid(0), multiply(0, 1). Who writes it into a kernel is not
decided here. The slopes of a parametric relu, one for each channel, are inputs of the program behind the tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from tvm.relax import Expr, Var

from .....numerics.floats.float_function import TRANSCENDENTAL, FloatFunction, Step
from ....graph.dataflow import DataflowView, call_to, dtype_of, op_name, static_shape
from ...cluster import PRELU, prim_value
from ...values import constant_value

_MAX_STEPS = 40
"""Longer chains are left to TVM, so that a kernel's code keeps its measure."""


Operand = int | float
"""Of a step while a program is written: the number of a value, or a constant."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FloatChain:
    """A program on `inputs`, all float32 of one shape, whose result is that of `output`; `members` compute it.

    Behind the tensors it reads `channels`: numbers that each have one value for each channel, along `axis`.
    """

    inputs: tuple[Var, ...]
    members: tuple[Var, ...]
    output: Var
    function: FloatFunction
    channels: tuple[npt.NDArray[np.float32], ...] = ()
    axis: int | None = None

    @property
    def is_transcendental(self) -> bool:
        """Whether it computes a function that TVM would take from the C library, element by element."""
        return any(step.op in TRANSCENDENTAL for step in self.function.steps)


def chain_from(
    view: DataflowView, root: Var, *, max_inputs: int, core: Var | None = None, has_channels: bool = False
) -> FloatChain | None:
    """Return the longest chain that starts at the float32 `root` and has one result; None where there is none.

    Parameters
    ----------
    max_inputs
        Tensors that it reads, `root` among them. Any other is there before `root` is.
    core
        A member that it must have, and others may read `root` beside it; None where it must be all that reads `root`.
    has_channels
        Whether it may read numbers that differ from channel to channel.
    """
    if dtype_of(root) != "float32" or static_shape(root) is None:
        return None
    grown = _grown(view, root, max_inputs, has_channels=has_channels)
    for output in reversed(grown):
        within = _before(view, output, set(grown))
        if core is not None and core not in within:
            continue
        shut = within - {output} if core is not None else within - {output} | {root}
        if all(_is_read_within(view, var, within) for var in shut):
            members = tuple(var for var in grown if var in within)
            return _chain(view, root, members, output)
    return None


def _is_read_within(view: DataflowView, var: Var, within: set[Var]) -> bool:
    return not view.is_returned(var) and all(user in within for user in view.users(var))


def _grown(view: DataflowView, root: Var, max_inputs: int, *, has_channels: bool) -> list[Var]:
    """Return the ops that read nothing but each other, `root`, constants and other tensors known before, in an order to run."""
    inputs: list[Var] = [root]
    known: dict[Var, None] = {root: None}
    axes: set[int] = set()
    waiting = list(view.users(root))
    while waiting and len(known) <= _MAX_STEPS:
        var = waiting.pop(0)
        value: Any = view.definition(var)
        if var in known or not _is_emitted(view, value) or not var.same_as(view.binding_of(var)):
            continue
        if dtype_of(var) != "float32" or static_shape(var) != static_shape(root):
            continue
        slopes = channel_slopes(view, value)
        if slopes is not None and (not has_channels or not axes <= {slopes.axis}):
            continue
        data = value.args if slopes is None else value.args[:1]
        others = [arg for arg in data if not _is_number(view, arg) and arg not in known]
        if any(not isinstance(arg, Var) or not _is_alike(view, arg, root) for arg in others):
            continue
        fresh = list(dict.fromkeys(arg for arg in others if arg not in inputs))
        if len(inputs) + len(fresh) > max_inputs:
            continue
        inputs.extend(fresh)
        axes.update(() if slopes is None else {slopes.axis})
        known[var] = None
        waiting.extend(view.users(var))
    return [var for var in known if not var.same_as(root)]


def _is_emitted(view: DataflowView, value: Any) -> bool:
    """Return whether a call is a step of programs; a power is one if products and square roots make it."""
    name = op_name(value)
    if name != "power":
        return name in _EMITTED
    constant = constant_value(view, value.args[1])
    is_number = constant is not None and constant.scale is None and constant.values.size == 1
    return constant is not None and is_number and float(constant.values.reshape(())) in POWERS


def _is_alike(view: DataflowView, arg: Var, root: Var) -> bool:
    """Return whether a tensor has the form of `root` and is there before it."""
    if dtype_of(arg) != "float32" or static_shape(arg) != static_shape(root) or constant_value(view, arg) is not None:
        return False
    return view.is_bound_before(arg, root) or view.binding_of(arg) is None


def _is_number(view: DataflowView, arg: Expr) -> bool:
    if prim_value(arg) is not None:
        return True
    constant = constant_value(view, arg)
    return constant is not None and constant.scale is None and constant.values.size == 1


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ChannelSlopes:
    """The slopes of a parametric relu, float32 [channels], along `axis` of what it reads; `members` compute them."""

    values: npt.NDArray[np.float32]
    axis: int
    members: tuple[Var, ...]


def channel_slopes(view: DataflowView, value: Any) -> ChannelSlopes | None:
    """Return the slopes of a call, if it is a parametric relu with a constant float one for each channel."""
    call: Any = call_to(value, PRELU)
    shape = None if call is None else static_shape(call.args[0])
    constant = None if call is None else constant_value(view, call.args[1])
    if call is None or constant is None or shape is None or constant.scale is not None or constant.values.size == 1:
        return None
    axis = int(call.attrs.axis) % len(shape)
    if constant.values.shape != (shape[axis],) or constant.values.dtype != np.float32:
        return None
    return ChannelSlopes(values=constant.values, axis=axis, members=tuple(constant.members))


def _before(view: DataflowView, output: Var, grown: set[Var]) -> set[Var]:
    """Return `output` and the members that it is computed from."""
    within: set[Var] = set()
    waiting = [output]
    while waiting:
        var = waiting.pop()
        if var in grown and var not in within:
            within.add(var)
            value: Any = view.definition(var)
            waiting.extend(arg for arg in value.args if isinstance(arg, Var))
    return within


def _chain(view: DataflowView, root: Var, members: tuple[Var, ...], output: Var) -> FloatChain:
    calls: list[Any] = [view.definition(var) for var in members]
    slopes = {var: found for var, call in zip(members, calls, strict=True) if (found := channel_slopes(view, call)) is not None}
    read = [arg for var, call in zip(members, calls, strict=True) for arg in (call.args[:1] if var in slopes else call.args)]
    tensors = [arg for arg in read if isinstance(arg, Var) and not _is_number(view, arg)]
    inputs = tuple(dict.fromkeys((root, *(arg for arg in tensors if arg not in members))))
    program = _Program(inputs=len(inputs) + len(slopes))
    values: dict[Var, int] = {var: number for number, var in enumerate(inputs)}
    channels: Mapping[Var, int] = {var: number for number, var in enumerate(slopes, len(inputs))}
    constants: list[Var] = [var for found in slopes.values() for var in found.members]
    for var, call in zip(members, calls, strict=True):
        operands: list[Operand] = []
        for arg in call.args[:1] if var in slopes else call.args:
            constant = None if prim_value(arg) is not None else constant_value(view, arg)
            if constant is not None:
                constants.extend(constant.members)
            number = prim_value(arg) if constant is None else float(constant.values.reshape(()))
            operands.append(values[arg] if number is None else number)
        operands.extend([channels[var]] if var in channels else [])
        values[var] = _EMITTED[op_name(call)](program, call, operands)
    return FloatChain(
        inputs=inputs,
        members=(*dict.fromkeys(constants), *members),
        output=output,
        function=program.finished(values[output]),
        channels=tuple(found.values for found in slopes.values()),
        axis=next((found.axis for found in slopes.values()), None),
    )


@dataclass(slots=True)
class _Program:
    """A program under construction: steps are numbered behind the inputs, constants stay numbers of their own."""

    inputs: int
    steps: list[tuple[str, tuple[Operand, ...]]] = field(default_factory=list[tuple[str, tuple[Operand, ...]]])

    def step(self, op: str, *operands: Operand) -> int:
        """Add a step and return the number of its value."""
        self.steps.append((op, operands))
        return self.inputs + len(self.steps) - 1

    def finished(self, result: int) -> FloatFunction:
        """Return the program, every sum fused with a product that only it reads."""
        steps = self._fused()
        assert result == self.inputs + len(self.steps) - 1, "the last step is the result"
        constants = list(dict.fromkeys(x for _, operands in steps.values() for x in operands if isinstance(x, float)))
        moved = {number: self.inputs + len(constants) + place for place, number in enumerate(steps)}

        def renumbered(operand: Operand) -> int:
            if isinstance(operand, float):
                return self.inputs + constants.index(operand)
            return moved.get(operand, operand)

        return FloatFunction(
            inputs=self.inputs,
            constants=tuple(constants),
            steps=tuple(Step(op=op, operands=tuple(map(renumbered, operands))) for op, operands in steps.values()),
        )

    def _fused(self) -> dict[int, tuple[str, tuple[Operand, ...]]]:
        steps = dict(enumerate(self.steps, self.inputs))
        readers = [x for _, operands in self.steps for x in operands if isinstance(x, int)]
        for number, (op, operands) in list(steps.items()):
            for place, operand in enumerate(operands if op == "add" else ()):
                if isinstance(operand, int) and steps.get(operand, ("", ()))[0] == "multiply" and readers.count(operand) == 1:
                    steps[number] = ("multiply_add", (*steps.pop(operand)[1], operands[1 - place]))
                    break
        return steps


_Emit = Callable[[_Program, Any, list[Operand]], int]


def _plain(op: str) -> _Emit:
    return lambda program, _call, operands: program.step(op, *operands)


def _clip(program: _Program, _call: Any, operands: list[Operand]) -> int:
    value, low, high = operands
    if not (isinstance(high, float) and math.isinf(high)):
        value = program.step("minimum", value, high)
    return program.step("maximum", value, low)


def _silu(program: _Program, _call: Any, operands: list[Operand]) -> int:
    return program.step("multiply", operands[0], program.step("sigmoid", operands[0]))


def _gelu(program: _Program, _call: Any, operands: list[Operand]) -> int:
    error = program.step("erf", program.step("multiply", operands[0], math.sqrt(0.5)))
    return program.step("multiply", operands[0], program.step("add", program.step("multiply", error, 0.5), 0.5))


def _gelu_tanh(program: _Program, _call: Any, operands: list[Operand]) -> int:
    x = operands[0]
    cube = program.step("multiply", program.step("multiply", x, x), x)
    inner = program.step("add", program.step("multiply", cube, 0.044715), x)
    bent = program.step("tanh", program.step("multiply", inner, math.sqrt(2.0 / math.pi)))
    return program.step("multiply", x, program.step("add", program.step("multiply", bent, 0.5), 0.5))


POWERS = tuple(quarters / 4 for quarters in range(1, 13) if quarters != 4)
"""Powers by these are products of a number, its square root and that one's: off by a few units in the last place."""

_Value = TypeVar("_Value")


def power_of(
    x: _Value, exponent: float, *, multiply: Callable[[_Value, _Value], _Value], sqrt: Callable[[_Value], _Value]
) -> _Value:
    """Return x to the power of one of `POWERS`."""
    count, quarters = divmod(round(4 * exponent), 4)
    factors = [x] * count
    if quarters:
        root = sqrt(x)
        factors += [root] * (quarters >= 2) + ([sqrt(root)] if quarters % 2 else [])
    return reduce(multiply, factors)


def _power(program: _Program, _call: Any, operands: list[Operand]) -> int:
    x, exponent = operands
    made = power_of(
        x,
        float(exponent),
        multiply=lambda one, other: program.step("multiply", one, other),
        sqrt=lambda value: program.step("sqrt", value),
    )
    assert isinstance(made, int), "a step, as no power is the first"
    return made


_EMITTED: dict[str, _Emit] = {
    **{name: _plain(name) for name in ("sigmoid", "tanh", "exp", "erf", "abs", "negative", "sqrt")},
    **{name: _plain(name) for name in ("add", "subtract", "multiply", "divide", "maximum", "minimum")},
    "nn.relu": lambda program, _call, operands: program.step("maximum", operands[0], 0.0),
    "nn.leakyrelu": lambda program, call, operands: program.step("leaky_relu", operands[0], float(call.attrs.alpha)),
    PRELU: lambda program, _call, operands: program.step("leaky_relu", operands[0], operands[1]),
    "clip": _clip,
    "power": _power,
    "square": lambda program, _call, operands: program.step("multiply", operands[0], operands[0]),
    "nn.silu": _silu,
    "nn.gelu": _gelu,
    "nn.gelu_tanh": _gelu_tanh,
}


CHAINED = tuple(_EMITTED)
"""The Relax ops that a chain can have."""


def function_of(name: str) -> FloatFunction:
    """Return the program of one of these ops of one tensor without attributes."""
    program = _Program(inputs=1)
    return program.finished(_EMITTED[name](program, None, [0]))
