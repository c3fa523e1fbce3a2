"""The error of quantization layer by layer, on the source model's own names, and where it comes from.

A quantized tensor differs from the float one by what its own op adds (its weights' rounding and the tensor's own) and by
what it inherits. To tell these apart each op is also computed from the float model's values of what it reads.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm import relax as _relax
from tvm.relax import Expr, Var

from .errors import QuantizationError
from .graph import Model
from .graph.dataflow import BodyWriter, DataflowView, call_to, dtype_of, replace_operands, write_function
from .graph.inputs import input_specs, split_batch
from .identity import TensorId
from .lower.values import params_of
from .numerics import QuantParams, dequantize, quantize
from .pipeline import checked_model, relax_pipeline, resolve_target

# TVM annotates its functions more narrowly than what they take.
relax: Any = _relax
Array = npt.NDArray[Any]
_UNFIT_DB = 4.0


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerError:
    """The error of one quantized tensor.

    Parameters
    ----------
    id, source_name, op
        The tensor, and the source's op that makes it ("" for an input).
    sqnr_db
        Of the dequantized tensor against the float model's, in dB over all samples.
    local_sqnr_db
        The same where the op reads the float model's values: the error that this op adds by itself.
    scale_excess_db
        By how much the op's own error would fall if the scale fitted the values seen: near 0 for a good scale, about 12 dB for
        one four times too large whose rounding is most of the error. 0 where the scale is finer than the values need.
    inherited
        Share of the error's power that was there before, in [0; 1].
    """

    id: TensorId
    source_name: str
    op: str
    sqnr_db: float
    local_sqnr_db: float
    scale_excess_db: float
    inherited: float

    @property
    def has_unfit_scale(self) -> bool:
        """Whether the tensor's own scale is at fault: one that fits would take 4 dB or more off the op's own error."""
        return self.scale_excess_db >= _UNFIT_DB

    @property
    def is_origin(self) -> bool:
        """Whether the error to look at arises here: most of it, or for a scale that does not fit."""
        return self.has_unfit_scale or self.inherited < 0.5


def layer_errors(model: Model, quantized: Model, batches: Iterable[Any]) -> tuple[LayerError, ...]:
    """Compare every quantized tensor with the float one, what deserves a look first.

    Parameters
    ----------
    model
        The float model.
    quantized
        What `octavo.quantize` made of it.
    batches
        Arrays or {input name: array}; first dimensions may be multiples of the model's.

    Returns
    -------
    tuple
        One LayerError for each tensor that both models have: those whose scale does not fit, then the others by
        `local_sqnr_db`, worst first.

    Raises
    ------
    QuantizationError
        If `quantized` has no quantized tensor of the model.
    DataError
        A batch that does not fit the model.
    """
    checked_model(model)
    ids = _shared_ids(model, checked_model(quantized))
    params = _params(quantized, ids)
    run_whole = _built(_whole(quantized, ids))
    run_apart = _built(_apart(model, quantized, ids))
    sums = [_Sums() for _ in ids]
    for index, batch in enumerate([batches] if isinstance(batches, (np.ndarray, Mapping)) else batches):
        for arrays in split_batch(input_specs(model), batch, where=f"batch {index}"):
            whole, apart = run_whole(arrays), run_apart(arrays)
            for tensor, total, real, local, seen in zip(ids, sums, apart[: len(ids)], apart[len(ids) :], whole, strict=True):
                total.add(real, local, seen, params[tensor])
    rows = [_row(model, tensor, total, params[tensor]) for tensor, total in zip(ids, sums, strict=True)]
    return tuple(sorted(rows, key=lambda row: (-row.scale_excess_db if row.has_unfit_scale else 0.0, row.local_sqnr_db)))


@dataclass(slots=True)
class _Sums:
    """Running sums over one tensor's samples: powers of signal, error, the op's own error and its rounding; the range."""

    signal: float = 0.0
    noise: float = 0.0
    local: float = 0.0
    rounding: float = 0.0
    low: float = 0.0
    high: float = 0.0
    count: int = 0

    def add(self, real: Array, local: Array, seen: Array, params: QuantParams) -> None:
        """Add one sample."""
        reference = real.astype(np.float64)
        self.signal += float(np.sum(reference**2))
        self.noise += float(np.sum((reference - seen) ** 2))
        self.local += float(np.sum((reference - local) ** 2))
        self.rounding += float(np.sum((reference - dequantize(quantize(real, params), params)) ** 2))
        self.low, self.high = min(self.low, float(reference.min())), max(self.high, float(reference.max()))
        self.count += reference.size

    def scale_excess_db(self, params: QuantParams) -> float:
        """Return what a scale over the range seen would win, its rounding error taken as uniform (scale^2 / 12)."""
        scale = (self.high - self.low) / (params.qmax - params.qmin)
        fitting = self.count * scale**2 / 12
        if self.rounding <= fitting or not self.local or not fitting:
            return 0.0
        return max(0.0, 10 * math.log10(self.local / max(self.local - self.rounding + fitting, fitting)))


def _row(model: Model, tensor: TensorId, sums: _Sums, params: QuantParams) -> LayerError:
    entry = model.tensors[tensor]
    return LayerError(
        id=tensor,
        source_name=entry.source_name,
        op=entry.op,
        sqnr_db=_db(sums.signal, sums.noise),
        local_sqnr_db=_db(sums.signal, sums.local),
        scale_excess_db=sums.scale_excess_db(params),
        inherited=max(0.0, 1.0 - sums.local / sums.noise) if sums.noise else 0.0,
    )


def _db(signal: float, noise: float) -> float:
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal else -math.inf


def _shared_ids(model: Model, quantized: Model) -> list[TensorId]:
    floats = {binding.var.name for binding in DataflowView(model.module["main"]).bindings}
    floats |= {str(tensor) for tensor in model.input_ids}
    found = [
        TensorId(call.args[0].name)
        for binding in DataflowView(quantized.module["main"]).bindings
        if (call := call_to(binding.value, "quantize")) is not None and isinstance(call.args[0], Var)
    ]
    # An op that the importer writes as several has tensors between them, which the source doesn't know.
    ids = [tensor for tensor in dict.fromkeys(found) if tensor in floats and tensor in model.tensors]
    if not ids:
        raise QuantizationError("no tensor of the model is quantized; give the float model and what octavo.quantize made of it")
    return ids


def _params(quantized: Model, ids: list[TensorId]) -> dict[TensorId, QuantParams]:
    """Return the parameters that the quantized module holds for each tensor."""
    found: dict[TensorId, QuantParams] = {}
    for binding in DataflowView(quantized.bound()["main"]).bindings:
        call = call_to(binding.value, "quantize")
        if call is not None and isinstance(call.args[0], Var):
            params = params_of(call, dtype_of(binding.var))
            if params is None:
                raise QuantizationError(f"{call.args[0].name}: scale and zero point must be constants to be compared")
            found.setdefault(TensorId(call.args[0].name), params)
    return {tensor: found[tensor] for tensor in ids}


def _built(module: tvm.IRModule) -> Any:
    target, _ = resolve_target(None)
    with target:
        executable = relax.build(module, target=target, relax_pipeline=relax_pipeline())
    machine = relax.VirtualMachine(executable, tvm.cpu())

    def run(arrays: list[Array]) -> list[Array]:
        results = machine["main"](*(tvm.runtime.tensor(np.asarray(array, order="C")) for array in arrays))
        return [value.numpy() for value in results]

    return run


def _written(params: list[Var], body: Any) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    write_function(builder, "main", params, body, {"num_input": len(params)})
    return builder.get()


def _whole(quantized: Model, ids: list[TensorId]) -> tvm.IRModule:
    """Return the quantized model with every tensor of `ids`, dequantized, as its results."""
    main = quantized.bound()["main"]
    view = DataflowView(main)

    def body(writer: BodyWriter) -> Expr:
        copy = _Copy(writer, "")
        copy.bindings(view)
        return relax.Tuple([_dequantized(copy, view, tensor) for tensor in ids])

    return _written(list(main.params), body)


def _apart(model: Model, quantized: Model, ids: list[TensorId]) -> tvm.IRModule:
    """Return a module of the float tensors `ids`, then what each op of the quantized model makes of the float values.

    Before, in the quantized model::

        t = R.nn.conv2d(x_dq, w); t_q = R.quantize(t, ...); t_dq = R.dequantize(t_q, ...)

    After::

        q_t = R.nn.conv2d(f_x, w); local_t = R.quantize(q_t, ...)         # observed; other ops read f_t for t_dq
    """
    floats, main = DataflowView(model.bound()["main"]), quantized.bound()["main"]
    view = DataflowView(main)
    wanted = set(ids)

    def body(writer: BodyWriter) -> Expr:
        real = _Copy(writer, "f_", dict(zip(floats.function.params, main.params, strict=True)))
        real.bindings(floats)
        by_name = {var.name: new for var, new in real.new.items()}
        outputs: list[Expr] = [writer.emit(f"real_{tensor}", by_name[tensor], is_output=True) for tensor in ids]
        copy = _Copy(writer, "q_")
        local: dict[str, Expr] = {}
        exact: dict[Var, Expr] = {}
        for binding in view.bindings:
            value = binding.value
            call = call_to(value, "quantize", "dequantize")
            operand = call.args[0] if call is not None else None
            if isinstance(operand, Var) and operand.name in wanted and call_to(value, "quantize") is not None:
                exact[binding.var] = by_name[operand.name]
                if operand.name not in local:
                    local[operand.name] = writer.emit(f"local_{operand.name}", copy.written(value))
            elif isinstance(operand, Var) and operand in exact:
                copy.new[binding.var] = exact[operand]
            else:
                copy.binding(binding)
        for tensor in ids:
            outputs.append(_dequantized(copy, view, tensor, local[tensor]))
        return relax.Tuple(outputs)

    return _written(list(main.params), body)


class _Copy:
    """Writes the bindings of a function again under names with a prefix."""

    def __init__(self, writer: BodyWriter, prefix: str, new: dict[Var, Expr] | None = None) -> None:
        self._writer = writer
        self._prefix = prefix
        self.new: dict[Var, Expr] = dict(new or {})

    def written(self, value: Expr) -> Expr:
        """Return an expression over the new variables."""
        return replace_operands(value, lambda var: self.new.get(var, var))

    def binding(self, binding: Any) -> None:
        """Write one binding."""
        self.new[binding.var] = self._writer.emit(f"{self._prefix}{binding.var.name}", self.written(binding.value))

    def bindings(self, view: DataflowView) -> None:
        """Write all of them."""
        for binding in view.bindings:
            self.binding(binding)

    def emit_output(self, name: str, value: Expr) -> Expr:
        """Bind a result of the function."""
        return self._writer.emit(name, value, is_output=True)


def _dequantized(copy: _Copy, view: DataflowView, tensor: TensorId, integers: Expr | None = None) -> Expr:
    """Write the dequantized form of a tensor from its integers, by the parameters that quantized it."""
    for binding in view.bindings:
        call = call_to(binding.value, "quantize")
        if call is not None and isinstance(call.args[0], Var) and call.args[0].name == tensor:
            value = integers if integers is not None else copy.new[binding.var]
            return copy.emit_output(
                f"seen_{tensor}", relax.op.dequantize(value, call.args[1], call.args[2], axis=int(call.attrs.axis))
            )
    raise AssertionError(f"{tensor} is quantized: it was found by its quantize")
