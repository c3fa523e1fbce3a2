"""Sessions: states carried in place give the bytes that whole inputs give, and refuse what does not fit."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tvm import relax

import octavo
from octavo.errors import DataError
from octavo.runtime import session
from octavo.runtime.executable import Executable
from octavo.runtime.runner import NativeRunner
from open_decoder import CARRY, HEADS, SIZE, decoder

R: Any = relax.op
Arrays = dict[str, npt.NDArray[Any]]


@pytest.fixture(scope="module")
def executable() -> Executable:
    return octavo.compile(decoder())


def names_of(executable: Executable) -> dict[str, str]:
    """Return what is carried, by the outputs' own names."""
    _, *states = (spec.source_name for spec in executable.outputs)
    return dict(zip(states, CARRY.values(), strict=True))


def steps(seed: int, batch: int, count: int) -> Iterator[npt.NDArray[np.float32]]:
    rng = np.random.default_rng(seed)
    for _ in range(count):
        yield rng.standard_normal((batch, int(rng.integers(1, 6)), HEADS * SIZE)).astype(np.float32)


def without(executable: Executable, x: npt.NDArray[np.float32], past: Arrays | None) -> tuple[npt.NDArray[Any], Arrays]:
    """Return the result of one step and the states behind it, with whole arrays."""
    nothing = np.zeros((len(x), HEADS, 0, SIZE), executable.inputs[1].dtype)
    past = dict.fromkeys(CARRY.values(), nothing) if past is None else past
    result, *states = executable({"x": x, **past}).values()
    return result, dict(zip(CARRY.values(), states, strict=True))


@pytest.mark.parametrize("batch", [1, 3])
def test_steps_give_the_bytes_that_whole_states_give(executable: Executable, batch: int) -> None:
    past: Arrays | None = None
    with executable.session(carry=names_of(executable), capacity={"past": 60}) as step:
        memory = None
        for x in steps(0, batch, 12):
            expected, past = without(executable, x, past)
            found = step(x=x)
            assert list(found) == [executable.outputs[0].source_name]
            assert found[executable.outputs[0].source_name].tobytes() == expected.tobytes()
            addresses = [tensor.data_ptr() for tensor in step._memory.values()]  # pyright: ignore[reportPrivateUsage]
            assert memory is None or addresses == memory, "the states stay where they are"
            memory = addresses
        assert past is not None
        assert {name: value.tobytes() for name, value in step.state().items()} == {n: v.tobytes() for n, v in past.items()}
        assert step.length == past["past_key"].shape[2]


@pytest.mark.parametrize("state", ["int8", "uint8", "float16"])
def test_states_of_any_type_lie_in_place(state: str) -> None:
    executable = octavo.compile(decoder(state=state))
    assert [each.input for each in executable.description.states] == [1, 2]
    past: Arrays | None = None
    with executable.session(carry=names_of(executable), capacity={"past": 60}) as step:
        for number, x in enumerate(steps(0, 2, 12)):
            expected, past = without(executable, x, past)
            other = step.fork() if number == 6 else None
            for each in (step,) if other is None else (step, other):
                assert next(iter(each(x=x).values())).tobytes() == expected.tobytes()
                assert {name: value.tobytes() for name, value in each.state().items()} == {
                    n: v.tobytes() for n, v in past.items()
                }
        assert past is not None
        assert np.ptp(past["past_key"].astype(np.float32)) > 1, "the states hold what was read"
        rows = step.length
        result = without(executable, x, {name: value[:, :, :3] for name, value in past.items()})[0]
        step.reset(to=3)
        assert (next(iter(step(x=x).values())).tobytes(), rows) == (result.tobytes(), past["past_key"].shape[2])


