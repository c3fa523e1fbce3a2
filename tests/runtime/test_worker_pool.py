"""Worker pools: threads that share a call give the bytes of one, keep calls apart, sleep between them and end with their use."""

import gc
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import octavo
from child_python import run_python
from octavo.compiler.codegen.tir_passes import llvm_module
from octavo.compiler.codegen.worker_pool_code import BODY
from octavo.runtime import worker_pool
from octavo.runtime.control_block import ENDED, RESTING, SPENT
from octavo.runtime.llvm_host import host_target

MODEL = "models/tflite/resnet8_cifar10_int8.tflite"


@pytest.fixture(scope="module")
def model(shared):
    return octavo.load(shared / MODEL)


@pytest.fixture(scope="module")
def inputs(executable):
    rng = np.random.default_rng(3)
    return [rng.integers(-128, 128, executable.inputs[0].shape).astype(np.int8) for _ in range(6)]


@pytest.fixture(scope="module")
def expected(model, inputs):
    alone = octavo.compile(model, threads=1)
    return [result(alone(x)) for x in inputs]


@pytest.fixture(scope="module")
def executable(model):
    return octavo.compile(model, threads=2)


@pytest.fixture(scope="module")
def of_three(model):
    return octavo.compile(model, threads=3)


@pytest.fixture(scope="module")
def saved(executable, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("worker_pool") / "two.so"
    executable.save(path)
    return path


def result(outputs) -> np.ndarray:
    (value,) = outputs.values()
    return value


def workers() -> int:
    gc.collect()
    return sum(thread.name.startswith("octavo-") for thread in threading.enumerate())


def test_large_layers_are_shared(executable):
    """Without this the other tests would say nothing."""
    assert executable.description.shared_units
    (code,) = (each for each in executable._code.functions.values() if BODY in each.functions)
    text = llvm_module(code.functions, host_target()).inspect_source("ll")
    assert text.count("@octavo_worker_await(") > 4


def test_overlapping_calls_of_two_executables_give_each_its_own_result(executable, of_three, inputs, expected):
    executables = [executable, of_three]

    def many(index: int) -> bool:
        each = executables[index % 2]
        call = each.bind(inputs[index])
        return all(
            np.array_equal(result(run()), expected[index]) for _ in range(20) for run in (call, lambda: each(inputs[index]))
        )

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(many, range(4)))


@pytest.mark.parametrize("cores", [1, 2, 5])
def test_more_threads_than_cores_and_fewer(of_three, inputs, expected, cores, monkeypatch):
    """A call made for three threads, on machines of other sizes; with 5 told where there are 2, threads take turns on a core."""
    monkeypatch.setattr(worker_pool, "cores", lambda: cores)
    before = workers()
    call = of_three.bind(inputs[0])
    assert workers() - before == min(cores, 3) - 1
    for _ in range(10):
        np.testing.assert_array_equal(result(call()), expected[0])


def test_a_worker_that_is_not_given_a_core_is_not_waited_for(executable, inputs, expected, monkeypatch):
    """It comes after ten calls, to a call that has long ended, and takes part in the next ones."""
    monkeypatch.setattr(worker_pool, "cores", lambda: 2)
    held = threading.Event()

    def late(target, args, **_):
        return threading.Thread(target=lambda: (held.wait(), target(*args)), daemon=True)

    monkeypatch.setattr(worker_pool, "Thread", late)
    call = executable.bind(inputs[0])
    for _ in range(10):
        np.testing.assert_array_equal(result(call()), expected[0])
    held.set()
    for _ in range(100):
        np.testing.assert_array_equal(result(call()), expected[0])


def test_workers_end_with_their_executable(saved, inputs, monkeypatch):
    monkeypatch.setattr(worker_pool, "cores", lambda: 2)
    before = workers()
    executable = octavo.load_executable(saved)
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


class Worker:
    """The only worker of a pool of two threads, as the system and the pool's control block see it."""

    def __init__(self, executable, x):
        threads, pools = set(threading.enumerate()), set(worker_pool._POOLS)
        self.run = executable.bind(x).run
        (thread,) = set(threading.enumerate()) - threads
        (own,) = set(worker_pool._POOLS) - pools
        self.control = own.control.numpy  # a copy of it, now
        self._numbers = own._numbers
        self._status = Path(f"/proc/self/task/{thread.native_id}/status")

    def previous_call(self, *, ended: int, spent: int) -> None:
        """Let the next call think so, in cycles."""
        self._numbers[[ENDED, SPENT]] = ended, spent

    def falls_asleep(self) -> int:
        """Wait for it, then count how often it did so far."""
        before = None
        while True:
            status = self._status.read_text()
            times = int(re.findall(r"^voluntary_ctxt_switches:\s*(\d+)", status, re.MULTILINE)[0])
            if self.control()[RESTING] and "State:\tS" in status and times == before:
                return times
            before = times
            time.sleep(0.001)


@pytest.fixture
def worker(executable, inputs, monkeypatch):
    monkeypatch.setattr(worker_pool, "cores", lambda: 2)
    worker = Worker(executable, inputs[0])
    worker.run()
    return worker


LONG_AGO, NEVER_YET = 0, 1 << 62
"""When a call ended, by the machine's clock."""


def test_a_worker_sleeps_between_calls(worker):
    times = worker.falls_asleep()
    time.sleep(0.1)
    assert worker.falls_asleep() == times


def test_a_short_call_after_a_pause_wakes_nobody(worker):
    times = worker.falls_asleep()
    for _ in range(20):
        worker.previous_call(ended=LONG_AGO, spent=1)
        worker.run()
    assert worker.falls_asleep() == times


@pytest.mark.parametrize(("ended", "spent"), [(NEVER_YET, 1), (LONG_AGO, NEVER_YET)], ids=["close", "long"])
def test_a_call_that_follows_closely_or_a_long_one_is_shared(worker, ended, spent):
    times = worker.falls_asleep()
    worker.previous_call(ended=ended, spent=spent)
    worker.run()
    while worker.falls_asleep() == times:  # it may not have had a core yet
        time.sleep(0.001)


def test_a_call_leaves_when_it_ended_and_how_long_it_took(worker):
    first = worker.control()
    worker.run()
    second = worker.control()
    assert min(first[SPENT], second[SPENT]) > 0
    assert second[ENDED] - second[SPENT] > first[ENDED]


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


def test_a_saved_file_is_shared_too_and_a_forked_process_computes_alone(saved, inputs, expected, tmp_path: Path):
    loaded = octavo.load_executable(saved)
    assert loaded.threads == 2
    assert loaded.description.shared_units
    np.testing.assert_array_equal(result(loaded(inputs[0])), expected[0])
    np.save(tmp_path / "x.npy", inputs[0])
    done = run_python(FORKING, saved, tmp_path / "x.npy")
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
