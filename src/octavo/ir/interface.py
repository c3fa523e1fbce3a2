"""What a model takes and gives: integers in place of float32 or the other way round, and preprocessing of pictures as ops.

A transformation of a Model, float or QDQ, before it is lowered. It adds ops at the edges and changes none within.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from tvm import relax, tirx
from tvm.relax import Expr, Var

from ..errors import ModelError
from ..numerics import PerTensor, QuantParams, dequantize, quantize
from .graph import Model
from .graph.dataflow import BodyWriter, DataflowView, call_to, dtype_of, replace_operands, static_shape, write_function
from .identity import TensorId, TensorTable
from .qdq.interface import input_params, output_params, results_of
from .qdq.values import params_of

RealDtype = Literal["float32", "uint8", "int8"]
REAL_DTYPES = ("float32", "uint8", "int8")
"""What an input or output of real numbers can be."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Preprocessing:
    """From a picture, uint8 (n, height, width, channels), to a model's first input: (resized - mean) / std, in its layout.

    Parameters
    ----------
    mean, std
        In units of pixels, 0 to 255; one number, or one for each channel.
    size
        Height and width of the pictures where they are not the model's: they are resized bilinearly, by half-pixel centres.
    """

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    size: tuple[int, int] | None = None


def with_interface(
    model: Model, *, inputs: RealDtype | None = None, outputs: RealDtype | None = None, preprocessing: Preprocessing | None = None
) -> Model:
    """Return a model that takes and gives other dtypes, its tensors else unchanged.

    An input that the graph quantizes right away can be the integers themselves, an output that the graph dequantizes last, too;
    integers can be the real numbers that they stand for. Inputs and outputs of other dtypes (indices, booleans) stay.

    Raises
    ------
    ModelError
        An unknown dtype; integers for a tensor that has no scale and zero point, or has more than 8 bits; a model whose
        first input is no float32 picture where preprocessing is asked for.
    """
    for dtype in (inputs, outputs):
        if dtype not in (None, *REAL_DTYPES):
            raise ModelError(f"inputs and outputs can be {', '.join(REAL_DTYPES)}, got {dtype!r}")
    if preprocessing is not None and inputs not in (None, "uint8"):
        raise ModelError(f"preprocessing takes pictures of uint8, not {inputs}: leave out one of the two")
    if preprocessing is not None:
        model = _Edges(model).changed(None, outputs, preprocessing)
    elif inputs is not None or outputs is not None:
        model = _Edges(model).changed(inputs, outputs, None)
    return model