def test_states_that_cannot_grow_in_place_begin_without_rows_and_are_handed_over() -> None:
    executable = octavo.compile(decoder(reads_past=True))
    assert not executable.description.states
    past: Arrays | None = None
    with executable.session(carry=names_of(executable)) as step:
        for x in steps(0, 2, 6):
            expected, past = without(executable, x, past)
            assert next(iter(step(x=x).values())).tobytes() == expected.tobytes()
        assert past is not None
        assert {name: value.tobytes() for name, value in step.state().items()} == {n: v.tobytes() for n, v in past.items()}
        step.reset()
        assert next(iter(step(x=x).values())).tobytes() == without(executable, x, None)[0].tobytes()


def test_a_saved_executable_and_threads_that_share_one_give_the_same(executable: Executable, tmp_path: Path) -> None:
    executable.save(tmp_path / "decoder.so")
    loaded = octavo.load_executable(tmp_path / "decoder.so")
    expected: list[list[bytes]] = [[], []]
    found: list[list[bytes]] = [[], []]

    def run(number: int) -> None:
        with loaded.session(carry=names_of(loaded), capacity={"past": 100}) as step:
            found[number] = [next(iter(step(x=x).values())).tobytes() for x in steps(number, 1, 15)]

    for number in range(2):
        past: Arrays | None = None
        for x in steps(number, 1, 15):
            result, past = without(executable, x, past)
            expected[number].append(result.tobytes())
    threads = [Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == expected


def test_a_fork_goes_its_own_way_and_reset_drops_rows(executable: Executable) -> None:
    first, second, third = steps(3, 2, 3)
    with executable.session(carry=names_of(executable), capacity={"past": 30}) as step:
        step(x=first)
        rows = step.length
        fork = step.fork()
        one, other = step(x=second), fork(x=third)
        step.reset(to=rows)
        again = step(x=third)
        assert [each.tobytes() for each in again.values()] == [each.tobytes() for each in other.values()]
        fork.reset(to=rows)
        assert [each.tobytes() for each in fork(x=second).values()] == [each.tobytes() for each in one.values()]
        step.reset()
        assert step.length == 0
        step(x=first[:1])  # another batch begins


@pytest.mark.parametrize("threads", [1, 2])
def test_what_is_computed_of_a_fixed_input_is_computed_once(threads: int) -> None:
    """The bytes of calls that are given it at each step; while the workspace holds a step, nothing reads it again."""
    executable = octavo.compile(decoder(encodes=True), threads=threads)
    assert executable.description.fixed == (3,)
    encoded = np.random.default_rng(8).standard_normal((2, HEADS, 5, SIZE)).astype(np.float32)
    past = dict.fromkeys(CARRY.values(), np.zeros((2, HEADS, 0, SIZE), np.float32))
    given = encoded.copy()
    with executable.session(carry=names_of(executable), capacity={"past": 400}, fixed={"encoded": given}) as step:
        given[...] = 0  # it is the caller's again
        for number, x in enumerate(steps(4, 2, 40)):
            memory, before = np.from_dlpack(step._memory["encoded"]), step._before  # pyright: ignore[reportPrivateUsage]
            expected, *states = executable({"x": x, **past, "encoded": encoded}).values()
            past = dict(zip(CARRY.values(), states, strict=True))
            np.copyto(memory, 0 if number == 1 else encoded)
            found = step.fork() if number == 20 else step
            assert next(iter(found(x=x).values())).tobytes() == expected.tobytes()
            if number == 20:
                step(x=x)
            assert number != 1 or (before is not None and step._before == before)  # pyright: ignore[reportPrivateUsage]
        np.copyto(memory, encoded)
        step.reset()
        x = next(steps(9, 2, 1))
        expected, _ = without(executable, x, {**dict.fromkeys(CARRY.values(), past["past_key"][:, :, :0]), "encoded": encoded})
        assert next(iter(step(x=x).values())).tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("fixed", "message"),
    [
        (
            {"past_key": np.zeros((1, HEADS, 0, SIZE), np.float32)},
            "fixed: 'past_key' is no input beside the carried ones; these are x",
        ),
        ({"other": np.zeros(1, np.float32)}, "fixed: 'other' is no input"),
        ({"x": np.zeros((1, 2, 3), np.float32)}, "fixed"),
    ],
)
def test_fixed_inputs_that_cannot_be_are_refused(executable: Executable, fixed: Arrays, message: str) -> None:
    with pytest.raises(DataError, match=message):
        executable.session(carry=names_of(executable), capacity={"past": 8}, fixed=fixed)


