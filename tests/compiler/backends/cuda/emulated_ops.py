"""Composite ops by their emitters' kernels in the emulator: many at once, for one compilation of all."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from cuda_emulator import Call, Check, Emulator

from octavo.compiler.backends.cuda.compiler import DEVICE
from octavo.compiler.backends.cuda.emission import TO_NHWC, Emission, ResultType, Value
from octavo.compiler.backends.cuda.emit import emitter_of
from octavo.compiler.backends.cuda.isa import ISAS
from octavo.compiler.backends.cuda.plan import Buffer, LaunchPlan, planned
from octavo.ir.composites.base import CompositeOp, QuantizedOutput, QuantizedTensor
from octavo.numerics import INTEGER_RANGE, QuantParams

SM_80 = ISAS["cuda.sm_80"]
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """An op, the tensors it reads by name, and what it must give; `nhwc` names those of rank 4 that lie NHWC."""

    op: CompositeOp
    inputs: Mapping[str, Array]
    want: Array
    nhwc: Sequence[str] = ()
    isa: Any = SM_80


def tensor(name: str, shape: Sequence[int], dtype: str, scale: float, zero_point: int) -> QuantizedTensor:
    return QuantizedTensor(name=name, shape=tuple(shape), params=QuantParams.per_tensor(dtype, scale, zero_point))


def output(
    shape: Sequence[int],
    dtype: str,
    scale: float,
    zero_point: int,
    bounds: tuple[int, int] | None = None,
    fixed_point: Any = None,
) -> QuantizedOutput:
    low, high = bounds or INTEGER_RANGE[dtype]
    return QuantizedOutput(tensor=tensor("y", shape, dtype, scale, zero_point), qmin=low, qmax=high, fixed_point=fixed_point)


def integers(shape: Sequence[int], dtype: str, seed: int = 0) -> Array:
    """Integers of the whole range, its ends among them."""
    low, high = INTEGER_RANGE[dtype]
    values = np.random.default_rng(seed).integers(low, high + 1, tuple(shape)).astype(dtype)
    values.reshape(-1)[:2] = [low, high][: values.size]
    return values


def emitted(case: Case) -> LaunchPlan:
    """The launches of a case, its result in the source's layout."""
    emission, values, buffers = Emission(isa=case.isa), {}, []
    for number, (name, array) in enumerate(case.inputs.items()):
        buffers.append(Buffer(array.nbytes, "input", number))
        values[name] = Value(buffer=buffers[-1], shape=array.shape, dtype=str(array.dtype), is_nhwc=name in case.nhwc)
    emit = emitter_of(case.op, ResultType(case.want.shape, str(case.want.dtype)))
    assert emit is not None, f"no emitter of {type(case.op).__name__}"
    result = emission.lying(emit(case.op, emission, values), is_nhwc=False)
    assert result.shape == case.want.shape
    assert result.dtype == str(case.want.dtype)
    read = Buffer(result.buffer.size, "output", 0)
    steps = [(kernel, tuple(read if each is result.buffer else each for each in used)) for kernel, used in emission.steps]
    if result.buffer.region != "workspace":  # a view of the input
        assert not steps
        return planned([], buffers, [result.buffer])
    return planned(steps, buffers, [read])


def lying(case: Case, name: str) -> Array:
    values = case.inputs[name]
    return np.ascontiguousarray(values.transpose(TO_NHWC) if name in case.nhwc else values)


def results(cases: Sequence[Case], *, check: Check = "none", seed: int = 0, device: Path = DEVICE) -> list[Array]:
    """What the kernels give, in the order of the cases."""
    plans = [emitted(case) for case in cases]
    emulator = Emulator([kernel for plan in plans for kernel in plan.kernels], check=check, device=device)
    buffers: list[Array] = []
    calls: list[Call] = []
    written: list[int] = []
    for case, plan in zip(cases, plans, strict=True):
        first = len(buffers)
        buffers += [lying(case, name).reshape(-1).view(np.uint8) for name in case.inputs]
        buffers += [plan.constants, np.full(plan.workspace, 0xA5, np.uint8), np.full(plan.output_sizes[0], 0x5A, np.uint8)]
        start = {"input": first, "constant": len(buffers) - 3, "workspace": len(buffers) - 2, "output": len(buffers) - 1}
        written.append(len(buffers) - 1 if plan.launches else first)
        for launch in plan.launches:
            places = [(start[place.region] + place.index, place.offset) for place in launch.places]
            calls.append(Call(kernel=launch.kernel, arguments=tuple(places)))
    found = emulator.run(calls, buffers, written, seed)
    return [each.view(case.want.dtype).reshape(case.want.shape) for each, case in zip(found, cases, strict=True)]


def wrong(cases: Sequence[Case], **options: Any) -> list[str]:
    """The cases whose kernels give anything else, each in a line."""
    found: list[str] = []
    for number, (case, got) in enumerate(zip(cases, results(cases, **options), strict=True)):
        differ = np.flatnonzero(got.reshape(-1).view(_BITS[got.itemsize]) != case.want.reshape(-1).view(_BITS[got.itemsize]))
        if len(differ):
            at = differ[0]
            said = f"{got.reshape(-1)[at]}, expected {case.want.reshape(-1)[at]}"
            found.append(f"case {number}, {type(case.op).__name__}: {len(differ)} of {got.size}; at {at}: {said}; {case.op}")
    return found


def few_at_a_time(cases: Iterable[Any]) -> Iterator[list[Any]]:
    """All cases, six at most at a time and from all over: nearly all faults are found by the first, and to compile takes long."""
    cases = list(cases)
    parts = -(-len(cases) // 6)
    return (cases[start::parts] for start in range(parts))


_BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
