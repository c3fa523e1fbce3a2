"""Work on samples on two threads: what is found comes in order, and no sample is left out or counted twice."""

import threading

import pytest

from octavo.quantizer.sample_threads import THREADS, in_order, parts_of


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 32])
def test_parts_cover_all_samples_once(count: int) -> None:
    parts = parts_of(count)
    assert [place for part in parts for place in range(count)[part]] == list(range(count))
    assert len(parts) == min(count, THREADS)


def test_what_is_found_comes_in_order_from_several_threads() -> None:
    together = threading.Barrier(THREADS)

    def find(number: int) -> tuple[int, int]:
        together.wait(timeout=60)
        return number, threading.get_ident()

    found = in_order(find, range(THREADS))
    assert [number for number, _ in found] == list(range(THREADS))
    assert len({thread for _, thread in found}) == THREADS


def test_one_alone_and_small_arrays_need_no_thread() -> None:
    assert in_order(lambda _: threading.get_ident(), [0]) == [threading.get_ident()]
    assert {*in_order(lambda _: threading.get_ident(), range(THREADS), numbers=100)} == {threading.get_ident()}
