"""What placement decides, as data: the integer ops with what runs in their kernels, and the float ops with reasons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from tvm.relax import Var

from ...ir.graph.constants import Constant
from ...ir.graph.dataflow import static_shape
from ...ir.graph.weighted import Bias, Weighted
from ...ir.identity import TensorId
from ...target import BATCH_MATMUL, GATHERED_MATMUL, RECURRENCE, STACKED_MATMUL, OpSupport
from ...target.op_facts import CLAMPS, PLACES
from ...target.vocabulary import MOVES
from ..plan import FloatOp, IntegerLayer
from ..recipe import Override

Declined = dict[Var, dict[str, str]]
"""By an op's variable why targets do not take it, by their names."""
_PRODUCTS = ("matmul", BATCH_MATMUL, STACKED_MATMUL, GATHERED_MATMUL)
_MOVES = (*MOVES, "nn.max_pool2d", "topk", "image.resize2d", "concat", *CLAMPS)


def reads_rows(support: OpSupport | None) -> bool:
    """Return whether an op can quantize its activations per row when run: a product of matrices whose target takes it so."""
    return support is not None and support.op in _PRODUCTS and support.per_row_input


def reads_samples(support: OpSupport | None) -> bool:
    """Return whether an op can quantize its activation per sample when run: a convolution whose target takes it so."""
    return support is not None and support.op == "nn.conv2d" and support.per_row_input


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Layer:
    """An integer op with what runs in the same kernel.

    Parameters
    ----------
    support
        What the target says of the op.
    core, output
        The variable of the op itself, and of the result after everything fused.
    inputs
        The activations it reads.
    members
        The variables of the kernel in order, `core` first and `output` last.
    fused
        "bias", "nn.relu", "clip", in order.
    leaves_float
        Whether its result is not quantized: only float ops read it, and an addition that takes it so.
    floats
        Those of `inputs` that it reads in float32, as products leave them.
    per_row
        Those of `inputs` that it reads in float32, and quantizes per row when run; the second of two per column.
    block
        How many of its inputs share a scale of its weight; 0: all. It reads them in float32, or per row, and leaves float32.
    leaves_copies
        Whether it is a product that leaves float32, of which other products read rounded copies.
    constants
        Operands of an op of several tensors that are constants of the model, which get parameters as activations do.
    order
        Where each operand of the op is in `inputs` and then `constants`; empty where they are in the op's order.
    taker
        Name of the target that it is for.
    """

    support: OpSupport
    core: Var
    output: Var
    inputs: tuple[Var, ...]
    members: tuple[Var, ...]
    fused: tuple[str, ...] = ()
    op: Weighted | None = None
    bias: Bias | None = None
    leaves_float: bool = False
    floats: tuple[Var, ...] = ()
    per_row: tuple[Var, ...] = ()
    block: int = 0
    leaves_copies: bool = False
    constants: tuple[Constant, ...] = ()
    order: tuple[int, ...] = ()
    taker: str = ""

    @property
    def takes_floats(self) -> bool:
        """Whether it can read float32 beside integers of any width: two tensors of the result's shape."""
        shapes = {static_shape(var) for var in (*self.inputs, self.output)}
        return self.support.float_input and not self.constants and len(self.inputs) == 2 and len(shapes) == 1

    @property
    def quantized_inputs(self) -> tuple[Var, ...]:
        """The activations that it reads in integers of static parameters."""
        return tuple(var for var in self.inputs if var not in self.float_inputs)

    @property
    def float_inputs(self) -> tuple[Var, ...]:
        """The activations that it reads in float32."""
        return (*self.floats, *self.per_row, *(self.inputs if self.reads_reals and not self.per_row else ()))

    @property
    def reads_reals(self) -> bool:
        """Whether it is a product of an activation that has no static parameters: its bias is added in float32."""
        return bool(self.per_row or self.block) or self.support.op == RECURRENCE

    @property
    def operands(self) -> tuple[Var | TensorId, ...]:
        """The tensors that it reads, in the order of the op: variables of activations, names of constants."""
        read: tuple[Var | TensorId, ...] = (*self.inputs, *(constant.name for constant in self.constants))
        return tuple(read[index] for index in self.order) if self.order else read

    @property
    def pulls(self) -> bool:
        """Whether it is worth quantizing its inputs for it alone: it reads each of their values many times."""
        return self.op is not None or self.support.op == BATCH_MATMUL

    @property
    def gives_places(self) -> bool:
        """Whether its result is no real numbers but where among its inputs something is: nothing rounds it."""
        return self.support.op in PLACES

    @property
    def gathering(self) -> tuple[Var, ...]:
        """The variables that gather its weights, where an index chooses them when run."""
        return () if self.op is None or self.op.choice is None else self.op.choice.members

    @property
    def moves(self) -> bool:
        """Whether it keeps scale and zero point and makes no value that its input does not span."""
        return self.support.same_params and self.passes_values

    @property
    def passes_values(self) -> bool:
        """Whether each value that it makes is one of its inputs', or between two of them."""
        return self.support.op in _MOVES

    @property
    def may_leave_float(self) -> bool:
        """Whether its sums can be left as float32 instead of being quantized: a product that the target can end so."""
        return self.pulls and self.support.float_output

    @property
    def name(self) -> TensorId:
        """The result's variable name."""
        return TensorId(self.output.name)

    @property
    def entry(self) -> IntegerLayer:
        """What a plan says of it; its bias, and the source's tensor that its result is, are the writer's to say."""
        return IntegerLayer(
            op=self.support.op,
            output=self.name,
            inputs=tuple(TensorId(var.name) for var in self.inputs),
            weight=None if self.op is None else self.op.weight.name,
            fused=self.fused,
            constants=tuple(constant.name for constant in self.constants),
            target=self.taker,
            per_row=tuple(TensorId(var.name) for var in self.per_row),
            block=self.block,
            leaves_copies=self.leaves_copies,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Placement:
    """The integer ops, in the order of the graph, and the ops left float, with reasons; what overrides say of activations."""

    layers: tuple[Layer, ...]
    float_ops: tuple[FloatOp, ...]
    overridden: Mapping[Var, Override]

    @cached_property
    def made(self) -> frozenset[Var]:
        """The variables that integer ops leave: their consumers read them dequantized."""
        return frozenset(layer.output for layer in self.layers if not layer.leaves_float)

    @cached_property
    def quantized(self) -> frozenset[Var]:
        """Every variable that gets a Q: `made`, and what integer ops read of float ops and inputs."""
        return self.made.union(var for layer in self.layers for var in layer.quantized_inputs)
