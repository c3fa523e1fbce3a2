"""docs/deploy.md: its commands run, and its C is a program."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from page_files import write_files
from pages import DOCS, blocks

import octavo
from child_python import run_python
from float_networks import FloatNetwork
from missing import needs_programs
from octavo.cli.main import main
from octavo.errors import CompileError
from octavo.export.c_library import export_c

PAGE = DOCS / "deploy.md"
COMMANDS = re.findall(r"^(octavo .*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
OF_COLOUR = "mean=123.7+116.3+103.5,std=58.4+57.1+57.4,size=480x640"
PROGRAM = """\
#include <stdio.h>
#include "mobilenet.h"
int main(void) {{
{block}
return code;
}}
"""

DECODER = """<ir_version: 8, opset_import: ["" : 13]>
decoder (float[batch,sequence,4] x, float[batch,past,4] past) => (float[batch,sequence,4] y, float[batch,all,4] present) {
    present = Concat <axis = 1> (past, x)
    mean = ReduceMean <axes = [1]> (present)
    y = Mul(x, mean)
}"""
OPEN_PROGRAM = """\
#include <stdio.h>
#include <stdlib.h>
#include "ocr.h"
#include "decoder.h"
static _Alignas(64) float image[3 * 48 * 480], scores[480 * 5];
static int any_size(void) {{
{sizes}
free(workspace);
return code;
}}
static int with_state(void) {{
static _Alignas(64) float x[4], y[4];
static _Alignas(64) unsigned char workspace[4096];
const void* inputs[] = {{x, NULL}};
void* outputs[] = {{y, NULL}};
{state}
return code + (other.sizes.past != 1) + (state.sizes.past != 0);
}}
int main(void) {{ return any_size() || with_state(); }}
"""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of what the page names: m.int8.onnx beside m.onnx; m.tflite, which takes the samples in calib.npz; a network of open
    width and what it reads."""
    folder = tmp_path_factory.mktemp("prepared")
    write_files(folder)
    samples = np.load(folder / "calib.npz")["x"]
    model = octavo.load(folder / "m.onnx")
    octavo.export_onnx(octavo.quantize(model, octavo.profile(model, [samples], keep_samples=0)), folder / "m.int8.onnx")
    net = FloatNetwork(rng=np.random.default_rng(6))
    x = net.input((1, *samples.shape[1:]))
    (folder / "m.tflite").write_bytes(net.write(net.dense(net.conv(x, 8), 10)))
    write_lines(folder / "ocr.int8.onnx")
    onnx.save(onnx.parser.parse_model(DECODER), folder / "decoder.onnx")
    np.save(folder / "line.npy", np.zeros((1, 3, 48, 128), np.float32))
    return folder


@pytest.fixture(scope="module")
def c_library(prepared: Path) -> Path:
    """The folder of C that the page's first command writes."""
    folder = prepared / "written" / "mobilenet"
    folder.parent.mkdir()
    with contextlib.chdir(prepared):
        assert main(shlex.split(COMMANDS[0].replace("-o mobilenet", f"-o {folder}"))[1:]) == 0
    return folder


