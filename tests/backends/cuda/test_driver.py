"""How a plan is run on a GPU, against a driver whose GPU is the emulator."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from fake_driver import FakeDriver
from small_networks import dense_model

import octavo
from octavo.backends.cuda import driver
from octavo.build import Executable
from octavo.errors import DataError, ExecutableError

ISA = "cuda.sm_80"


@pytest.fixture
def compiled(rng, monkeypatch) -> tuple[Executable, FakeDriver]:
    executable = octavo.compile(dense_model(rng), target=ISA)
    code: Any = executable._code
    fake = FakeDriver(code.plan.kernels)
    monkeypatch.setattr(driver, "driver", lambda: fake)
    return executable, fake


def emulated(executable: Executable) -> Executable:
    code: Any = executable._code
    return Executable(code.emulation(), executable.description)


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


def test_memory_is_given_back(compiled) -> None:
    executable, fake = compiled
    executable.bind(np.zeros((5, 24), np.int8))()
    del executable
    gc.collect()
    assert len(fake.memory) <= 1  # constants stay until the last executable of the module is gone


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