class _Edges:
    """Rewrites "main" of one model."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._module = model.bound()
        self._view = DataflowView(self._module["main"])
        self._names = [model.tensors[tensor_id].source_name for tensor_id in model.input_ids]
        self._new: dict[Var, Expr] = {}
        self._integers: dict[Var, Expr] = {}
        """By the result of a quantize the integers that the model takes in its place."""
        self._dtypes: dict[TensorId, tuple[str, tuple[int, ...]]] = {}
        self._starts = dict(model.starts)

    def changed(self, inputs: str | None, outputs: str | None, preprocessing: Preprocessing | None) -> Model:
        params = [self._param(number, inputs, preprocessing) for number in range(len(self._view.function.params))]
        builder = relax.BlockBuilder()
        main: Any = self._module["main"]
        attrs = {key: value for key, value in dict(main.attrs).items() if key != "global_symbol"} if main.attrs else {}

        def body(writer: BodyWriter) -> Expr:
            for number, old in enumerate(self._view.function.params):
                value = self._entered(writer, number, params[number], preprocessing)
                if value is not None:
                    self._new[old] = writer.emit(f"{old.name}_entered", value)
            for binding in self._view.bindings:
                if binding.var in self._integers:
                    self._new[binding.var] = self._integers[binding.var]
                    continue
                value = replace_operands(binding.value, lambda var: self._new.get(var, var))
                is_output = not isinstance(binding.var, relax.DataflowVar)
                self._new[binding.var] = writer.emit(binding.var.name, value, is_output=is_output)
            known = output_params(self._module)
            made = [self._left(writer, n, expr, known[n], outputs) for n, expr in enumerate(results_of(self._view))]
            return relax.Tuple(made) if isinstance(self._view.result, relax.Tuple) else made[0]

        for var, function in self._module.functions_items():
            if var.name_hint != "main":
                builder.add_func(function, var.name_hint)
        write_function(builder, "main", params, body, attrs)
        module = builder.get()
        tensors = TensorTable([self._entry(entry) for entry in self._model.tensors.values()])
        return replace(self._model, module=module, params={}, tensors=tensors, starts=self._starts)

    def _entry(self, entry: Any) -> Any:
        if entry.id not in self._dtypes:
            return entry
        dtype, shape = self._dtypes[entry.id]
        return replace(entry, dtype=dtype, shape=shape)

    # -------------------------------------------------------------------------------------------------------- inputs

    def _param(self, number: int, dtype: str | None, preprocessing: Preprocessing | None) -> Var:
        """Return the new parameter in place of one, the same where it stays."""
        old = self._view.function.params[number]
        shape = static_shape(old) or ()
        wanted = dtype if dtype is not None and dtype_of(old) in REAL_DTYPES else dtype_of(old)
        if preprocessing is not None and number == 0:
            wanted, shape = "uint8", self._picture(shape, dtype_of(old), preprocessing)
        if (wanted, shape) == (dtype_of(old), static_shape(old) or ()):
            return old
        self._dtypes[self._model.input_ids[number]] = wanted, tuple(shape)
        return relax.Var(old.name, relax.TensorType([tirx.IntImm("int64", dim) for dim in shape], wanted))

    def _entered(self, writer: BodyWriter, number: int, param: Var, preprocessing: Preprocessing | None) -> Expr | None:
        """Return what the graph reads in place of the old parameter; None where it stays."""
        old = self._view.function.params[number]
        if param.same_as(old):
            return None
        if preprocessing is not None:
            return _preprocessed(writer, param, preprocessing, static_shape(old) or ())
        quantized = self._quantized(old)
        params = next(iter(quantized.values()), None) if dtype_of(old) == "float32" else input_params(self._module)[number]
        known = _checked(params, f"input {self._names[number]}", "no op quantizes it")
        name = str(self._model.input_ids[number])
        if name in self._starts:
            self._starts[name] = _converted_values(self._starts[name], known, dtype_of(param))
        if dtype_of(old) != "float32":
            return _converted(writer, param, known, dtype_of(param), dtype_of(old))
        integers: Expr = param
        if dtype_of(param) != known.dtype:
            integers = writer.emit(f"{old.name}_integers", _converted(writer, param, known, dtype_of(param), known.dtype))
        self._integers |= {var: integers for var, each in quantized.items() if _constant_values(each) == _constant_values(known)}
        return relax.op.dequantize(integers, *_constants(known, known.dtype))

    def _quantized(self, param: Var) -> dict[Var, QuantParams]:
        """Return with what parameters the graph quantizes a float parameter, by the results."""
        calls = [(user, call_to(self._view.definition(user), "quantize")) for user in self._view.users(param)]
        known = {user: params_of(call, dtype_of(user)) for user, call in calls if call is not None}
        return {user: params for user, params in known.items() if params is not None}

    def _picture(self, shape: Sequence[int], dtype: str, preprocessing: Preprocessing) -> tuple[int, ...]:
        layout = _layout(shape)
        if layout is None or dtype != "float32":
            raise ModelError(
                f"input {self._names[0]}, {dtype} {list(shape)}, is no picture: preprocessing is for float32 of four dimensions, "
                "of which the second or the last counts 1, 3 or 4 channels"
            )
        batch, height, width, channels = (shape[layout.index(letter)] for letter in "NHWC")
        for name, values in (("mean", preprocessing.mean), ("std", preprocessing.std)):
            if len(values) not in (1, channels):
                raise ModelError(
                    f"preprocessing: {name} has {len(values)} numbers, input {self._names[0]} has {channels} channels"
                )
        if not all(np.isfinite(preprocessing.std)) or 0 in preprocessing.std:
            raise ModelError("preprocessing: std must be finite and other than 0")
        height, width = preprocessing.size or (height, width)
        return batch, height, width, channels

    # ------------------------------------------------------------------------------------------------------- outputs

    def _left(self, writer: BodyWriter, number: int, expr: Expr, params: QuantParams | None, dtype: str | None) -> Expr:
        """Return what "main" returns in place of a result."""
        value = replace_operands(expr, lambda var: self._new.get(var, var))
        if dtype is None or dtype_of(expr) not in REAL_DTYPES or dtype_of(expr) == dtype:
            return value
        name = self._model.tensors[self._model.output_ids[number]].source_name
        if dtype_of(expr) == "float32":
            call = call_to(self._view.definition(expr), "dequantize")
            params = None if call is None else params_of(call, dtype_of(call.args[0]))
            if call is not None:
                value = replace_operands(call.args[0], lambda var: self._new.get(var, var))
        known = _checked(params, f"output {name}", "a float op computes it")
        made = value if dtype == known.dtype else _converted(writer, value, known, known.dtype, dtype)
        return writer.emit(f"{getattr(expr, 'name', 'output')}_left{number}", made, is_output=True)


def _constant_values(params: QuantParams) -> tuple[str, float, int]:
    return params.dtype, float(params.scale), int(params.zero_point)


def _checked(params: QuantParams | None, what: str, why: str) -> QuantParams:
    if params is None or not isinstance(params.granularity, PerTensor):
        raise ModelError(f"{what} has no scale and zero point of its own ({why}): leave its dtype as it is")
    if params.dtype not in ("uint8", "int8"):
        raise ModelError(f"{what} is {params.dtype} within the model: leave its dtype as it is")
    return params


def _converted(writer: BodyWriter, value: Expr, params: QuantParams, source: str, wanted: str) -> Expr:
    """Return the same real numbers, or the integers that stand for them, as another dtype."""
    real = value
    if source != "float32":
        real = writer.emit("interface_real", relax.op.dequantize(value, *_constants(params, source)))
    if wanted == "float32":
        return real
    return relax.op.quantize(real, *_constants(params, wanted), out_dtype=wanted)


def _converted_values(values: npt.NDArray[Any], params: QuantParams, wanted: str) -> npt.NDArray[Any]:
    """Return values that an input begins as, as `_converted` would have them."""
    real = values if values.dtype == np.float32 else dequantize(values, params)
    if wanted == "float32":
        return real
    shift = _shift(params, wanted)
    return quantize(real, QuantParams.per_tensor(wanted, float(params.scale), int(params.zero_point) + shift))


def _shift(params: QuantParams, dtype: str) -> int:
    """Return how far the zero point of integers of `dtype`, which may be the other one of 8 bits, is from that of `params`."""
    return {"uint8": 128, "int8": -128}[dtype] if dtype != params.dtype else 0


def _constants(params: QuantParams, dtype: str) -> tuple[Expr, Expr]:
    """Return scale and zero point for integers of `dtype`, which may be the other one of 8 bits."""
    shift = _shift(params, dtype)
    return relax.const(float(params.scale), "float32"), relax.const(int(params.zero_point) + shift, "int32")


def _layout(shape: Sequence[int]) -> str | None:
    if len(shape) != 4:
        return None
    return next((layout for layout, at in (("NCHW", 1), ("NHWC", 3)) if shape[at] in (1, 3, 4)), None)


def _preprocessed(writer: BodyWriter, picture: Var, preprocessing: Preprocessing, shape: Sequence[int]) -> Expr:
    layout = _layout(shape)
    assert layout is not None, "its shape was checked"
    size: Any = [shape[layout.index("H")], shape[layout.index("W")]]
    value: Expr = writer.emit("picture", relax.op.astype(picture, "float32"))
    if preprocessing.size is not None and list(preprocessing.size) != size:
        resized = relax.op.image.resize2d(
            value, size, layout="NHWC", method="linear", coordinate_transformation_mode="half_pixel", rounding_method=""
        )
        value = writer.emit("resized", resized)
    mean, std = np.array(preprocessing.mean, np.float32), np.array(preprocessing.std, np.float32)
    centred = writer.emit("centred", relax.op.subtract(value, relax.const(mean)))
    value = writer.emit("normalized", relax.op.multiply(centred, relax.const(np.float32(1) / std)))
    return relax.op.permute_dims(value, [0, 3, 1, 2]) if layout == "NCHW" else value
