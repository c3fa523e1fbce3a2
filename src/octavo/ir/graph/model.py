"""Model: an imported network, with the identity of each of its tensors. Knows nothing of quantization."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import tvm
from tvm import relax
from tvm.relax import Expr

from ...errors import ModelError, ProfileError, check_type
from ...runtime.mapped import shared_tensor
from ...runtime.tensors import array_of
from ..identity import TensorEntry, TensorId, TensorTable
from .dataflow import BodyWriter, DataflowView, attrs_of, new_main, operand_vars

MODEL_ATTR = "octavo.model"
"""Attribute of "main": what a Model knows besides its module, in a module that goes on its own."""

BLOCK_ATTR = "octavo.block_activations"
"""Attribute of "main": the `block_activations` of a Model, where it has some."""

_LARGE = 2**28

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
        The source's own object (of ONNX: its message, large tensors beside it) where a later stage can write it back, else None.
    any_batch
        Whether the source leaves the first dimension of every input open (the module is of batch 1 then) and computes each
        sample from that sample alone.
    batch_range
        Fewest and most samples of a call that the source allows where `any_batch`; None: no bound.
    sizes
        Least and greatest size (None: no bound) of each open dimension, by the name of its symbol in the module.
    batch_obstacle
        Why a source that leaves the first dimension open computes no sample by itself; "" for any other.
    shown_names
        Pairs of a TensorId and the name that explanations show for it, where these are of a module that no longer tells: a file
        in QDQ form has integers as tensors of their own, which go by what is quantized to them.
    block_activations
        How exact the activations beside weights in blocks are to be, by the TensorId of the product; "" for all others.
    starts
        What inputs that carry state begin as, by their TensorIds, where the source states it.
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
    sizes: Mapping[str, tuple[int, int | None]] = field(default_factory=dict)
    output_names: tuple[str, ...] = ()
    shown_names: tuple[tuple[str, str], ...] = ()
    block_activations: Mapping[str, str] = field(default_factory=dict)
    starts: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)

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

    @property
    def constant_bytes(self) -> int:
        """Bytes of the values of its constants."""
        return sum(value.nbytes for value in self.params.values())

    @property
    def is_large(self) -> bool:
        """Whether its constants take more than 256 MB: what runs it on samples has time for few of these, and for each once."""
        return self.constant_bytes > _LARGE

    @property
    def float_reasons(self) -> Mapping[TensorId, str]:
        """Why ops stay float, by what they compute, where who quantized the model knows."""
        return {}

    @property
    def notes(self) -> Mapping[TensorId, str]:
        """What is to be said of integer ops, by their results, where who quantized the model knows."""
        return {}

    @property
    def divisors(self) -> Mapping[TensorId, npt.NDArray[np.float32]] | None:
        """By what tensors are divided in comparison with the source, (1, channels, ...) of their rank; None: nothing says so."""
        return None

    def bound(self, *, runs: bool = True) -> tvm.IRModule:
        """Return the module with its constants bound in: "main" takes the graph's inputs alone.

        Parameters
        ----------
        runs
            Whether kernels may read the constants where they lie; else only what Octavo lowers reads them (see `shared_tensor`).
        """
        bindings: dict[Any, Any] = {str(name): shared_tensor(value, runs=runs) for name, value in self.params.items()}
        with tvm.transform.PassContext(opt_level=3):  # no pass of a pipeline: the instruments of one are not to see it
            bound: tvm.IRModule = relax.transform.BindParams("main", bindings)(self.module)
        if self.block_activations:
            main: Any = bound["main"]
            bound.update_func(bound.get_global_var("main"), main.with_attr(BLOCK_ATTR, dict(self.block_activations)))
        return bound

    def show(self) -> None:
        """Print the Relax IR; each variable's name is its TensorId."""
        print(self.module.script(show_meta=False))


def checked_model(model: Model) -> Model:
    """Return `model`; ModelError if it is no Model: a path, say, that nobody loaded."""
    check_type(model, Model, ModelError, "a Model, which octavo.load returns")
    return model


