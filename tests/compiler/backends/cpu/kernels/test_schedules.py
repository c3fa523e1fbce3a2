"""A kernel gives the same bits with any schedule that it may take, and refuses any other."""

from functools import cache

import numpy as np
import pytest
import tvm
from conv2d_cases import Layers
from kernel_runner import ISAS as HOST
from kernel_runner import Case, Compiled, check

from machine_isas import FAMILY_ISAS, each_isa
from missing import MachineLacks
from octavo.compiler.backends.cpu import kernels
from octavo.compiler.backends.cpu.kernels import (
    Conv2dSpec,
    FloatConv2dSpec,
    Kernel,
    Schedule,
    TileSchedule,
    WindowSchedule,
    float_conv2d,
)
from octavo.compiler.backends.cpu.kernels.language.isa import AVX512_VNNI, GENERIC, ISAS
from octavo.compiler.backends.tunable import Tunable
from octavo.errors import TuningError
from octavo.ir.composites.outputs import Output
from octavo.numerics.rounding.fixed_point import fixed_point_multiplier
from octavo.runtime.llvm_host import host_target

WINDOWS = {
    "pointwise": ((9, 5), (20, 70), (1, 1), {}),
    "padded": ((11, 9), (12, 40), (3, 3), {"padding": (1, 1, 1, 1)}),
    "strided": ((13, 12), (7, 33), (3, 3), {"padding": (0, 0, 1, 1), "strides": (2, 2)}),
    "grouped": ((9, 7), (32, 64), (3, 3), {"groups": 4, "padding": (1, 1, 1, 1)}),
    "depthwise": ((11, 9), (80, 80), (3, 3), {"groups": 80, "padding": (1, 1, 1, 1)}),
    "depthwise of few channels": ((9, 11), (7, 7), (5, 5), {"groups": 7, "padding": (2, 2, 2, 2), "strides": (2, 2)}),
}


def layer(name: str, isa: str, *, threads: int = 1, schedule: Schedule | None = None) -> Case:
    """The same operands at every call."""
    size, channels, kernel, window = WINDOWS[name]
    layers = Layers(7)
    spec = layers.spec(size, channels, kernel, threads=threads, **window)
    return layers.case(spec, isa, schedules={plain_tunable(name, isa, threads).key: schedule} if schedule else {})


@cache
def plain_tunable(name: str, isa: str, threads: int = 1) -> Tunable:
    return tunable_of(layer(name, isa, threads=threads).kernel)


def tunable_of(kernel: Kernel) -> Tunable:
    if kernel.tunable is None and ISAS[HOST[0]].family != "x86":
        raise MachineLacks(f"another ISA than {HOST[0]}, where {kernel.name} has one schedule")
    assert kernel.tunable is not None
    return kernel.tunable


@pytest.mark.parametrize("isa", each_isa(name for name in FAMILY_ISAS if name != GENERIC))
@pytest.mark.parametrize("name", WINDOWS)
def test_every_alternative_gives_the_oracle_s_bits(name: str, isa: str) -> None:
    tunable = plain_tunable(name, isa)
    few = tunable.alternatives[:: 7 if isa == AVX512_VNNI else 13]
    assert few
    cases = [layer(name, isa, schedule=schedule) for schedule in few]
    assert [tunable_of(case.kernel).schedule for case in cases] == list(few)
    check(cases)


@pytest.mark.parametrize("name", WINDOWS)
def test_a_schedule_measured_on_one_thread_serves_two(name: str) -> None:
    alternatives = plain_tunable(name, HOST[0]).alternatives[-1:]
    check(layer(name, HOST[0], threads=2, schedule=schedule) for schedule in alternatives)


def test_the_key_tells_work_apart_and_not_constants() -> None:
    keys = [plain_tunable(name, AVX512_VNNI).key for name in WINDOWS]
    assert len(set(keys)) == len(keys)
    layers = Layers(1)
    spec = layers.spec((9, 5), (20, 70))
    of = {zero_point: tunable_of(layers.case(spec, AVX512_VNNI, w_zero_point=zero_point).kernel).key for zero_point in (0, 3, 5)}
    assert of[3] == of[5] != of[0]


