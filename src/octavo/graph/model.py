"""Model: an imported network, with the identity of each of its tensors. Knows nothing of quantization."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import tvm
from tvm import relax

from ..errors import ProfileError
from ..identity import TensorId, TensorTable

SourceFormat = Literal["onnx", "tflite", "torch", "relax", "builder"]


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
