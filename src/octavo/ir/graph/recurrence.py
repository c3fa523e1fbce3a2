"""A recurrence over steps as one op, for as many steps as an input has when the model runs. Computes nothing.

    y = R.octavo.recurrence((x, recurrence, hidden, ...), R.str("LSTM sigmoid tanh tanh"))

`x` (steps, batch, gates * width) is what the steps take from outside, products with weights and biases included; y is (steps,
batch, width), the hidden states in the order of x. The text says the rest. Behind x and `recurrence` (width, gates * width) stand
the operands that are there, in the order of `OPERANDS`: a bias (gates * width) of the recurrent products, hidden state and cell
(batch, width) before the first step, peepholes (3, width). Gates lie side by side in ONNX's order.

With "rounded=1" the weights are int8, dequantized per column, and each step rounds what meets them, as
`numerics.quantized.recurrence` says: a sample's hidden state, in a GRU without resets_products the state that was reset, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import tvm
from tvm import relax
from tvm.ir import Call, StringImm
from tvm.relax import Expr

from .nodes import elements
from .script_names import register

NAME = "recurrence"
_OP = f"relax.octavo.{NAME}"
Kind = Literal["LSTM", "GRU", "RNN"]
GATES: dict[str, int] = {"LSTM": 4, "GRU": 3, "RNN": 1}
"""How many gates a kind of cell has."""
OPERANDS = ("bias", "hidden", "cell", "peepholes")
"""What may stand behind x and the recurrent weights."""
_NUMBERS = ("backwards", "resets_products", "states", "rounded")


@dataclass(frozen=True, kw_only=True, slots=True)
class Recurrence:
    """What a recurrence computes from its operands.

    Parameters
    ----------
    kind
        "LSTM", "GRU" or "RNN", as ONNX defines them.
    activations
        "sigmoid", "tanh" or "relu", as many as ONNX has of the kind.
    operands
        Those of `OPERANDS` that are there.
    backwards
        Whether the last step comes first.
    resets_products
        Whether a GRU's reset gate multiplies the product with the hidden state, not that state (linear_before_reset).
    states
        How many states behind all steps stand before the results of the steps, as further rows: hidden state, then the cell.
    clip
        What the inputs of activations are clamped to; 0: nothing.
    rounded
        Whether what meets the weights, which are integers, is rounded at each step.
    """

    kind: Kind
    activations: tuple[str, ...]
    operands: tuple[str, ...] = ()
    backwards: bool = False
    resets_products: bool = False
    states: int = 0
    clip: float = 0.0
    rounded: bool = False

    @property
    def gates(self) -> int:
        """Gates of a cell."""
        return GATES[self.kind]

    def text(self) -> str:
        """Return it as the op has it."""
        words = [self.kind, *self.activations]
        words += [f"{name}={int(value)}" for name in _NUMBERS if (value := getattr(self, name))]
        words += [f"clip={self.clip!r}"] if self.clip else []
        return " ".join([*words, *(f"with={name}" for name in self.operands)])

    @staticmethod
    def parse(text: str) -> Recurrence:
        """Read what `text` wrote; ValueError for anything else."""
        kind, *words = text.split(" ")
        pairs = [word.partition("=") for word in words]
        given = {name: value for name, equals, value in pairs if equals and name != "with"}
        if kind not in GATES or given.keys() - {*_NUMBERS, "clip"}:
            raise ValueError(f"{text!r} is no recurrence")
        return Recurrence(
            kind=cast("Kind", kind),
            activations=tuple(name for name, equals, _ in pairs if not equals),
            operands=tuple(value for name, _, value in pairs if name == "with"),
            backwards=given.get("backwards") == "1",
            resets_products=given.get("resets_products") == "1",
            states=int(given.get("states", 0)),
            clip=float(given.get("clip", 0)),
            rounded=given.get("rounded") == "1",
        )


def recurrence(x: Expr, weights: Expr, others: Mapping[str, Expr], what: Recurrence) -> Any:
    """Return the call; `others` are the operands of `what.operands`, by name."""
    return _construct(relax.Tuple([x, weights, *(others[name] for name in what.operands)]), what.text())


def read_recurrence(call: Any) -> tuple[Recurrence, dict[str, Expr]]:
    """Return what a call of the op computes, and its operands by name: "x", "weights", and those of `OPERANDS`."""
    what = Recurrence.parse(str(call.args[1].value))
    return what, dict(zip(("x", "weights", *what.operands), elements(call.args[0].fields), strict=True))


def with_rounded_state(call: Any) -> Any:
    """Return a call that rounds what meets its weights at each step."""
    what = replace(Recurrence.parse(str(call.args[1].value)), rounded=True)
    return Call(call.op, [call.args[0], StringImm(what.text())])


def _construct(operands: Any, text: Any) -> Any:
    operands = operands if isinstance(operands, relax.Tuple) else relax.Tuple(list(operands))  # a text has Python's own
    return Call(tvm.ir.Op.get(_OP), [operands, text if isinstance(text, StringImm) else StringImm(str(text))])


def _infer(call: Any, builder: Any) -> Any:
    del builder
    what = Recurrence.parse(str(call.args[1].value))
    x: Any = elements(call.args[0].ty.fields)[0]
    steps, batch, _ = elements(x.shape.values)
    width = elements(elements(call.args[0].ty.fields)[1].shape.values)[0]
    return relax.TensorType([steps + what.states, batch, width], x.dtype)


register(NAME, "A recurrence over steps.", _infer, _construct)
