"""C libraries of open sizes, and with state: the bytes of Python's executables and sessions."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

import octavo
from missing import needs_programs
from octavo.cli.main import main
from octavo.errors import DataError
from octavo.export.c_library import export_c
from octavo.runtime.size import Size
from open_decoder import CARRY, HEADS, SIZE, decoder
from open_transformer import BATCH, OPEN, SEQUENCE, draw, loaded, quantized

R: Any = relax.op
WARNINGS = ("-Wall", "-Wextra", "-Werror", "-pedantic")
STEPS = [1 + k % 3 for k in range(6)]
HASWELL = "llvm -mtriple=x86_64-linux-gnu -mcpu=haswell"


def built_example(folder: Path, source: str = "main.c", compiler: str = "gcc") -> str:
    standard = "c11" if source.endswith(".c") else "c++11"
    needs_programs(compiler)
    made = folder.parent / f"{compiler}-example"
    objects = sorted(str(path) for path in (folder / "objects").iterdir())
    parts = ["model.c", "model_constants.S", *objects] if source.endswith(".c") else ["libmodel.a"]
    command = [compiler, "-O1", f"-std={standard}", *WARNINGS, "-I.", source, *parts, "-lm", "-o", str(made)]
    subprocess.run(command, cwd=folder, check=True)
    return str(made)


def run_example(program: str, folder: Path, sizes: list[int], inputs: Mapping[str, np.ndarray], count: int) -> list[bytes]:
    paths = [folder / f"input{number}" for number in range(len(inputs))]
    for path, array in zip(paths, inputs.values(), strict=True):
        path.write_bytes(np.ascontiguousarray(array).tobytes())
    outputs = [folder / f"output{number}" for number in range(count)]
    subprocess.run([program, *map(str, [*sizes, *paths, *outputs])], check=True, capture_output=True)
    return [path.read_bytes() for path in outputs]


def convolutions() -> octavo.Model:
    """Return a network of open batch and length, 5 to 600, which is halved and rounded."""
    rng = np.random.default_rng(5)
    weights = {"w": (16, 8, 3), "v": (16, 4)}
    made = [numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name) for name, shape in weights.items()]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], strides=[2], name="conv"),
        helper.make_node("Relu", ["c"], ["r"], name="relu"),
        helper.make_node("Transpose", ["r"], ["t"], perm=[0, 2, 1], name="turn"),
        helper.make_node("MatMul", ["t", "v"], ["y"], name="dense"),
    ]
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 8, "length"])
    taken = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", None, 4])
    graph = helper.make_graph(nodes, "g", [given], [taken], made)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return octavo.load(proto, sizes={"length": (5, 600)})


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_c(convolutions(), tmp_path_factory.mktemp("c") / "library").path


@pytest.mark.parametrize(("compiler", "source"), [("gcc", "main.c"), ("clang++", "main.cpp")])
def test_a_program_runs_it_at_any_size_in_the_bytes_of_python(
    library: Path, compiler: str, source: str, tmp_path: Path, rng: np.random.Generator
) -> None:
    program, executable = built_example(library, source, compiler), octavo.compile(convolutions())
    for batch, length in ((1, 5), (3, 600), (int(rng.integers(1, 9)), int(rng.integers(5, 600)))):
        data = {"x": rng.normal(size=(batch, 8, length)).astype(np.float32)}
        expected = [each.tobytes() for each in executable(data).values()]
        assert run_example(program, tmp_path, [batch, length], data, 1) == expected, f"{batch, length}"


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ([1, 601], "model: length is 601, and takes 5 to 600"),
        ([1, 4], "model: length is 4, and takes 5 to 600"),
        ([0, 9], "model: batch is 0, and takes 1 or more"),
        ([2**40, 9], "model: batch is 1099511627776, and takes 1 to 2147483647"),
        ([2**31 - 1, 9], "model: batch is 2147483647 and sizes beside it such that a tensor is too large"),
    ],
)
def test_sizes_out_of_bounds_are_one_line_that_names_them(library: Path, sizes: list[int], message: str) -> None:
    done = subprocess.run([built_example(library), *map(str, sizes), "x", "y"], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, f"{message}\n")


def test_sizes_that_an_op_cannot_take_are_one_line_that_names_them(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[batch,5] x, float[batch,length] z) => (float[A,3] y, float[A] m)
    <int64[2] wanted = {-1, 3}, int64[1] three = {3}, int64[1] end = {99999999999}, int64[1] axis = {1}> {
        y = Reshape(x, wanted)
        s = Slice(z, three, end, axis)
        m = ReduceMean<axes = [1], keepdims = 0>(s)
    }"""
    program = built_example(export_c(octavo.load(onnx.parser.parse_model(text)), tmp_path / "library").path)
    for sizes, message in (
        ([2, 8], "5*batch is 10, and must be a multiple of 3: a reshape within would leave elements out"),
        ([3, 3], "length - 3 is 0, and must be at least 1: a tensor within would be empty, or read beyond its end"),
    ):
        done = subprocess.run([program, *map(str, sizes), *"xzym"], check=False, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (1, f"model: {message}\n")


@pytest.mark.parametrize("dims", ["batch,sequence", "2,3"])
@pytest.mark.parametrize(("dtype", "source"), [("int64", "main.c"), ("int32", "main.cpp")])
def test_numbers_that_pick_no_row_are_one_line_that_names_them(dims: str, dtype: str, source: str, tmp_path: Path) -> None:
    proto = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]> g ({dtype}[{dims}] ids) => (float[{dims},4] y) {{ y = Gather(table, ids) }}"""
    )
    proto.graph.initializer.append(numpy_helper.from_array(np.arange(28, dtype=np.float32).reshape(7, 4), "table"))
    model = octavo.load(proto)
    compiler = "gcc" if source == "main.c" else "clang++"
    program = built_example(export_c(model, tmp_path / "library").path, source, compiler)
    sizes, ids = ["2", "3"] if dims != "2,3" else [], np.array([[0, -7, 6], [1, 2, 3]], dtype)
    executable = octavo.compile(model)
    for wrong in (None, 7, -8, 2**31 - 1):
        given = ids.copy()
        given[1, 1] = 5 if wrong is None else wrong
        (tmp_path / "ids").write_bytes(given.tobytes())
        words = [program, *sizes, str(tmp_path / "ids"), str(tmp_path / "y")]
        done = subprocess.run(words, check=False, capture_output=True, text=True)
        if wrong is None:
            assert (tmp_path / "y").read_bytes() == executable(given)["y"].tobytes()
        said = "" if wrong is None else f"model: ids is {wrong}, and takes -7 to 6\n"
        assert (done.returncode, done.stderr) == (int(wrong is not None), said)


def test_a_size_that_is_a_multiple_is_given_as_what_it_is_one_of(tmp_path: Path, rng: np.random.Generator) -> None:
    nodes = [
        helper.make_node("MaxPool", ["x"], ["half"], kernel_shape=[2], strides=[2]),
        helper.make_node("Concat", ["half", "half"], ["twice"], axis=2),
        helper.make_node("Add", ["x", "twice"], ["y"]),
    ]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 8, "length"]) for name in "xy"]
    proto = helper.make_model(helper.make_graph(nodes, "g", *[[port] for port in ports]), ir_version=8)
    model = octavo.load(proto)
    executable = octavo.compile(model)
    program = built_example(export_c(model, tmp_path / "library").path)
    for batch, half in ((1, 1), (3, 20)):
        data = {"x": rng.normal(size=(batch, 8, 2 * half)).astype(np.float32)}
        expected = [each.tobytes() for each in executable(data).values()]
        assert run_example(program, tmp_path, [batch, half], data, 1) == expected, f"{batch, half}"


def test_an_int8_transformer_gives_the_bytes_of_python(tmp_path: Path, rng: np.random.Generator) -> None:
    sizes = {number: Size.parse(OPEN[number]) for number in (BATCH, SEQUENCE)}
    model = loaded(quantized("static", has_past=False), sizes)
    executable = octavo.compile(model)
    export_c(model, tmp_path / "library", multiversion=True)
    program = built_example(tmp_path / "library")
    for batch, sequence in ((1, 1), (4, 37), (2, 130)):
        data = draw(rng, batch, sequence, None)
        expected = [each.tobytes() for each in executable(data).values()]
        given = {spec.source_name: data[spec.source_name] for spec in executable.inputs}
        assert run_example(program, tmp_path, [batch, sequence], given, len(expected)) == expected, f"{batch, sequence}"


# ---------------------------------------------------------------------------------------------------------------- state


def stepped(executable: Any, x: list[np.ndarray]) -> list[bytes]:
    """Return what the steps of decode.c give in Python's sessions."""
    with executable.session(carry=CARRY, capacity={"past": 12}) as first:
        results = [first(each)["y"] for each in x[:3]]
        copy = first.fork()
        results += [first(each)["y"] for each in x[3:6]]
        results += [copy(each)["y"] for each in x[6:9]]
        first.reset(to=2)
        results += [first(each)["y"] for each in x[9:14]]
    return [each.tobytes() for each in results]


