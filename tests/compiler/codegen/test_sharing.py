"""Which kernels the threads of a call share, and which must be done before others begin."""

import pytest
import tvm_ffi
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from octavo.compiler.backends.cpu.kernels.language.vectors import chunked, for_each_vector, load, prim_func, store
from octavo.compiler.codegen.sharing import Access, phases, shared_kernel
from octavo.runtime.size import Size


def access(reads: str, writes: str, *, shared: bool = True) -> Access:
    """Tensors by letter: each 8 bytes of argument 0, "a" the first of them; a capital is the second half of its tensor."""

    def places(names: str) -> tuple[tuple[int, int, int], ...]:
        starts = [8 * (ord(name.lower()) - ord("a")) + 4 * name.isupper() for name in names]
        return tuple((0, start, start + (4 if name.isupper() else 8)) for name, start in zip(names, starts, strict=True))

    return Access(reads=places(reads), writes=places(writes), shared=shared)


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([access("a", "b"), access("b", "c")], [[[0]], [[1]]]),  # read after write
        ([access("a", "b"), access("c", "a")], [[[0]], [[1]]]),  # the memory of what was read is used again
        ([access("a", "b"), access("c", "b")], [[[0]], [[1]]]),
        ([access("a", "b"), access("a", "c"), access("bc", "d")], [[[0], [1]], [[2]]]),  # branches
        ([access("a", "b"), access("b", "c"), access("b", "d")], [[[0]], [[1], [2]]]),
        ([access("a", "b"), access("c", "d"), access("a", "e"), access("d", "f")], [[[0], [1], [2]], [[3]]]),
        ([access("a", "B"), access("c", "d"), access("b", "e")], [[[0], [1]], [[2]]]),  # a part of it
        ([access("a", "b", shared=False), access("b", "c", shared=False)], [[[0, 1]]]),  # one thread's, both
        ([access("a", "b", shared=False), access("d", "e"), access("b", "c", shared=False)], [[[0, 2], [1]]]),
        ([access("a", "b", shared=False), access("b", "c"), access("c", "d", shared=False)], [[[0]], [[1]], [[2]]]),
        ([access("a", "b"), access("b", "c", shared=False), access("c", "d", shared=False)], [[[0]], [[1, 2]]]),
    ],
)
def test_what_needs_what_another_call_did_comes_in_a_later_phase(calls, expected):
    assert phases(calls) == expected


def test_other_arguments_are_other_memory():
    first = Access(reads=(), writes=((0, 0, 8),), shared=True)
    assert phases([first, Access(reads=((1, 0, 8),), writes=((2, 0, 8),), shared=True)]) == [[[0], [1]]]


def copying(threads: int, size: int = 1 << 20):
    """A PrimFunc that copies vectors of 16 bytes."""

    def body(x, y) -> None:
        for_each_vector(size, 16, threads, lambda start, lanes: store(y, start, load(x, start, lanes), lanes))

    return prim_func([("x", size, "uint8"), ("y", size, "uint8")], body)


@pytest.mark.parametrize("size", [1 << 20, (1 << 20) + 5])
def test_a_kernel_of_one_parallel_loop_is_shared(size):
    shared = shared_kernel(copying(2, size))
    assert shared is not None
    assert shared.chunks == 2
    loops: list[tirx.For] = []
    tvm_ffi.structural_walk(shared.body, (tirx.For, loops.append))
    assert [loop.kind for loop in loops] == [tirx.ForKind.SERIAL] * 2
    assert loops[-1].min.same_as(shared.first)
    assert str(loops[-1].extent) == str(shared.last - shared.first)


def test_a_kernel_that_first_computes_its_sizes_is_shared():
    size = Size.named("rows") // 3 * Size.named("columns") * 1024
    kernel = copying(2, size)
    assert isinstance(kernel.body, tirx.SeqStmt)
    assert shared_kernel(kernel) is not None


def test_other_kernels_are_one_threads():
    assert shared_kernel(copying(1)) is None

    def two_loops(x, y) -> None:
        with chunked(64, 2) as index:
            store(y, index, load(x, index, 1), 1)
        with chunked(64, 2) as index:
            store(y, index, load(y, T.int32(63) - index, 1), 1)

    def stores_before(x, y) -> None:
        store(y, 0, load(x, 1, 1), 1)
        with chunked(64, 2) as index:
            store(y, index, load(x, index, 1), 1)

    for body in (two_loops, stores_before):
        assert shared_kernel(prim_func([("x", 64, "uint8"), ("y", 64, "uint8")], body)) is None
