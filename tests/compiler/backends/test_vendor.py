"""Back ends that no file of Octavo knows: the one of docs/extending.md, others like it, and what goes wrong in them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import tirx as T

import octavo
from child_python import run_python
from nets import residual_net
from octavo.compiler.backends import Backend, Code, CodeGenerator, CSource, ObjectCode
from octavo.errors import CompileError, TargetError
from octavo.target import OpSupport, TargetDescription
from qdq_graph import Qdq, graph

EXTENDING = Path(__file__).resolve().parents[3] / "docs" / "extending.md"
A, B, Y = (0.05, 3), (0.02, -4), (0.06, 1)
INT8 = TargetDescription(
    name="int8_ops",
    ops=(
        OpSupport(
            op="nn.conv2d", activations=("int8",), weights=("int8",), weight_schemes=("symmetric",), fusions=("bias", "nn.relu")
        ),
        OpSupport(op="add", activations=("int8",), fusions=("nn.relu",)),
        OpSupport(op="matmul", activations=("int8",), weights=("int8",), fusions=("bias",)),
        OpSupport(op="quantize", activations=("int8",)),
        OpSupport(op="dequantize", activations=("int8",)),
    ),
)


def documented() -> str:
    """The source of the back end that the page shows."""
    section = EXTENDING.read_text(encoding="utf-8").split("## Add a back end")[1].split("\n## ")[0]
    found = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture(name="npu")
def fixture_npu(tmp_path, monkeypatch) -> Backend:
    (tmp_path / "toynpu.py").write_text(documented(), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "toynpu", raising=False)
    import toynpu  # pyright: ignore[reportMissingImports]

    return toynpu.ToyNpu()


@pytest.fixture(scope="module", name="quantized")
def fixture_quantized():
    model, rng = residual_net(), np.random.default_rng(0)
    (x,) = model.input_ids
    shape = model.tensors[x].shape
    batches = [rng.normal(size=shape).astype(np.float32) for _ in range(4)]
    return octavo.quantize(model, octavo.profile(model, batches), target=INT8), batches


@pytest.fixture(scope="module", name="own")
def fixture_own(quantized):
    """The model on the CPU alone."""
    return octavo.compile(quantized[0])


def outputs_of(executable, x) -> list[np.ndarray]:
    return list(executable(x).values())


def test_the_back_end_of_the_page_computes_what_the_cpu_computes(npu, quantized, own, tmp_path) -> None:
    model, batches = quantized
    mixed = octavo.compile(model, target=npu)
    ops = {(op.op, op.isa) for op in octavo.explain(mixed).ops}
    assert ("conv2d", "toynpu") in ops
    assert not any(op == "conv2d" and isa != "toynpu" for op, isa in ops)
    assert any(isa not in ("toynpu", "tvm") for _, isa in ops), "the host computes the rest"
    mixed.save(tmp_path / "mixed.so")
    loaded = octavo.load_executable(tmp_path / "mixed.so")
    for x in batches:
        for got, again, want in zip(outputs_of(mixed, x), outputs_of(loaded, x), outputs_of(own, x), strict=True):
            np.testing.assert_array_equal(got, want)
            np.testing.assert_array_equal(again, want)


def test_quantizing_for_a_back_end_quantizes_what_it_takes(npu, rng) -> None:
    model = residual_net()
    shape = model.tensors[model.input_ids[0]].shape
    profile = octavo.profile(model, [rng.normal(size=shape).astype(np.float32)])
    quantized = octavo.quantize(model, profile, target=npu)
    module = octavo.partition(quantized, target=npu)
    kinds = {
        str(function.attrs["Composite"]) for _, function in module.functions_items() if "Composite" in (function.attrs or {})
    }
    assert "toynpu.conv2d" in kinds
    assert not any("add" in kind for kind in kinds), "the description has no add, so it stays float"


def test_its_composites_compile_in_another_process(npu, quantized, own, tmp_path) -> None:
    model, batches = quantized
    (tmp_path / "module.json").write_text(tvm.ir.save_json(octavo.partition(model, target=npu)), encoding="utf-8")
    np.save(tmp_path / "x.npy", batches[0])
    script = (
        "import sys, numpy as np, tvm, octavo, toynpu\n"
        "model = octavo.load(tvm.ir.load_json(open('module.json').read()))\n"
        "outputs = octavo.compile(model, target=toynpu.ToyNpu())(np.load('x.npy'))\n"
        "np.save('y.npy', next(iter(outputs.values())))\n"
    )
    run_python(script, cwd=tmp_path, check=True)
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), outputs_of(own, batches[0])[0])
    with pytest.raises(CompileError, match=r"toynpu\.conv2d of .* is for the back end 'toynpu', which was not given: pass it as"):
        octavo.compile(octavo.load(octavo.partition(model, target=npu)))


class Adder(CodeGenerator):
    """Adds in C or in TIR, of tensors as they lie."""

    description = TargetDescription(name="adder", ops=(OpSupport(op="add", activations=("int8",), fusions=("nn.relu",)),))

    def __init__(self, code: Any) -> None:
        self.code = code

    def generate(self, composite: Any) -> Code:
        return self.code(composite)


def add_in_c(composite: Any, **changes: Any) -> Code:
    """The composite's sum in float32, as its quantize_info defines it, and half to even."""
    info = composite.quantize_info
    a, b, y = (info[role] for role in ("input0", "input1", "output"))
    real = [f"(({name}[i] - ({each['zero_point']})) * {float(each['scale'])!r})" for name, each in (("a", a), ("b", b))]
    text = f"""
#include <math.h>
#include <stdint.h>
void {composite.name}(const int8_t *a, const int8_t *b, {"uint8_t *scratch, " if changes.get("workspace") else ""}int8_t *y) {{
  for (int i = 0; i < {int(np.prod(composite.op.y.shape))}; i++) {{
    double q = nearbyint(({real[0]} + {real[1]}) / {float(y["scale"])!r}) + {y["zero_point"]};
    {"((double *)scratch)[0] = q; q = ((double *)scratch)[0];" if changes.get("workspace") else ""}
    y[i] = q < {y["qmin"]} ? {y["qmin"]} : q > {y["qmax"]} ? {y["qmax"]} : (int8_t)q;
  }}
}}"""
    return Code(**{"source": CSource(text=text, symbol=composite.name), **changes})


