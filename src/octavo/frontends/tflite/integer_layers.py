"""Our converters of recurrent layers in integers: LSTM of 8-bit activations and a cell of 16 bits, and SVDF. To LiteRT's bits.

`flatten.py` makes what they remember operands and results; products with weights are those that integer kernels take, all else
`IntegerSteps`. Formulas are those of LiteRT's lstm_eval.cc and svdf.h.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tflite
from tvm import relax

from ...ir.untyped import ops
from ...numerics.quantized.gemmlowp import gemmlowp_logistic, gemmlowp_tanh
from ...numerics.quantized.rescale import integer_values
from ..frontend import RejectedOpError
from .base import BaseConverter
from .integer_steps import IntegerSteps

_INPUT, _FORGET, _CELL, _OUTPUT = range(4)
_PEEPHOLES = {_INPUT: 9, _FORGET: 10, _OUTPUT: 11}
_GATE_SCALE = 2.0**-12
_INTERMEDIATES = 5
_SEQUENCE_RANK = 3
_MIN_VARIANCE = 10000

Reals = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Operand:
    """A tensor of a layer: its expression, or its value where it is a constant, and its parameters."""

    value: Any
    scale: np.float32
    zero_point: int


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Lstm:
    """The operands of an LSTM, by TFLite's places (-1 leads to the scale of what it hides), and its options."""

    operands: dict[int, _Operand]
    inner: list[_Operand]
    gates: list[int]
    batch: int
    units: int
    cell_bits: int
    clips: tuple[int, int]

    def has(self, place: int) -> bool:
        return place in self.operands

    def constant(self, places: list[int]) -> npt.NDArray[Any]:
        """Return constants of several gates side by side in the last axis; matrices turned."""
        return np.concatenate([self.operands[place].value.T for place in places], axis=-1)

    def scale_of(self, gate: int) -> np.float32:
        """Return the scale of a gate's sums: LiteRT's own where they are not normalized."""
        return self.inner[gate].scale if self.has(20 + _FORGET) else np.float32(_GATE_SCALE)


