"""The error of quantization layer by layer, on the source model's own names, and where it comes from.

A quantized tensor differs from the float one by what its block adds (its weights' rounding and the tensor's own) and by what it
inherits. To tell these apart each block is also computed from the float model's values of what it reads; and within a block of
several layers of the source, each layer by itself, so that the block's error can be split over them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ...compiler.target_choice import TargetLike
from ...errors import QuantizationError
from ...ir.graph import Model
from ...ir.graph.dataflow import DataflowView, static_shape
from ...ir.graph.inputs import input_specs
from ...ir.graph.model import checked_model
from ...ir.graph.products import channel_axis
from ...ir.identity import TensorId
from ...numerics import QuantParams, dequantize, quantize
from ...numerics.arrays import Array
from ...numerics.statistics.metrics import ratio_db
from ...quantizer.plan.plan import QuantizedModel
from ...quantizer.programs import Programs
from ...quantizer.sample_threads import in_order
from ...runtime.inputs import split_batch
from ...runtime.size import is_open
from .blocks import Blocks
from .modules import BuiltModules
from .simulation import Simulation

_UNFIT_DB = 4.0


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerError:
    """The error of one quantized tensor.

    Parameters
    ----------
    id, source_name, op
        The tensor, and the source's op that makes it ("" for an input).
    sqnr_db
        Of the tensor against the float model's, in dB over all samples. A quantized tensor is dequantized; one within a block
        is computed in float from the quantized tensors that the block reads, with the block's own weights.
    local_sqnr_db
        The same where the block reads the float model's values: the error that arises within the block up to this tensor.
    scale_excess_db
        By how much the block's own error would fall if the scale fitted the values seen: near 0 for a good scale, about 12 dB
        for one four times too large whose rounding is most of the error. 0 where the scale is finer than the values need, and
        within a block.
    inherited
        Share of the error's power that was there before the block, in [0; 1].
    block
        The quantized tensor at the end of the block that the tensor is computed in: its own id where it is quantized itself.
    block_share
        This layer's share of the block's own error, in [0; 1]; the shares of a block add up to 1. With E(t) the power of the
        error of the block's result where the layer that makes t is computed with its quantized weights, on the float model's
        values, and all other layers as the float model has them, it is E(t) over the sum of E of the block's tensors. The
        block's last layer counts the rounding to the block's scale as its own.
    channel_errors
        Of each channel the error's root mean square over that of the whole float tensor; () of a tensor without channels.
    """

    id: TensorId
    source_name: str
    op: str
    sqnr_db: float
    local_sqnr_db: float
    scale_excess_db: float
    inherited: float
    block: TensorId
    block_share: float
    channel_errors: tuple[float, ...] = field(default=(), repr=False)

    @property
    def is_inner(self) -> bool:
        """Whether the tensor is computed within a block and never quantized itself."""
        return self.block != self.id

    @property
    def has_unfit_scale(self) -> bool:
        """Whether the tensor's own scale is at fault: one that fits would take 4 dB or more off the op's own error."""
        return self.scale_excess_db >= _UNFIT_DB

    @property
    def is_origin(self) -> bool:
        """Whether the error to look at arises here: most of it, or for a scale that does not fit."""
        return self.has_unfit_scale or self.inherited < 0.5


def layer_errors(model: Model, quantized: Model, batches: Iterable[Any], *, target: TargetLike = None) -> tuple[LayerError, ...]:
    """Compare every quantized tensor with the float one, what deserves a look first.

    Parameters
    ----------
    model
        The float model.
    quantized
        What `octavo.quantize` made of it.
    batches
        Arrays or {input name: array}; first dimensions may be multiples of the model's.
    target
        Who computes the quantized model, as `octavo.compile` takes it: of a Backend its own code, each op in a call of its own,
        so that every tensor that it reads or gives is compared. What arises within a block is of Octavo's kernels for any target.
        Without it what `quantize` returned is simulated, as its referee does.

    Returns
    -------
    tuple
        One LayerError for each tensor that both models have: those whose scale does not fit, worst first; then the others, the
        block with the worst `local_sqnr_db` of its result first, and within it the layer with the largest `block_share`.

    Raises
    ------
    QuantizationError
        If `quantized` has no quantized tensor of the model.
    DataError
        A batch that does not fit the model.
    """
    checked_model(model)
    every = enumerate([batches] if isinstance(batches, (np.ndarray, Mapping)) else batches)
    samples = (arrays for index, batch in every for arrays in split_batch(input_specs(model), batch, where=f"batch {index}"))
    return errors_on(model, checked_model(quantized), samples, target=target)


def errors_on(
    model: Model,
    quantized: Model,
    samples: Iterable[Sequence[Array]],
    *,
    target: TargetLike = None,
    programs: Programs | None = None,
) -> tuple[LayerError, ...]:
    """Return what `layer_errors` does, on samples of the model.

    Parameters
    ----------
    programs
        Of the float model, where some are known.
    """
    runs = _runs(model, quantized, target, programs)
    if not runs.blocks.quantized:
        raise QuantizationError("no tensor of the model is quantized; give the float model and what octavo.quantize made of it")
    totals = _Totals.of(runs.blocks, runs.view)
    for arrays in samples:
        totals.add(*runs.run(arrays), runs.params)
    return totals.rows(model, runs.params)


def _runs(model: Model, quantized: Model, target: TargetLike, programs: Programs | None) -> Simulation | BuiltModules:
    """Return what runs the model: simulated where Octavo's kernels compute it as `quantize` made it, else built."""
    if isinstance(quantized, QuantizedModel) and target is None:
        with suppress(NotImplementedError):
            return Simulation(model, quantized, programs)
    return BuiltModules(model, quantized, target)


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
    channel_axis: int | None = None
    by_channel: npt.NDArray[np.float64] | None = None

    def add(self, real: Array, local: Array, quantized: Array, params: QuantParams | None) -> None:
        """Add one sample; a tensor within a block has no parameters."""
        self.signal += float(_powers(real))
        powers = _powers_of_error(real, quantized, self.channel_axis)
        self.noise += float(powers.sum())
        if self.channel_axis is not None:
            self.by_channel = powers if self.by_channel is None else self.by_channel + powers
        self.local += float(_powers_of_error(real, local))
        if params is not None:
            self.rounding += float(_powers_of_error(real, dequantize(quantize(real, params), params)))
            self.low, self.high = min(self.low, float(real.min())), max(self.high, float(real.max()))
            self.count += real.size

    def channel_errors(self) -> tuple[float, ...]:
        """Return the root mean square error of each channel over that of the signal."""
        if self.by_channel is None or not self.signal:
            return ()
        return tuple(float(each) for each in np.sqrt(self.by_channel * self.by_channel.size / self.signal))

    def scale_excess_db(self, params: QuantParams) -> float:
        """Return what a scale over the range seen would win, its rounding error taken as uniform (scale^2 / 12)."""
        scale = (self.high - self.low) / (params.qmax - params.qmin)
        fitting = self.count * scale**2 / 12
        if self.rounding <= fitting or not self.local or not fitting:
            return 0.0
        return max(0.0, 10 * math.log10(self.local / max(self.local - self.rounding + fitting, fitting)))


