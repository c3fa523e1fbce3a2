"""Files of llama2.c (https://github.com/karpathy/llama2.c): a checkpoint as an ONNX decoder with a cache, and its tokenizer.

It must not know who quantizes or runs the decoder.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HEADER = struct.Struct("<7i")
PIECE = struct.Struct("<fi")
EPSILON, BASE, MASKED = 1e-5, 10000.0, -1e9
UNKNOWN, BEGIN, END, FIRST_BYTE = 0, 1, 2, 3
LARGEST = 1 << 24
"""No size of a checkpoint is more: what is, is no checkpoint."""


class FileError(Exception):
    """A file is not what it should be: what, where, what to do."""


@dataclass(frozen=True)
class Shape:
    """What the header of a checkpoint says."""

    dim: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int
    length: int
    """Tokens that the decoder was trained to see at once."""

    @property
    def head(self) -> int:
        """Size of a head."""
        return self.dim // self.heads


def read_checkpoint(path: Path) -> tuple[Shape, dict[str, np.ndarray]]:
    """Return the shape and the weights, [outputs, inputs], those of a layer as name.layer.

    Raises
    ------
    FileError
        The file is cut off, or no checkpoint of llama2.c's first version.
    """
    raw = _read(path, "a llama2.c checkpoint")
    if len(raw) < HEADER.size:
        raise FileError(f"{path}: {len(raw)} bytes are no llama2.c checkpoint: its header alone has {HEADER.size}")
    *sizes, vocabulary, length = HEADER.unpack_from(raw)
    shape = Shape(*sizes, abs(vocabulary), length)
    fits = all(0 < size <= LARGEST for size in (*sizes, shape.vocabulary, length))
    if not fits or shape.dim % shape.heads or shape.heads % shape.kv_heads or shape.head % 2:
        raise FileError(f"{path}: no llama2.c checkpoint (of version 0, as `export.py --version 0` writes): it begins {shape}")
    kv, rotary = shape.head * shape.kv_heads, shape.length * shape.head // 2
    layer = {
        "norm1": (shape.dim,),
        "q": (shape.dim, shape.dim),
        "k": (kv, shape.dim),
        "v": (kv, shape.dim),
        "o": (shape.dim, shape.dim),
        "norm2": (shape.dim,),
        "gate": (shape.hidden, shape.dim),
        "down": (shape.dim, shape.hidden),
        "up": (shape.hidden, shape.dim),
    }
    table = [("embed", (shape.vocabulary, shape.dim))]
    table += [(f"{name}.{number}", size) for name, size in layer.items() for number in range(shape.layers)]
    # The tables of cosines and sines are there for programs of long ago; a negative vocabulary says that the head is its own.
    table += [("norm", (shape.dim,)), ("cosines", (rotary,)), ("sines", (rotary,))]
    table += [("head", (shape.vocabulary, shape.dim))] if vocabulary < 0 else []
    wanted = HEADER.size + 4 * sum(math.prod(size) for _, size in table)
    if len(raw) != wanted:
        what = "cut off" if len(raw) < wanted else "no llama2.c checkpoint"
        raise FileError(f"{path}: {what}: {shape} takes {wanted} bytes, the file has {len(raw)}; download it again")
    data, at, weights = np.frombuffer(raw, "<f4", offset=HEADER.size), 0, {}
    for name, size in table:
        weights[name] = data[at : at + math.prod(size)].reshape(size)
        at += math.prod(size)
    weights.setdefault("head", weights["embed"])
    return shape, weights


class Tokenizer:
    """Byte-pair encoding by scores.

    Raises
    ------
    FileError
        The file is cut off, or no tokenizer of llama2.c with this many pieces.
    """

    def __init__(self, path: Path, vocabulary: int) -> None:
        raw, at = _read(path, "a llama2.c tokenizer"), 4
        self._pieces: list[bytes] = []
        self._scores: list[float] = []
        while len(self._pieces) < vocabulary:
            count = PIECE.unpack_from(raw, at)[1] if at + PIECE.size <= len(raw) else -1
            if not 0 <= count <= len(raw) - at - PIECE.size:
                raise FileError(
                    f"{path}: cut off, or no llama2.c tokenizer of {vocabulary} pieces, as the checkpoint has: "
                    f"piece {len(self._pieces)} is not there; give the tokenizer of this checkpoint"
                )
            self._scores.append(PIECE.unpack_from(raw, at)[0])
            at += PIECE.size
            self._pieces.append(raw[at : at + count])
            at += count
        if at != len(raw):
            raise FileError(
                f"{path}: {len(raw) - at} bytes are left behind {vocabulary} pieces, as many as the checkpoint has; "
                "give the tokenizer of this checkpoint"
            )
        self._ids = {piece: number for number, piece in enumerate(self._pieces)}

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, with that of its beginning."""
        ids: list[int] = []
        for letter in f" {text}" if text else "":
            known = self._ids.get(letter.encode())
            ids += [byte + FIRST_BYTE for byte in letter.encode()] if known is None else [known]
        while True:
            pairs = [self._ids.get(self._pieces[one] + self._pieces[other]) for one, other in pairwise(ids)]
            places = [place for place, joined in enumerate(pairs) if joined is not None]
            if not places:
                return [BEGIN, *ids]
            best = max(places, key=lambda place: (self._scores[pairs[place]], -place))
            ids[best : best + 2] = [pairs[best]]

    def decode(self, ids: list[int]) -> str:
        """Return the text of tokens; those of beginnings and ends have none."""
        parts = [self._bytes(token) for token in ids if token not in (UNKNOWN, BEGIN, END)]
        return b"".join(parts).decode("utf8", "replace").removeprefix(" ")

    def _bytes(self, token: int) -> bytes:
        if FIRST_BYTE <= token < FIRST_BYTE + 256:
            return bytes([token - FIRST_BYTE])
        return self._pieces[token]


