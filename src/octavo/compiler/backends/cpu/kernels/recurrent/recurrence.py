"""The steps of an LSTM, a GRU or a plain recurrent layer in plain vectors, the products with the hidden state in `products`.

Each sample takes its steps alone, so threads share samples. Gates are float32. Kinds are ONNX's (its operator reference: LSTM,
GRU and RNN).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from tvm.script.ir_builder import tirx as B

from ......numerics.quantized.recurrence import state_limit
from ..language.float_function import ElementMath
from ..language.isa import ISAS
from ..language.kernel import Kernel
from ..language.vectors import Buffer, Expr, chunked, load, prim_func, splat, store, worthwhile
from ..language.x86.narrow import narrowed
from .products import FloatProducts, Floats, IntegerProducts, over


@dataclass(frozen=True, kw_only=True, slots=True)
class RecurrenceSpec:
    """float32 [steps, batch, gates * width] to [states + steps, batch, width].

    `inputs` says which of the states before the first step, "hidden" and "cell", are tensors (batch, width) behind the first;
    `states` how many of those behind the last stand before the steps' results. `clip` 0 clamps nothing.
    """

    steps: int
    batch: int
    width: int
    kind: Literal["LSTM", "GRU", "RNN"]
    activations: tuple[str, ...]
    backwards: bool = False
    resets_products: bool = False
    states: int = 0
    clip: float = 0.0
    inputs: tuple[str, ...] = ()
    threads: int = 1


def recurrence(
    spec: RecurrenceSpec,
    *,
    weights: Floats | npt.NDArray[np.int8],
    scale: Floats | None = None,
    bias: Floats | None,
    peepholes: Floats | None,
    initial: Mapping[str, Floats],
    isa: str,
) -> Kernel:
    """Return the kernel. Weights are (width, gates * width), a bias (gates * width,), peepholes (3 * width,).

    Weights of int8 have a scale (gates * width,); what meets them is quantized at each step. `initial` are constant states before
    the first step, (batch, width); one that is no input either is zeros.
    """
    gates = weights.shape[1] // spec.width
    passes = _passes(spec, gates)
    if scale is None:
        constants = FloatProducts.constants(weights.astype(np.float32, copy=False), spec.width, passes)
    else:
        constants = IntegerProducts.constants(weights.astype(np.int8, copy=False), scale, spec.width, passes, isa)
    floats = {name: values for name, values in (("bias", bias), ("peepholes", peepholes)) if values is not None} | dict(initial)
    constants |= {name: np.ascontiguousarray(values.reshape(-1), np.float32) for name, values in floats.items()}
    limit = 0 if scale is None else state_limit(weights.astype(np.int8, copy=False))
    rows = spec.batch * spec.width
    sizes = {"x": spec.steps * rows * gates, **dict.fromkeys(spec.inputs, rows)}
    sizes |= {name: values.size for name, values in constants.items()} | {"y": (spec.states + spec.steps) * rows}

    def emit(*buffers: Buffer) -> None:
        named = dict(zip(sizes, buffers, strict=True))
        operations = spec.steps * spec.batch * weights.size
        with chunked(spec.batch, worthwhile(spec.threads, operations, spec.batch)) as sample:
            if scale is None:
                products = FloatProducts(width=spec.width, buffers=named)
            else:
                products = IntegerProducts(width=spec.width, isa=isa, limit=limit, buffers=named)
            _Sample(spec, gates, named, sample, products).emit()

    dtypes = {name: str(values.dtype) for name, values in constants.items()}
    func = prim_func([(name, size, dtypes.get(name, "float32")) for name, size in sizes.items()], emit)
    if scale is not None and ISAS[isa].family == "x86":
        func = narrowed(func, isa)
    name = spec.kind.lower() if scale is not None else f"float.{spec.kind.lower()}"
    return Kernel(name=name, isa=isa, func=func, constants=tuple(constants.values()))


def _passes(spec: RecurrenceSpec, gates: int) -> list[range]:
    """Return the gates that are computed together: those of a GRU that resets its state before the product need two passes."""
    first = 2 if spec.kind == "GRU" and not spec.resets_products else gates
    return [range(first), range(first, gates)][: 1 if first == gates else 2]


class _Sample:
    """Emits all steps of one sample."""

    def __init__(
        self,
        spec: RecurrenceSpec,
        gates: int,
        buffers: Mapping[str, Buffer],
        sample: Expr,
        products: FloatProducts | IntegerProducts,
    ) -> None:
        self._spec, self._gates, self._sample = spec, gates, sample
        self._buffers, self._products = buffers, products
        # What the steps hand on, and in a GRU of two passes the update gate, and the state that was reset.
        kept = {"LSTM": ("hidden", "cell"), "GRU": ("hidden", "update", "reset"), "RNN": ("hidden",)}[spec.kind]
        self._own: dict[str, Any] = {name: B.alloc_buffer((spec.width,), "float32", scope="local") for name in kept}

    def emit(self) -> None:
        spec, width = self._spec, self._spec.width
        for name in self._states:
            over(width, partial(self._begin, name))
        with B.serial(0, spec.steps) as turn:
            step = B.Bind(spec.steps - 1 - turn) if spec.backwards else turn
            row = B.Bind((step * spec.batch + self._sample) * (self._gates * width))
            place = B.Bind(((step + spec.states) * spec.batch + self._sample) * width)
            # Zeros before the first step make no products.
            self._products.start(None if "hidden" in self._buffers else turn == 0)
            self._products.take(self._own["hidden"])
            {"LSTM": self._lstm, "GRU": self._gru, "RNN": self._rnn}[spec.kind](row, place)
            over(
                width,
                lambda start, lanes: store(self._own["hidden"], start, load(self._buffers["y"], place + start, lanes), lanes),
            )
        for number, name in enumerate(self._states[: spec.states]):
            last = B.Bind((self._sample + number * spec.batch) * width)
            over(
                width,
                lambda start, lanes, name=name, last=last: store(
                    self._buffers["y"], last + start, load(self._own[name], start, lanes), lanes
                ),
            )

    @property
    def _states(self) -> Sequence[str]:
        return ("hidden", "cell") if self._spec.kind == "LSTM" else ("hidden",)

    def _begin(self, name: str, start: Expr, lanes: int) -> None:
        given = self._buffers.get(name)
        at = self._sample * self._spec.width + start
        store(self._own[name], start, splat(B.float32(0), lanes) if given is None else load(given, at, lanes), lanes)

    def _input(self, row: Expr, gate: int, start: Expr, lanes: int) -> Expr:
        return load(self._buffers["x"], row + (gate * self._spec.width) + start, lanes)

    def _with_bias(self, value: Expr, gate: int, start: Expr, lanes: int) -> Expr:
        bias = self._buffers.get("bias")
        return value if bias is None else value + load(bias, gate * self._spec.width + start, lanes)

    def _total(self, row: Expr, gate: int, product: Expr, start: Expr, lanes: int) -> Expr:
        """Return what a gate takes, summed in the order in which steps that are written out sum it."""
        outside = self._input(row, gate, start, lanes)
        if self._spec.kind == "GRU":
            total = outside + self._with_bias(product, gate, start, lanes)
        else:
            total = self._with_bias(outside + product, gate, start, lanes)
        return ElementMath(lanes).keep(total)

    def _activated(self, which: int, value: Expr, lanes: int) -> Expr:
        """Return an activated value, which is clamped before, but for an LSTM's cell."""
        math, clip = ElementMath(lanes), self._spec.clip
        if clip and which < 2:
            high, low = math.constant(clip), math.constant(-clip)
            value = B.Bind(value)
            value = B.Bind(B.Select(value > high, high, value))
            value = B.Bind(B.Select(value < low, low, value))
        name = self._spec.activations[which]
        if name == "relu":
            value = B.Bind(value)
            return math.keep(B.Select(value > math.constant(0.0), value, math.constant(0.0)))
        return math.keep({"sigmoid": math.sigmoid, "tanh": math.tanh}[name](value))

    def _peeped(self, value: Expr, which: int, cell: Expr, start: Expr, lanes: int) -> Expr:
        peepholes = self._buffers.get("peepholes")
        if peepholes is None:
            return value
        return value + ElementMath(lanes).fenced(load(peepholes, which * self._spec.width + start, lanes) * cell)

    def _lstm(self, row: Expr, place: Expr) -> None:
        def block(start: Expr, lanes: int, products: list[Expr]) -> None:
            math = ElementMath(lanes)
            i, o, f, c = (self._total(row, gate, product, start, lanes) for gate, product in enumerate(products))
            cell = math.keep(load(self._own["cell"], start, lanes))
            i = self._activated(0, self._peeped(i, 0, cell, start, lanes), lanes)
            f = self._activated(0, self._peeped(f, 2, cell, start, lanes), lanes)
            c = self._activated(1, c, lanes)
            cell = math.keep(math.fused(i, c, math.fenced(f * cell)))
            store(self._own["cell"], start, cell, lanes)
            o = self._activated(0, self._peeped(o, 1, cell, start, lanes), lanes)
            store(self._buffers["y"], place + start, o * self._activated(2, cell, lanes), lanes)

        self._products.over(self._own["hidden"], range(4), block)

    def _gru(self, row: Expr, place: Expr) -> None:
        hidden = self._own["hidden"]
        if self._spec.resets_products:
            self._products.over(hidden, range(3), partial(self._gru_at_once, row, place))
            return

        def gates(start: Expr, lanes: int, products: list[Expr]) -> None:
            update, reset = (self._total(row, gate, product, start, lanes) for gate, product in enumerate(products))
            store(self._own["update"], start, self._activated(0, update, lanes), lanes)
            store(self._own["reset"], start, self._activated(0, reset, lanes) * load(hidden, start, lanes), lanes)

        def states(start: Expr, lanes: int, products: list[Expr]) -> None:
            remembered = ElementMath(lanes).keep(self._with_bias(products[0], 2, start, lanes))
            new = self._activated(1, self._input(row, 2, start, lanes) + remembered, lanes)
            self._mix(place, load(self._own["update"], start, lanes), new, start, lanes)

        self._products.over(hidden, range(2), gates)
        self._products.take(self._own["reset"])
        self._products.over(self._own["reset"], range(2, 3), states)

    def _gru_at_once(self, row: Expr, place: Expr, start: Expr, lanes: int, products: list[Expr]) -> None:
        math = ElementMath(lanes)
        z, r = (self._activated(0, self._total(row, gate, products[gate], start, lanes), lanes) for gate in range(2))
        remembered = math.keep(math.fenced(r * self._with_bias(products[2], 2, start, lanes)))
        new = self._activated(1, self._input(row, 2, start, lanes) + remembered, lanes)
        self._mix(place, z, new, start, lanes)

    def _mix(self, place: Expr, update: Expr, new: Expr, start: Expr, lanes: int) -> None:
        """Store the state between the new one and the old one."""
        math = ElementMath(lanes)
        update = math.keep(update)
        old = math.fenced(update * load(self._own["hidden"], start, lanes))
        store(self._buffers["y"], place + start, math.fused(math.constant(1.0) - update, new, old), lanes)

    def _rnn(self, row: Expr, place: Expr) -> None:
        def block(start: Expr, lanes: int, products: list[Expr]) -> None:
            total = self._total(row, 0, products[0], start, lanes)
            store(self._buffers["y"], place + start, self._activated(0, total, lanes), lanes)

        self._products.over(self._own["hidden"], range(1), block)
