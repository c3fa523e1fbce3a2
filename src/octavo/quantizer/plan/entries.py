"""The parts of a plan: integer layers, float ops with reasons, adjustments. Plain data."""

from __future__ import annotations

from dataclasses import dataclass

from ...ir.identity import TensorId


@dataclass(frozen=True, kw_only=True, slots=True)
class IntegerLayer:
    """One op that `quantize` made integer, with what runs in the same kernel.

    Parameters
    ----------
    op
        Relax op name without "relax." ("nn.conv2d").
    output
        Variable of the result, after the fused ops: a TensorId wherever the source has this tensor.
    inputs
        Variables of the activations it reads, in order.
    weight, bias
        Its constants, None where it has none.
    source
        The source's tensor that the result is, as it is or moved; None where the source has no such tensor, for the op is a step
        of a larger one.
    fused
        What follows within the kernel, in order: "bias", "nn.relu", "clip".
    constants
        Its operands that are constants, quantized as activations are.
    target
        Name of the target description that takes it.
    per_row
        Those of `inputs` that it reads in float32 and quantizes when run, each row with a scale and a zero point of its own; the
        second of two each column. It leaves float32 then, and adds its bias in float32.
    block
        How many of its inputs share a scale of its weight, which has 4 bits or fewer then; 0: all. Without `per_row` it reads its
        input as it is; it leaves float32, and adds its bias in float32.
    """

    op: str
    output: TensorId
    inputs: tuple[TensorId, ...]
    weight: TensorId | None = None
    bias: TensorId | None = None
    source: TensorId | None = None
    fused: tuple[str, ...] = ()
    constants: tuple[TensorId, ...] = ()
    target: str = ""
    per_row: tuple[TensorId, ...] = ()
    block: int = 0

    @property
    def reads_reals(self) -> bool:
        """Whether it is a product of an activation that has no static parameters."""
        return bool(self.per_row or self.block)


@dataclass(frozen=True, kw_only=True, slots=True)
class FloatOp:
    """One op that `quantize` left float: which op, the variable of its result, and why."""

    op: str
    tensor: TensorId
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Adjustment:
    """A parameter that `quantize` had to choose otherwise than asked: which tensor, and what was done."""

    tensor: TensorId
    message: str