def compiled_object(composite: Any, folder: Path) -> Code:
    source = folder / "add.c"
    source.write_text(add_in_c(composite).source.text, encoding="utf-8")
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler is not None
    subprocess.run([compiler, "-O2", "-fPIC", "-c", str(source), "-o", str(folder / "add.o")], check=True)
    return Code(source=ObjectCode(data=(folder / "add.o").read_bytes(), symbol=composite.name))


def added(code: Any, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """What a back end's code makes of one addition."""

    def body(writer: Any, params: dict[str, Any]) -> Any:
        qdq = Qdq(writer, "int8")
        a, b = qdq.dequantize("a", params["a"], A), qdq.dequantize("b", params["b"], B)
        return qdq.quantize("y", writer.emit("y", relax.op.add(a, b)), Y, is_output=True)

    model = octavo.load(graph({"a": (a.shape, "int8"), "b": (b.shape, "int8")}, body))
    executable = octavo.compile(model, target=Adder(code))
    assert [op.isa for op in octavo.explain(executable).ops] == ["adder"]
    (y,) = executable({"a": a, "b": b}).values()
    return y


def test_c_objects_workspace_and_layout_give_the_definition(rng, tmp_path) -> None:
    a, b = rng.integers(-128, 128, (2, 1, 2, 3, 5), np.int8)
    (a_scale, a_zero), (b_scale, b_zero), (y_scale, y_zero) = ((float(np.float32(scale)), zero) for scale, zero in (A, B, Y))
    real = (a.astype(np.float64) - a_zero) * a_scale + (b.astype(np.float64) - b_zero) * b_scale
    want = np.clip(np.rint(real / y_scale) + y_zero, -128, 127).astype(np.int8)
    for code in (
        add_in_c,
        lambda composite: add_in_c(composite, workspace=64),
        lambda composite: add_in_c(composite, layout="any"),
        lambda composite: compiled_object(composite, tmp_path),
    ):
        np.testing.assert_array_equal(added(code, a, b), want)


def test_a_primfunc_is_code(rng) -> None:
    a, b = rng.integers(-128, 128, (2, 1, 2, 3, 5), np.int8)

    def largest(composite: Any) -> Code:
        size = int(np.prod(composite.op.y.shape))

        @T.prim_func(private=True)
        def func(a: T.Buffer((size,), "int8"), b: T.Buffer((size,), "int8"), y: T.Buffer((size,), "int8")) -> None:
            for i in range(size):
                y[i] = T.max(a[i], b[i])

        return Code(source=func)

    np.testing.assert_array_equal(added(largest, a, b), np.maximum(a, b))


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (lambda composite: 1 / 0, r"adder\.add of \w+: its back end raised ZeroDivisionError: division by zero"),
        (lambda composite: "void add() {}", r"adder\.add of \w+: its back end returned str, expected Code"),
        (lambda composite: Code(source=1), r"its source must be a PrimFunc, CSource or ObjectCode, got int"),  # pyright: ignore
        (lambda composite: Code(source=CSource(text="void f( {", symbol="f")), r"its C does not compile: f\.c:1:\d+: error"),
        (
            lambda composite: Code(source=CSource(text="void g(void) {}", symbol="f")),
            r"adder\.add of \w+: its code defines no function 'f'; it defines g",
        ),
        (lambda composite: Code(source=ObjectCode(data=b"junk", symbol="f")), r"its object file cannot be read"),
        (lambda composite: add_in_c(composite, layout="NHWC"), r"layout 'NHWC' is for ops that have a layout, not for add"),
    ],
)
def test_what_goes_wrong_in_a_back_end_names_the_composite(quantized, code, said) -> None:
    with pytest.raises(CompileError, match=said) as error:
        octavo.compile(quantized[0], target=Adder(code))
    assert "\n" not in str(error.value)


def test_the_traceback_shows_where_a_back_end_raised(quantized) -> None:
    def divides(composite):
        return 1 / 0

    with pytest.raises(CompileError) as error:
        octavo.compile(quantized[0], target=Adder(divides))
    cause = error.value.__cause__
    assert isinstance(cause, ZeroDivisionError)
    assert traceback.extract_tb(cause.__traceback__)[-1].name == "divides"


@pytest.mark.parametrize("name", ["octavo", "my npu", "9npu"])
def test_names_that_cannot_be_prefixes_are_refused(quantized, name) -> None:
    adder = Adder(add_in_c)
    adder.description = TargetDescription(name=name, ops=())
    with pytest.raises(TargetError, match=f"back end Adder: its description's name is a prefix .* got '{name}'"):
        octavo.compile(quantized[0], target=adder)


def test_a_back_end_has_a_description(quantized) -> None:
    class Nothing(Backend):
        def emit(self, composite, host, inputs, output):
            raise AssertionError

    with pytest.raises(TargetError, match="back end Nothing: its attribute `description`, a TargetDescription"):
        octavo.compile(quantized[0], target=Nothing())
