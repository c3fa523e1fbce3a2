"""The parts of a plan: integer layers, float ops with reasons, adjustments, corrections. Plain data."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ...ir.identity import TensorId
from ...numerics.arrays import equal_arrays
from ...target import BATCH_MATMUL, GATHERED_MATMUL, RECURRENCE, STACKED_MATMUL


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
        second of two each column, a convolution's each sample. It leaves float32 then, and adds its bias in float32.
    block
        How many of its inputs share a scale of its weight, which has 4 bits or fewer then; 0: all. Without `per_row` it reads its
        input as it is; it leaves float32, and adds its bias in float32.
    leaves_copies
        Whether a product leaves float32 for what reads its result unrounded, and other products read rounded copies of that.
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
    leaves_copies: bool = False

    @property
    def is_product(self) -> bool:
        """Whether it multiplies an activation by weights, or by another one."""
        return self.weight is not None or self.op == BATCH_MATMUL

    @property
    def is_stacked(self) -> bool:
        """Whether it multiplies matrices by weights of their own, which lie in one parameter, [experts * out, in]."""
        return self.op in (STACKED_MATMUL, GATHERED_MATMUL)

    @property
    def is_gathered(self) -> bool:
        """Whether an index chooses, when run, by which of several weights it multiplies each matrix."""
        return self.op == GATHERED_MATMUL

    @property
    def has_samples(self) -> bool:
        """Whether a row that it quantizes when run is a sample, all that an index of the first axis has: a convolution's."""
        return bool(self.per_row) and self.op == "nn.conv2d"

    def row_axis(self, name: str) -> int | None:
        """Return the axis along which rows of an input lie that is quantized per row when run; None: a row is a sample."""
        return None if self.has_samples else -1 if name == self.inputs[0] else -2

    @property
    def reads_reals(self) -> bool:
        """Whether it is a product of an activation that has no static parameters."""
        return bool(self.per_row or self.block) or self.is_recurrence

    @property
    def is_recurrence(self) -> bool:
        """Whether it is all steps of a recurrent layer: it rounds its own state, and nothing else that it reads."""
        return self.op == RECURRENCE


def between_products(layers: Collection[IntegerLayer]) -> list[TensorId]:
    """Return the activations of integer ops that no product reads or makes, nor what is made of them or they of."""
    joined = {name for layer in layers if layer.is_product for name in (*layer.inputs, layer.output)}
    left = [layer for layer in layers if not layer.is_product]
    while near := [layer for layer in left if not joined.isdisjoint((*layer.inputs, layer.output))]:
        joined |= {name for layer in near for name in (*layer.inputs, layer.output)}
        left = [layer for layer in left if layer not in near]
    return [name for layer in left for name in (*layer.inputs, layer.output)]


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


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Corrections:
    """What running a model told: parameters in place of those that follow from its constants and ranges alone.

    Parameters
    ----------
    bias_shifts
        Real numbers that are added to the bias of a layer, float32 (output channels,), by the layer's output.
    weight_values
        Integers of weights, of their parameters' shapes, by name.
    weight_scales
        Scales of weights in place of those that their values ask for, by name; a plan's parameters have them.
    """

    bias_shifts: Mapping[TensorId, npt.NDArray[np.float32]] = field(default_factory=dict[TensorId, "npt.NDArray[np.float32]"])
    weight_values: Mapping[TensorId, npt.NDArray[Any]] = field(default_factory=dict[TensorId, "npt.NDArray[Any]"])
    weight_scales: Mapping[TensorId, npt.NDArray[np.float32]] = field(default_factory=dict[TensorId, "npt.NDArray[np.float32]"])

    @property
    def summary(self) -> str:
        """Say how many there are; "" of none."""
        counts = {"biases corrected": len(self.bias_shifts), "weights rounded by what their layers read": len(self.weight_values)}
        return ", ".join(f"{count} {what}" for what, count in counts.items() if count)

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self.bias_shifts or self.weight_values)

    def __eq__(self, other: object) -> bool:
        """Return whether both have the same numbers."""
        if not isinstance(other, Corrections):
            return NotImplemented
        return equal_arrays(self.bias_shifts, other.bias_shifts) and equal_arrays(self.weight_values, other.weight_values)

    __hash__ = None  # pyright: ignore[reportAssignmentType]  # it holds arrays
