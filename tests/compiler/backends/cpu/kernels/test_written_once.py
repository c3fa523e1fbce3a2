"""A kernel that was written lately is not written again, where all that decides it is equal, and only there."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from octavo.compiler.backends.cpu.kernels.language import vectors
from octavo.compiler.backends.cpu.kernels.language.contents import UnknownContentError, content
from octavo.compiler.backends.cpu.kernels.language.vectors import (
    for_each_vector,
    load,
    prim_func,
    splat,
    store,
    tirx,
    without_bodies,
)
from octavo.runtime.size import Size


@dataclass(frozen=True)
class Scaling:
    """What a kernel multiplies by."""

    factor: float
    table: Any = ()


def scaled(scaling: Scaling, size: int = 64) -> Any:
    def emit(x: Any, y: Any) -> None:
        factor = tirx.const(scaling.factor, "float32")
        for_each_vector(size, 16, 1, lambda start, lanes: store(y, start, load(x, start, lanes) * splat(factor, lanes), lanes))

    return prim_func([("x", size, "float32"), ("y", size, "float32")], emit)


def test_an_equal_kernel_is_the_same_function():
    first = scaled(Scaling(0.5, np.arange(3)))
    assert scaled(Scaling(0.5, np.arange(3))).same_as(first)
    for other in (
        scaled(Scaling(0.25, np.arange(3))),
        scaled(Scaling(0.5, np.arange(4))),
        scaled(Scaling(0.5, np.arange(3)), 32),
    ):
        assert not other.same_as(first)
    with without_bodies():
        bare = scaled(Scaling(0.5, np.arange(3)))
        assert scaled(Scaling(0.25)).same_as(bare)
    assert not bare.same_as(first)
    assert scaled(Scaling(0.5, np.arange(3))).same_as(first)


def test_the_oldest_are_forgotten(monkeypatch):
    monkeypatch.setattr(vectors, "_RECENT", {})
    monkeypatch.setattr(vectors, "_RECENT_LIMIT", 2)
    first, second = scaled(Scaling(3.5)), scaled(Scaling(4.5))
    assert scaled(Scaling(3.5)).same_as(first)
    scaled(Scaling(5.5))
    assert scaled(Scaling(3.5)).same_as(first)
    assert not scaled(Scaling(4.5)).same_as(second)


def bound(value: Any) -> Callable[[], Any]:
    return lambda: value


def defaulting(value: Any) -> Callable[..., Any]:
    return lambda given=value: given


EQUALS: list[Callable[[], Any]] = [
    lambda: 1,
    lambda: 1.0,
    lambda: True,
    lambda: 0.0,
    lambda: -0.0,
    lambda: np.float32(1),
    lambda: np.arange(4),
    lambda: np.arange(4, dtype=np.int32),
    lambda: np.arange(4).reshape(2, 2),
    lambda: (1, 2),
    lambda: [1, 2],
    lambda: {"a": 1},
    lambda: Scaling(1),
    lambda: replace(Scaling(1), factor=1.0),
    lambda: bound(1),
    lambda: bound(2),
    lambda: bound(bound(1)),
    lambda: defaulting(1),
    lambda: defaulting(2),
    lambda: Scaling(1).__eq__,
]


def test_contents_are_equal_where_all_is():
    keys = [content(each()) for each in EQUALS]
    assert keys == [content(each()) for each in EQUALS]
    assert len(set(keys)) == len(EQUALS)
    assert content(float("nan")) == content(float("nan"))


def endless() -> Any:
    def again() -> Any:
        return again

    return again


UNKNOWN = [np.zeros(1 << 21, np.uint8), object(), np.array([object()]), tirx.Var("x", "int32"), Size.named("batch"), endless()]


@pytest.mark.parametrize("value", UNKNOWN)
def test_what_is_unknown_has_no_content(value):
    with pytest.raises(UnknownContentError):
        content((value,))