def _powers(values: Array, axis: int | None = None) -> npt.NDArray[np.float64]:
    """Return the sum of squares, or those of each channel, without a copy of the values in float64."""
    if axis is None:
        flat = values.ravel()
        return np.einsum("i,i->", flat, flat, dtype=np.float64)
    rows = np.moveaxis(values, axis, -1).reshape(-1, values.shape[axis])
    return np.einsum("ij,ij->j", rows, rows, dtype=np.float64)


def _powers_of_error(reference: Array, value: Array, axis: int | None = None) -> npt.NDArray[np.float64]:
    """Return those of what two differ by: nothing where they are equal, as infinities of a mask are."""
    with np.errstate(invalid="ignore", over="ignore"):
        errors = np.subtract(reference, value)  # of what is nearly the same it is exact in float32, too
        powers = _powers(errors, axis)
        if not math.isnan(powers.sum()):
            return powers
        errors[reference == value] = 0
        return _powers(errors, axis)


@dataclass(slots=True, kw_only=True)
class _Totals:
    """The sums of all tensors, and what each layer of a block does to the block's result.

    Parameters
    ----------
    shares
        (block, tensor) -> power of the error of the block's result that the tensor's layer makes alone.
    """

    blocks: Blocks
    sums: dict[TensorId, _Sums]
    shares: dict[tuple[TensorId, TensorId], float] = field(default_factory=dict[tuple[TensorId, TensorId], float])

    @classmethod
    def of(cls, blocks: Blocks, floats: DataflowView) -> _Totals:
        """Start."""
        shapes = {var.name: static_shape(var) or () for var in (*floats.function.params, *(each.var for each in floats.bindings))}
        axes: dict[TensorId, int | None] = {}
        for tensor in (*blocks.quantized, *blocks.inner):
            shape = shapes.get(tensor, ())
            axis = channel_axis(floats, len(shape))
            # Of another number in each sample they are no channels.
            axes[tensor] = None if axis is None or is_open(shape[axis]) else axis
        return cls(blocks=blocks, sums={tensor: _Sums(channel_axis=axis) for tensor, axis in axes.items()})

    def add(self, values: Sequence[Array], isolated: Sequence[Array], params: Mapping[TensorId, QuantParams]) -> None:
        """Add one sample: what `quantized_outputs` and `inner_outputs` returned, and what `isolated_blocks` did."""
        count = len(self.sums)
        real = dict(zip(self.sums, isolated[:count], strict=True))
        each = [*zip(self.sums, isolated[count : 2 * count], values, strict=True)]
        in_order(lambda one: self.sums[one[0]].add(real[one[0]], one[1], one[2], params.get(one[0])), each)
        pairs = [(block, tensor) for block, members in self.blocks.members.items() for tensor in (block, *members)]
        powers = in_order(
            lambda one: float(_powers_of_error(real[one[0][0]], one[1])), [*zip(pairs, isolated[2 * count :], strict=True)]
        )
        for pair, power in zip(pairs, powers, strict=True):
            self.shares[pair] = self.shares.get(pair, 0.0) + power

    def rows(self, model: Model, params: Mapping[TensorId, QuantParams]) -> tuple[LayerError, ...]:
        """Return the rows, what deserves a look first."""
        rows = [self._row(model, tensor, params) for tensor in self.sums]
        local = {row.id: row.local_sqnr_db for row in rows}
        order = {tensor: index for index, tensor in enumerate(self.blocks.quantized)}

        def key(row: LayerError) -> tuple[float, ...]:
            return (-row.scale_excess_db if row.has_unfit_scale else 0.0, local[row.block], order[row.block], -row.block_share)

        return tuple(sorted(rows, key=key))

    def _row(self, model: Model, tensor: TensorId, params: Mapping[TensorId, QuantParams]) -> LayerError:
        entry, sums = model.tensors[tensor], self.sums[tensor]
        block, share = self._share(tensor)
        return LayerError(
            id=tensor,
            source_name=entry.source_name,
            op=entry.op,
            sqnr_db=ratio_db(sums.signal, sums.noise),
            local_sqnr_db=ratio_db(sums.signal, sums.local),
            scale_excess_db=sums.scale_excess_db(params[tensor]) if tensor in params else 0.0,
            inherited=max(0.0, 1.0 - sums.local / sums.noise) if sums.noise else 0.0,
            block=block,
            block_share=share,
            channel_errors=sums.channel_errors(),
        )

    def _share(self, tensor: TensorId) -> tuple[TensorId, float]:
        """Return the block of a tensor, and its share there; of several blocks that of the largest share."""
        if tensor in self.blocks.quantized and tensor not in self.blocks.members:
            return tensor, 1.0
        found: list[tuple[TensorId, float]] = []
        for block, members in self.blocks.members.items():
            if tensor == block or tensor in members:
                total = sum(self.shares[block, each] for each in (block, *members))
                found.append((block, self.shares[block, tensor] / total if total else 0.0))
        own = [each for each in found if each[0] == tensor]
        return max(own or found, key=lambda each: each[1])
