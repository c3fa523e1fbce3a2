"""ModelBuilder: a quantized model from the user's own arrays, scales and zero points. Reads no file and knows no framework.

It checks what it is given, records it, and writes QDQ form; it chooses no scale, folds nothing and runs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax

from ...errors import ModelError
from ...ir.graph import Model
from ...ir.untyped import ops
from ...numerics import QuantParams
from ..assemble import assemble
from ..relax_source import relax_fingerprint
from ..source_tensor import SourceTensor
from .checks import Padding, check_integer, check_params, check_shape, check_weight, listed, quantized_bias, window
from .steps import FLOAT, Activation, BuilderTensor, Step, add_activation, convolution, dequantized, pooling, write_step


class ModelBuilder:
    """Builds a quantized Model op by op, from NumPy arrays.

    real = (q - zero_point) * scale, per tensor for activations, per tensor or per output channel for weights. Images are NHWC,
    convolution weights HWIO: (kernel height, kernel width, input channels / groups, output channels); dense weights (in, out).
    Every method takes the name of its result first and returns it. A wrong argument raises ModelError, which names the result.

    Examples
    --------
    ::

        b = octavo.ModelBuilder()
        x = b.input("x", (1, 28, 28, 1), dtype="int8", scale=0.02, zero_point=-3)
        y = b.conv2d("conv", x, weight, 0.01, bias, out_scale=0.05, out_zero_point=-10, padding="SAME", activation="relu")
        y = b.mean("pool", y)
        y = b.dense("logits", y, weight2, scales2, bias2, out_scale=0.1, out_zero_point=0)
        executable = octavo.compile(b.build([y]))
    """

    def __init__(self) -> None:
        self._tensors: dict[str, BuilderTensor] = {}
        self._names: set[str] = set()
        self._constants: list[tuple[str, Any]] = []
        self._steps: list[Step] = []

    # ------------------------------------------------------------------------------------------------- inputs and edges

    def input(
        self, name: str, shape: Sequence[int], *, dtype: str = FLOAT, scale: float | None = None, zero_point: int = 0
    ) -> BuilderTensor:
        """Add an input: float32, or int8 or uint8 with scale and zero point."""
        self._check_name(name)
        dims = check_shape(name, shape)
        if dtype == FLOAT:
            if scale is not None:
                raise ModelError(f"{name}: a float32 input has no scale; state dtype='int8' or 'uint8', or quantize it")
            params = None
        elif scale is None:
            raise ModelError(f"{name}: an input of dtype {dtype!r} needs a scale")
        else:
            params = check_params(name, dtype, scale, zero_point)
        self._claim(name)
        self._tensors[name] = BuilderTensor(name=name, shape=dims, dtype=dtype, params=params)
        return self._tensors[name]

    def quantize(
        self, name: str, x: BuilderTensor, *, out_scale: float, out_zero_point: int, out_dtype: str = "int8"
    ) -> BuilderTensor:
        """Quantize a float tensor, or bring a quantized one to another scale, zero point or dtype."""
        self._own(name, x)
        params = check_params(name, out_dtype, out_scale, out_zero_point)
        return self._add(name, "quantize", (x,), x.shape, params, lambda _builder, values: values[0])

    def dequantize(self, name: str, x: BuilderTensor) -> BuilderTensor:
        """Turn a quantized tensor into float32."""
        self._quantized(name, x)
        return self._add(name, "dequantize", (x,), x.shape, None, lambda _builder, values: values[0])

    # -------------------------------------------------------------------------------------------------- ops with weights

    def conv2d(
        self,
        name: str,
        x: BuilderTensor,
        weight: npt.NDArray[Any],
        weight_scale: npt.ArrayLike,
        bias: npt.NDArray[Any] | None = None,
        *,
        out_scale: float,
        out_zero_point: int,
        out_dtype: str | None = None,
        weight_zero_point: npt.ArrayLike = 0,
        strides: Sequence[int] = (1, 1),
        padding: Padding = "VALID",
        dilation: Sequence[int] = (1, 1),
        groups: int = 1,
        activation: Activation | None = None,
    ) -> BuilderTensor:
        """Convolve an image.

        Parameters
        ----------
        x
            Quantized, (batch, height, width, channels).
        weight
            int8 or uint8, HWIO: (kernel height, kernel width, channels / groups, output channels). Depthwise is groups=channels
            with a weight of (kernel height, kernel width, 1, channels * multiplier).
        weight_scale, weight_zero_point
            A number, or (output channels,).
        bias
            int32 (output channels,) in units of x's scale times weight_scale, or float32 real values; None for none.
        out_scale, out_zero_point, out_dtype
            Of the result; its dtype is that of `x` by default.
        padding
            "VALID" (none), "SAME" (ceil(size / stride) pixels come out, the odd padding after), or (top, left, bottom, right).
        activation
            None, "relu" or "relu6".
        """
        self._check_activation(name, activation)
        x_params = self._quantized(name, x, rank=4)
        w_params = check_weight(name, weight, weight_scale, weight_zero_point, rank=4)
        kernel_height, kernel_width, inner, outputs = weight.shape
        if check_integer(name, "groups", groups) < 1 or inner * groups != x.shape[3] or outputs % groups:
            raise ModelError(
                f"{name}: weight {weight.shape} (HWIO) with groups={groups} does not fit an input of {x.shape[3]} channels"
            )
        taps = window(name, x.shape, (kernel_height, kernel_width), strides, padding, dilation)
        params = check_params(name, x.dtype if out_dtype is None else out_dtype, out_scale, out_zero_point)
        add_bias = self._bias(name, bias, x_params, w_params, outputs)
        weights = self._constant(f"{name}.weight", weight)

        def make(builder: Any, values: list[Any]) -> Any:
            real_weights = builder.emit(dequantized(weights, w_params))
            result = ops.nn.conv2d(values[0], real_weights, **convolution(taps), groups=groups)
            return add_activation(add_bias(builder, result), activation)

        shape = (x.shape[0], *taps.out, outputs)
        return self._add(name, "conv2d", (x,), shape, params, make)

    def dense(
        self,
        name: str,
        x: BuilderTensor,
        weight: npt.NDArray[Any],
        weight_scale: npt.ArrayLike,
        bias: npt.NDArray[Any] | None = None,
        *,
        out_scale: float,
        out_zero_point: int,
        out_dtype: str | None = None,
        weight_zero_point: npt.ArrayLike = 0,
        activation: Activation | None = None,
    ) -> BuilderTensor:
        """Multiply the last axis of `x`, (..., in), by a weight (in, out); the other arguments are `conv2d`'s."""
        self._check_activation(name, activation)
        x_params = self._quantized(name, x)
        w_params = check_weight(name, weight, weight_scale, weight_zero_point, rank=2)
        inputs, outputs = weight.shape
        if len(x.shape) < 2 or x.shape[-1] != inputs:
            raise ModelError(f"{name}: weight of shape {weight.shape} (in, out) does not fit an input of shape {x.shape}")
        params = check_params(name, x.dtype if out_dtype is None else out_dtype, out_scale, out_zero_point)
        add_bias = self._bias(name, bias, x_params, w_params, outputs)
        weights = self._constant(f"{name}.weight", weight)

        def make(builder: Any, values: list[Any]) -> Any:
            result = ops.matmul(values[0], builder.emit(dequantized(weights, w_params)))
            return add_activation(add_bias(builder, result), activation)

        return self._add(name, "dense", (x,), (*x.shape[:-1], outputs), params, make)

    # ----------------------------------------------------------------------------------------------- ops without weights

    def add(
        self,
        name: str,
        a: BuilderTensor,
        b: BuilderTensor,
        *,
        out_scale: float,
        out_zero_point: int,
        out_dtype: str | None = None,
        activation: Activation | None = None,
    ) -> BuilderTensor:
        """Add two quantized tensors of one shape."""
        self._check_activation(name, activation)
        self._quantized(name, a)
        self._quantized(name, b)
        if a.shape != b.shape:
            raise ModelError(f"{name}: {a.name} {a.shape} and {b.name} {b.shape} must have one shape")
        params = check_params(name, a.dtype if out_dtype is None else out_dtype, out_scale, out_zero_point)
        return self._add(
            name, "add", (a, b), a.shape, params, lambda _builder, v: add_activation(ops.add(v[0], v[1]), activation)
        )

    def max_pool2d(
        self,
        name: str,
        x: BuilderTensor,
        size: Sequence[int],
        *,
        strides: Sequence[int] | None = None,
        padding: Padding = "VALID",
    ) -> BuilderTensor:
        """Take the maximum over windows of `size` (height, width); strides default to it. Keeps scale and zero point."""
        params = self._quantized(name, x, rank=4)
        taps = window(name, x.shape, size, size if strides is None else strides, padding, (1, 1))

        def make(_builder: Any, values: list[Any]) -> Any:
            return ops.nn.max_pool2d(values[0], **pooling(taps))

        return self._add(name, "max_pool2d", (x,), (x.shape[0], *taps.out, x.shape[3]), params, make)

    def avg_pool2d(
        self,
        name: str,
        x: BuilderTensor,
        size: Sequence[int],
        *,
        strides: Sequence[int] | None = None,
        padding: Padding = "VALID",
        out_scale: float | None = None,
        out_zero_point: int | None = None,
    ) -> BuilderTensor:
        """Average over windows of `size` (height, width); padding does not count. Scale and zero point are x's by default."""
        params = self._params_like(name, self._quantized(name, x, rank=4), out_scale, out_zero_point)
        taps = window(name, x.shape, size, size if strides is None else strides, padding, (1, 1))

        def make(_builder: Any, values: list[Any]) -> Any:
            return ops.nn.avg_pool2d(values[0], **pooling(taps), count_include_pad=False)

        return self._add(name, "avg_pool2d", (x,), (x.shape[0], *taps.out, x.shape[3]), params, make)

    def mean(
        self, name: str, x: BuilderTensor, *, out_scale: float | None = None, out_zero_point: int | None = None
    ) -> BuilderTensor:
        """Average an image over height and width: (batch, channels). Scale and zero point are x's by default."""
        params = self._params_like(name, self._quantized(name, x, rank=4), out_scale, out_zero_point)
        shape = (x.shape[0], x.shape[3])
        return self._add(name, "mean", (x,), shape, params, lambda _builder, values: ops.mean(values[0], [1, 2]))

    def concat(
        self,
        name: str,
        tensors: Sequence[BuilderTensor],
        *,
        axis: int = -1,
        out_scale: float | None = None,
        out_zero_point: int | None = None,
    ) -> BuilderTensor:
        """Join quantized tensors along `axis`. Scale, zero point and dtype are the first one's by default."""
        self._check_name(name)
        tensors = [tensors] if isinstance(tensors, BuilderTensor) else tensors
        if not tensors:
            raise ModelError(f"{name}: give at least one tensor")
        params = self._params_like(name, self._quantized(name, tensors[0]), out_scale, out_zero_point)
        first = tensors[0].shape
        if not -len(first) <= check_integer(name, "axis", axis) < len(first):
            raise ModelError(f"{name}: axis {axis} does not exist in the shape {first}")
        at = axis % len(first)
        for tensor in tensors:
            self._quantized(name, tensor)
            if len(tensor.shape) != len(first) or any(
                mine != theirs for index, (mine, theirs) in enumerate(zip(tensor.shape, first, strict=True)) if index != at
            ):
                raise ModelError(f"{name}: {tensor.name} {tensor.shape} and {first} differ beside axis {axis}")
        shape = (*first[:at], sum(tensor.shape[at] for tensor in tensors), *first[at + 1 :])
        return self._add(
            name, "concat", tuple(tensors), shape, params, lambda _builder, values: ops.concat(relax.Tuple(values), axis=at)
        )

    def reshape(self, name: str, x: BuilderTensor, shape: Sequence[int]) -> BuilderTensor:
        """Give a tensor another shape of as many values; one dimension may be -1. Keeps scale and zero point."""
        self._own(name, x)
        dims = [check_integer(name, "a dimension", dim) for dim in listed(name, "shape", shape)]
        if dims.count(-1) == 1:
            rest = int(np.prod([dim for dim in dims if dim != -1]))
            dims[dims.index(-1)] = int(np.prod(x.shape)) // max(rest, 1)
        result = check_shape(name, dims)
        if np.prod(result) != np.prod(x.shape):
            raise ModelError(f"{name}: {tuple(shape)} does not have the {int(np.prod(x.shape))} values of {x.name} {x.shape}")
        return self._add(name, "reshape", (x,), result, x.params, lambda _builder, values: ops.reshape(values[0], list(result)))

    def softmax(
        self, name: str, x: BuilderTensor, *, out_scale: float | None = None, out_zero_point: int = 0, out_dtype: str = "int8"
    ) -> BuilderTensor:
        """Softmax over the last axis; float32 without `out_scale` (1 / 256 with zero point -128 spans int8)."""
        self._own(name, x)
        params = None if out_scale is None else check_params(name, out_dtype, out_scale, out_zero_point)
        return self._add(name, "softmax", (x,), x.shape, params, lambda _builder, values: ops.nn.softmax(values[0], axis=-1))

    # ------------------------------------------------------------------------------------------------------------ result

    def build(self, outputs: BuilderTensor | Sequence[BuilderTensor]) -> Model:
        """Return the Model that computes `outputs`. The builder can go on and build others.

        Raises
        ------
        ModelError
            If there is no output, or one is an input or not of this builder.
        """
        wanted = [outputs] if isinstance(outputs, BuilderTensor) else list(listed("build", "outputs", outputs))
        if not wanted:
            raise ModelError("build: give at least one output")
        inputs = [tensor for tensor in self._tensors.values() if tensor.name not in {step.tensor.name for step in self._steps}]
        for tensor in wanted:
            self._check_own("build", tensor)
            if tensor in inputs:
                raise ModelError(f"build: output {tensor.name} is an input; return what is computed from it")
        holders = self._write(inputs, wanted)
        sources = [self._source(tensor, "input", "", is_output=False) for tensor in inputs]
        sources += [
            SourceTensor(name=name, kind="constant", shape=tuple(c.value.numpy().shape), dtype=str(c.ty.dtype))
            for name, c in self._constants
        ]
        sources += [self._source(s.tensor, "activation", s.op, is_output=s.tensor in wanted) for s in self._steps]
        values = {**holders[1], **dict(self._constants)}
        positions = {source.name: position for position, source in enumerate(sources)}
        assembled = assemble(
            holders[0], sources, [values[source.name] for source in sources], [positions[tensor.name] for tensor in wanted]
        )
        return assembled.model(relax_fingerprint(assembled, "builder"), "builder")

    def _source(self, tensor: BuilderTensor, kind: Any, op: str, *, is_output: bool) -> SourceTensor:
        return SourceTensor(
            name=tensor.name,
            kind=kind,
            shape=tensor.shape,
            dtype=tensor.dtype,
            op=op,
            layer=tensor.name if op else "",
            is_output=is_output,
        )

    def _write(self, inputs: list[BuilderTensor], outputs: list[BuilderTensor]) -> tuple[Any, dict[str, Any]]:
        """Write every step into a Relax function; return the module and the variable of each tensor."""
        tensor_type: Any = relax.TensorType  # TVM's stub wants expressions for dimensions; numbers do
        values: dict[str, Any] = {t.name: relax.Var(t.name, tensor_type(list(t.shape), t.dtype)) for t in inputs}
        builder: Any = relax.BlockBuilder()
        with builder.function("main", params=list(values.values()), attrs={"num_input": len(inputs)}):
            with builder.dataflow():
                for step in self._steps:
                    values[step.tensor.name] = builder.emit(write_step(builder, step, values))
                results = [values[tensor.name] for tensor in outputs]
                returned = builder.emit_output(results[0] if len(results) == 1 else relax.Tuple(results))
            builder.emit_func_output(returned)
        return builder.get(), values

    # ------------------------------------------------------------------------------------------------------------ checks

    def _check_name(self, name: Any) -> None:
        if not isinstance(name, str) or not name:
            raise ModelError(f"a name must be a text of at least one character, got {name!r}")
        if name in self._names:
            raise ModelError(f"{name}: there is a tensor of this name already; give each its own")

    def _claim(self, name: str) -> None:
        self._check_name(name)
        self._names.add(name)

    def _check_activation(self, name: str, activation: Activation | None) -> None:
        if activation not in (None, "relu", "relu6"):
            raise ModelError(f"{name}: activation must be None, 'relu' or 'relu6', got {activation!r}")

    def _own(self, name: str, x: BuilderTensor) -> None:
        """Check the name of a tensor to be made, and that one it reads is this builder's."""
        self._check_name(name)
        self._check_own(name, x)

    def _check_own(self, name: str, x: Any) -> None:
        if not isinstance(x, BuilderTensor) or self._tensors.get(x.name) is not x:
            given = f"tensor {x.name!r}" if isinstance(x, BuilderTensor) else f"a value of type {type(x).__name__}"
            raise ModelError(f"{name}: {given} was not made by this builder; give what its methods returned")

    def _quantized(self, name: str, x: BuilderTensor, *, rank: int | None = None) -> QuantParams:
        self._own(name, x)
        if x.params is None:
            raise ModelError(f"{name}: {x.name} is float32; quantize it first")
        if rank is not None and len(x.shape) != rank:
            raise ModelError(f"{name}: {x.name} has shape {x.shape}; an image (batch, height, width, channels) is needed")
        return x.params

    def _params_like(self, name: str, params: QuantParams, scale: float | None, zero_point: int | None) -> QuantParams:
        if scale is None and zero_point is None:
            return params
        return check_params(
            name,
            params.dtype,
            float(params.scale) if scale is None else scale,
            int(params.zero_point) if zero_point is None else zero_point,
        )

    def _constant(self, name: str, value: npt.NDArray[Any]) -> Any:
        self._claim(name)
        constant = relax.const(np.ascontiguousarray(value), str(value.dtype))
        self._constants.append((name, constant))
        return constant

    def _bias(
        self, name: str, bias: npt.NDArray[Any] | None, x_params: QuantParams, w_params: QuantParams, channels: int
    ) -> Callable[[Any, Any], Any]:
        """Return what adds the bias to a float result."""
        if bias is None:
            return lambda _builder, result: result
        params = quantized_bias(name, bias, x_params, w_params, channels)
        constant = self._constant(f"{name}.bias", bias)
        real = (lambda: constant) if params is None else (lambda: dequantized(constant, params))
        return lambda builder, result: ops.add(builder.emit(result), real())

    def _add(
        self,
        name: str,
        op: str,
        inputs: tuple[BuilderTensor, ...],
        shape: tuple[int, ...],
        params: QuantParams | None,
        make: Callable[[Any, list[Any]], Any],
    ) -> BuilderTensor:
        self._claim(name)
        tensor = BuilderTensor(name=name, shape=shape, dtype=FLOAT if params is None else params.dtype, params=params)
        self._tensors[name] = tensor
        self._steps.append(Step(tensor=tensor, op=op, inputs=inputs, make=make))
        return tensor