@pytest.fixture(scope="module", params=["float32", "int8"])
def steps(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> tuple[Path, str, list[np.ndarray], str]:
    """The folder of decode.c's program, which holds its x, the program, x, and the type of the states."""
    folder = tmp_path_factory.mktemp("decode")
    # For valgrind, which knows neither AVX-512 nor GFNI.
    export_c(decoder(state=request.param), folder / "library", target=HASWELL, carry=CARRY)
    shutil.copy(Path(__file__).parent / "decode.c", folder / "library" / "decode.c")
    rng = np.random.default_rng(6)
    counts = [*STEPS, *STEPS[3:], *STEPS]
    x = [rng.normal(size=(2, count, HEADS * SIZE)).astype(np.float32) for count in counts]
    (folder / "x").write_bytes(b"".join(each.tobytes() for each in x))
    return folder, built_example(folder / "library", "decode.c"), x, request.param


@pytest.mark.needs_isa("x86")
def test_steps_copies_and_resets_give_the_bytes_of_sessions(steps: tuple[Path, str, list[np.ndarray], str]) -> None:
    folder, program, x, state = steps
    done = subprocess.run([program, str(folder), "12"], check=False, capture_output=True, text=True)
    # Behind the reset to 2 rows the last step does not fit.
    assert (done.returncode, done.stdout) == (34, "model: past is 14 after this step, and the capacity is 12\n")
    assert (folder / "y").read_bytes() == b"".join(stepped(octavo.compile(decoder(state=state), target=HASWELL), x))
    done = subprocess.run([program, str(folder), "14"], check=True, capture_output=True, text=True)
    assert done.stdout == "14 rows\n"


@pytest.mark.needs_isa("x86")
def test_valgrind_finds_nothing(steps: tuple[Path, str, list[np.ndarray], str]) -> None:
    needs_programs("valgrind")
    folder, program, *_ = steps
    command = ["valgrind", "-q", "--error-exitcode=9", "--leak-check=full", program, str(folder), "14"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def recurrence() -> octavo.Model:
    x, state = (relax.Var(name, relax.TensorType([1, 4], "float32")) for name in ("x", "state"))
    builder: Any = relax.BlockBuilder()
    with builder.function("main", [x, state]):
        with builder.dataflow():
            total = builder.emit(R.add(x, state), name_hint="total")
            outputs = builder.emit_output(relax.Tuple([builder.emit(R.multiply(total, total), name_hint="y"), total]))
        builder.emit_func_output(outputs)
    return octavo.load(builder.get())


def test_a_state_of_one_size_is_handed_over(tmp_path: Path) -> None:
    executable = octavo.compile(recurrence())
    _, total = (spec.source_name for spec in executable.outputs)
    export_c(recurrence(), tmp_path / "library", carry={total: "state"})
    (tmp_path / "library" / "count.c").write_text(COUNT)
    done = subprocess.run([built_example(tmp_path / "library", "count.c")], check=True, capture_output=True, text=True)
    assert done.stdout == "1 9 36 4 16\n"


def test_a_state_begins_as_the_model_states(tmp_path: Path) -> None:
    model = recurrence()
    _, total = (spec.source_name for spec in octavo.compile(model).outputs)
    begun = replace(model, starts={str(model.input_ids[1]): np.float32([[0, 0, 0, 2]])})
    export_c(begun, tmp_path / "library", carry={total: "state"})
    (tmp_path / "library" / "count.c").write_text(COUNT)
    done = subprocess.run([built_example(tmp_path / "library", "count.c")], check=True, capture_output=True, text=True)
    assert done.stdout == "9 25 64 16 36\n"


COUNT = r"""#include "model.h"
#include <stdio.h>

static _Alignas(MODEL_ALIGNMENT) unsigned char memory[MODEL_STATE_BYTES], other[MODEL_STATE_BYTES];
static _Alignas(MODEL_ALIGNMENT) unsigned char workspace[MODEL_WORKSPACE_BYTES + 1];
static _Alignas(MODEL_ALIGNMENT) float x[4], y[4];

static int step(model_state* state, float value) {
  const void* inputs[] = {x, NULL};
  void* outputs[] = {y, NULL};
  int i;
  for (i = 0; i < 4; i++) x[i] = value;
  if (model_state_step(state, inputs, outputs, workspace) != MODEL_OK) return -1;
  return (int)y[3];
}

int main(void) {
  model_state state, copy;
  int first, second, third, again, copied;
  if (model_state_open(&state, memory + 1) != MODEL_MISALIGNED || model_state_open(&state, memory) != MODEL_OK) return 1;
  first = step(&state, 1);
  second = step(&state, 2);
  third = step(&state, 3);
  if (model_state_reset(&state) != MODEL_OK) return 2;
  again = step(&state, 2);
  if (model_state_copy(&state, &copy, other) != MODEL_OK) return 3;
  step(&state, 7);
  if (*(float*)model_state_input(&copy, 1) != 2 || model_state_input(&copy, 0) != NULL) return 4;
  copied = step(&copy, 2);
  printf("%d %d %d %d %d\n", first, second, third, again, copied);
  return 0;
}
"""


def test_the_command_line_names_the_state(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    proto = """<ir_version: 8, opset_import: ["" : 13]> sums (float[N,3] x, float[2,3] total) => (float[N,3] y, float[2,3] next) {
        next = Add(total, total)
        y = Mul(x, x)
    }"""
    onnx.save(onnx.parser.parse_model(proto), str(tmp_path / "m.onnx"))
    words = ["compile", "m.onnx", "--emit", "c", "--state", "next=total", "--name", "sums", "-o", "library"]
    assert main([str(tmp_path / word) if word in ("m.onnx", "library") else word for word in words]) == 0
    assert "int sums_state_step(sums_state* state, const sums_sizes* sizes" in (tmp_path / "library" / "sums.h").read_text()
    assert "bytes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("carry", "message"),
    [
        ({"nosuch": "past_key"}, "no output 'nosuch'"),
        ({"y": "x"}, "is no state of"),
        ({"key": "past_key"}, "carry it to 'past_value', too"),
        ({"value": "past_key", "key": "past_value"}, "no kernel writes it in place"),
    ],
)
def test_states_that_cannot_be_are_refused(carry: dict[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        export_c(decoder(), tmp_path / "library", carry=carry)
