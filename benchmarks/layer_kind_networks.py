"""The kinds of layers that `layer_kinds.py` times, each as nodes of ONNX's text form from x to output.

A constant that is a shape is drawn by the reader; one that is an array is taken as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

Constants = dict[str, "tuple[int, ...] | np.ndarray"]

IMAGE, TOKENS, SERIES, VOLUME = (1, 64, 28, 28), (1, 64, 256), (1, 64, 512), (1, 16, 8, 28, 28)


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """One kind of layer.

    Parameters
    ----------
    nodes
        Nodes that make `output` of `x`.
    shape
        Of the input.
    stem
        Whether x is the input behind a depthwise 1x1 convolution, and another one follows; else x is the input itself.
    constants
        What else the nodes read.
    """

    nodes: str
    shape: tuple[int, ...] = IMAGE
    stem: bool = True
    constants: Constants = field(default_factory=dict)


def _ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def _floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def _conv(
    shape: tuple[int, ...], channels: int, kernel: tuple[int, ...], stride: int = 1, groups: int = 1, dilation: int = 1
) -> Kind:
    """Return a convolution that keeps the size but for its stride."""
    rank = len(kernel)
    pads = [dilation * (size - 1) // 2 for size in kernel]
    sizes = f"kernel_shape={[*kernel]}, pads={[*pads, *pads]}"
    steps = f"strides={[stride] * rank}, dilations={[dilation] * rank}, group={groups}"
    constants: Constants = {"w": (channels, shape[1] // groups, *kernel), "b": (channels,)}
    return Kind(nodes=f"output = Conv<{sizes}, {steps}>(x, w, b)", shape=shape, stem=False, constants=constants)


def _transposed(shape: tuple[int, ...], channels: int, kernel: int, stride: int, groups: int = 1) -> Kind:
    """Return a transposed convolution that multiplies sizes by its stride."""
    rank = len(shape) - 2
    pad, more = divmod(kernel - stride, 2)
    sizes = f"kernel_shape={[kernel] * rank}, strides={[stride] * rank}"
    pads = f"pads={[pad + more] * rank + [pad] * rank}, group={groups}"
    weight = (shape[1], channels // groups, *(kernel,) * rank)
    constants: Constants = {"w": weight, "b": (channels,)}
    return Kind(nodes=f"output = ConvTranspose<{sizes}, {pads}>(x, w, b)", shape=shape, stem=False, constants=constants)


def _pool(op: str, shape: tuple[int, ...], kernel: int, stride: int, pad: int = 0) -> Kind:
    rank = len(shape) - 2
    attributes = f"kernel_shape={[kernel] * rank}, strides={[stride] * rank}, pads={[pad] * 2 * rank}"
    return Kind(nodes=f"output = {op}<{attributes}>(x)", shape=shape)


def _of(nodes: str, shape: tuple[int, ...] = IMAGE, *, stem: bool = True, **constants: tuple[int, ...] | np.ndarray) -> Kind:
    return Kind(nodes=nodes, shape=shape, stem=stem, constants=constants)


def _function(op: str, shape: tuple[int, ...] = IMAGE, **constants: tuple[int, ...] | np.ndarray) -> Kind:
    """Return an op of x and what it is given beside."""
    return _of(f"output = {op}({', '.join(('x', *constants))})", shape, **constants)


CONVOLUTIONS = {
    "conv 1-d": _conv(SERIES, 64, (5,)),
    "conv 1-d dilated": _conv(SERIES, 64, (3,), dilation=4),
    "conv 1-d depthwise": _conv(SERIES, 64, (7,), groups=64),
    "conv 1x1": _conv(IMAGE, 64, (1, 1)),
    "conv 3x3": _conv(IMAGE, 64, (3, 3)),
    "conv 3x3, stride 2": _conv(IMAGE, 64, (3, 3), 2),
    "conv 7x7 of 3 channels": _conv((1, 3, 112, 112), 32, (7, 7), 2),
    "conv 1x7": _conv(IMAGE, 64, (1, 7)),
    "conv dilated": _conv(IMAGE, 64, (3, 3), dilation=2),
    "conv of 4 groups": _conv(IMAGE, 64, (3, 3), groups=4),
    "conv depthwise": _conv(IMAGE, 64, (3, 3), groups=64),
    "conv depthwise 5x5, stride 2": _conv(IMAGE, 64, (5, 5), 2, groups=64),
    "conv depthwise 7x7": _conv(IMAGE, 64, (7, 7), groups=64),
    "conv depthwise, multiplied": _conv(IMAGE, 128, (3, 3), groups=64),
    "conv depthwise dilated": _conv(IMAGE, 64, (3, 3), groups=64, dilation=2),
    "conv volume": _conv(VOLUME, 16, (3, 3, 3)),
    "conv volume, stride 2": _conv(VOLUME, 32, (3, 3, 3), 2),
    "conv volume 1x1x1": _conv(VOLUME, 32, (1, 1, 1)),
    "conv volume 1x3x3": _conv(VOLUME, 16, (1, 3, 3)),
    "conv volume 3x1x1": _conv(VOLUME, 16, (3, 1, 1)),
    "conv volume depthwise": _conv(VOLUME, 16, (3, 3, 3), groups=16),
    "conv volume (2+1)d, residual": _of(
        "a = Conv<kernel_shape=[1,3,3], pads=[0,1,1,0,1,1]>(x, w1) b = Relu(a) "
        "c = Conv<kernel_shape=[3,1,1], pads=[1,0,0,1,0,0]>(b, w2) d = Add(c, x) output = Relu(d)",
        VOLUME,
        w1=(16, 16, 1, 3, 3),
        w2=(16, 16, 3, 1, 1),
        stem=False,
    ),
    "conv transposed 1-d": _transposed(SERIES, 64, 4, 2),
    "conv transposed 2x2": _transposed(IMAGE, 32, 2, 2),
    "conv transposed 3x3": _transposed(IMAGE, 32, 3, 2),
    "conv transposed 4x4": _transposed(IMAGE, 32, 4, 2),
    "conv transposed depthwise": _transposed(IMAGE, 64, 4, 2, groups=64),
    "conv transposed volume 2x2x2": _transposed(VOLUME, 16, 2, 2),
    "conv transposed volume 4x4x4": _transposed(VOLUME, 8, 4, 2),
}

POOLS = {
    "pool max 2x2": _pool("MaxPool", IMAGE, 2, 2),
    "pool max 3x3": _pool("MaxPool", IMAGE, 3, 2, 1),
    "pool max 5x5, stride 1": _pool("MaxPool", IMAGE, 5, 1, 2),
    "pool average 2x2": _pool("AveragePool", IMAGE, 2, 2),
    "pool average 3x3, stride 1": _pool("AveragePool", IMAGE, 3, 1, 1),
    "pool max 1-d": _pool("MaxPool", SERIES, 3, 2, 1),
    "pool average 1-d": _pool("AveragePool", SERIES, 2, 2),
    "pool max volume": _pool("MaxPool", VOLUME, 2, 2),
    "pool average volume": _pool("AveragePool", VOLUME, 2, 2),
    "pool l2": _pool("LpPool", IMAGE, 2, 2),
    "pool average global": _function("GlobalAveragePool"),
    "pool max global": _function("GlobalMaxPool"),
    "pool average global volume": _function("GlobalAveragePool", VOLUME),
}

NORMS = {
    "norm batch": _function("BatchNormalization", s=(64,), b=(64,), m=(64,), v=np.linspace(0.5, 2, 64, dtype=np.float32)),
    "norm instance": _function("InstanceNormalization", s=np.linspace(0.5, 2, 64, dtype=np.float32), b=(64,)),
    "norm group": _of(
        "g = Reshape(x, split) n = InstanceNormalization(g, one, zero) r = Reshape(n, whole) m = Mul(r, s) output = Add(m, b)",
        split=_ints(1, 8, -1),
        one=np.ones(8, np.float32),
        zero=np.zeros(8, np.float32),
        whole=_ints(1, 64, 28, 28),
        s=np.linspace(0.5, 2, 64, dtype=np.float32).reshape(64, 1, 1),
        b=np.zeros((64, 1, 1), np.float32),
    ),
    "norm layer": _function("LayerNormalization", TOKENS, s=np.linspace(0.5, 2, 256, dtype=np.float32), b=(256,)),
    "norm rms": _of(
        "q = Mul(x, x) m = ReduceMean<keepdims=1>(q, last) e = Add(m, tiny) r = Sqrt(e) d = Div(x, r) output = Mul(d, s)",
        TOKENS,
        last=_ints(-1),
        tiny=_floats(1e-5),
        s=np.linspace(0.5, 2, 256, dtype=np.float32),
    ),
    "norm l2": _of("output = LpNormalization<axis=1, p=2>(x)"),
    "norm of neighbouring channels": _of("output = LRN<size=5>(x)"),
}

PRODUCTS = {
    "dense": _of("output = Gemm<transB=1>(x, w, b)", (16, 256), w=(256, 256), b=(256,), stem=False),
    "dense of one row": _of("output = Gemm<transB=1>(x, w, b)", (1, 1024), w=(512, 1024), b=(512,), stem=False),
    "dense of tokens": _of("output = MatMul(x, w)", TOKENS, w=(256, 256), stem=False),
    "matmul of activations": _of("t = Transpose<perm=[0,2,1]>(x) output = MatMul(x, t)", TOKENS),
    "matmul by a constant on the left": _of("output = MatMul(w, x)", TOKENS, w=(64, 64), stem=False),
    "matmul of a batch by constants": _of("output = MatMul(x, w)", (4, 64, 64), w=(4, 64, 64), stem=False),
    "einsum": _of('output = Einsum<equation="bchw,dc->bdhw">(x, w)', w=(32, 64), stem=False),
    "einsum of activations": _of('output = Einsum<equation="bij,bkj->bik">(x, x)', TOKENS),
    "attention": _of(
        "q = MatMul(x, wq) k = MatMul(x, wk) v = MatMul(x, wv) "
        "qs = Reshape(q, heads) ks = Reshape(k, heads) vs = Reshape(v, heads) "
        "qt = Transpose<perm=[0,2,1,3]>(qs) kt = Transpose<perm=[0,2,3,1]>(ks) vt = Transpose<perm=[0,2,1,3]>(vs) "
        "s = MatMul(qt, kt) d = Mul(s, scale) p = Softmax<axis=-1>(d) o = MatMul(p, vt) "
        "ot = Transpose<perm=[0,2,1,3]>(o) oj = Reshape(ot, joined) output = MatMul(oj, wo)",
        TOKENS,
        **dict.fromkeys(("wq", "wk", "wv", "wo"), (256, 256)),
        heads=_ints(1, 64, 4, 64),
        joined=_ints(1, 64, 256),
        scale=_floats(0.125),
        stem=False,
    ),
    "lstm": _of("output = LSTM<hidden_size=64>(x, w, r, b)", (32, 1, 64), w=(1, 256, 64), r=(1, 256, 64), b=(1, 512), stem=False),
    "gru": _of(
        "output = GRU<hidden_size=64, linear_before_reset=1>(x, w, r, b)",
        (32, 1, 64),
        w=(1, 192, 64),
        r=(1, 192, 64),
        b=(1, 384),
        stem=False,
    ),
    "lstm both ways": _of(
        'output = LSTM<hidden_size=64, direction="bidirectional">(x, w, r, b)',
        (32, 1, 64),
        w=(2, 256, 64),
        r=(2, 256, 64),
        b=(2, 512),
        stem=False,
    ),
    "rnn": _of("output = RNN<hidden_size=64>(x, w, r, b)", (32, 1, 64), w=(1, 64, 64), r=(1, 64, 64), b=(1, 128), stem=False),
}

FUNCTIONS = {
    **{
        f"function {op.lower()}": _function(op)
        for op in ("Relu", "LeakyRelu", "Sigmoid", "Tanh", "HardSigmoid", "HardSwish", "Gelu", "Elu", "Selu", "Softplus", "Mish")
    },
    **{f"function {op.lower()}": _function(op) for op in ("Erf", "Exp", "Abs", "Neg", "Softsign", "Sin", "Round", "Floor")},
    "function silu": _of("s = Sigmoid(x) output = Mul(x, s)"),
    "function prelu": _function("PRelu", slope=np.linspace(0, 0.5, 64, dtype=np.float32).reshape(64, 1, 1)),
    "function clip": _function("Clip", low=np.array(0, np.float32), high=np.array(6, np.float32)),
    "function sqrt": _of("a = Abs(x) output = Sqrt(a)"),
    "function log": _of("a = Abs(x) b = Add(a, one) output = Log(b)", one=_floats(1)),
    "function power": _function("Pow", two=np.array(2, np.float32)),
    "function softmax": _of("output = Softmax<axis=-1>(x)", TOKENS),
    "function softmax over channels": _of("output = Softmax<axis=1>(x)"),
    "function log softmax": _of("output = LogSoftmax<axis=-1>(x)", TOKENS),
}

_OTHER = "y = Conv<kernel_shape=[1,1], group=64>(x, other) "

PAIRS = {
    **{
        f"pair {op.lower()}": _of(f"{_OTHER} output = {op}(x, y)", other=(64, 1, 1, 1))
        for op in ("Add", "Sub", "Mul", "Max", "Min")
    },
    "pair div": _of(f"{_OTHER} a = Abs(y) p = Add(a, one) output = Div(x, p)", other=(64, 1, 1, 1), one=_floats(1)),
    "pair where": _of(f"{_OTHER} c = Greater(x, y) output = Where(c, x, y)", other=(64, 1, 1, 1)),
    "pair add of a constant by channel": _function("Add", b=(1, 64, 1, 1)),
    "pair mul of a constant by channel": _function("Mul", b=(1, 64, 1, 1)),
    "pair gate of channels": _of(
        "p = GlobalAveragePool(x) d = Conv(p, w) g = Sigmoid(d) output = Mul(x, g)",
        w=(64, 64, 1, 1),
    ),
    "pair scale of pixels": _of("d = Conv(x, w) g = Sigmoid(d) output = Mul(x, g)", w=(1, 64, 1, 1)),
}

REDUCTIONS = {
    **{
        f"reduce {op[6:].lower()} of channels": _of(f"output = {op}<keepdims=1>(x, axes)", axes=_ints(1))
        for op in ("ReduceMean", "ReduceMax", "ReduceSum", "ReduceMin", "ReduceL2", "ReduceProd", "ReduceLogSumExp")
    },
    "reduce mean of the last axis": _of("output = ReduceMean<keepdims=0>(x, axes)", TOKENS, axes=_ints(-1)),
    "reduce max of the last axis": _of("output = ReduceMax<keepdims=0>(x, axes)", TOKENS, axes=_ints(-1)),
    "argmax of channels": _of("a = ArgMax<axis=1, keepdims=0>(x) output = Cast<to=1>(a)"),
    "argmax of the last axis": _of("a = ArgMax<axis=-1, keepdims=0>(x) output = Cast<to=1>(a)", TOKENS),
    "topk": _of("output, i = TopK<axis=-1>(x, k)", TOKENS, k=_ints(5)),
    "cumsum": _of("output = CumSum(x, axis)", TOKENS, axis=np.array(-1, np.int64)),
}

MOVES = {
    "resize nearest": _of('output = Resize<mode="nearest">(x, , scales)', scales=_floats(1, 1, 2, 2)),
    "resize linear": _of('output = Resize<mode="linear">(x, , scales)', scales=_floats(1, 1, 2, 2)),
    "resize linear, corners": _of(
        'output = Resize<mode="linear", coordinate_transformation_mode="align_corners">(x, , scales)', scales=_floats(1, 1, 2, 2)
    ),
    "resize cubic": _of('output = Resize<mode="cubic">(x, , scales)', scales=_floats(1, 1, 2, 2)),
    "resize down": _of('output = Resize<mode="linear">(x, , scales)', scales=_floats(1, 1, 0.5, 0.5)),
    "pad by zeros": _function("Pad", pads=_ints(0, 0, 1, 1, 0, 0, 1, 1)),
    "pad by mirroring": _of('output = Pad<mode="reflect">(x, pads)', pads=_ints(0, 0, 1, 1, 0, 0, 1, 1)),
    "pad by the edge": _of('output = Pad<mode="edge">(x, pads)', pads=_ints(0, 0, 1, 1, 0, 0, 1, 1)),
    "pixels of channels": _of("output = DepthToSpace<blocksize=2>(x)"),
    "channels of pixels": _of("output = SpaceToDepth<blocksize=2>(x)"),
    "channels shuffled": _of(
        "a = Reshape(x, apart) b = Transpose<perm=[0,2,1,3,4]>(a) output = Reshape(b, joined)",
        apart=_ints(1, 4, 16, 28, 28),
        joined=_ints(1, 64, 28, 28),
    ),
    "concat of channels": _of(f"{_OTHER} output = Concat<axis=1>(x, y)", other=(64, 1, 1, 1)),
    "concat of columns": _of(f"{_OTHER} output = Concat<axis=3>(x, y)", other=(64, 1, 1, 1)),
    "split of channels": _of("a, b = Split<axis=1, num_outputs=2>(x) output = Concat<axis=1>(b, a)"),
    "slice of channels": _of("output = Slice(x, start, end, axis)", start=_ints(8), end=_ints(40), axis=_ints(1)),
    "slice by steps": _of(
        "output = Slice(x, start, end, axis, step)", start=_ints(0, 0), end=_ints(28, 28), axis=_ints(2, 3), step=_ints(2, 2)
    ),
    "flip": _of("output = Slice(x, start, end, axis, step)", start=_ints(-1), end=_ints(-100), axis=_ints(3), step=_ints(-1)),
    "roll": _of(
        "a = Slice(x, mid, end, axis) b = Slice(x, zero, mid, axis) output = Concat<axis=2>(a, b)",
        mid=_ints(3),
        end=_ints(28),
        axis=_ints(2),
        zero=_ints(0),
    ),
    "transpose to channels last": _of("output = Transpose<perm=[0,2,3,1]>(x)"),
    "transpose of matrices": _of("output = Transpose<perm=[0,2,1]>(x)", TOKENS),
    "tile": _function("Tile", repeats=_ints(1, 1, 2, 2)),
    "expand": _of("p = GlobalAveragePool(x) output = Expand(p, size)", size=_ints(1, 64, 28, 28)),
    "gather of channels": _of("output = Gather<axis=1>(x, places)", places=np.arange(63, -1, -2, dtype=np.int64)),
    "gather of elements": _of(
        "output = GatherElements<axis=2>(x, places)",
        TOKENS,
        places=np.argsort(np.random.default_rng(2).random((1, 64, 256)), axis=2),
    ),
    "gather of a table": _of(
        "a = Abs(x) b = Mul(a, many) i = Cast<to=7>(b) e = Gather(table, i) output = MatMul(e, w)",
        (1, 64),
        many=_floats(50),
        table=(1000, 256),
        w=(256, 64),
        stem=False,
    ),
    "scatter of rows": _of("output = ScatterND(x, places, new)", TOKENS, places=_ints(0, 3).reshape(1, 2), new=(1, 256)),
    "triangle": _of("output = Trilu<upper=0>(x)", TOKENS),
    "sampling by a grid": _of(
        "output = GridSample(x, grid)", grid=np.random.default_rng(3).uniform(-1, 1, (1, 28, 28, 2)).astype(np.float32)
    ),
}

KINDS: dict[str, Kind] = {**CONVOLUTIONS, **POOLS, **NORMS, **PRODUCTS, **FUNCTIONS, **PAIRS, **REDUCTIONS, **MOVES}
"""All, by name."""
