"""Crews: threads that share a call give the bytes of one, keep calls apart, sleep between them and end with their use."""

import gc
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import octavo
from octavo.build import crew, llvm_module
from octavo.build.crew_code import BODY
from octavo.kernels import host_target

MODEL = "models/tflite/resnet8_cifar10_int8.tflite"


@pytest.fixture(scope="module")
def model(shared):
    return octavo.load(shared / MODEL)


@pytest.fixture(scope="module")
def inputs(model):
    rng = np.random.default_rng(3)
    shape = octavo.compile(model).inputs[0].shape
    return [rng.integers(-128, 128, shape).astype(np.int8) for _ in range(6)]


@pytest.fixture(scope="module")
def expected(model, inputs):
    alone = octavo.compile(model, threads=1)
    return [result(alone(x)) for x in inputs]


@pytest.fixture(scope="module")
def executable(model):
    return octavo.compile(model, threads=2)


def result(outputs) -> np.ndarray:
    (value,) = outputs.values()
    return value


def workers() -> int:
    gc.collect()
    return sum(thread.name.startswith("octavo-") for thread in threading.enumerate())


def test_large_layers_are_shared(executable):
    """Without this the other tests would say nothing."""
    assert executable.description.shared_units
    text = llvm_module({BODY: executable._code.functions[BODY].function}, host_target()).inspect_source("ll")
    assert text.count("@octavo_crew_await(") > 4


def test_overlapping_calls_of_two_executables_give_each_its_own_result(model, executable, inputs, expected):
    executables = [executable, octavo.compile(model, threads=2)]

    def many(index: int) -> bool:
        each = executables[index % 2]
        call = each.bind(inputs[index])
        return all(
            np.array_equal(result(run()), expected[index]) for _ in range(50) for run in (call, lambda: each(inputs[index]))
        )

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(many, range(4)))


@pytest.mark.parametrize("cores", [1, 2, 5])
def test_more_threads_than_cores_and_fewer(model, inputs, expected, cores, monkeypatch):
    """A call made for three threads, on machines of other sizes; with 5 told where there are 2, threads take turns on a core."""
    monkeypatch.setattr(crew, "cores", lambda: cores)
    before = workers()
    executable = octavo.compile(model, threads=3)
    call = executable.bind(inputs[0])
    assert workers() - before == min(cores, 3) - 1
    for _ in range(10):
        np.testing.assert_array_equal(result(call()), expected[0])


def test_a_worker_that_is_not_given_a_core_is_not_waited_for(model, inputs, expected, monkeypatch):
    """It comes after ten calls, to a call that has long ended, and takes part in the next ones."""
    monkeypatch.setattr(crew, "cores", lambda: 2)
    held = threading.Event()

    def late(target, args, **_):
        return threading.Thread(target=lambda: (held.wait(), target(*args)), daemon=True)

    monkeypatch.setattr(crew, "Thread", late)
    call = octavo.compile(model, threads=2).bind(inputs[0])
    for _ in range(10):
        np.testing.assert_array_equal(result(call()), expected[0])
    held.set()
    for _ in range(100):
        np.testing.assert_array_equal(result(call()), expected[0])


def test_workers_end_with_their_executable(model, inputs, monkeypatch):
    monkeypatch.setattr(crew, "cores", lambda: 2)
    before = workers()
    executable = octavo.compile(model, threads=2)
    assert workers() == before  # none is started before there is a call
    executable(inputs[0])
    call = executable.bind(inputs[1])
    call()
    assert workers() == before + 2
    del executable
    call()
    assert workers() > before
    del call
    assert workers() == before


def test_workers_sleep_between_calls(executable, inputs):
    call = executable.bind(inputs[0])
    for _ in range(20):
        call()
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.1


def test_a_short_call_after_a_pause_is_one_threads_and_close_calls_are_shared(model, inputs, monkeypatch):
    monkeypatch.setattr(crew, "cores", lambda: 2)
    before = set(threading.enumerate())
    run = octavo.compile(model, threads=2).bind(inputs[0]).run
    (worker,) = set(threading.enumerate()) - before
    status = Path(f"/proc/self/task/{worker.native_id}/status")

    def sleeps() -> int:
        return int(re.findall(r"^voluntary_ctxt_switches:\s*(\d+)", status.read_text(), re.MULTILINE)[0])

    run()
    time.sleep(0.05)
    asleep = sleeps()
    for _ in range(20):
        time.sleep(0.005)
        run()
    assert sleeps() - asleep < 10  # a call that was interrupted looks long
    asleep = sleeps()
    for _ in range(1000):
        run()
    time.sleep(0.05)
    assert sleeps() > asleep


FORKING = """
import os, sys, numpy as np, octavo
executable = octavo.load_executable(sys.argv[1])
x = np.load(sys.argv[2])
call = executable.bind(x)
expected, = call().values()
child = os.fork()
same = all(np.array_equal(expected, *run().values()) for run in (call, lambda: executable(x)) for _ in range(3))
same = same and np.array_equal(expected, *octavo.load_executable(sys.argv[1])(x).values())
if not child:
    os._exit(0 if same else 1)
_, status = os.waitpid(child, 0)
assert same and os.waitstatus_to_exitcode(status) == 0, (same, status)
print("done")
"""


def test_a_saved_file_is_shared_too_and_a_forked_process_computes_alone(executable, inputs, expected, tmp_path: Path):
    executable.save(tmp_path / "two.so")
    loaded = octavo.load_executable(tmp_path / "two.so")
    assert loaded.threads == 2
    assert loaded.description.shared_units
    np.testing.assert_array_equal(result(loaded(inputs[0])), expected[0])
    np.save(tmp_path / "x.npy", inputs[0])
    done = subprocess.run(
        [sys.executable, "-c", FORKING, str(tmp_path / "two.so"), str(tmp_path / "x.npy")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
