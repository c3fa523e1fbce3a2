"""Model: an imported network, float or QDQ, with the identity of each of its tensors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import tvm
from tvm import relax

from ..errors import ProfileError
from ..identity import TensorId, TensorTable
from ..numerics import QuantParams

SourceFormat = Literal["onnx", "tflite", "torch", "relax", "builder"]


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
    fused
        What follows within the kernel, in order: "bias", "nn.relu", "clip".
    """

    op: str
    output: TensorId
    inputs: tuple[TensorId, ...]
    weight: TensorId | None = None
    bias: TensorId | None = None
    fused: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class FloatOp:
    """One op that `quantize` left float: which op, the variable of its result, and why."""

    op: str
    tensor: TensorId
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Fold:
    """An op that `quantize` folded into a convolution: its output `tensor` now comes from the convolution, `gone` is no more.

    `op` is "nn.batch_norm" (folded into the convolution before it; `weight` and `bias` name its new constants) or "nn.pad" (into
    those behind it, which read `tensor` with `padding` (top, left, bottom, right) of their own more).
    """

    op: str
    tensor: TensorId
    gone: TensorId
    weight: TensorId | None = None
    bias: TensorId | None = None
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Adjustment:
    """A parameter that `quantize` had to choose otherwise than asked: which tensor, and what was done."""

    tensor: TensorId
    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class QuantizationPlan:
    """Which tensors `quantize` made integer, and how: enough to repeat it on the source file.

    Parameters
    ----------
    activations
        Parameters of each tensor that gets a Q -> DQ pair where it is produced.
    weights
        Parameters of each weight, and `weight_values` its integers, in the layout of the Relax module.
    biases
        Parameters (int32, scale = s_x * s_w, zero point 0) of each bias, with its int32 integers in `weight_values`.
    layers
        The integer ops, in the order of the graph. Whoever reads the output of one reads it dequantized; the float consumers of
        a tensor that a float op made read it as it is.
    float_ops
        The ops that stay float, each with its reason.
    folds
        The ops that were folded away before quantizing.
    adjustments
        Parameters that were chosen otherwise than asked.
    """

    activations: dict[TensorId, QuantParams]
    weights: dict[TensorId, QuantParams]
    biases: dict[TensorId, QuantParams]
    weight_values: dict[TensorId, npt.NDArray[Any]]
    layers: tuple[IntegerLayer, ...] = ()
    float_ops: tuple[FloatOp, ...] = ()
    folds: tuple[Fold, ...] = ()
    adjustments: tuple[Adjustment, ...] = ()


# No slots: what a stage builds for a model (its profiler, say) is kept by weak reference for as long as the model lives.
@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Model:
    """An imported network.

    Parameters
    ----------
    module
        The IRModule. Its "main" takes the graph's inputs first (attribute "num_input" counts them), then one parameter for
        each constant of the source that the graph reads. Every variable that holds a source tensor is named by its TensorId.
    tensors
        What the source says of each tensor.
    params
        Value of each constant parameter of "main", by its variable name, in the layout the module reads.
    input_ids, output_ids
        TensorIds of the graph's inputs and outputs, in order.
    output_names
        The source's names of the outputs, in order; they name the results of an Executable. Several may stand for one tensor (an
        Identity between two outputs). Empty: the source names of `output_ids`.
    fingerprint
        "sha256:" and 64 hex digits over the graph's structure and the constants: equal for equal models, wherever the file lies.
    source_format
        Where it came from.
    source
        The source's own object (an onnx.ModelProto) where a later stage can write it back, else None.
    plan
        Set by `quantize`; None on a model as it was imported.
    any_batch
        Whether the source leaves the first dimension of every input open (the module is of batch 1 then) and computes each
        sample from that sample alone.
    batch_range
        Fewest and most samples of a call that the source allows where `any_batch`; None: no bound.
    batch_obstacle
        Why a source that leaves the first dimension open computes no sample by itself; "" for any other.
    """

    module: tvm.IRModule
    tensors: TensorTable
    params: dict[TensorId, npt.NDArray[Any]]
    input_ids: tuple[TensorId, ...]
    output_ids: tuple[TensorId, ...]
    fingerprint: str
    source_format: SourceFormat
    source: Any = None
    plan: QuantizationPlan | None = field(default=None)
    any_batch: bool = False
    batch_range: tuple[int, int | None] = (1, None)
    batch_obstacle: str = ""
    output_names: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """One line; `show` prints the module."""
        inputs = ", ".join(self._line(tensor) for tensor in self.input_ids)
        outputs = ", ".join(self._line(tensor) for tensor in self.output_ids)
        ops = sum(len(block.bindings) for block in self.module["main"].body.blocks)
        digest = self.fingerprint.removeprefix("sha256:")[:8]
        return f"Model({self.source_format}: {inputs} -> {outputs}; {ops} ops, {len(self.params)} constants, {digest})"

    def _line(self, tensor: TensorId) -> str:
        entry = self.tensors[tensor]
        return f"{entry.source_name} {entry.dtype}[{','.join(str(dim) for dim in entry.shape)}]"

    def bound(self) -> tvm.IRModule:
        """Return the module with its constants bound in: "main" takes the graph's inputs alone."""
        bindings: dict[Any, Any] = {
            str(name): tvm.runtime.tensor(np.asarray(value, order="C")) for name, value in self.params.items()
        }
        with tvm.transform.PassContext(opt_level=3):  # no pass of a pipeline: the instruments of one are not to see it
            return relax.transform.BindParams("main", bindings)(self.module)

    def show(self) -> None:
        """Print the Relax IR; each variable's name is its TensorId."""
        print(self.module.script(show_meta=False))


def check_fingerprint(model: Model, fingerprint: str) -> None:
    """Raise ProfileError unless `fingerprint`, of a profile, is this model's; the message names both."""
    if fingerprint != model.fingerprint:
        raise ProfileError(
            f"the profile belongs to another model: it was made from {fingerprint}, this model is {model.fingerprint}; "
            "profile this model"
        )
