"""Places of intermediate tensors in one block."""

from hypothesis import given
from hypothesis import strategies as st

from octavo.runtime.memory import ALIGNMENT, Lifetime, align, place


@st.composite
def lifetimes(draw: st.DrawFn) -> list[Lifetime]:
    made = []
    for _ in range(draw(st.integers(0, 30))):
        first = draw(st.integers(0, 20))
        made.append(Lifetime(size=draw(st.integers(0, 1000)), first=first, last=first + draw(st.integers(0, 6))))
    return made


@given(lifetimes())
def test_tensors_alive_at_once_never_overlap(tensors):
    offsets, size = place(tensors)
    for index, (offset, tensor) in enumerate(zip(offsets, tensors, strict=True)):
        assert offset % ALIGNMENT == 0
        assert offset + tensor.size <= size
        for other_offset, other in zip(offsets[:index], tensors[:index], strict=True):
            if tensor.overlaps(other):
                assert offset + tensor.size <= other_offset or other_offset + other.size <= offset


@given(lifetimes())
def test_the_block_is_between_what_is_alive_at_once_and_everything(tensors):
    _, size = place(tensors)
    alive = [sum(align(t.size) for t in tensors if t.first <= call <= t.last) for call in range(30)]
    assert max(alive, default=0) <= size <= sum(align(tensor.size) for tensor in tensors)


def test_a_chain_needs_two_places():
    chain = [Lifetime(size=640, first=number, last=number + 1) for number in range(10)]
    assert place(chain)[1] == 2 * 640


def test_a_tensor_goes_into_the_smallest_gap_that_holds_it():
    tensors = [
        Lifetime(size=1024, first=0, last=0),  # at 0, leaves a gap of 1024
        Lifetime(size=960, first=0, last=9),
        Lifetime(size=512, first=0, last=0),
        Lifetime(size=448, first=0, last=9),
        Lifetime(size=384, first=5, last=9),
    ]
    offsets, _ = place(tensors)
    assert offsets[4] == offsets[2], "the gap of 512 that the third leaves, not that of 1024"
