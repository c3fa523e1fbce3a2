"""The list of passes: what it says of each, that it is what runs, and that the page about it is the same."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm.ir.instrument import pass_instrument

import octavo
from nets import residual_net
from octavo.cli.main import main
from octavo.cli.passes import table_of
from octavo.compiler.partition.pipeline import PASSES
from octavo.compiler.passes import DumpIR, listed_passes
from octavo.errors import CompileError, DataError
from octavo.ir.graph import dump_ir
from octavo.ir.graph.passes import run_as_pass

TESTS = Path(__file__).resolve().parents[1]
PAGE = TESTS.parent / "docs" / "architecture.md"


def test_the_page_has_the_list() -> None:
    assert f"\n{table_of(listed_passes())}\n" in PAGE.read_text(encoding="utf-8"), "octavo passes prints what belongs there"


@pytest.mark.parametrize("each", PASSES, ids=lambda each: each.name)
def test_a_pass_has_a_file_of_its_name_that_shows_the_ir_and_a_test(each) -> None:
    module = sys.modules[each.function.__module__]
    assert module.__name__.rsplit(".", 1)[-1] == each.name
    assert "\nBefore" in (module.__doc__ or "")
    assert "\nAfter" in (module.__doc__ or "")
    assert each.summary
    assert each.reason
    assert (TESTS / "compiler" / "partition" / f"test_{each.name}.py").is_file()


def test_the_command_prints_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["passes"]) == 0
    assert capsys.readouterr().out == f"{table_of(listed_passes())}\n"
    assert main(["passes", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["passes"]
    assert [row["name"] for row in rows] == [*(each.name for each in PASSES), "lower", "link", "vm_passes"]
    assert all(row["summary"] and row["reason"] and row["stage"] for row in rows)
    assert "LegalizeOps" in rows[-2]["runs"]


def quantized() -> octavo.Model:
    model = residual_net()
    return octavo.quantize(model, octavo.profile(model, [np.random.default_rng(0).standard_normal((1, 3, 8, 8), np.float32)]))


def test_instruments_see_the_passes_in_the_order_of_the_list() -> None:
    seen: list[str] = []

    @pass_instrument
    class Names:
        def run_before_pass(self, _module: tvm.IRModule, info: tvm.transform.PassInfo) -> None:
            seen.append(str(info.name))

    model = quantized()
    with tvm.transform.PassContext(instruments=[Names()]):
        octavo.compile(model)
    ours = [name.removeprefix("octavo.") for name in seen if name.startswith("octavo.")]
    assert ours == [each.name for each in listed_passes() if each.name != "vm_passes"]


def test_an_error_in_a_pass_is_raised_as_it_is() -> None:
    error = CompileError("conv: too wide")

    def refuse(_module: tvm.IRModule) -> tvm.IRModule:
        raise error

    with pytest.raises(CompileError) as raised:
        run_as_pass("refuse", tvm.IRModule(), refuse)
    assert raised.value is error


def test_the_ir_is_written_after_every_pass_that_changes_it(tmp_path: Path) -> None:
    model = quantized()
    plain = octavo.compile(model)
    with tvm.transform.PassContext(instruments=[DumpIR(tmp_path / "ir")]):
        octavo.compile(model).save(tmp_path / "dumped.so")
    plain.save(tmp_path / "plain.so")
    assert (tmp_path / "dumped.so").read_bytes() == (tmp_path / "plain.so").read_bytes()
    names = [path.name for path in sorted((tmp_path / "ir").iterdir())]
    assert [int(name[:3]) for name in names] == list(range(len(names)))
    assert names[:2] == ["000_source.py", "001_octavo.outline_integer.py"]
    assert names[-1].endswith("_octavo.link.py")
    texts = [(tmp_path / "ir" / name).read_text() for name in names]
    assert all(one != two for one, two in itertools.pairwise(texts))
    assert "octavo.conv2d" not in texts[0]
    assert "octavo.conv2d" in texts[1]


def test_the_command_line_writes_the_ir(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = Path(octavo.__file__).parent / "cli" / "demo_data" / "digits.onnx"
    assert main(["explain", str(model), "--dump-ir", str(tmp_path / "ir")]) == 0
    assert main(["compile", str(model), "-o", str(tmp_path / "m.so"), "--dump-ir", str(tmp_path / "both")]) == 0
    explained, compiled = (sorted(path.name for path in (tmp_path / name).iterdir()) for name in ("ir", "both"))
    assert explained == ["000_source.py", "001_octavo.outline_float.py", "002_octavo.attach_state.py", "003_octavo.lower.py"]
    assert compiled[: len(explained)] == explained
    capsys.readouterr()
    assert main(["explain", str(tmp_path / "m.so"), "--dump-ir", str(tmp_path / "ir")]) == 2
    assert "an executable has no IR" in capsys.readouterr().err
    assert main(["explain", str(model), "--dump-ir", str(tmp_path / "no" / "ir")]) == 1
    assert "there is no folder" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_left_out_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, _target: Path) -> Path:
        raise OSError(28, "No space left on device", str(self))

    monkeypatch.setattr(Path, "replace", full)
    dump = DumpIR(tmp_path)
    with pytest.raises(Exception, match="No space left"), tvm.transform.PassContext(instruments=[dump]):
        octavo.partition(residual_net())
    assert isinstance(dump.error, DataError)
    assert f"{tmp_path / dump_ir.dump_name(0, 'source')}: cannot write: No space left on device" in str(dump.error)
    assert list(tmp_path.iterdir()) == []
