"""The emulator finds what a GPU would do wrong silently: each fault is planted in a kernel of this file's own."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import numpy as np
import pytest
from cuda_emulator import DEVICE, Call, Check, Emulator

from octavo.compiler.backends.cuda.kernel import Argument, Kernel
from octavo.errors import CompileError, ExecutableError

REVERSED = """
template <class P>
__device__ __forceinline__ void reversed(const int* x, int* y) {
  int* shared = reinterpret_cast<int*>(octavo_emulation::shared_memory());
  int thread = threadIdx.x, at = blockIdx.x * P::threads;
  shared[thread] = x[at + thread];
  __syncthreads();
  y[at + thread] = shared[P::threads - 1 - thread];
}
"""
THREADS, BLOCKS = 64, 3
Run = Callable[..., np.ndarray]


@pytest.fixture
def run(tmp_path) -> Run:
    """Launch `REVERSED`, as `change` makes it, on the integers from 0 on."""

    def run(
        change: tuple[str, str] = ("", ""),
        *,
        check: Check = "none",
        seed: int = 0,
        shared_bytes: int = 4 * THREADS,
        launches: int = 1,
    ) -> np.ndarray:
        device = tmp_path / f"device{len(list(tmp_path.iterdir()))}"
        shutil.copytree(DEVICE, device)
        assert change[0] in REVERSED
        text = REVERSED.replace(*change) if change[0] else REVERSED
        (device / "reversed.cuh").write_text(f'#pragma once\n#include "base.cuh"\nnamespace octavo {{\n{text}\n}}\n')
        kernel = kernel_of(shared_bytes)
        emulator = Emulator([kernel], check=check, device=device)
        x = np.arange(BLOCKS * THREADS, dtype=np.int32)
        buffers = [x.view(np.uint8), np.zeros(x.nbytes, np.uint8)]
        (y,) = emulator.run([Call(kernel=kernel, arguments=((0, 0), (1, 0)))] * launches, buffers, [1], seed)
        return y.view(np.int32)

    return run


def kernel_of(shared_bytes: int) -> Kernel:
    return Kernel(
        name="reversed",
        header="reversed.cuh",
        function="reversed",
        parameters={"threads": THREADS},
        arguments=(Argument(name="x", dtype="int32"), Argument(name="y", dtype="int32", writes=True)),
        grid=(BLOCKS, 1, 1),
        block=(THREADS, 1, 1),
        isa="cuda.sm_61",
        shared_bytes=shared_bytes,
    )


EXPECTED = np.arange(BLOCKS * THREADS).reshape(BLOCKS, THREADS)[:, ::-1].ravel()


@pytest.mark.parametrize("check", ["none", "races", "addresses"])
@pytest.mark.parametrize("seed", [0, 7])
def test_threads_wait_at_barriers(run: Run, check: Check, seed: int) -> None:
    assert np.array_equal(run(check=check, seed=seed), EXPECTED)


def test_a_missing_barrier_changes_the_result_and_is_a_race(run: Run) -> None:
    fault = ("__syncthreads();", "")
    assert not np.array_equal(run(fault), EXPECTED)
    with pytest.raises(ExecutableError, match="data race"):
        run(fault, check="races")


def test_blocks_that_write_one_place_are_a_race_and_launches_are_none(run: Run) -> None:
    assert np.array_equal(run(check="races", launches=3), EXPECTED)
    with pytest.raises(ExecutableError, match="data race"):
        run(("at = blockIdx.x * P::threads", "at = 0"), check="races")


def test_threads_that_wait_for_each_other_are_named(run: Run) -> None:
    fault = ("__syncthreads();", "if (thread < 8) { while (true) __syncthreads(); } else { __syncwarp(); __syncthreads(); }")
    with pytest.raises(ExecutableError, match=r"threads wait for each other: 0 at __syncthreads"):
        run(fault)


def test_memory_beyond_a_buffer_or_the_shared_memory_is_found(run: Run) -> None:
    with pytest.raises(ExecutableError, match="heap-buffer-overflow"):
        run(("y[at + thread]", "y[at + thread + 1]"), check="addresses")
    with pytest.raises(ExecutableError, match="heap-buffer-overflow"):
        run(check="addresses", shared_bytes=4 * THREADS - 4)


def test_shared_memory_begins_as_noise(run: Run) -> None:
    fault = ("shared[thread] = x[at + thread];", "")
    assert np.unique(run(fault)).size > THREADS


def test_whole_warp_instructions_need_whole_warps(run: Run) -> None:
    exchange = "octavo_emulation::exchange(&thread, 4);"
    fault = ("__syncthreads();", f"if (thread == 5) return; {exchange} __syncthreads();")
    with pytest.raises(ExecutableError, match="an instruction of the whole warp in one that is not whole"):
        run(fault)


def test_lanes_exchange_as_cuda_defines_it(run: Run) -> None:
    for call, source in (
        ("__shfl_xor_sync(~0u, thread, 3)", lambda lane: lane ^ 3),
        ("__shfl_down_sync(~0u, thread, 5)", lambda lane: lane + 5 if lane + 5 < 32 else lane),
        ("__shfl_up_sync(~0u, thread, 5, 8)", lambda lane: lane - 5 if lane % 8 >= 5 else lane),
        ("__shfl_sync(~0u, thread, 9, 16)", lambda lane: lane // 16 * 16 + 9),
    ):
        found = run(("shared[P::threads - 1 - thread]", call)).reshape(-1, 32)
        assert np.array_equal(found[0], [source(lane) for lane in range(32)])


def test_what_the_compiler_rejects_is_told(run: Run) -> None:
    with pytest.raises(CompileError, match=r"the host's compiler rejects a kernel: .*nothing"):
        run(("__syncthreads();", "nothing();"))


def test_a_kernel_that_no_launch_can_have_is_refused() -> None:
    with pytest.raises(CompileError, match=r"kernel big: no launch has the grid \(1, 65536, 1\) of blocks \(32, 1, 1\)"):
        Kernel(
            name="big",
            header="",
            function="",
            parameters={},
            arguments=(),
            grid=(1, 65536, 1),
            block=(32, 1, 1),
            isa="cuda.sm_61",
        )
