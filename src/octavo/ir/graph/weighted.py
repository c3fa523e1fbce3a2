"""Reading convolutions and matmul: where their weights, channels and biases lie. Decides and rewrites nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tvm import relax
from tvm.relax import Expr, Var

from ..identity import TensorId
from .constants import Constant, Constants
from .dataflow import DataflowView, call_to, operand_vars, static_shape
from .recurrence import read_recurrence

TRANSPOSED = "nn.conv2d_transpose"
CONVOLUTIONS = ("nn.conv2d", TRANSPOSED)
WEIGHTED = (*CONVOLUTIONS, "matmul")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Choice:
    """Weights that an index chooses when run: the variable of its values, and those that gather and transpose the weights."""

    indices: Var
    members: tuple[Var, ...]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Weighted:
    """An op with a constant weight.

    Parameters
    ----------
    call
        The conv2d, conv2d_transpose or matmul.
    weight
        Its constant operand.
    weight_axis
        Axis of the output channels in the weight's parameter; of those of one group in a grouped transposed convolution's.
    output_axis
        Axis of the channels in the op's result.
    channels
        Number of output channels, of all weights that it has.
    choice
        Which of several weights each matrix is multiplied by, where that is known when run only.
    """

    call: Any
    weight: Constant
    weight_axis: int
    output_axis: int
    channels: int
    choice: Choice | None = None

    @property
    def has_channels(self) -> bool:
        """Whether each output channel has its own weights along `weight_axis`."""
        shape = static_shape(self.weight.root)
        return shape is not None and shape[self.weight_axis] == self.channels


def weighted(constants: Constants, call: Any) -> Weighted | str:
    """Return how a convolution or matmul uses its weight, or why it can't be read."""
    weight = constants.find(call.args[1])
    if weight is None:
        return f"its weight {_name(call.args[1])} is not a constant of the model"
    if constants.is_constant(call.args[0]):
        return "its data operand is a constant"
    shape = static_shape(call)
    if shape is None:
        return "its result has a symbolic shape"
    if call_to(call, "matmul") is not None:
        if len(weight.shape) != 2:
            return f"its weight has {len(weight.shape)} dimensions, expected 2"
        axis, output_axis = 1, len(shape) - 1
        if len(shape) < 2:
            return f"its result has {len(shape)} dimensions, expected at least 2"
    else:
        kernel_layout, layout = str(call.attrs.kernel_layout), str(call.attrs.out_layout or call.attrs.data_layout)
        if sorted(kernel_layout) != sorted("OIHW") or layout not in ("NCHW", "NHWC"):
            return f"its layouts are {layout} and {kernel_layout}, expected NCHW or NHWC and an order of OIHW"
        axis, output_axis = kernel_layout.index("O"), layout.index("C")
        if call_to(call, TRANSPOSED) is not None and int(call.attrs.groups) > 1:
            # Its weight holds the outputs of one group: where that is one, each input has its output.
            inputs = kernel_layout.index("I")
            axis = inputs if weight.shape[axis] == 1 and weight.shape[inputs] == int(call.attrs.groups) else axis
    root_axis = weight.root_axis(axis)
    if root_axis is None:
        return f"its weight {weight.name} is reshaped across output channels"
    return Weighted(call=call, weight=weight, weight_axis=root_axis, output_axis=output_axis, channels=shape[output_axis])


def stacked(constants: Constants, call: Any) -> Weighted | None:
    """Return how a product of a batch of matrices uses constant weights of which each has its own; None of anything else.

    They are a parameter [experts * out, in], reshaped and transposed, as `simplify` writes them: its rows are the channels.
    """
    product = call_to(call, "matmul")
    weight = None if product is None else constants.find(product.args[1])
    if product is None or weight is None or constants.is_constant(product.args[0]):
        return None
    x, shape, axes = static_shape(product.args[0]), static_shape(product), swapped_matrices(len(weight.shape))
    stack = None if x is None else stack_of(x, weight.shape)
    is_plain = [call_to(move, name) is not None for move, name in zip(weight.calls, ("reshape", "permute_dims"), strict=False)]
    if stack is None or shape is None or len(weight.calls) != len(is_plain) or is_plain != [True, True]:
        return None
    rows = stack * weight.shape[-1]
    if weight.root_shape != (rows, weight.shape[-2]) or [*map(int, weight.calls[1].attrs.axes or ())] != axes:
        return None
    return Weighted(call=call, weight=weight, weight_axis=0, output_axis=len(shape) - 1, channels=rows)


def recurrent(constants: Constants, call: Any) -> Weighted | str:
    """Return how a recurrence over steps uses the weights that its hidden state meets, or why they can't be read."""
    _, operands = read_recurrence(call)
    weight, shape = constants.find(operands["weights"]), static_shape(call)
    if weight is None:
        return f"its weight {_name(operands['weights'])} is not a constant of the model"
    axis = weight.root_axis(1)
    if axis is None or shape is None:
        return f"its weight {weight.name} is reshaped across output channels"
    return Weighted(call=call, weight=weight, weight_axis=axis, output_axis=len(shape) - 1, channels=weight.shape[1])


def gathered(view: DataflowView, constants: Constants, call: Any) -> Weighted | None:
    """Return how a product uses those constant weights of several that an index chooses when run; None of anything else.

    They are a parameter [experts * out, in], reshaped, gathered along the experts and transposed, as `simplify` writes them.
    """
    product = call_to(call, "matmul")
    found = None if product is None else read_gathered(view, product.args[1])
    weight = None if found is None else constants.find(found.weights)
    shape = None if product is None else static_shape(product)
    if found is None or weight is None or shape is None or len(weight.shape) != 3:
        return None
    experts, outputs, inputs = weight.shape
    if [call_to(move, "reshape") is None for move in weight.calls] != [False] or weight.root_shape != (experts * outputs, inputs):
        return None
    last, channels = len(shape) - 1, experts * outputs
    return Weighted(call=call, weight=weight, weight_axis=0, output_axis=last, channels=channels, choice=found.choice)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Gathered:
    """The weights [experts, out, in] that an operand of a product is gathered of, and how."""

    weights: Expr
    choice: Choice


