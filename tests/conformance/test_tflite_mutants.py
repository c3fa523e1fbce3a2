"""Over a thousand damaged TFLite files: each loads, or gives one line that names the file; nothing is printed, nothing hangs."""

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
"""For one file; some hundreds of them take a quarter of a minute together."""


def files(group):
    """One quantized and one float file for each op of the group, with its number."""
    for number, op in list(enumerate(OPS))[group::GROUPS]:
        of_op = list(cases(op))
        for chosen in {of_op[0].kind: of_op[0], of_op[-1].kind: of_op[-1]}.values():
            yield number, write([chosen])
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
