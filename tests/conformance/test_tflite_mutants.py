"""Hundreds of damaged TFLite files: each loads, or gives one line that names the file; nothing is printed, nothing hangs."""

import time

import pytest
from tflite_case import write
from tflite_cases import SUITE, cases
from tflite_mutants import mutants

import octavo
from octavo.errors import OctavoError

OPS = tuple(SUITE)
GROUPS = 4
PER_FILE = 4
MAX_SECONDS = 10.0
"""For one file; all of them take some seconds together."""


def files(group):
    """Two files for each op of the group, with its number: one of a quantized or a float case, in turns, and one of several."""
    for place, (number, op) in enumerate(list(enumerate(OPS))[group::GROUPS]):
        of_op = list(cases(op))
        yield number, write([of_op[-(place % 2)]])
        # Several ops in one graph: what is swapped or misled among them may fit.
        yield number, write(of_op[:3])


@pytest.mark.parametrize("group", range(GROUPS))
def test_damaged_files(group, tmp_path, capfd):
    path = tmp_path / "damaged.tflite"
    messages: list[str] = []
    outcomes = {"model": 0, "error": 0, "compiled": 0}
    for number, data in files(group):
        for index, damaged in enumerate(mutants(data, PER_FILE, seed=number)):
            path.write_bytes(damaged)
            started = time.perf_counter()
            try:
                model = octavo.load(path)
                outcomes["model"] += 1
                if index == 3:
                    octavo.compile(model)
                    outcomes["compiled"] += 1
            except OctavoError as error:
                outcomes["error"] += 1
                messages.append(str(error))
            assert time.perf_counter() - started < MAX_SECONDS
    assert [message for message in messages if "\n" in message] == []
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")
    assert outcomes["model"] + outcomes["error"] >= 500 / GROUPS
    assert min(outcomes.values()) > 5, outcomes