def check_fingerprint(model: Model, fingerprint: str) -> None:
    """Raise ProfileError unless `fingerprint`, of a profile, is this model's; the message names both."""
    if fingerprint != model.fingerprint:
        raise ProfileError(
            f"the profile belongs to another model: it was made from {fingerprint}, this model is {model.fingerprint}; "
            "profile this model"
        )


def with_model(module: tvm.IRModule, model: Model) -> tvm.IRModule:
    """Return a module made from a model's, with what the model knows besides as an attribute of "main"."""
    facts: dict[str, Any] = {
        "tensors": [
            {each.name: _encoded(getattr(entry, each.name)) for each in fields(entry)} for entry in model.tensors.values()
        ],
        "input_ids": [str(tensor) for tensor in model.input_ids],
        "output_ids": [str(tensor) for tensor in model.output_ids],
        "output_names": list(model.output_names),
        "fingerprint": model.fingerprint,
        "source_format": model.source_format,
        "any_batch": model.any_batch,
        "batch_range": list(model.batch_range),
        "batch_obstacle": model.batch_obstacle,
        "sizes": [[name, *bounds] for name, bounds in model.sizes.items()],
        "shown_names": [list(pair) for pair in model.shown_names],
        "starts": {name: relax.const(value) for name, value in model.starts.items()},
    }
    main: Any = module["main"]
    result = tvm.IRModule(dict(module.functions_items()), attrs=module.attrs)
    result.update_func(result.get_global_var("main"), main.with_attr(MODEL_ATTR, facts))
    return result


def read_model(module: tvm.IRModule) -> Model | None:
    """Return the model that `with_model` described, its constants bound in the module; None where it described none.

    Raises
    ------
    ModelError
        The description is not whole.
    """
    names = {var.name_hint for var in module.get_global_vars()}
    facts: Any = attrs_of(module["main"]).get(MODEL_ATTR) if "main" in names else None
    if facts is None:
        return None
    try:
        entries = [TensorEntry(**{str(key): _read(value) for key, value in entry.items()}) for entry in facts["tensors"]]
        rest = {str(key): _read(value) for key, value in facts.items() if key not in ("tensors", "sizes", "starts")}
        starts = {str(name): array_of(value.value) for name, value in facts["starts"].items()}
        sizes = {str(name): (_read(low), _read(high)) for name, low, high in facts["sizes"]}
        return Model(module=module, tensors=TensorTable(entries), params={}, sizes=sizes, starts=starts, **rest)
    except (KeyError, TypeError, AttributeError, AssertionError) as error:
        raise ModelError(f"attribute {MODEL_ATTR!r} of main is not what octavo.partition writes: {error!r}") from error


def _encoded(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _read(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int)):
        return value
    return str(value) if isinstance(value, str) else tuple(_read(each) for each in value)


def rewritten(
    model: Model, body: Callable[[BodyWriter], Expr], params: Sequence[relax.Var], values: Mapping[TensorId, npt.NDArray[Any]]
) -> Model:
    """Return a model with "main" written anew: bindings and constants that nothing reads are dropped.

    Parameters
    ----------
    body
        Emits the bindings and returns the result; see `dataflow.write_function`.
    params
        The inputs, then all parameters that it may read, whose `values` are given by name.
    """
    module = model.module.clone()
    main = module.get_global_var("main")
    module.update_func(main, new_main(params, body, attrs_of(module["main"])))
    function = relax.transform.DeadCodeElimination(["main"])(module)["main"]
    view = DataflowView(function)
    read = {var for value in (*(binding.value for binding in view.bindings), view.result) for var in operand_vars(value)}
    inputs = params[: len(model.input_ids)]
    kept = [*inputs, *(param for param in params[len(inputs) :] if param in read)]
    module.update_func(main, relax.Function(kept, function.body, function.ret_ty, function.is_pure, function.attrs))
    names = {param.name for param in kept}
    return replace(model, module=module, params={name: value for name, value in values.items() if name in names})
