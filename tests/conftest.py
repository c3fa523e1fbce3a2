"""What every test shares: models and data, random numbers, how property tests draw their examples, the ISA that a test needs, and
the cache of machine code."""

import gc
import inspect
import os
import shutil
import sys
import tempfile
import zlib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

# The same examples on every run, and no deadline, which a busy machine would miss.
settings.register_profile("octavo", deadline=None, derandomize=True)
settings.load_profile("octavo")


_CACHE = pytest.StashKey[str]()


def stack_with_one_source(context: int = 1) -> list[inspect.FrameInfo]:
    """As `inspect.stack`, with lines of source for one frame alone: TVMScript's decorators look whether they stand in a class.

    To find the lines of all of pytest's frames takes a tenth of a second for a module of three ops.
    """
    frames = inspect.getouterframes(sys._getframe(1), 0)
    return [
        inspect.FrameInfo(each.frame, *inspect.getframeinfo(each.frame, context)) if number == 2 else each
        for number, each in enumerate(frames)
    ]


inspect.stack = stack_with_one_source


def pytest_configure(config: pytest.Config) -> None:
    """One cache of machine code for all processes of this run, empty at its start: no run sees the code of an earlier one."""
    config.addinivalue_line("markers", "needs_isa(isa): skip where this machine lacks the ISA or extension, e.g. x86.avx512_vnni")
    if "PYTEST_XDIST_WORKER" not in os.environ:
        # Before PyTorch and, in processes that run tests at once, NumPy are there: threads that wait for work turn in circles.
        for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            os.environ.setdefault(variable, "1")
        config.stash[_CACHE] = os.environ["OCTAVO_CACHE"] = tempfile.mkdtemp(prefix="octavo-test-cache-")


def pytest_unconfigure(config: pytest.Config) -> None:
    if _CACHE in config.stash:
        shutil.rmtree(config.stash[_CACHE], ignore_errors=True)


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("needs_isa"):
        from machine_isas import machine_isas

        (isa,) = mark.args
        item.user_properties.append(("needs_isa", isa))
        if isa not in machine_isas():
            pytest.skip(f"needs {isa}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many tests need which ISA, and how many of them this machine could not run."""
    needed: Counter[str] = Counter()
    skipped: Counter[str] = Counter()
    for outcome in ("passed", "failed", "error", "skipped", "xfailed"):
        for report in terminalreporter.stats.get(outcome, []):
            # Collection that failed has a report without properties.
            for isa in [
                value for name, value in getattr(report, "user_properties", []) if name == "needs_isa" and value != "generic"
            ]:
                needed[isa] += 1
                skipped[isa] += outcome == "skipped"
    if needed:
        counts = ", ".join(f"{count} {isa} ({skipped[isa]} skipped)" for isa, count in sorted(needed.items()))
        terminalreporter.write_line(f"tests that need an ISA (skipped where this machine lacks it): {counts}")


@pytest.fixture(scope="session", autouse=True)
def rare_garbage_collection() -> None:
    """Look for garbage less often than Python does by itself: it goes through all that PyTorch, TVM and the tests hold alive."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@pytest.fixture(scope="session", autouse=True)
def no_kept_samples() -> None:
    """Let profiles keep no samples unless a test asks for it: `quantize` runs the model on those to correct weights and biases,
    which would be most of the time of a test of something else. Tests of corrections, and of the default, pass a number."""
    from octavo.profiling.profile import profile

    profile.__kwdefaults__["keep_samples"] = 0


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers of a test's own: the same whether it runs alone or after others, and wherever its file lies."""
    return np.random.default_rng(zlib.crc32(request.node.name.encode()))


@pytest.fixture(scope="session")
def shared() -> Path:
    """Folder of real models and data: OCTAVO_SHARED, or `shared` beside the checkout. Skips without it, fails in CI."""
    root = Path(os.environ.get("OCTAVO_SHARED", Path(__file__).resolve().parents[2] / "shared"))
    if not (root / "models").is_dir():
        message = f"no shared models at {root} (set OCTAVO_SHARED)"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return root
