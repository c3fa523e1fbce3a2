"""`octavo profile merge`, `diff` and `adequacy`, on profiles of a small network."""

from __future__ import annotations

import json
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import octavo
from octavo.cli.main import main


def command(line: str) -> int:
    return main(shlex.split(line))


@pytest.fixture(scope="module")
def made_parts(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The samples of calib.npz profiled in three parts: a.json, b.json and c.json."""
    folder = tmp_path_factory.mktemp("parts")
    with np.load(finished / "calib.npz") as archive:
        samples = archive["x"]
    model = octavo.load(finished / "m.onnx")
    for name, start, end in (("a", 0, 10), ("b", 10, 55), ("c", 55, 100)):
        octavo.profile(model, samples[start:end], numbers=range(start, end), keep_samples=64).save(folder / f"{name}.json")
    return folder


@pytest.fixture
def parts(workplace: Path, made_parts: Path) -> Path:
    """Those parts in the current folder."""
    return Path(shutil.copytree(made_parts, workplace, dirs_exist_ok=True))


def test_merged_parts_are_the_bytes_of_the_whole_in_any_order(
    parts: Path, with_samples: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("profile merge a.json b.json c.json -o abc.json") == 0
    assert "100 samples of 3 profiles" in capsys.readouterr().out
    assert command("profile merge c.json a.json -o ca.json") == 0
    assert command("profile merge b.json ca.json -o bca.json") == 0
    assert (parts / "abc.json").read_bytes() == (parts / "bca.json").read_bytes() == with_samples.read_bytes()


def test_diff_prints_what_changed_most_first(parts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("profile diff a.json profile.json --json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["samples"] == [10, 100]
    shares = [tensor["range_moved"] for tensor in found["tensors"]]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0
    assert command("profile diff a.json profile.json") == 0
    table = capsys.readouterr().out.splitlines()
    assert f"{shares[0]:.2%}" in table[2]
    assert table[-1] == f"{sum(t['moved'] for t in found['tensors'])} of {len(shares)} tensors moved; 10 and 100 samples"


def test_diff_of_a_profile_with_itself_says_so(parts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("profile diff a.json a.json") == 0
    assert capsys.readouterr().out.startswith("0 of ")


@pytest.mark.parametrize("words", ["merge profile.json other.json -o new.json", "diff profile.json other.json"])
def test_profiles_of_different_models_are_one_error(workplace: Path, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    profile = octavo.Profile.load("profile.json")
    replace(profile, fingerprint="sha256:other").save("other.json")
    assert command(f"profile {words}") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "profiles of different models" in line
    assert f"{profile.fingerprint} (profile.json) and sha256:other (other.json)" in line
    assert not Path("new.json").exists()


def test_merge_refuses_to_write_over_what_it_reads(parts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("profile merge a.json b.json -o b.json") == 1
    assert "it is an input of this command" in capsys.readouterr().err


def test_adequacy_names_what_still_grows(parts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("profile adequacy a.json --json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["samples"] == 10
    growing = [tensor for tensor in found["tensors"] if tensor["growing"]]
    assert growing, "10 digits do not show the range of any tensor of a network"
    assert command("profile adequacy a.json") == 0
    table = capsys.readouterr().out
    assert all(f"{tensor['convergence']['growth']:.1%}" in table for tensor in growing)
    silent = [tensor for tensor in found["tensors"] if tensor["silent_channels"]]
    channels = sum(len(tensor["silent_channels"]) for tensor in silent)
    said = (
        f"10 samples: {len(growing)} of {len(found['tensors'])} ranges still grow; {channels} channels of {len(silent)} tensors"
    )
    assert table.splitlines()[-1] == f"{said} never fired"
    assert command("profile adequacy profile.json --json") == 0
    later = json.loads(capsys.readouterr().out)
    growths = [sum(tensor["convergence"]["growth"] for tensor in part["tensors"]) for part in (found, later)]
    assert growths[1] < growths[0]


def test_adequacy_of_a_few_samples_says_that_they_are_few(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with np.load("calib.npz") as archive:
        octavo.profile(octavo.load("m.onnx"), archive["x"][:3], keep_samples=64).save("few.json")
    assert command("profile adequacy few.json") == 0
    assert "too few samples" in capsys.readouterr().out


def test_diff_says_that_other_versions_made_a_profile(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile = octavo.Profile.load("profile.json")
    replace(profile, tools={**profile.tools, "tvm": ("0.1",)}).save("older.json")
    assert command("profile diff older.json profile.json") == 0
    assert f"made with tvm: 0.1 -> {profile.tools['tvm'][0]}\n" in capsys.readouterr().out
    assert command("profile merge older.json profile.json -o both.json") == 0
    assert octavo.Profile.load("both.json").tools["tvm"] == ("0.1", *profile.tools["tvm"])


@pytest.mark.parametrize("line", ["profile merge --help", "profile diff --help", "profile adequacy --help"])
def test_help_shows_an_example_of_two_words(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        command(line)
    assert left.value.code == 0
    assert f"example:\n  octavo {line.removesuffix(' --help')} " in capsys.readouterr().out


def test_resume_from_a_checkpoint_ends_with_the_same_bytes_and_nothing_else(parts: Path, with_samples: Path) -> None:
    (parts / "a.json").rename("new.json.checkpoint")
    (parts / "a.json.samples").rename("new.json.checkpoint.samples")
    assert command("profile m.onnx --data calib.npz --checkpoint 20 --resume new.json.checkpoint -o new.json") == 0
    assert Path("new.json").read_bytes() == with_samples.read_bytes()
    assert not [path for path in parts.iterdir() if "checkpoint" in path.name]
    assert command("profile m.onnx --data calib.npz --resume b.json -o other.json") == 0
    assert octavo.Profile.load("other.json").samples == 100


@pytest.mark.parametrize("form", ["ort-json", "tensorrt", "aimet-1.0.0"])
def test_ranges_go_out_and_come_back(workplace: Path, form: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(f"profile export profile.json --format {form} -o table") == 0
    assert command("profile import m.onnx table -o back.json") == 0
    count = sum(value.kind != "constant" for value in octavo.Profile.load("profile.json").values())
    assert capsys.readouterr().out.splitlines() == [f"table: {count} tensors", f"back.json: ranges of {count} tensors"]
    assert command("quantize m.onnx --profile back.json -o back.onnx") == 0
    Path("table").write_text("nonsense")
    assert command("profile import m.onnx table -o back.json") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("octavo: error: table: not a valid table: ")


def test_check_names_what_leaves_its_range(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with np.load("x.npz") as archive:
        np.save("brighter.npy", archive["x"] * 2)
    assert command("profile check m.int8.onnx --data brighter.npy --json") == 0
    found = json.loads(capsys.readouterr().out)
    left = [tensor for tensor in found["tensors"] if tensor["left"]]
    assert left[0]["outside"] > 0.05
    assert command("profile check m.int8.onnx --data brighter.npy") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == f"20 samples: {len(left)} of {len(found['tensors'])} tensors left their range"
    assert command("profile check m.onnx --profile profile.json --data calib.npz") == 0
    assert " 0 of " in capsys.readouterr().out
    assert command("profile check m.onnx --data calib.npz") == 1
    assert "no tensor of the model is quantized" in capsys.readouterr().err