@pytest.mark.parametrize(
    ("name", "schedule"),
    [
        ("pointwise", TileSchedule(rows=40, columns=1, vectors=4)),
        ("pointwise", TileSchedule(rows=6, columns=2, vectors=1)),
        ("pointwise", TileSchedule(rows=2, columns=1, vectors=8)),
        ("pointwise", TileSchedule(rows=6, columns=1, vectors=2, block=7)),
        ("pointwise", TileSchedule(rows=6, columns=1, vectors=2, block=600)),
        ("pointwise", WindowSchedule(outputs=1)),
        ("depthwise", WindowSchedule(outputs=9)),
        ("depthwise", WindowSchedule(outputs=1, block=12)),
        ("depthwise", TileSchedule(rows=1, columns=1, vectors=1)),
    ],
)
def test_a_schedule_that_a_kernel_cannot_take_is_refused(name: str, schedule: Schedule) -> None:
    with pytest.raises(TuningError, match=r"no kernel for 'int8 .*' can take the schedule"):
        layer(name, HOST[0], schedule=schedule)


def test_plain_kernels_have_no_choice() -> None:
    assert layer("pointwise", GENERIC).kernel.tunable is None


def int16_layer(schedules: dict[str, Schedule]) -> Kernel:
    rng = np.random.default_rng(0)
    shape = {"in_height": 9, "in_width": 7, "in_channels": 12, "out_channels": 40, "kernel": (3, 3), "padding": (1, 1, 1, 1)}
    output = Output(zero_point=0, qmin=-32768, qmax=32767)
    spec = Conv2dSpec(batch=1, **shape, input_zero_point=0, output=output, dtype="int16")
    weight = rng.integers(-127, 128, (3, 3, 12, 40)).astype(np.int16)
    scale = fixed_point_multiplier(rng.uniform(0.2, 2.0, 40) / (128 * np.sqrt(108)), "once")
    operands = {"weight": weight, "weight_zero_point": 0, "bias": np.arange(40), "multiplier": scale}
    return kernels.conv2d(spec, **operands, isa=HOST[0], schedules=schedules)


def float_layer(schedules: dict[str, Schedule]) -> Kernel:
    rng = np.random.default_rng(0)
    spec = FloatConv2dSpec(batch=1, in_height=9, in_width=7, in_channels=12, out_channels=40, kernel=(3, 3), padding=(1, 1, 1, 1))
    weight, bias = rng.normal(size=(3, 3, 12, 40)).astype(np.float32), rng.normal(size=40).astype(np.float32)
    return float_conv2d(spec, weight=weight, bias=bias, isa=HOST[0], schedules=schedules)


@pytest.mark.parametrize(("make", "dtype"), [(int16_layer, "int16"), (float_layer, "float32")])
def test_other_kernels_of_products_agree_with_themselves(make, dtype) -> None:
    own = make({})
    x = (100 * np.random.default_rng(1).normal(size=(1, 9, 7, 12))).astype(dtype)
    expected = run(own, x, dtype)
    tunable = tunable_of(own)
    others = [make({tunable.key: schedule}) for schedule in tunable.alternatives[::17]]
    check(Case(kernel=other, inputs=(x,), expected=expected, about=tunable_of(other).schedule) for other in others)


def run(kernel: Kernel, x: np.ndarray, dtype: str) -> np.ndarray:
    out = tvm.runtime.tensor(np.zeros(9 * 7 * 40, dtype))
    tensors = [tvm.runtime.tensor(np.ascontiguousarray(value).ravel()) for value in (x, *kernel.constants)]
    Compiled({"kernel": kernel.func}, host_target())["kernel"](*tensors, out)
    return out.numpy()
