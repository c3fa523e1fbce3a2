"""What every test shares: models and data, random numbers, how property tests draw their examples, the ISA or the device that a
test needs, what may be skipped, and the cache of machine code."""

import ctypes
import gc
import inspect
import os
import re
import shutil
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Generator
from importlib import import_module
from pathlib import Path
from types import FrameType

import numpy as np
import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

from missing import MachineLacks

# The same examples on every run, and no deadline, which a busy machine would miss.
settings.register_profile("octavo", deadline=None, derandomize=True)
settings.load_profile("octavo")
# Nor numbers from the source of whatever modules are there by then: to read all of Octavo and its tests takes seconds.
providers.__dict__["is_local_module_file"] = lambda path: False


_CACHE = pytest.StashKey[str]()
_PLAIN_CODE = re.compile(
    r"(compiler(/backends(/cpu|/cuda)?|/byoc|/partition)?|ir/\w+|quantizer(/\w+)*|export/tflite)/\w+\.py"
    r"|(cli|conformance|evaluation|frontends|profiling|report|target)(/\w+)*/\w+\.py"
    r"|(docs/test_(hugging|notebook|pages|text)|export/test_(encodings|exported|open)|runtime/test_(executable|open|session))\w*\.py"
    r"|test_(cmsisnn|dsp16|generate|toynpu|vendors|plan)\w*\.py"
)
"""Tests that look at no machine code, and write no library in C, which does without TVM's runtime only where LLVM takes away what
does nothing. Their networks are small and run a few times, so that neither LLVM, half of whose time with a kernel goes there, nor
a vendor's C compiler optimizes. That optimized kernels compute the same tests of kernels see, and whole runs (tests/e2e)."""


def stack_with_one_source(context: int = 1) -> list[inspect.FrameInfo]:
    """As `inspect.stack`, with lines of source for one frame alone: TVMScript's decorators look whether they stand in a class.

    To find the files and lines of all of pytest's frames takes a tenth of a second for a module of three ops.
    """
    found: list[inspect.FrameInfo] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if len(found) == 2:
            found.append(inspect.FrameInfo(frame, *inspect.getframeinfo(frame, context)))
        else:
            found.append(inspect.FrameInfo(frame, frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name, None, None))
        frame = frame.f_back
    return found


inspect.stack = stack_with_one_source


def keep_freed_memory() -> None:
    """Let glibc keep what LLVM gives back after each kernel: else the system clears the same pages for the next one."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    for parameter, value in ((-1, 1 << 30), (-2, 1 << 26), (-3, 1 << 30)):  # M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD
        if mallopt is not None:
            mallopt(parameter, value)


def pytest_configure(config: pytest.Config) -> None:
    """One cache of machine code for all processes of this run, empty at its start: no run sees the code of an earlier one."""
    config.addinivalue_line("markers", "needs_isa(isa): skip where this machine lacks the ISA or extension, e.g. x86.avx512_vnni")
    config.addinivalue_line("markers", "needs_device(device): skip where this machine lacks the device: gpu; or has one: no gpu")
    keep_freed_memory()
    if "PYTEST_XDIST_WORKER" not in os.environ:
        # Before PyTorch and, in processes that run tests at once, NumPy are there: threads that wait for work turn in circles.
        for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            os.environ.setdefault(variable, "1")
        config.stash[_CACHE] = tempfile.mkdtemp(prefix="octavo-test-cache-")
        os.environ["OCTAVO_CACHE"] = str(Path(config.stash[_CACHE]) / "optimized")


def pytest_unconfigure(config: pytest.Config) -> None:
    if _CACHE in config.stash:
        shutil.rmtree(config.stash[_CACHE], ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files beside this one, examples that take long among them: a run is to end with files that are short."""
    items.sort(key=lambda item: item.path.parent != Path(__file__).parent)


def pytest_runtest_setup(item: pytest.Item) -> None:
    for name in ("needs_isa", "needs_device"):
        for mark in item.iter_markers(name):
            from machine_isas import machine_devices, machine_isas

            (what,) = mark.args
            item.user_properties.append(("needs", what))
            if what not in (machine_isas() if name == "needs_isa" else machine_devices()):
                raise MachineLacks(what)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Compile plain code where `_PLAIN_CODE` says so, whatever a test or a fixture of its is the first to compile."""
    if not _PLAIN_CODE.fullmatch(os.path.relpath(item.path, Path(__file__).parent)):
        return (yield)
    from octavo.compiler.backends import external
    from octavo.compiler.codegen import tir_passes
    from octavo.evaluation.bench import peers
    from octavo.ir.graph.evaluate import unoptimized

    roofline = import_module("octavo.evaluation.bench.roofline")  # whose name in its package is the function's
    host = peers.host_target()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tir_passes, "KERNEL_LEVEL", 0)  # of which the key of machine code knows
        patch.setattr(peers, "host_target", lambda: unoptimized(host))  # of TVM's own build, whose time no test looks at
        patch.setattr(roofline, "_COPIED_BYTES", 1 << 20)  # a cache feeds it then, and no test looks at how fast
        patch.setattr(external, "_FLAGS", tuple("-O0" if flag == "-O3" else flag for flag in external._FLAGS))
        return (yield)


def _refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Where `CI` is set: a test that could run if something was installed has failed."""
    if os.environ.get("CI") and report.outcome == "skipped" and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"In CI, only what needs an ISA or a device may be skipped (tests/missing.py). {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.excinfo and isinstance(lack := call.excinfo.value, MachineLacks):
        report.user_properties.append(("lacks", lack.what))
    else:
        _refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _refuse_skip(report)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many tests need which ISA or device, and how many of them this machine could not run."""
    counts = {"needs": Counter[str](), "lacks": Counter[str]()}
    for outcome in ("passed", "failed", "error", "skipped", "xfailed"):
        for report in terminalreporter.stats.get(outcome, []):
            # Collection that failed has a report without properties.
            for name, what in getattr(report, "user_properties", []):
                if name in counts and what != "generic":
                    counts[name][what] += 1
    needed, skipped = counts["needs"] | counts["lacks"], counts["lacks"]
    if needed:
        said = ", ".join(f"{count} {what} ({skipped[what]} skipped)" for what, count in sorted(needed.items()))
        terminalreporter.write_line(f"tests that need an ISA or a device (skipped where this machine lacks it): {said}")


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
    """Folder of real models and data: OCTAVO_SHARED, or `shared` beside the checkout."""
    root = Path(os.environ.get("OCTAVO_SHARED", Path(__file__).resolve().parents[2] / "shared"))
    if not (root / "models").is_dir():
        pytest.skip(f"no shared models at {root} (set OCTAVO_SHARED)")
    return root
