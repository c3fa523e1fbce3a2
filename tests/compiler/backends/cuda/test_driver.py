"""How a plan is run on a GPU, against a driver whose GPU is the emulator."""

from __future__ import annotations

import ctypes
import gc
from typing import Any

import numpy as np
import pytest
from emulated_runner import emulated
from fake_driver import FakeDriver
from small_networks import dense_model

import octavo
from octavo.compiler.backends.cuda import driver
from octavo.errors import DataError, ExecutableError
from octavo.runtime.executable import Executable

ISA = "cuda.sm_80"


@pytest.fixture
def compiled(rng, monkeypatch) -> tuple[Executable, FakeDriver]:
    executable = octavo.compile(dense_model(rng), target=ISA)
    code: Any = executable.code
    fake = FakeDriver(code.plan.kernels)
    monkeypatch.setattr(driver, "driver", lambda: fake)
    return executable, fake


def test_a_call_uploads_launches_once_and_downloads(rng, compiled) -> None:
    executable, fake = compiled
    x = rng.integers(-128, 128, (5, 24)).astype(np.int8)
    (expected,) = emulated(executable)(x).values()
    for _ in range(2):
        (found,) = executable(x).values()
        assert np.array_equal(found, expected)
    # The constants once, then each call alike.
    assert fake.log == ["upload", *["upload", "launch", "download", "wait"] * 2]


def test_a_bound_call_reads_its_inputs_anew(rng, compiled) -> None:
    executable, _ = compiled
    x = rng.integers(-128, 128, (5, 24)).astype(np.int8)
    call = executable.bind(np.zeros_like(x))
    call.inputs["x_q"][:] = x
    (found,) = call().values()
    (expected,) = emulated(executable)(x).values()
    assert np.array_equal(found, expected)


def test_memory_is_given_back(rng, monkeypatch) -> None:
    executable = octavo.compile(dense_model(rng), target=ISA)
    code: Any = executable.code
    fake = FakeDriver(code.plan.kernels)
    monkeypatch.setattr(driver, "driver", lambda: fake)
    executable.bind(np.zeros((5, 24), np.int8))()
    executable(np.zeros((5, 24), np.int8))
    assert fake.memory
    del executable, code
    gc.collect()
    assert fake.memory == {}
    assert fake.log[-1] == "leave"


def test_a_call_that_cannot_be_made_gives_its_memory_back(compiled, monkeypatch) -> None:
    executable, fake = compiled
    executable(np.zeros((5, 24), np.int8))
    before = set(fake.memory)
    monkeypatch.setattr(fake, "cuGraphInstantiate", lambda _graph, _flags: (fake.CUresult.CUDA_ERROR_INVALID_VALUE, None))
    with pytest.raises(ExecutableError, match="the GPU's driver failed to make a graph of the launches"):
        executable.bind(np.zeros((5, 24), np.int8))
    gc.collect()
    assert set(fake.memory) == before


def test_inputs_are_checked_first(compiled) -> None:
    executable, fake = compiled
    with pytest.raises(DataError):
        executable(np.zeros((5, 24), np.uint8))
    assert fake.log == []


def test_what_the_driver_refuses_is_told(compiled, monkeypatch) -> None:
    executable, fake = compiled
    monkeypatch.setattr(fake, "cuModuleLoadData", lambda cubin: (fake.CUresult.CUDA_ERROR_INVALID_VALUE, None))
    with pytest.raises(ExecutableError, match=r"failed to load code for cuda\.sm_80, .*: CUDA_ERROR_INVALID_VALUE"):
        executable(np.zeros((5, 24), np.int8))


def test_the_present_gpu_decides_what_cuda_means(compiled) -> None:
    _, fake = compiled
    fake.capability = (7, 5)
    assert driver.present_isa().name == "cuda.sm_75"


class OnGpu:
    """Memory of the fake GPU as a tensor of another library: it says by DLPack where it lies."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0  # kDLCUDA

    def __dlpack__(self, **_: Any) -> Any:
        capsule = self.array.__dlpack__()
        pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
        pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        # DLTensor: the address of the data, then the device's type.
        ctypes.c_int32.from_address(pointer_of(capsule, b"dltensor") + 8).value = 2
        return capsule


def test_tensors_of_other_libraries_are_read_and_written_in_place(rng, compiled) -> None:
    executable, fake = compiled
    given = [np.frombuffer(fake.memory[fake.cuMemAlloc(size)[1]], dtype) for size, dtype in ((120, np.int8), (140, np.float32))]
    x, y = given[0].reshape(5, 24), given[1].reshape(5, 7)
    call = executable.bind_on_device({"x_q": OnGpu(x)}, {"y": OnGpu(y)})
    fake.log.clear()
    for _ in range(2):
        x[:] = rng.integers(-128, 128, x.shape)
        call()
        (expected,) = emulated(executable)(x).values()
        assert np.array_equal(y, expected)
    assert fake.log == ["wait for all", "launch", "wait"] * 2


def test_tensors_that_do_not_fit_are_refused(compiled) -> None:
    executable, _ = compiled
    x, y = OnGpu(np.zeros((5, 24), np.int8)), OnGpu(np.zeros((5, 7), np.float32))
    for inputs, outputs, said in (
        ({}, {"y": y}, "input 'x_q': missing; expected x_q"),
        ({"x_q": x, "z": x}, {"y": y}, "input 'z': unknown; expected x_q"),
        ({"x_q": y}, {"y": y}, r"input 'x_q': expected int8 \(5, 24\), got float32 \(5, 7\)"),
        ({"x_q": x}, {"y": OnGpu(np.zeros((7, 5), np.float32).T)}, "output 'y': must be dense"),
        ({"x_q": np.zeros((5, 24), np.int8)}, {"y": y}, "a tensor lies on cpu:0, expected cuda:0"),
        ({"x_q": 5}, {"y": y}, "input 'x_q': not a tensor that DLPack can hand over"),
    ):
        with pytest.raises(DataError, match=said):
            executable.bind_on_device(inputs, outputs)


def test_code_for_the_host_is_bound_there(rng) -> None:
    with pytest.raises(ExecutableError, match="the executable runs on the host, where inputs are NumPy arrays: use bind"):
        octavo.compile(dense_model(rng)).bind_on_device({}, {})