@pytest.fixture
def quantized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prepared: Path) -> Path:
    """Current folder with those files."""
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("written"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def with_c(quantized: Path, c_library: Path) -> Path:
    """The same, with the library in C."""
    shutil.copytree(c_library, quantized / "mobilenet")
    return quantized


def block_of(language: str, holding: str = "") -> str:
    (block,) = (each.text for each in blocks(PAGE) if each.language == language and holding in each.text)
    return block


def write_lines(path: Path) -> None:
    """Write a network that reads pictures of any width."""
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)
        for name, dims in (("x", ["N", 3, 48, "W"]), ("y", ["N", "W", 5]))
    ]
    weight = numpy_helper.from_array(np.ones((48, 5), np.float32), "w")
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["grey"], axes=[1], keepdims=0),
        helper.make_node("Transpose", ["grey"], ["columns"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["columns", "w"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "lines", ends[:1], ends[1:], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.usefixtures("quantized")
def test_the_command_runs(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    if "aarch64" in command:
        needs_programs("aarch64-linux-gnu-gcc", installed_by="make emulation")
    if command.startswith("octavo run"):
        first = next(each for each in COMMANDS if f"-o {command.split()[2]}" in each)
        assert main(shlex.split(first)[1:]) == 0
    assert main(shlex.split(command)[1:]) == 0, capsys.readouterr().err
    assert Path(command.split(" -o ")[1].split()[0]).exists()


def test_the_program_builds_and_runs(with_c: Path) -> None:
    Path("own.c").write_text(PROGRAM.format(block=block_of("c", "mobilenet_run")), encoding="utf-8")
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-Imobilenet"]
    subprocess.run(["gcc", *flags, "own.c", "mobilenet/libmobilenet.a", "-lm", "-o", "own"], check=True)
    assert subprocess.run(["./own"], check=False).returncode == 0


@pytest.mark.usefixtures("quantized")
def test_the_programs_of_open_sizes_and_of_state_build_and_run() -> None:
    for name in ("ocr", "decoder"):
        command = next(each for each in COMMANDS if f"--name {name}" in each)
        assert main(shlex.split(command)[1:]) == 0
    blocks_of = {"sizes": block_of("c", "ocr_run"), "state": block_of("c", "decoder_state_step")}
    Path("own.c").write_text(OPEN_PROGRAM.format(**blocks_of), encoding="utf-8")
    parts = ["-Iocr", "-Idecoder", "own.c", "ocr/libocr.a", "decoder/libdecoder.a", "-lm", "-o", "own"]
    subprocess.run(["gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", *parts], check=True)
    assert subprocess.run(["./own"], check=False).returncode == 0


def test_the_folder_holds_what_the_table_lists(with_c: Path) -> None:
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    listed = {name for line in lines for name in re.findall(r"`([^`]+)`", line.split("|")[1])}
    assert listed - {".bin"} | {"mobilenet_constants.bin"} == {
        path.name + "/" * path.is_dir() for path in Path("mobilenet").iterdir() if path.name[0] != "." and path.suffix != ".map"
    }


def test_two_libraries_go_into_one_program(quantized: Path) -> None:
    for name in ("first", "second"):
        assert main(shlex.split(f"octavo compile m.int8.onnx --emit c -o {name} --name {name}")[1:]) == 0
    text = '#include "first.h"\n#include "second.h"\nint main(void) { return first_init() + second_init(); }\n'
    Path("both.c").write_text(text, encoding="utf-8")
    parts = ["-Ifirst", "-Isecond", "both.c", "first/libfirst.a", "second/libsecond.a", "-lm", "-o", "both"]
    subprocess.run(["gcc", "-Wall", "-Wextra", "-Werror", *parts], check=True)
    assert subprocess.run(["./both"], check=False).returncode == 0


def test_an_op_of_tvm_s_runtime_is_refused_with_the_reason(tmp_path: Path) -> None:
    text = "g (float[4,8] x) => (float[4,3] y, int64[4,3] i) <int64[1] k = {3}> { y, i = TopK(x, k) }"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 13]> {text}'), tmp_path / "sort.onnx")
    with pytest.raises(CompileError, match="calls TVM's runtime"):
        export_c(octavo.load(tmp_path / "sort.onnx"), tmp_path / "sort")


def test_rust_reads_the_header(with_c: Path) -> None:
    needs_programs("bindgen", "rustc")
    made = subprocess.run(["bindgen", "mobilenet/mobilenet.h"], check=True, capture_output=True, text=True)
    Path("mobilenet.rs").write_text(made.stdout, encoding="utf-8")
    Path("main.rs").write_text(block_of("rust"), encoding="utf-8")
    linked = ["-L", "native=mobilenet", "-l", "static=mobilenet", "-l", "m"]
    subprocess.run(["rustc", "main.rs", *linked, "-o", "from_rust"], check=True)
    assert subprocess.run(["./from_rust"], check=False).returncode == 0


def test_go_reads_the_header(with_c: Path) -> None:
    needs_programs("go")
    Path("main.go").write_text(block_of("go"), encoding="utf-8")
    here = {**os.environ, "GO111MODULE": "off", "GOCACHE": str(Path("cache").resolve()), "CGO_ENABLED": "1"}
    subprocess.run(["go", "build", "-o", "from_go", "main.go"], check=True, env=here)
    assert subprocess.run(["./from_go"], check=False).returncode == 0


@pytest.mark.parametrize(("holding", "written"), [("sizes=", "ocr.so"), ("export_tflite", "m.int8.tflite")])
@pytest.mark.usefixtures("quantized")
def test_the_python_runs(holding: str, written: str) -> None:
    exec(block_of("python", holding=holding), {"__name__": "page"})
    assert Path(written).exists()


PLAIN = """
import sys
import numpy as np
import tvm
from tvm import relax
machine = relax.VirtualMachine(tvm.runtime.load_module("plain.so"), tvm.cpu())
np.save("plain.npy", machine["main"](tvm.runtime.tensor(np.load("x.npz")["x"][:1])).numpy())
assert "octavo" not in sys.modules
"""


def test_plain_tvm_loads_it(quantized: Path) -> None:
    exec(block_of("python", holding="relax_pipeline"), {"__name__": "page"})
    done = run_python(PLAIN)
    assert done.returncode == 0, done.stderr
    expected = octavo.compile(octavo.load("m.int8.onnx"))(np.load("x.npz")["x"][:1])["logits"]
    assert np.load("plain.npy").tobytes() == expected.tobytes()


def test_a_picture_goes_in_as_it_is(quantized: Path) -> None:
    (line,) = (each for each in COMMANDS if OF_COLOUR in each)
    assert main(shlex.split(line.replace(OF_COLOUR, "mean=0,std=16"))[1:]) == 0
    pixels = np.load("x.npz")["x"][:1]
    picture = (pixels * 16).astype(np.uint8).transpose(0, 2, 3, 1)
    plain = octavo.compile(octavo.load("m.int8.onnx"))(pixels)["logits"]
    np.testing.assert_array_equal(octavo.load_executable("m.so")(picture)["logits"], plain)
