"""The functions by which threads share a unit: each piece is claimed once, late threads get none, and who waits sleeps."""

import ctypes
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
from tvm.support import cc

from octavo.compiler.codegen.tir_passes import llvm_module
from octavo.compiler.codegen.worker_pool_code import MAX_PIECES, fixed_functions
from octavo.runtime.llvm_host import host_target


@pytest.fixture(scope="module")
def code(tmp_path_factory):
    """The functions, called on one unit's word."""
    folder = tmp_path_factory.mktemp("worker_pool")
    llvm_module(fixed_functions(), host_target()).write_to_file(str(folder / "code.o"))
    cc.create_shared(str(folder / "code.so"), [str(folder / "code.o")])
    library = ctypes.CDLL(str(folder / "code.so"))  # calls release Python's lock
    memory = np.zeros(16, np.int64)
    word, sleepers = (ctypes.c_void_p(memory[index:].ctypes.data) for index in (0, 8))

    def take(call: int, pieces: int, back: int) -> int:
        piece = ctypes.c_int32()
        library.octavo_worker_take(word, ctypes.c_int64(call), pieces, back, ctypes.byref(piece))
        return piece.value

    def finish(pieces: int) -> None:
        library.octavo_worker_finish(word, pieces, sleepers)

    def wait(call: int, pieces: int) -> None:
        library.octavo_worker_await(word, ctypes.c_int64((call << 18) + (pieces << 12)), sleepers)

    def reset() -> None:
        memory[:] = 0

    return SimpleNamespace(take=take, finish=finish, wait=wait, memory=memory, reset=reset)


@pytest.fixture(autouse=True)
def fresh(code):
    code.reset()


def test_pieces_are_claimed_from_both_ends_until_none_is_left(code):
    assert [code.take(1, 5, back) for back in (0, 1, 0, 1, 1, 0, 1)] == [0, 4, 1, 3, 2, -1, -1]


def test_a_later_call_begins_anew_and_leaves_nothing_to_a_thread_of_an_earlier_one(code):
    for call in (1, 2, 1 << 40):
        assert [code.take(call, 2, back) for back in (0, 1, 0)] == [0, 1, -1]
        code.finish(2)
        code.finish(2)
        code.wait(call, 2)
    code.wait(1, 2)
    assert code.take(2, 2, 0) == -1
    assert code.take((1 << 40) + 1, 2, 0) == 0


@pytest.mark.parametrize("pieces", [1, 2, 3, MAX_PIECES])
def test_threads_that_race_get_each_piece_once_and_wait_for_all(code, pieces):
    calls = range(1, 300)

    def work(task: int) -> list[tuple[int, int]]:
        taken: list[tuple[int, int]] = []
        for call in calls:
            while (piece := code.take(call, pieces, task & 1)) >= 0:
                taken.append((call, piece))
                code.finish(pieces)
            code.wait(call, pieces)
        return taken

    with ThreadPoolExecutor(3) as pool:
        taken = sorted(each for some in pool.map(work, range(3)) for each in some)
    assert taken == [(call, piece) for call in calls for piece in range(pieces)]
    assert not code.memory[8]


def test_who_waits_sleeps_and_is_woken_by_the_last_piece(code):
    assert [code.take(7, 2, back) for back in (0, 1)] == [0, 1]
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(code.wait, 7, 2) for _ in range(2)]
        while code.memory[8] < 2:
            time.sleep(0.01)
        before = time.process_time()
        time.sleep(0.3)
        assert time.process_time() - before < 0.1
        code.finish(2)
        time.sleep(0.01)
        assert not any(each.done() for each in waiting)
        code.finish(2)
        for each in waiting:
            each.result()
    assert not code.memory[8]