def read_gathered(view: DataflowView, operand: Expr) -> Gathered | None:
    """Return what `operand` is gathered of where it is permute_dims(take(weights, indices, axis=0)), matrices transposed.

    Reshapes between them that leave matrices as they are are passed over: several indices may be one, or lie along other axes.
    """
    members, expr = list[Var](), operand
    for wanted in ("permute_dims", "take"):
        while (call := call_to(view.definition(expr), wanted, "reshape")) is not None:
            var, is_wanted = view.binding_of(expr), call_to(call, wanted) is not None
            shapes = [(static_shape(each) or ())[-2:] for each in (call, call.args[0])]
            if var is None or not (is_wanted or shapes[0] == shapes[1]):
                return None
            members.append(var)
            if is_wanted:
                break
            expr = call.args[0]
        if call is None:
            return None
        if wanted == "permute_dims" and [*map(int, call.attrs.axes or ())] != swapped_matrices(len(static_shape(call) or ())):
            return None
        expr = call.args[0]
        if wanted == "take" and call.attrs.axis is not None and int(call.attrs.axis) == 0 and isinstance(call.args[1], Var):
            choice = Choice(indices=view.root_of(call.args[1]), members=tuple(members[::-1]))
            return Gathered(weights=expr, choice=choice)
    return None


def stack_of(x: tuple[int, ...], weight: tuple[int, ...]) -> int | None:
    """Return how many matrices weights [..., in, out] are that end the batch of x, each for its own; None where they do not."""
    batch = weight[:-2]
    while batch[:1] == (1,):
        batch = batch[1:]
    ends = len(x) > 2 and len(batch) > 0 and x[:-2][-len(batch) :] == batch
    return math.prod(batch) if ends and len(x) >= len(weight) else None


def swapped_matrices(rank: int) -> list[int]:
    """Return the axes of a permutation that transposes matrices."""
    return [*range(rank - 2), rank - 1, rank - 2]


def weighted_ops(view: DataflowView, constants: Constants) -> Iterator[tuple[Var, Weighted]]:
    """Yield each convolution or matmul whose weight can be read, with its variable, in the order of the graph."""
    for binding in view.bindings:
        call = call_to(binding.value, *WEIGHTED)
        if call is not None and isinstance(found := weighted(constants, call), Weighted):
            yield binding.var, found


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Bias:
    """A constant added to each output channel: the constant as read, and the channel axis in its parameter."""

    constant: Constant
    axis: int


def bias_operand(view: DataflowView, constants: Constants, value: Expr, data: Var, op: Weighted) -> Bias | None:
    """Return the bias if `value` adds one number per output channel of `op` to `data`, else None."""
    call = call_to(value, "add")
    if call is None:
        return None
    others = [arg for arg in call.args if not view_equal(view, arg, data)]
    if len(others) != 1:
        return None
    constant = constants.find(others[0])
    shape = static_shape(data)
    if constant is None or shape is None or len(constant.shape) > len(shape):
        return None
    axis = op.output_axis - (len(shape) - len(constant.shape))
    if axis < 0 or constant.size != op.channels or constant.shape[axis] != op.channels:
        return None
    root_axis = constant.root_axis(axis)
    return None if root_axis is None else Bias(constant=constant, axis=root_axis)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class BiasedProduct:
    """The product with weights behind a layer's output, and the constant that its kernel adds to it; None: it adds none."""

    product: Var
    bias: TensorId | None


def biased_product(view: DataflowView, constants: Constants, output: Var) -> BiasedProduct:
    """Return the product whose result, with what follows in its kernel, is an output."""
    var, bias = output, None
    while call_to(value := view.definition(var), *WEIGHTED) is None:
        read = {each: constants.find(each) for each in operand_vars(value)}
        constant = next((each for each in read.values() if each is not None), None)
        if constant is not None and call_to(value, "add") is not None:
            bias = constant.name
        var = next(each for each, found in read.items() if found is None)
    return BiasedProduct(product=var, bias=bias)


def view_equal(view: DataflowView, first: Expr, second: Expr) -> bool:
    """Return whether two expressions name the same value, through renames."""
    return isinstance(first, Var) and isinstance(second, Var) and view.root_of(first).same_as(view.root_of(second))


def with_operands(call: Any, *operands: Expr) -> Any:
    """Return a call as it is, of other operands."""
    return relax.Call(call.op, list(operands), call.attrs, call.ty_args)


def conv2d_attrs(call: Any) -> dict[str, Any]:
    """Return the attributes of a conv2d as keyword arguments of relax.op.nn.conv2d."""
    attrs = call.attrs
    return {
        "strides": [int(value) for value in attrs.strides],
        "padding": [int(value) for value in attrs.padding],
        "dilation": [int(value) for value in attrs.dilation],
        "groups": int(attrs.groups),
        "data_layout": str(attrs.data_layout),
        "kernel_layout": str(attrs.kernel_layout),
        "out_layout": str(attrs.out_layout),
        "out_dtype": None if not attrs.out_dtype else str(attrs.out_dtype),
    }


def _name(expr: Expr) -> str:
    return expr.name if isinstance(expr, Var) else "(literal)"
