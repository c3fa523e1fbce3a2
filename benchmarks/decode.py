"""Products of rows with 4-bit weights in blocks: ours, ONNX Runtime's MatMulNBits, and a plain read of the same bytes.

    python benchmarks/decode.py [--rows 1] [--block 32] [--points] [--threads 1 2] [--layers 4096x11008 ...] [--rounds 20]

Each line is one layer at a number of threads: milliseconds and GB/s of weights, scales and zero points, the least of rounds in
which all take turns; "cold" where 384 MB of other memory are read before each call, "warm" where a layer is called twice and the
second call counts. A read is of Octavo's own code: it adds up what it loads, 64 bytes at a time. Ratios: of ONNX Runtime's
default to ours in float32, of its level 4 to ours in int8, and of ours in int8 and in float32 to the read.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm.script.ir_builder import tirx as B

import octavo
from octavo.compiler.backends.cpu.kernels.language.vectors import load, prim_func, splat, store
from octavo.compiler.codegen.tir_passes import llvm_module
from octavo.runtime.llvm_host import host_target

LAYERS = ("768x768", "2048x2048", "4096x4096", "4096x11008")
OTHER_BYTES = 384 << 20
_LEVELS = {"ort": 0, "ort 4": 4}
_KINDS = ("float32", "bfloat16", "int8")


def model(
    rng: np.random.Generator, rows: int, inputs: int, outputs: int, block: int, *, points: bool, level: int
) -> onnx.ModelProto:
    """Return a graph of one MatMulNBits."""
    blocks = inputs // block
    constants: dict[str, Any] = {
        "B": rng.integers(0, 256, (outputs, blocks, block // 2)).astype(np.uint8),
        "scales": rng.uniform(0.01, 0.02, outputs * blocks).astype(np.float32),
    }
    if points:
        constants["points"] = rng.integers(0, 256, outputs * -(-blocks // 2)).astype(np.uint8)
    attrs = {"K": inputs, "N": outputs, "bits": 4, "block_size": block, "accuracy_level": level}
    node = helper.make_node("MatMulNBits", ["x", *constants], ["y"], domain="com.microsoft", **attrs)
    graph = helper.make_graph(
        [node],
        "decode",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, inputs])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, outputs])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def reader(size: int, threads: int) -> Callable[[], None]:
    """Return a call that reads so many bytes, in as many chunks."""
    count, unrolled = size // 1024, 16

    def emit(x: Any, y: Any) -> None:
        with B.parallel(0, threads) as chunk:
            total: Any = B.alloc_buffer((unrolled * 16,), "int32", scope="local")
            for part in range(unrolled):
                store(total, part * 16, splat(B.int32(0), 16), 16)
            with B.serial(chunk * count // threads, (chunk + 1) * count // threads) as at:
                for part in range(unrolled):
                    value = load(total, part * 16, 16) + load(x, at * 256 + part * 16, 16)
                    store(total, part * 16, value, 16)
            for part in range(unrolled):
                store(y, (chunk * unrolled + part) * 16, load(total, part * 16, 16), 16)

    func = prim_func([("x", count * 256, "int32"), ("y", threads * unrolled * 16, "int32")], emit)
    code = llvm_module({"read": func}, host_target())["read"]
    x = tvm.runtime.tensor(np.ones(count * 256, np.int32))
    y = tvm.runtime.tensor(np.zeros(threads * unrolled * 16, np.int32))
    return lambda: code(x, y)


def contenders(
    rng: np.random.Generator, rows: int, inputs: int, outputs: int, block: int, threads: int, *, points: bool
) -> tuple[dict[str, Callable[[], Any]], int]:
    """Return who computes a layer, and the bytes of its weights; all compute the same within what their activations allow."""
    x = rng.normal(size=(rows, inputs)).astype(np.float32)
    calls: dict[str, Callable[[], Any]] = {}
    proto = model(rng, rows, inputs, outputs, block, points=points, level=0)
    size = sum(len(tensor.raw_data) for tensor in proto.graph.initializer)
    loaded = octavo.load(proto)
    for kind in _KINDS:
        executable = octavo.compile(loaded, threads=threads, block_activations=kind)
        calls[kind] = lambda executable=executable: executable(x)["y"]
    for name, level in _LEVELS.items():
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        for attribute in proto.graph.node[0].attribute:
            attribute.i = level if attribute.name == "accuracy_level" else attribute.i
        session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        calls[name] = lambda session=session: session.run(None, {"x": x})[0]
    want = calls["ort"]()
    for name, call in calls.items():
        error = float(np.abs(call() - want).max() / np.abs(want).max())
        assert error < (1e-5 if name in ("ort", "float32") else 3e-2), f"{name} is off by {error}"
    return {**calls, "read": reader(size, threads)}, size


def times(calls: dict[str, Callable[[], Any]], rounds: int, other: np.ndarray | None) -> dict[str, float]:
    """Return the least seconds of each call, in rounds in which all take turns; `other` is read before each one."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            if other is None:
                call()
            else:
                other.max()
            start = time.perf_counter()
            call()
            found[name].append(time.perf_counter() - start)
    return {name: min(seconds) for name, seconds in found.items()}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--block", type=int, default=32)
    parser.add_argument("--points", action="store_true", help="blocks have zero points")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--layers", nargs="+", default=LAYERS, metavar="INPUTSxOUTPUTS")
    parser.add_argument("--rounds", type=int, default=20)
    args = parser.parse_args()
    rng, other = np.random.default_rng(0), np.ones(OTHER_BYTES // 8, np.uint64)
    for layer in args.layers:
        inputs, outputs = map(int, layer.split("x"))
        for threads in args.threads:
            calls, size = contenders(rng, args.rows, inputs, outputs, args.block, threads, points=args.points)
            for where, memory in (("warm", None), ("cold", other)):
                found = times(calls, args.rounds, memory)
                shown = "  ".join(f"{name} {s * 1e3:.3f} ms {size / s / 1e9:.1f} GB/s" for name, s in found.items())
                gains = found["ort"] / found["float32"], found["ort 4"] / found["int8"]
                reads = found["int8"] / found["read"], found["float32"] / found["read"]
                ratios = "x{:.2f} x{:.2f}, {:.2f} {:.2f} of a read".format(*gains, *reads)
                print(f"{layer} {threads} {where}: {shown}: {ratios}", flush=True)


if __name__ == "__main__":
    main()
