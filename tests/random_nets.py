"""Random small networks of the ops that quantization meets, in the form that a frontend gives."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tvm import relax
from tvm.relax import Expr, Var

from nets import model_of
from octavo.ir.graph import Model
from octavo.ir.graph.dataflow import BodyWriter, static_shape
from octavo.ir.identity import NameSupply

_UNARY = ("sigmoid", "tanh", "exp", "abs", "negative")
_PAIRS = ("add", "subtract", "multiply", "maximum", "minimum", "divide")
_KINDS = (
    *(
        "conv",
        "conv",
        "conv",
        "unary",
        "pair",
        "constant",
        "relu",
        "clip",
        "max_pool",
        "avg_pool",
        "concat",
        "reshape",
        "transpose",
    ),
    *("softmax", "mean", "norm", "matmul", "resize", "flip", "pad", "max", "prelu", "dense", "batch_norm"),
)
_BINARY = ("pair", "concat", "mean", "matmul")


def random_net(seed: int, *, length: int = 12) -> Model:
    """Return a network of `length` ops, each of earlier tensors that are drawn; what nobody reads is an output."""
    rng = np.random.default_rng(seed)
    channels, size = int(rng.choice([3, 4, 8])), int(rng.choice([4, 6]))
    kinds = [str(kind) for kind in rng.choice(_KINDS, length)]
    # An op reads one of the last tensors, and maybe another one.
    reads = [[int(rng.integers(max(0, number - 3), number + 1)) for _ in range(2)] for number in range(length)]
    shapes: dict[str, tuple[int, ...]] = {"w0": (channels, channels, 1, 1), "w1": (channels, channels, 3, 3)}
    shapes |= {
        "k": (1, channels, 1, 1),
        "slope": (channels,),
        "variance": (channels,),
        "gamma": (size,),
        "beta": (size,),
        "dense": (size, size),
    }
    params = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    params["variance"] = np.abs(params["variance"]) + 1
    used = {index for number in range(length) for index in reads[number][: 2 if kinds[number] in _BINARY else 1]}
    outputs = tuple(f"t{number}" for number in range(1, length + 1) if number not in used)

    def body(writer: BodyWriter, x: Var, **constants: Var) -> Expr:
        made, names = [x], NameSupply(())
        for number, kind in enumerate(kinds):
            first, second = (made[index] for index in reads[number])
            value = _op(kind, rng, first, second, constants, lambda part: writer.emit(names.fresh("_part"), part))
            made.append(writer.emit(f"t{number + 1}", value, is_output=f"t{number + 1}" in outputs))
        leaves = [var for var in made if var.name in outputs]
        return relax.Tuple(leaves) if len(leaves) > 1 else leaves[0]

    return model_of({"x": ((1, channels, size, size), "float32")}, params, body, outputs)


def _op(
    kind: str, rng: np.random.Generator, data: Var, other: Var, constants: dict[str, Var], emit: Callable[[Expr], Var]
) -> Expr:
    """Return an op of `kind`, whose result has the shape of its operands."""
    op = relax.op
    _, channels, size, _ = static_shape(data) or ()
    kernel = int(rng.integers(2))
    kinds: dict[str, Callable[[], Expr]] = {
        "conv": lambda: op.nn.conv2d(data, constants[f"w{kernel}"], padding=kernel),
        "unary": lambda: getattr(op, str(rng.choice(_UNARY)))(data),
        "pair": lambda: getattr(op, str(rng.choice(_PAIRS)))(data, other),
        "constant": lambda: getattr(op, str(rng.choice(_PAIRS[:3])))(data, constants["k"]),
        "relu": lambda: op.nn.relu(data),
        "clip": lambda: op.clip(data, 0.0, 6.0),
        "prelu": lambda: op.nn.prelu(data, constants["slope"], axis=1),
        "batch_norm": lambda: relax.TupleGetItem(
            emit(op.nn.batch_norm(data, *(constants[name] for name in ("slope", "slope", "slope", "variance")), axis=1)), 0
        ),
        "dense": lambda: op.matmul(data, constants["dense"]),
        "max_pool": lambda: op.nn.max_pool2d(data, (3, 3), padding=(1, 1)),
        "avg_pool": lambda: op.nn.avg_pool2d(data, (3, 3), padding=(1, 1), count_include_pad=bool(rng.integers(2))),
        "concat": lambda: op.strided_slice(emit(op.concat([data, other], axis=1)), [1], [0], [channels]),
        "reshape": lambda: op.reshape(emit(op.reshape(data, (1, channels, size * size))), (1, channels, size, size)),
        "transpose": lambda: op.permute_dims(data, [0, 1, 3, 2]),
        "softmax": lambda: op.nn.softmax(data, axis=int(rng.choice([1, -1]))),
        "mean": lambda: op.multiply(data, emit(op.mean(other, axis=[2, 3], keepdims=True))),
        "norm": lambda: op.nn.layer_norm(data, constants["gamma"], constants["beta"], axes=[-1]),
        "matmul": lambda: op.matmul(data, other),
        "resize": lambda: op.image.resize2d(data, (size, size), method=str(rng.choice(["linear", "nearest_neighbor", "cubic"]))),
        "flip": lambda: op.flip(data, axis=1),
        "pad": lambda: op.strided_slice(emit(op.nn.pad(data, [0, 0, 0, 0, 1, 0, 0, 0])), [2], [0], [size]),
        "max": lambda: op.subtract(data, emit(op.max(data, axis=[1], keepdims=True))),
    }
    return kinds[kind]()
