"""Vendors for tests: the toy NPU of examples/ under any name, for some of its ops, with code as careless as C allows."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tvm
from tvm import relax
from tvm.relax.backend.pattern_registry import get_patterns_with_prefix

import octavo
import octavo.compiler.byoc
from octavo.compiler.backends import Code, CodeGenerator, CSource, ObjectCode
from octavo.ir.graph.evaluate import unoptimized
from octavo.target import OpSupport, TargetDescription

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "toynpu"
sys.path.insert(0, str(EXAMPLE))
from generator import ToyNpu  # noqa: E402  # pyright: ignore[reportMissingImports]

ENTRANCE = "exp"
"""The one name that careless vendors give all functions: the C library has it, too."""

SYMMETRIC = TargetDescription(
    name="symmetric",
    ops=(
        OpSupport(
            op="nn.conv2d",
            activations=("int8",),
            activation_schemes=("symmetric",),
            weights=("int8",),
            fusions=("bias", "nn.relu", "clip"),
        ),
        OpSupport(op="add", activations=("int8",), activation_schemes=("symmetric",), fusions=("nn.relu",)),
    ),
)
"""Symmetric int8 alone, convolutions and additions alone, and no code."""


class Vendor(ToyNpu):
    """The toy NPU as `name`, for `ops` alone where there are any."""

    def __init__(self, name: str, *ops: str, **fields: Any) -> None:
        taken = tuple(each for each in ToyNpu.description.ops if not ops or each.op in ops)
        self.description = replace(ToyNpu.description, name=name, ops=taken, **fields)


class Careless(Vendor):
    """Whose functions all have one name, and whose other functions are no less known outside."""

    def generate(self, composite: Any) -> Code:
        code = super().generate(composite)
        text = code.source.text.replace("static ", "").replace(composite.name, ENTRANCE)
        return replace(code, source=CSource(text=text, symbol=ENTRANCE))


class Blob(Vendor):
    """Object code; all constants of all ops in one blob of bytes, as `compiled` has them from a run before."""

    def __init__(self, name: str, *ops: str, compiled: bytes = b"") -> None:
        super().__init__(name, *ops)
        self.blob, self.compiled = b"", compiled

    def place(self, data: bytes) -> int:
        """Put data into the blob at a multiple of 16 bytes; return where."""
        start = -(-len(self.blob) // 16) * 16
        self.blob = self.blob.ljust(start, b"\xee") + data
        return start

    def generate(self, composite: Any) -> Code:
        code = super().generate(composite)
        parts = [self.place(constant.tobytes()) for constant in code.constants]
        blob = self.compiled or self.blob
        inner = f"{composite.name}_inner"
        inputs = [f"x{number}" for number in range(len(composite.inputs))]
        tail = ["scratch"] if code.workspace else []
        given = [*inputs, *(f"(const void *)(blob + {start})" for start in parts), *tail, "y"]
        params = [f"const void *{name}" for name in inputs] + (["const char *blob"] if blob else [])
        params += [*(f"void *{name}" for name in tail), "void *y"]
        outer = f"void {composite.name}({', '.join(params)}) {{ {inner}({', '.join(given)}); }}\n"
        text = code.source.text.replace(f"void {composite.name}(", f"static void {inner}(") + outer
        source = ObjectCode(data=object_of(text), symbol=composite.name)
        return replace(code, source=source, constants=(blob,) if blob else ())


def object_of(text: str) -> bytes:
    """Compile C as a vendor's own compiler would."""
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder) / "code.c", Path(folder) / "code.o"
        source.write_text(text, encoding="utf-8")
        subprocess.run(["gcc", "-O0", "-w", "-fPIC", "-c", str(source), "-o", str(made)], check=True)
        return made.read_bytes()


def with_code(name: str, *ops: str, code: Any) -> CodeGenerator:
    """A vendor that hands `code` each composite and what the toy NPU makes of it."""

    class Given(Vendor):
        def generate(self, composite: Any) -> Code:
            return code(composite, super().generate(composite))

    return Given(name, *ops)


NODES = """
a = Conv<pads=[1, 1, 1, 1]>(x, w1, b1) r = Relu(a) d = Conv<pads=[1, 1, 1, 1], group=8>(r, w2, b2)
s = Add(d, r) c = Conv(e, w4, b4) t = Add(s, c)
m = MaxPool<kernel_shape=[2, 2], strides=[2, 2]>(t)
v = AveragePool<kernel_shape=[2, 2], strides=[2, 2]>(r)
k = Concat<axis=1>(m, v) g = GlobalAveragePool(k) f = Flatten(g) y = Gemm<transB=1>(f, w3, b3) p = Softmax<axis=1>(y)
z = CumSum(p, axis)
"""


def network() -> Any:
    """Two inputs and two outputs, one of them read inside, too; a tensor with several readers; CumSum, which TVM computes."""
    inputs, outputs = "float[1, 3, 8, 8] x, float[1, 8, 8, 8] e", "float[1, 10] z, float[1, 8, 8, 8] r"
    text = f"net ({inputs}) => ({outputs}) <int64 axis = {{1}}> {{ {NODES} }}"
    weights = {"w1": (8, 3, 3, 3), "w2": (8, 1, 3, 3), "w3": (10, 16), "w4": (8, 8, 1, 1)}
    return octavo.load(with_weights(text, weights, np.random.default_rng(1)))


def with_weights(text: str, weights: dict[str, tuple[int, ...]], rng: np.random.Generator) -> onnx.ModelProto:
    """The ONNX graph of this text with random weights of these shapes, w1 and so on, each followed by its layer's bias, b1."""
    graph = onnx.parser.parse_graph(text)
    shapes = {each: shape for name, full in weights.items() for each, shape in ((name, full), (f"b{name[1:]}", full[:1]))}
    for name, shape in shapes.items():
        value = rng.normal(scale=1 / np.sqrt(np.prod(shape[1:]) or 1), size=shape).astype(np.float32)
        graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)


def samples_of(model: Any, count: int = 4) -> list[dict[str, np.ndarray]]:
    """Random inputs of a model."""
    rng = np.random.default_rng(2)
    shapes = {model.tensors[name].source_name: model.tensors[name].shape for name in model.input_ids}
    return [{name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()} for _ in range(count)]


def through_tvm(module: tvm.IRModule, *vendors: CodeGenerator, merged: bool = True) -> tvm.IRModule:
    """TVM's own passes up to RunCodegen for vendors in their order; without `merged` each op is a region of its own."""
    for vendor in vendors:
        octavo.compiler.byoc.register(vendor)
    module = octavo.compiler.byoc.duplicate_dequantize()(module)
    for vendor in vendors:
        found = get_patterns_with_prefix(vendor.description.name)
        module = relax.transform.FuseOpsByPattern(found, annotate_codegen=not merged)(module)
    if merged:
        module = relax.transform.MergeCompositeFunctions()(module)
    return relax.transform.RunCodegen()(module)


def machine_of(module: tvm.IRModule, path: Path, ids: Any = ()) -> Any:
    """Compile what is left with Octavo's pipeline, export it to a file, and load that."""
    library = tvm.compile(
        module, unoptimized(tvm.target.Target("llvm")), relax_pipeline=octavo.relax_pipeline(ids=ids, target="llvm")
    )
    library.export_library(str(path))
    return relax.VirtualMachine(tvm.runtime.load_module(str(path)), tvm.cpu())
