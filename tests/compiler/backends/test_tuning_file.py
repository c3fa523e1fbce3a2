"""The tuning file: what is saved is read again, and whatever else lies there is refused in one line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from octavo.compiler.backends.cpu.kernels import TileSchedule, WindowSchedule, WinogradSchedule
from octavo.compiler.backends.tuning import Tuning, Winner
from octavo.errors import TuningError
from octavo.runtime.llvm_host import processor_name

TUNING = Tuning(
    isa="x86.avx512_vnni",
    processor="Some CPU",
    octavo="0.1.0",
    winners={
        "int8 a": Winner(schedule=TileSchedule(rows=6, columns=1, vectors=4, block=12), before_us=2.5, after_us=2.0),
        "int8 b": Winner(schedule=TileSchedule(rows=2, columns=1, vectors=8), before_us=1.0, after_us=0.5),
        "int8 c": Winner(schedule=WindowSchedule(outputs=2), before_us=7.0, after_us=6.0),
        "int8 d": Winner(schedule=WinogradSchedule(tile_rows=4, tile_columns=2, block=3), before_us=8.0, after_us=7.0),
    },
)


def test_what_is_saved_is_read_again(tmp_path: Path) -> None:
    TUNING.save(tmp_path / "t.json")
    assert Tuning.load(tmp_path / "t.json") == TUNING
    assert [path.name for path in tmp_path.iterdir()] == ["t.json"]


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    TUNING.save(tmp_path / "t.json")
    before = (tmp_path / "t.json").read_bytes()

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(TuningError, match=r"t\.json: cannot write the tuning: No space left on device"):
        TUNING.save(tmp_path / "t.json")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [before]


def edited(change: Callable[[dict[str, Any]], object]) -> Callable[[str], str]:
    def edit(text: str) -> str:
        data = json.loads(text)
        change(data)
        return json.dumps(data)

    return edit


def of_schedule(**values: object) -> Callable[[str], str]:
    return edited(lambda data: data["kernels"]["int8 a"]["schedule"].update(values))


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda text: text[: len(text) // 2], "not JSON, or cut short"),
        (lambda _: "", "not JSON, or cut short"),
        (lambda _: "[" * 100_000, "not JSON, or cut short"),
        (lambda _: "[]", "the file is no JSON object"),
        (lambda _: '{"format": "octavo-profile"}', 'expected "format": "octavo-tuning"'),
        (edited(lambda data: data.update(schema_version=2)), "schema version 2, this version reads 1"),
        (edited(lambda data: data.pop("isa")), "expected the keys"),
        (edited(lambda data: data.update(processor=3)), "'processor' is no text"),
        (edited(lambda data: data.update(kernels=[])), "'kernels' is no JSON object"),
        (edited(lambda data: data["kernels"].update(x=1)), "'x' is no JSON object"),
        (edited(lambda data: data["kernels"]["int8 a"].pop("after_us")), "'int8 a': expected the keys"),
        (edited(lambda data: data["kernels"]["int8 a"].update(after_us="fast")), "'fast' is no time"),
        (edited(lambda data: data["kernels"]["int8 a"].update(after_us=float("nan"))), "nan is no time"),
        (edited(lambda data: data["kernels"]["int8 a"].update(schedule={"rows": 1})), "of no kind that is known"),
        (of_schedule(rows=0), "'rows' must be a whole number"),
        (of_schedule(rows=1.5), "'rows' must be a whole number"),
        (of_schedule(rows=True), "'rows' must be a whole number"),
        (of_schedule(vectors=None), "'vectors' must be a whole number"),
        (of_schedule(block=10**9), "'block' must be a whole number"),
    ],
)
def test_a_file_of_another_kind_is_refused(tmp_path: Path, edit: Callable[[str], str], said: str) -> None:
    path = tmp_path / "t.json"
    TUNING.save(path)
    path.write_text(edit(path.read_text(encoding="utf-8")), encoding="utf-8")
    with pytest.raises(TuningError) as caught:
        Tuning.load(path)
    assert said in str(caught.value)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_bytes_that_are_no_text_and_paths_without_a_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TuningError, match="not a tuning file"):
        Tuning.load(tmp_path / "t.json")
    with pytest.raises(TuningError, match="cannot read the tuning: No such file"):
        Tuning.load(tmp_path / "none.json")
    with pytest.raises(TuningError, match="cannot read the tuning"):
        Tuning.load(tmp_path)
    with pytest.raises(TuningError, match="the path of a tuning file"):
        Tuning.load(7)  # type: ignore[arg-type]


def test_another_machine_s_measurements_are_refused() -> None:
    with pytest.raises(TuningError, match=r"of x86\.avx512_vnni on 'Some CPU', this is x86\.avx2 on .*: tune the model here"):
        TUNING.schedules("x86.avx2", processor_name())
    here = Tuning(isa="x86.avx2", processor=processor_name(), octavo="0.1.0", winners=TUNING.winners)
    assert here.schedules("x86.avx2", processor_name())["int8 c"] == WindowSchedule(outputs=2)