def _read(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise FileError(f"{path}: {error.strerror}; give the path of {what}") from error


class _Graph:
    """Nodes and constants, as they are added."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def node(self, op: str, *inputs: str | np.ndarray, name: str = "", **attributes: object) -> str:
        """Add a node of one result; return that."""
        return self.nodes_of(op, *inputs, results=[name or f"{op.lower()}_{len(self.nodes)}"], **attributes)[0]

    def nodes_of(self, op: str, *inputs: str | np.ndarray, results: list[str], **attributes: object) -> list[str]:
        """Add a node of several results; return these."""
        names = [each if isinstance(each, str) else self.constant(each) for each in inputs]
        self.nodes.append(helper.make_node(op, names, results, **attributes))
        return results

    def constant(self, value: np.ndarray, name: str = "") -> str:
        """Add a constant; return its name."""
        name = name or f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, order="C"), name))
        return name


class Decoder:
    """The ONNX graph of a checkpoint.

    ids, positions int64[1,sequence], past.N.key, past.N.value float32[1,kv_heads,past,head] of each layer N
    -> logits float32[1,sequence,vocabulary], present.N.key, present.N.value float32[1,kv_heads,past + sequence,head].
    """

    def __init__(self, shape: Shape, weights: dict[str, np.ndarray]) -> None:
        self._shape, self._weights, self._graph = shape, weights, _Graph()
        self.states = {f"present.{n}.{what}": f"past.{n}.{what}" for n in range(shape.layers) for what in ("key", "value")}
        """What a step hands to the next: {output: input}."""

    def model(self) -> onnx.ModelProto:
        """Return all of it."""
        shape, node = self._shape, self._graph.node
        angles = np.arange(shape.length)[:, None] * BASE ** (-np.arange(0, shape.head, 2) / shape.head)
        tables = [part(angles).astype(np.float32) for part in (np.cos, np.sin)]
        # [1,sequence,1,head/2]: for every head.
        turns = [node("Unsqueeze", node("Gather", table, "positions"), np.array([2])) for table in tables]
        x = node("Gather", self._graph.constant(self._weights["embed"], "embed"), "ids", name="embedded")
        mask = ""
        for layer in range(shape.layers):
            y = self._normalized(x, f"norm1.{layer}")
            query, key = (self._turned(self._by_head(y, f"{name}.{layer}"), turns) for name in "qk")
            keys = self._behind(f"{layer}.key", key)
            values = self._behind(f"{layer}.value", self._by_head(y, f"v.{layer}"))
            mask = mask or self._mask(keys)
            mixed = self._attended(query, keys, values, mask)
            x = node("Add", x, self._dense(mixed, f"o.{layer}"), name=f"attended.{layer}")
            y = self._normalized(x, f"norm2.{layer}")
            gate = self._dense(y, f"gate.{layer}")
            gated = node("Mul", node("Mul", gate, node("Sigmoid", gate)), self._dense(y, f"up.{layer}"))
            x = node("Add", x, self._dense(gated, f"down.{layer}"), name=f"layer.{layer}")
        node("MatMul", self._normalized(x, "norm"), self._weights["head"].T, name="logits")
        return self._made()

    def _dense(self, x: str, name: str) -> str:
        return self._graph.node("MatMul", x, self._graph.constant(self._weights[name].T, f"{name}.weight"), name=name)

    def _normalized(self, x: str, gain: str) -> str:
        """RMSNorm."""
        node = self._graph.node
        mean = node("ReduceMean", node("Mul", x, x), np.array([-1]), keepdims=1)
        root = node("Sqrt", node("Add", mean, np.float32(EPSILON)))
        return node("Mul", node("Div", x, root), self._weights[gain], name=gain)

    def _by_head(self, x: str, name: str) -> str:
        """A dense layer's results as [1,sequence,heads,head]."""
        return self._graph.node("Reshape", self._dense(x, name), np.array([1, -1, self._count(name), self._shape.head]))

    def _count(self, name: str) -> int:
        return self._shape.heads if name[0] == "q" else self._shape.kv_heads

    def _behind(self, name: str, new: str) -> str:
        """The state of this name with new rows behind those of the past."""
        rows = self._graph.node("Transpose", new, perm=[0, 2, 1, 3])
        return self._graph.node("Concat", f"past.{name}", rows, axis=2, name=f"present.{name}")

    def _turned(self, x: str, turns: list[str]) -> str:
        """Rotary positions: channels 2i and 2i + 1 of a head are a point of the plane, which is turned."""
        node, (cos, sin) = self._graph.node, turns
        half = self._shape.head // 2
        pairs = node("Reshape", x, np.array([0, 0, -1, half, 2]))
        even, odd = (node("Gather", pairs, np.array(place), axis=4) for place in (0, 1))
        first = node("Sub", node("Mul", even, cos), node("Mul", odd, sin))
        second = node("Add", node("Mul", even, sin), node("Mul", odd, cos))
        # Queries and keys alike: their products do not mind the order of the channels.
        return node("Concat", first, second, axis=3)

    def _mask(self, keys: str) -> str:
        """What is added to scores, [1,1,1,sequence,past + sequence]: a token sees those up to its own position."""
        node = self._graph.node
        count = node("Gather", node("Shape", keys), np.array(2))
        places = node("Range", np.array(0), count, np.array(1))
        seen = node("LessOrEqual", places, node("Unsqueeze", "positions", np.array([1, 2, 4])))
        return node("Where", seen, np.float32(0), np.float32(MASKED))

    def _attended(self, query: str, keys: str, values: str, mask: str) -> str:
        """Causal attention, [1,sequence,dim]. Heads that share keys are rows of one product: no key is repeated."""
        node, shape = self._graph.node, self._shape
        group = shape.heads // shape.kv_heads
        rows = node("Reshape", node("Transpose", query, perm=[0, 2, 1, 3]), np.array([1, shape.kv_heads, -1, shape.head]))
        products = node("MatMul", rows, node("Transpose", keys, perm=[0, 1, 3, 2]))
        sizes = node("Concat", np.array([1, shape.kv_heads, group, -1]), node("Shape", keys, start=2, end=3), axis=0)
        scores = node("Add", node("Mul", node("Reshape", products, sizes), np.float32(shape.head**-0.5)), mask)
        shares = node("Reshape", node("Softmax", scores, axis=-1), node("Shape", products))
        mixed = node("Reshape", node("MatMul", shares, values), np.array([1, shape.heads, -1, shape.head]))
        return node("Reshape", node("Transpose", mixed, perm=[0, 2, 1, 3]), np.array([1, -1, shape.dim]))

    def _made(self) -> onnx.ModelProto:
        shape = self._shape

        def state(name: str, rows: str) -> onnx.ValueInfoProto:
            return helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, shape.kv_heads, rows, shape.head])

        inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, [1, "sequence"]) for name in ("ids", "positions")]
        logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, "sequence", shape.vocabulary])
        graph = helper.make_graph(
            self._graph.nodes,
            "llama2.c",
            [*inputs, *(state(name, "past") for name in self.states.values())],
            [logits, *(state(name, "past + sequence") for name in self.states)],
            self._graph.constants,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
