"""Where booleans are true as one op, and which ops give rows that data counts. Computes nothing.

    y = R.octavo.places((x,), R.str(""))

`x` are booleans of at least one axis, y is int64 (elements, axes): the places of those that are true, in their order, and -1 in
all rows behind. How many there are depends on the data; an executable gives those, and no others.
"""

from __future__ import annotations

import math
from typing import Any

import tvm
from tvm import relax
from tvm.ir import Call, StringImm
from tvm.relax import Expr

from . import suppression
from .nodes import elements
from .script_names import register

NAME = "places"
_OP = f"relax.octavo.{NAME}"
COUNTED = frozenset({NAME, suppression.NAME})
"""Ops of Octavo's own whose rows of -1 are no results: as an output of a model each is as long as the data has it."""


def places(x: Expr) -> Any:
    """Return the call."""
    return _construct(relax.Tuple([x]), "")


def read_places(call: Any) -> Expr:
    """Return the operand of a call of the op."""
    return elements(call.args[0].fields)[0]


def _construct(operands: Any, text: Any) -> Any:
    operands = operands if isinstance(operands, relax.Tuple) else relax.Tuple(list(operands))  # a text has Python's own
    return Call(tvm.ir.Op.get(_OP), [operands, text if isinstance(text, StringImm) else StringImm(str(text))])


def _infer(call: Any, builder: Any) -> Any:
    del builder
    x: Any = elements(call.args[0].ty.fields)[0]
    sizes: Any = elements(x.shape.values)
    shape: Any = [math.prod(sizes), len(sizes)]
    return relax.TensorType(shape, "int64")


register(NAME, "The places of what is true.", _infer, _construct)
