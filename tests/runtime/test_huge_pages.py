"""Memory in huge pages is a tensor like any other: of its size, aligned, filled, and given back."""

import mmap
from pathlib import Path

import numpy as np
import pytest

from octavo.runtime.huge_pages import PAGE, empty_bytes, tensor_of

SIZES = (0, 1, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE + 64)


@pytest.mark.parametrize("is_known", [True, False])
def test_tensors_of_any_size_are_aligned_and_hold_what_is_written(is_known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not is_known:
        monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    for size in SIZES:
        values = np.random.default_rng(size).integers(0, 256, size).astype(np.uint8)
        made = tensor_of(values)
        assert made.data_ptr() % 64 == 0
        assert made.shape == (max(size, 1),)
        assert np.array_equal(made.numpy()[:size], values)


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="this system knows no huge pages")
def test_a_large_tensor_starts_a_huge_page_and_its_memory_is_given_back() -> None:
    def mapped() -> int:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * mmap.PAGESIZE

    before = mapped()
    made = empty_bytes(64 * PAGE)
    assert made.data_ptr() % PAGE == 0
    assert mapped() - before >= 64 * PAGE
    del made
    assert mapped() - before < 32 * PAGE
