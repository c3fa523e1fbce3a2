"""Executables: calling, binding, saving to one file, loading in a fresh process, and refusing what is not one of ours."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from onnx import helper, numpy_helper

import octavo
from child_python import run_python
from octavo.errors import CompileError, DataError, ExecutableError, TargetError
from octavo.frontends import load
from octavo.runtime.description import FORMAT_VERSION, Description
from octavo.runtime.executable import Executable


@pytest.fixture(scope="module")
def model(shared):
    return load(shared / "models/tflite/dscnn_kws_int8.tflite")


@pytest.fixture(scope="module")
def executable(model):
    return octavo.compile(model)


@pytest.fixture(scope="module")
def batch():
    return np.random.default_rng(0).integers(-128, 128, (1, 49, 10, 1)).astype(np.int8)


@pytest.fixture
def saved(executable, tmp_path):
    path = tmp_path / "dscnn.so"
    executable.save(path)
    return path


def test_call_takes_an_array_or_a_dict_and_names_its_outputs(executable, batch):
    (spec,) = executable.inputs
    by_array = executable(batch)
    assert list(by_array) == [executable.outputs[0].source_name]
    for name in (spec.source_name, spec.id):
        np.testing.assert_array_equal(executable({name: batch})[executable.outputs[0].source_name], *by_array.values())


def test_bound_inputs_are_written_in_place(executable, batch):
    call = executable.bind(batch)
    first = call()
    other = batch[:, ::-1].copy()
    call.inputs[executable.inputs[0].source_name][:] = other
    np.testing.assert_array_equal(*call().values(), *executable(other).values())
    assert not np.array_equal(*first.values(), *call().values())


def test_copies_and_pickles_give_the_same(executable, batch, saved):
    expected = list(executable(batch).values())
    for made in (copy.deepcopy(executable), pickle.loads(pickle.dumps(Executable.load(saved)))):
        np.testing.assert_array_equal(list(made(batch).values()), expected)


@pytest.mark.parametrize(("count", "said"), [(2**20, "compiled"), (2**17, "called")])
def test_more_memory_than_there_is_takes_one_line(count, said):
    """Two tiles, one of the other, and the greatest of all."""
    nodes = [helper.make_node("Tile", [name, "n"], [made]) for name, made in (("x", "a"), ("a", "b"))]
    nodes.append(helper.make_node("ReduceMax", ["b"], ["y"], keepdims=0))
    ends = [[helper.make_tensor_value_info(name, 1, shape)] for name, shape in (("x", [4]), ("y", []))]
    graph = helper.make_graph(nodes, "tiles", *ends, [numpy_helper.from_array(np.array([count]), "n")])
    model = load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8))
    if said == "compiled":
        with pytest.raises(CompileError, match=r"a call would need \d+ TiB"):
            octavo.compile(model)
        return
    executable = octavo.compile(model)
    with pytest.raises(ExecutableError, match=r"a call needs \d+ bytes .* for what it computes on its way"):
        executable(np.ones(4, np.float32))


def test_weight_bytes_are_those_of_the_packed_constants(executable, model):
    integers = sum(value.nbytes for value in model.params.values())
    assert integers * 0.8 < executable.weight_bytes < integers * 3


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (np.zeros((1, 49, 10, 2), np.int8), "shape"),
        (np.zeros((1, 49, 10, 1), np.float32), "int8"),
        ({"wrong": np.zeros((1, 49, 10, 1), np.int8)}, "missing"),
        ([1, 2], "NumPy array"),
    ],
)
def test_wrong_inputs_are_one_clear_error(executable, data, message):
    with pytest.raises(DataError, match=message):
        executable(data)


def test_a_saved_file_gives_the_same_bytes_in_a_fresh_process(executable, saved, batch, tmp_path):
    np.save(tmp_path / "x.npy", batch)
    code = (
        "import sys, numpy as np, octavo; e = octavo.Executable.load(sys.argv[1]);"
        "y, = e(np.load(sys.argv[2])).values(); np.save(sys.argv[3], y); print(e.description.threads, e.weight_bytes)"
    )
    done = run_python(code, saved, tmp_path / "x.npy", tmp_path / "y.npy", check=True)
    assert done.stdout.split() == [str(executable.threads), str(executable.weight_bytes)]
    assert np.load(tmp_path / "y.npy").tobytes() == next(iter(executable(batch).values())).tobytes()


@pytest.mark.parametrize("name", ["dscnn", "dscnn.bin", "dscnn.tar", "a b.o"])
def test_a_file_may_have_any_name(executable, batch, tmp_path, name):
    executable.save(tmp_path / name)
    np.testing.assert_array_equal(*Executable.load(tmp_path / name)(batch).values(), *executable(batch).values())
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_file_written_anew_is_read_anew(executable, batch, shared, tmp_path):
    path = tmp_path / "m.so"
    executable.save(path)
    first = Executable.load(path)
    octavo.compile(load(shared / "models/tflite/autoencoder_ad01_int8.tflite")).save(path)
    second = Executable.load(path)
    assert first.inputs[0].shape != second.inputs[0].shape
    second(np.zeros(second.inputs[0].shape, np.int8))
    np.testing.assert_array_equal(*first(batch).values(), *executable(batch).values())


@pytest.mark.parametrize("cut", [1, 100, 5000])
def test_a_truncated_file_is_refused(saved, cut):
    saved.write_bytes(saved.read_bytes()[:-cut])
    with pytest.raises(ExecutableError, match="octavo compile"):
        Executable.load(saved)


def test_a_changed_byte_is_noticed(saved):
    content = bytearray(saved.read_bytes())
    content[len(content) // 2] ^= 1
    saved.write_bytes(content)
    with pytest.raises(ExecutableError, match="checksum"):
        Executable.load(saved)


@pytest.mark.parametrize("content", [b"", b"\x7fELF but no library", b"text\n" * 100])
def test_foreign_files_are_refused(tmp_path, content):
    path = tmp_path / "x.so"
    path.write_bytes(content)
    with pytest.raises(ExecutableError, match="not an Octavo executable"):
        Executable.load(path)


def test_missing_and_unwritable_paths(executable, tmp_path):
    with pytest.raises(ExecutableError, match="cannot read"):
        Executable.load(tmp_path / "none.so")
    with pytest.raises(ExecutableError, match="cannot write"):
        executable.save(tmp_path / "no" / "folder" / "x.so")
    assert list(tmp_path.iterdir()) == []


def test_two_threads_give_the_same_bytes(model, executable, batch):
    two = octavo.compile(model, threads=2)
    assert two.threads == 2
    np.testing.assert_array_equal(*two(batch).values(), *executable(batch).values())


def test_generic_kernels_give_the_same_bytes(model, executable, batch):
    generic = octavo.compile(model, target="generic")
    assert {op.isa for op in octavo.explain(generic).ops} <= {"generic", "tvm", ""}
    np.testing.assert_array_equal(*generic(batch).values(), *executable(batch).values())


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("tpu", "unknown target"),
        ("llvm -mcpu=nonsense", "nonsense"),
        ("llvm mcpu=x", "expected options"),
    ],
)
def test_unknown_targets_are_one_clear_error(model, target, message):
    with pytest.raises(TargetError, match=message):
        octavo.compile(model, target=target)


def test_threads_are_bounded(model):
    for threads in (0, 10_000):
        with pytest.raises(TargetError, match="threads must be 1 to"):
            octavo.compile(model, threads=threads)


@pytest.mark.parametrize(("mcpu", "isa"), [("haswell", "x86.avx2"), ("sandybridge", "generic")])
def test_another_cpu_can_be_named(model, executable, batch, mcpu, isa):
    """Code for an older x86 runs here too, with the kernels of its ISA."""
    older = octavo.compile(model, target=f"llvm -mcpu={mcpu}")
    assert older.description.isa == isa
    np.testing.assert_array_equal(*older(batch).values(), *executable(batch).values())


@pytest.mark.parametrize(
    ("compiler", "said"), [(None, "there is no C compiler"), ("no-such-cc", "there is no no-such-cc, which")]
)
def test_without_a_compiler_models_run_and_are_not_saved(model, executable, batch, tmp_path, monkeypatch, compiler, said):
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("CC", "CXX"):
        monkeypatch.delenv(name, raising=False)
    if compiler is not None:
        monkeypatch.setenv("CXX", compiler)
    here = octavo.compile(model)
    for name, value in executable(batch).items():
        np.testing.assert_array_equal(here(batch)[name], value)
    with pytest.raises(ExecutableError, match=f"cannot link the executable: {said}.*needs a C compiler"):
        here.save(tmp_path / "m.so")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"inputs": None}, "TypeError"),
        ({"isa": {}}, "are text"),
        ({"batch_range": [1]}, "ValueError"),
        ({"limits": [["8", 3]]}, "no size with a limit"),
        ({"inputs": [{"name": "x"}]}, "KeyError: 'shape'"),
    ],
)
def test_a_description_that_was_not_written_by_octavo_is_refused_in_one_line(change, said):
    plain = dict.fromkeys(("fingerprint", "target", "isa", "batch_obstacle"), "") | dict.fromkeys(
        ("inputs", "outputs", "ops"), ()
    )
    whole = plain | dict.fromkeys(("threads", "weight_bytes", "workspace", "shared_units"), 0) | {"any_batch": False}
    whole |= {"format_version": FORMAT_VERSION, "batch_range": [1, 1], "features": [], "extents": [], "states": []}
    Description.from_json(whole)
    with pytest.raises(ExecutableError, match=said) as error:
        Description.from_json(whole | change)
    assert "\n" not in str(error.value)