def test_states_to_begin_with_are_taken(executable: Executable) -> None:
    first, second, *_ = steps(5, 1, 2)
    _, past = without(executable, first, None)
    expected, _ = without(executable, second, past)
    with executable.session(carry=names_of(executable), capacity={"past": 20}, start=past) as step:
        assert next(iter(step(x=second).values())).tobytes() == expected.tobytes()
        step.reset()
        assert step.length == first.shape[1]


def test_a_fork_starts_anew_as_its_session_does(executable: Executable) -> None:
    """With the rows that were given, whatever has become of the caller's arrays since."""
    first, second, third = steps(11, 2, 3)
    _, past = without(executable, first, None)
    expected, _ = without(executable, third, past)
    with executable.session(carry=names_of(executable), capacity={"past": 30}, start=past) as step:
        for array in past.values():
            array[...] = 0
        step(x=second)
        for each in (step.fork(), step):
            each.reset()
            assert next(iter(each(x=third).values())).tobytes() == expected.tobytes()


def test_a_step_that_fails_leaves_no_memory_of_its_sizes(executable: Executable, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one may have another batch."""

    def fail(*_: object) -> None:
        raise MemoryError

    [x] = steps(12, 3, 1)
    expected, _ = without(executable, x, None)
    with executable.session(carry=names_of(executable), capacity={"past": 30}) as step:
        with monkeypatch.context() as patched:
            patched.setattr(NativeRunner, "run_on", fail)
            with pytest.raises(MemoryError):
                step(x=x[:1])
        assert step.length == 0
        assert next(iter(step(x=x).values())).tobytes() == expected.tobytes()


@pytest.mark.parametrize("rows", [2.5, "3", None, True])
def test_rows_to_keep_are_a_whole_number(executable: Executable, rows: Any) -> None:
    [x] = steps(13, 1, 1)
    with executable.session(carry=names_of(executable), capacity={"past": 30}) as step:
        step(x=np.concatenate([x] * 4, axis=1))
        with pytest.raises(DataError, match=r"expected a whole number of rows as the ones that reset\(to=\.\.\.\) keeps, got "):
            step.reset(to=rows)
        step.reset(to=np.int64(3))
        assert step.length == 3


def test_a_closed_session_does_nothing_more(executable: Executable) -> None:
    [x] = steps(14, 1, 1)
    with executable.session(carry=names_of(executable), capacity={"past": 30}) as step:
        step(x=x)
    for use in (lambda: step(x=x), step.state, step.fork, step.reset):
        with pytest.raises(DataError, match="the session was closed at the end of its with block"):
            use()


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_an_open_session_is_not_copied_and_its_executable_is(executable: Executable, copied: Any) -> None:
    [x] = steps(15, 1, 1)
    expected, _ = without(executable, x, None)
    with executable.session(carry=names_of(executable), capacity={"past": 30}) as step:
        with pytest.raises(DataError, match=r"a session is not copied or pickled: fork\(\) it"):
            copied(step)
        other = copied(executable)
        other = pickle.loads(other) if isinstance(other, bytes) else other
        assert next(iter(step(x=x).values())).tobytes() == expected.tobytes() == without(other, x, None)[0].tobytes()


def test_what_does_not_fit_is_one_line_and_the_session_goes_on(executable: Executable) -> None:
    carry = names_of(executable)
    with executable.session(carry=carry, capacity={"past": 8}) as step:
        x = np.ones((1, 5, HEADS * SIZE), np.float32)
        step(x=x)
        with pytest.raises(DataError, match=r"would have 10 rows along past \(5 are there\), the capacity is 8"):
            step(x=x)
        with pytest.raises(
            DataError, match="input x has 2 along axis 0, where dimension batch is 1: the session's states have 1"
        ):
            step(x=np.ones((2, 1, HEADS * SIZE), np.float32))
        with pytest.raises(DataError, match=r"reset\(to=6\): the session holds 5 rows"):
            step.reset(to=6)
        step(x=x[:, :3])
        assert step.length == 8


@pytest.mark.parametrize(
    ("carry", "capacity", "message"),
    [
        ({"no": "past_key"}, {"past": 4}, "there is no output 'no'"),
        (None, {"past": 0}, "capacity past=0: must be at least 1"),
        (None, {"past": 4.5}, "a whole number of rows as the capacity of 'past', got float"),
        (None, {"sequence": 4}, "no state is written in place along 'sequence'; states grow along past"),
        (None, None, r"states grow along 'past': .* capacity=\{'past': 2048\}"),
    ],
)
def test_sessions_that_cannot_be_are_refused(
    executable: Executable, carry: dict[str, str] | None, capacity: dict[str, int] | None, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        executable.session(carry=names_of(executable) if carry is None else carry, capacity=capacity)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"past_key": 3}, "start: past_value is missing; others begin with 3 rows along past"),
        ({"past_key": 0, "past_value": 3}, "start: past_value has 3 rows; the capacity is 8, and all states begin with as many"),
    ],
)
def test_states_to_begin_with_have_rows_of_their_own(executable: Executable, rows: dict[str, int], message: str) -> None:
    start = {name: np.zeros((1, HEADS, count, SIZE), np.float32) for name, count in rows.items()}
    with pytest.raises(DataError, match=message):
        executable.session(carry=names_of(executable), capacity={"past": 8}, start=start)


def test_states_of_more_elements_than_kernels_count_are_refused(executable: Executable) -> None:
    """An element's number must fit 32 bits, or the kernel would write elsewhere."""
    rows = 2**31 // (HEADS * SIZE)
    step = executable.session(carry=names_of(executable), capacity={"past": rows})
    with pytest.raises(DataError, match=f"past={rows}: past_key would have 2147483648 elements, of at most 2147483647"):
        step(x=np.ones((1, 1, HEADS * SIZE), np.float32))


def test_states_beyond_the_memory_of_the_machine_are_refused(executable: Executable, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system would grant them, and end the process later."""
    rows = 1 << 16
    monkeypatch.setattr(session, "machine_bytes", lambda: 6 * HEADS * SIZE * rows)  # one of the two, which have four bytes each
    step = executable.session(carry=names_of(executable), capacity={"past": rows})
    with pytest.raises(DataError, match=rf"^capacity past={rows}: the state past_value takes .*; open the session for fewer"):
        step(x=np.ones((1, 1, HEADS * SIZE), np.float32))


def test_states_that_grow_together_are_carried_together(executable: Executable) -> None:
    (key, past), _ = names_of(executable).items()
    with pytest.raises(DataError, match="value grows along 'past' as states that are carried do: carry it to 'past_value', too"):
        executable.session(carry={key: past}, capacity={"past": 4})


def test_a_state_that_does_not_grow_is_handed_over() -> None:
    x, state = (relax.Var(name, relax.TensorType([1, 4], "float32")) for name in ("x", "state"))
    builder: Any = relax.BlockBuilder()
    with builder.function("main", [x, state]):
        with builder.dataflow():
            total = builder.emit(R.add(x, state), name_hint="total")
            outputs = builder.emit_output(relax.Tuple([builder.emit(R.multiply(total, total), name_hint="y"), total]))
        builder.emit_func_output(outputs)
    executable = octavo.compile(octavo.load(builder.get()))
    y, total_name = (spec.source_name for spec in executable.outputs)
    with executable.session(carry={total_name: "state"}) as step:
        values = [np.full((1, 4), number, np.float32) for number in (1, 2, 3)]
        assert [float(step(each)[y][0, 0]) for each in values] == [1, 9, 36]
        step.reset()
        assert float(step(values[1])[y][0, 0]) == 4
        with pytest.raises(DataError, match=r"reset\(to=1\)"):
            step.reset(to=1)
