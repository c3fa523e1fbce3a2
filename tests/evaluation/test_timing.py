import pytest

from octavo.evaluation.bench.timing import Timing, time_alternating


class FakeClock:
    """Time that passes only inside the contenders' calls."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[str] = []

    def contender(self, name: str, seconds: float):
        def call() -> None:
            self.calls.append(name)
            self.now += seconds

        return call

    def __call__(self) -> float:
        return self.now


def test_contenders_take_turns() -> None:
    clock = FakeClock()
    calls = {"a": clock.contender("a", 1.0), "b": clock.contender("b", 2.0)}
    time_alternating(calls, seconds=3.0, rounds=3, clock=clock, rest=lambda _: None)
    # One second a turn: "a" fits one timed call and "b" overruns with its first; each has a call before that is not timed.
    assert clock.calls == ["a", "a", "b", "b"] * 3


def test_the_median_is_in_milliseconds_and_leaves_out_the_warm_call() -> None:
    clock = FakeClock()
    calls = {"a": clock.contender("a", 0.25)}
    timing = time_alternating(calls, seconds=2.0, rounds=2, clock=clock, rest=lambda _: None)["a"]
    assert timing.seconds == (0.25,) * 8
    assert timing.median_ms == 250.0


def test_a_moment_of_disturbance_does_not_move_the_median() -> None:
    assert Timing(seconds=(0.001, 0.001, 0.5)).median_ms == pytest.approx(1.0)


def test_every_turn_starts_with_a_rest() -> None:
    clock, rests = FakeClock(), []
    calls = {"a": clock.contender("a", 1.0), "b": clock.contender("b", 1.0)}
    time_alternating(calls, seconds=2.0, rounds=2, clock=clock, rest=rests.append)
    assert len(rests) == 4
    assert min(rests) > 0