class IntegerLayers(BaseConverter):
    """Converters of LSTM along a sequence or of a step alone, and of SVDF, whose activations are integers."""

    OWN_OPS = frozenset({"LSTM", "SVDF", "UNIDIRECTIONAL_SEQUENCE_LSTM"})

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.convert_map["LSTM"] = self._step_alone
        self.convert_map["UNIDIRECTIONAL_SEQUENCE_LSTM"] = self._lstm
        self.convert_map["SVDF"] = self._svdf

    def _operand(self, tensor: Any) -> _Operand:
        is_known = not self.has_expr(tensor.tensor_idx)
        return self._described(tensor, self.get_tensor_value(tensor) if is_known else self.get_tensor_expr(tensor))

    def _described(self, tensor: Any, value: Any = None) -> _Operand:
        """Return a tensor's parameters, with a value."""
        if not tensor.qnn_params:
            return _Operand(value=value, scale=np.float32(1), zero_point=0)
        scale, zero_point = (np.ravel(tensor.qnn_params[key].value.numpy()) for key in ("scale", "zero_point"))
        if scale.size > 1:
            raise RejectedOpError("weights of a layer with a scale for each channel")
        return _Operand(value=value, scale=np.float32(scale[0]), zero_point=int(zero_point[0]))

    def product(self, x: Any, zero_point: int, weight: npt.NDArray[Any], bias: npt.NDArray[Any] | None) -> Any:
        """Return (x - zero_point) times a constant matrix, and a bias, in int32."""
        centered = self.bb.emit(ops.subtract(self.bb.emit(ops.astype(x, "int32")), relax.const(zero_point, "int32")))
        matrix = self.bb.emit(ops.astype(relax.const(np.ascontiguousarray(weight)), "int32"))
        result = self.bb.emit(ops.matmul(centered, matrix, out_dtype="int32"))
        return result if bias is None else self.bb.emit(ops.add(result, relax.const(bias.astype(np.int32))))

    # ------------------------------------------------------------------------------------------------------------- LSTM

    def _step_alone(self, op: Any) -> Any:
        """Convert LSTM: one step, of rows that have no axis of time."""
        full, h, cell = self._along(op, self._get_builtin_options(op, tflite.LSTMOptions), time_major=False)
        return relax.Tuple([self.bb.emit(ops.squeeze(full, [1])), h, cell])

    def _lstm(self, op: Any) -> Any:
        """Convert UNIDIRECTIONAL_SEQUENCE_LSTM, with its two states behind its result."""
        options = self._get_builtin_options(op, tflite.UnidirectionalSequenceLSTMOptions)
        return relax.Tuple(self._along(op, options, time_major=bool(options.TimeMajor())))

    def _along(self, op: Any, options: Any, *, time_major: bool) -> list[Any]:
        """Write the steps of an LSTM; return its results with an axis of time, and its two states."""
        tensors, inner = self.get_input_tensors(op), self.get_tensors(op.IntermediatesAsNumpy())
        layer = self._layer(tensors, inner, options)
        x = self._shape(tensors[0])
        x = x if len(x) == _SEQUENCE_RANK else [x[0], 1, x[1]]
        axis, steps, width = (0 if time_major else 1), x[0 if time_major else 1], x[2]
        rows = self.bb.emit(ops.reshape(self.get_tensor_expr(tensors[0]), [-1, width]))
        into, bias = [1 + gate for gate in layer.gates], [12 + gate for gate in layer.gates]
        zero = layer.operands[0].zero_point
        normalized = layer.has(20 + _FORGET)
        sums = self.product(rows, zero, layer.constant(into), None if normalized else layer.constant(bias))
        writer = _LstmWriter(self, layer)
        scales = writer.factors(1, layer.operands[0].scale)
        entering = writer.steps.saturated(writer.steps.rescaled(writer.steps.wide(sums), scales), "int16")
        entering = self.bb.emit(ops.reshape(entering, [*x[:2], len(layer.gates) * layer.units]))
        h, c, results = self.get_tensor_expr(tensors[18]), writer.first_cell(self.get_tensor_expr(tensors[19])), list[Any]()
        for step in range(steps):
            row = self.bb.emit(ops.strided_slice(entering, axes=[axis], begin=[step], end=[step + 1]))
            row = self.bb.emit(ops.reshape(row, [layer.batch, len(layer.gates) * layer.units]))
            h, c = writer.step(row, h, c)
            results.append(self.bb.emit(ops.expand_dims(h, axis)))
        full = self.bb.emit(ops.concat(results, axis)) if len(results) > 1 else results[0]
        cell = self.bb.emit(ops.astype(self.bb.emit(ops.reshape(c, [layer.batch, layer.units])), "int16"))
        return [full, h, cell]

    def _layer(self, tensors: list[Any], inner: list[Any], options: Any) -> _Lstm:
        types = {self.get_tensor_type_str(tensors[place].tensor.Type()) for place in (0, 18)}
        if types != {"int8"} or self.get_tensor_type_str(tensors[19].tensor.Type()) != "int16":
            raise RejectedOpError("a layer whose activations are other integers than int8, or whose cell is not int16")
        if len(inner) != _INTERMEDIATES:
            raise RejectedOpError(f"{len(inner)} intermediate tensors: a layer in integers has {_INTERMEDIATES}")
        found = {place: self._operand(tensor) for place, tensor in enumerate(tensors) if tensor.tensor_idx >= 0}
        cell = found[19].scale
        bits = round(math.log2(cell)) + 15
        if float(cell) != 2.0 ** (bits - 15) or not 0 <= bits <= 6:
            raise RejectedOpError(f"a cell of scale {cell:.6g}, which is no power of two from 2**-15 to 2**-9")
        clips = [
            int(np.clip(np.float32(bound) / scale, *limits)) if bound > 0 else 0
            for bound, scale, limits in (
                (options.CellClip(), cell, (-32768, 32767)),
                (options.ProjClip(), found[18].scale, (-128, 127)),
            )
        ]
        batch, units = self._shape(tensors[19])
        return _Lstm(
            operands=found,
            inner=[self._described(tensor) for tensor in inner],
            gates=[gate for gate in range(4) if 1 + gate in found],  # without an input gate it is 1 - the forget gate
            batch=batch,
            units=units,
            cell_bits=bits,
            clips=(clips[0], clips[1]),
        )

    # ------------------------------------------------------------------------------------------------------------- SVDF

    def _svdf(self, op: Any) -> Any:
        """Convert SVDF, with its state behind its result: filters over the features of the last steps."""
        tensors = self.get_input_tensors(op)
        options = self._get_builtin_options(op, tflite.SVDFOptions)
        output, rank = self.get_output_tensors(op)[0], options.Rank()
        kinds = [self.get_tensor_type_str(tensors[place].tensor.Type()) for place in (0, 1, 2, 4)]
        if kinds != ["int8", "int8", "int16", "int16"] or not output.qnn_params:
            raise RejectedOpError(f"a layer of {', '.join(kinds)}: LiteRT has kernels for int8, int8, int16, int16")
        if options.FusedActivationFunction() != tflite.ActivationFunctionType.RELU:
            raise RejectedOpError("another activation than RELU, which LiteRT's kernel asks for")
        x, features, times, *bias, state = (self._operand(each) for each in tensors if each.tensor_idx >= 0)
        result = self._described(output)
        (filters, memory), batch = times.value.shape, self._shape(tensors[0])[0]
        steps = IntegerSteps(self.bb)
        sums = self.product(x.value, x.zero_point, features.value.T, None)
        seen = steps.saturated(steps.rescaled(steps.wide(sums), x.scale * features.scale / state.scale), "int16")
        seen = self.bb.emit(ops.reshape(seen, [batch, filters, 1]))
        before = self.bb.emit(ops.reshape(steps.wide(state.value), [batch, filters, memory]))
        if memory > 1:
            kept = self.bb.emit(ops.strided_slice(before, axes=[2], begin=[1], end=[memory]))
            seen = self.bb.emit(ops.concat([kept, seen], axis=2))
        weighed = self.bb.emit(ops.reshape(steps.times(seen, steps.number(times.value)), [batch, filters // rank, rank * memory]))
        total = self.bb.emit(ops.sum(weighed, axis=[2]))
        total = steps.add(total, steps.number(bias[0].value)) if bias else total
        scaled = steps.add(steps.rescaled(total, state.scale * times.scale / result.scale), steps.number(result.zero_point))
        y = self.bb.emit(ops.astype(steps.saturated(scaled, "int8"), "int8"))
        after = self.bb.emit(ops.astype(self.bb.emit(ops.reshape(seen, [batch, filters * memory])), "int16"))
        return relax.Tuple([y, after])


class _LstmWriter:
    """Writes the steps of one LSTM; states and gates are rows of all samples' units."""

    def __init__(self, converter: IntegerLayers, layer: _Lstm) -> None:
        self.layer, self._product, self.steps = layer, converter.product, IntegerSteps(converter.bb)
        every = integer_values("int16")
        self._logistic = gemmlowp_logistic(every).astype(np.int16)
        self._tanh = {bits: gemmlowp_tanh(every, bits).astype(np.int16) for bits in (3, layer.cell_bits)}
        self._recurrent = layer.constant([5 + gate for gate in layer.gates])

    def factors(self, first: int, scale: np.float32) -> Reals:
        """Return the factor of each column of the gates' sums, whose weights are operands from `first` on."""
        layer = self.layer
        each = [layer.operands[first + gate].scale * scale / layer.scale_of(gate) for gate in layer.gates]
        return np.repeat(np.asarray(each, np.float32), layer.units)

    def first_cell(self, stored: Any) -> Any:
        """Return the cell before the first step."""
        return self._row(self.steps.wide(stored))

    def step(self, row: Any, h: Any, c: Any) -> tuple[Any, Any]:
        """Return hidden state (int8) and cell (int64) of a step, of the input's sums and the states before."""
        layer, steps = self.layer, self.steps
        state = layer.operands[18]
        sums = steps.wide(self._product(h, state.zero_point, self._recurrent, None))
        sums = steps.saturated(steps.add(steps.rescaled(sums, self.factors(5, state.scale)), row), "int16")
        parts = {gate: self._part(sums, place) for place, gate in enumerate(layer.gates)}
        forget, fresh = self._gate(_FORGET, parts, c), self._gate(_CELL, parts, c)
        entering = self._gate(_INPUT, parts, c) if _INPUT in parts else steps.minus(steps.number(32767), forget)
        kept = steps.half_away(steps.times(forget, c), 15)
        added = steps.half_away(steps.times(entering, fresh), 15 + layer.cell_bits)
        c = steps.saturated(steps.add(kept, added), "int16")
        if layer.clips[0]:
            c = steps.clamped(c, -layer.clips[0], layer.clips[0])
        return self._hidden(self._gate(_OUTPUT, parts, c), c), c

    def _row(self, x: Any) -> Any:
        return self.steps.emit(ops.reshape(x, [self.layer.batch * self.layer.units]))

    def _part(self, sums: Any, place: int) -> Any:
        first = place * self.layer.units
        return self._row(self.steps.emit(ops.strided_slice(sums, axes=[1], begin=[first], end=[first + self.layer.units])))

    def _peephole(self, values: npt.NDArray[Any]) -> Any:
        """Return what each value of the cell is multiplied by: LiteRT's kernel goes no further than a projection is wide."""
        layer = self.layer
        width = layer.operands[16].value.shape[0] if layer.has(16) else layer.units
        return self.steps.number(np.tile(np.where(np.arange(layer.units) < width, values, 0), layer.batch))

    def _gate(self, gate: int, parts: dict[int, Any], c: Any) -> Any:
        layer, steps, x = self.layer, self.steps, parts[gate]
        place = _PEEPHOLES.get(gate, -1)
        if layer.has(place):
            peephole = layer.operands[place]
            factor = np.float32(2.0 ** (layer.cell_bits - 15) * float(peephole.scale) / float(layer.scale_of(gate)))
            product = steps.rescaled(steps.times(c, self._peephole(peephole.value)), factor)
            x = steps.saturated(steps.add(x, product), "int16")
        if layer.has(20 + gate):
            x = self._row(self._normalized(x, layer.operands[20 + gate], layer.operands[12 + gate].value))
        return steps.looked_up(x, self._tanh[3] if gate == _CELL else self._logistic)

    def _normalized(self, x: Any, gamma: _Operand, bias: npt.NDArray[Any]) -> Any:
        """Return rows less their mean, over their deviation, times gamma, and a bias (ApplyLayerNorm)."""
        steps, units = self.steps, self.layer.units
        x = steps.emit(ops.reshape(x, [self.layer.batch, units]))
        total, squares = (steps.emit(ops.sum(each, axis=[1], keepdims=True)) for each in (x, steps.times(x, x)))
        mean = steps.quotient(steps.times(total, steps.number(1024)), units)
        variance = steps.minus(steps.times(squares, steps.number((1 << 20) // units)), steps.times(mean, mean))
        variance = steps.quotient(variance, 1 << 20)
        least = max(1, int(np.float32(_MIN_VARIANCE) * gamma.scale))
        is_none = steps.emit(ops.less(variance, steps.number(1)))
        mantissa, shift = steps.inverse_root(steps.emit(ops.where(is_none, steps.number(least), variance)))
        distance = steps.minus(steps.times(x, steps.number(1024)), mean)
        scaled = steps.half_away(steps.high(distance, mantissa), shift)
        scaled = steps.add(steps.times(scaled, steps.number(gamma.value)), steps.number(bias))
        scaled = steps.quotient(steps.add(scaled, steps.times(steps.sign(scaled), steps.number(512))), 1024)
        return steps.saturated(steps.rescaled(scaled, float(gamma.scale) * 2.0**12), "int16")

    def _hidden(self, leaving: Any, c: Any) -> Any:
        layer, steps, emit = self.layer, self.steps, self.steps.emit
        hidden, state = layer.inner[4], layer.operands[18]
        factor = np.float32(2.0**-15 / float(hidden.scale) * 2.0**-15)
        value = steps.rescaled(steps.times(leaving, steps.looked_up(c, self._tanh[layer.cell_bits])), factor)
        # LiteRT's kernel takes the zero point of what a projection reads off, and adds it there: it saturates at the other end.
        zero_point = -hidden.zero_point if layer.has(16) else hidden.zero_point
        value = steps.saturated(steps.add(value, steps.number(zero_point)), "int8")
        value = emit(ops.astype(emit(ops.reshape(value, [layer.batch, layer.units])), "int8"))
        if not layer.has(16):
            return value
        weight = layer.operands[16]
        bias = layer.operands[17].value if layer.has(17) else None
        sums = steps.wide(self._product(value, zero_point, weight.value.T, bias))
        scaled = steps.rescaled(sums, weight.scale * hidden.scale / state.scale)
        value = steps.saturated(steps.add(scaled, steps.number(state.zero_point)), "int8")
        if layer.clips[1]:
            value = steps.clamped(value, -layer.clips[1], layer.clips[1])
        return emit(ops.astype(value, "int8"))
