"""The file of kept samples: beside the profile, whole with it or not at all, and distrusted on reading."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from profiled_net import Profiled

from octavo.cli.main import main
from octavo.errors import OctavoWarning, ProfileError
from octavo.profiling import Profile, kept_samples, samples_path
from octavo.profiling.coded_array import encode_array
from octavo.profiling.profile_json import checksum_of
from octavo.profiling.samples_file import StoredSamples, pending_path

KEPT = 7
SCHEMA = Path(__file__).parents[2] / "docs" / "profile.schema.json"
OLD = Path(__file__).parent / "data" / "schema_6.json"


def contents(profile: Profile) -> list[bytes]:
    return [array.tobytes() for arrays in (*profile.kept_samples, *profile.kept_results) for array in arrays]


@pytest.fixture(scope="module")
def profile(net: Profiled) -> Profile:
    return net.profile([net.samples], keep_samples=KEPT)


@pytest.fixture(scope="module")
def other(net: Profiled) -> Profile:
    """Of other samples."""
    return net.profile([net.samples[:9]], keep_samples=KEPT)


@pytest.fixture
def path(profile: Profile, tmp_path: Path) -> Path:
    profile.save(tmp_path / "p.json")
    return tmp_path / "p.json"


def header_of(path: Path) -> dict[str, Any]:
    return json.loads(samples_path(path).read_bytes().partition(b"\n")[0])


def test_two_files_give_back_what_was_kept(profile: Profile, path: Path) -> None:
    assert sorted(os.listdir(path.parent)) == ["p.json", "p.json.samples"]
    loaded = Profile.load(path)
    assert (loaded.keep_samples, contents(loaded)) == (KEPT, contents(profile))
    assert all(not array.flags.writeable for (array,) in loaded.kept_samples)
    assert contents(loaded.merge(profile)) == contents(profile)
    # Of 768 bytes each, and 40 of results.
    assert samples_path(path).stat().st_size < KEPT * (768 + 40 + 250)


def test_the_first_line_follows_the_published_schema(path: Path) -> None:
    schema = json.loads(SCHEMA.read_text())
    jsonschema.validate(header_of(path), {**schema["$defs"]["samples_header"], "$defs": schema["$defs"]})


def test_a_profile_that_keeps_none_is_one_file(net: Profiled, path: Path) -> None:
    net.profile([net.samples], keep_samples=0).save(path)
    assert os.listdir(path.parent) == ["p.json"]


# ------------------------------------------------------------------------------------------------ without, or another


def test_without_its_samples_a_profile_is_one_that_keeps_none(net: Profiled, path: Path, tmp_path: Path) -> None:
    samples_path(path).unlink()
    with pytest.warns(OctavoWarning, match="there is no p.json.samples beside it") as warned:
        loaded = Profile.load(path)
    assert [Path(warning.filename) for warning in warned] == [Path(__file__)]
    assert (loaded.keep_samples, loaded.kept_samples, loaded.kept_results) == (0, (), ())
    loaded.save(tmp_path / "lost.json")
    net.profile([net.samples], keep_samples=0).save(tmp_path / "none.json")
    assert (tmp_path / "lost.json").read_bytes() == (tmp_path / "none.json").read_bytes()
    # As the smaller number to keep counts, what merges with it keeps none, whatever the order.
    assert loaded.merge(net.profile([net.samples])).kept_samples == ()


def test_commands_print_the_warning(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    samples_path(path).unlink()
    assert main(["profile", "adequacy", str(path)]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"octavo: warning: {path}: there is no p.json.samples beside it")


def truncate(path: Path, _: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def change_one_bit(path: Path, _: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-3] ^= 4
    path.write_bytes(content)


def take_another(path: Path, foreign: Path) -> None:
    shutil.copy(foreign, path)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (truncate, "not the samples kept for .*p.json: it has [0-9]+ bytes, expected [0-9]+; put back"),
        (change_one_bit, "not the samples kept for .*p.json: its SHA-256 is another; put back"),
        (take_another, "not the samples kept for .*p.json: its SHA-256 is another; put back"),
        (lambda path, _: path.write_bytes(b""), "it has 0 bytes, expected"),
        (lambda path, _: (path.unlink(), path.mkdir()), "cannot read the samples kept for .*p.json: Is a directory"),
    ],
)
def test_another_file_is_one_error(
    path: Path, other: Profile, tmp_path: Path, spoil: Callable[[Path, Path], object], message: str
) -> None:
    other.save(tmp_path / "other.json")
    spoil(samples_path(path), samples_path(tmp_path / "other.json"))
    with pytest.raises(ProfileError, match=message) as error:
        Profile.load(path)
    assert str(error.value).startswith(f"{samples_path(path)}: ")
    assert "\n" not in str(error.value)


# ----------------------------------------------------------------------------------------------------- killed writes


class _Killed(BaseException):
    pass


@pytest.mark.parametrize("step", range(4))
def test_a_write_that_is_killed_leaves_the_old_profile_or_the_new(
    profile: Profile, other: Profile, path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """Killed before each of its renames: of the samples to where they wait, of the profile, of the samples; and of none."""
    done = 0
    replace = os.replace

    def killed(source: Any, target: Any) -> None:
        nonlocal done
        if done == step:
            raise _Killed
        done += 1
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        if step < 3:
            with pytest.raises(_Killed):
                other.save(path)
        else:
            other.save(path)
    expected = other if step > 1 else profile
    for _ in range(2):
        loaded = Profile.load(path)
        assert (loaded.samples, contents(loaded)) == (expected.samples, contents(expected))
    # The next write goes on from there, killed again or not: before its own rename the old profile has its samples still.
    with monkeypatch.context() as patch:
        patch.setattr("octavo.profiling.file.encode", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            profile.save(path)
    assert contents(Profile.load(path)) == contents(expected)
    profile.save(path)
    assert contents(Profile.load(path)) == contents(profile)
    assert not pending_path(path).exists()


def test_a_profile_that_cannot_be_written_leaves_no_samples(profile: Profile, tmp_path: Path) -> None:
    (tmp_path / "p.json").mkdir()
    with pytest.raises(ProfileError, match="cannot write the profile"):
        profile.save(tmp_path / "p.json")
    assert os.listdir(tmp_path) == ["p.json"]


# ------------------------------------------------------------------------------------------------- hostile, and older


def rewritten(path: Path, header: dict[str, Any], rest: bytes) -> None:
    """Write other samples that the profile records as its own."""
    content = json.dumps(header).encode() + b"\n" + rest
    samples_path(path).write_bytes(content)
    data, stored = json.loads(path.read_text()), StoredSamples.of(content)
    data["samples_file"] = {"bytes": stored.size, "digest": stored.digest}
    data["checksum"] = checksum_of(data)
    path.write_text(json.dumps(data))


def at(place: int, **changes: Any) -> Callable[[dict[str, Any]], object]:
    return lambda header: header["samples"][place][0].update(changes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda header: header.update(format="other"), "an object of format, results, samples, schema_version, the format"),
        (lambda header: header.pop("results"), "its first line must be an object of"),
        (lambda header: header.update(schema_version=2), "schema_version must be 1, got 2"),
        (lambda header: header.update(samples={}), "samples must be a list"),
        (lambda header: header.update(samples=[{}]), "samples: 0: what a run takes or gives must be a list"),
        (lambda header: header.update(samples=[[None]]), "samples: 0: an array must be an object of dtype, encoding"),
        (at(2, encoding="zlib"), "samples: 2: encoding must be raw"),
        (at(0, dtype="object"), "samples: 0: dtype must be one of"),
        (at(0, values_bytes=764), "samples: 0: values of shape .* must take 768 bytes, got 764"),
        (at(0, values_bytes=-1), "samples: 0: values_bytes must be a number of bytes, [0-9]+ are left, got -1"),
        (at(0, values_bytes=True), "samples: 0: values_bytes must be a number of bytes"),
        (at(KEPT - 1, values_bytes=769), "values_bytes must be a number of bytes, 768 are left, got 769"),
        (at(0, table_bytes=4, values_bytes=764), "samples: 0: values of shape .* must take 768 bytes, got 764"),
        (lambda header: header["samples"].pop(), "768 bytes lie behind the last array"),
    ],
)  # fmt: skip
def test_a_hostile_first_line_is_one_error(path: Path, change: Any, message: str) -> None:
    header, _, rest = samples_path(path).read_bytes().partition(b"\n")
    data = json.loads(header)
    change(data)
    rewritten(path, data, rest)
    with pytest.raises(ProfileError, match=message) as error:
        Profile.load(path)
    assert str(error.value).startswith(f"{samples_path(path)}: not a valid file of kept samples: ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("line", [b"", b"[" * 100_000, b"{", b"\xff", b"7"])
def test_a_first_line_that_is_no_header_is_one_error(path: Path, line: bytes) -> None:
    rewritten(path, {}, b"")
    content, data = line + b"\n", json.loads(path.read_text())
    samples_path(path).write_bytes(content)
    data["samples_file"] = {"bytes": len(content), "digest": StoredSamples.of(content).digest}
    data["checksum"] = checksum_of(data)
    path.write_text(json.dumps(data))
    with pytest.raises(ProfileError, match="not a valid file of kept samples"):
        Profile.load(path)


def listed(*arrays: Any) -> tuple[list[Any], bytes]:
    """Entries of single arrays, and their bytes."""
    coded = [encode_array(np.asarray(array, np.float32)) for array in arrays]
    entries = [
        [
            {
                "dtype": each.dtype,
                "encoding": each.encoding,
                "shape": each.shape,
                "table_bytes": 0,
                "values_bytes": len(each.values),
            }
        ]
        for each in coded
    ]
    return entries, b"".join(each.values for each in coded)


@pytest.mark.parametrize(
    ("samples", "results", "message"),
    [
        (([1.0, np.nan],), (), "a value is NaN or infinite"),
        (([-np.inf],), (), "a value is NaN or infinite"),
        (([1.0], [[1.0], [2.0]]), (), "kept samples of different ranks or dtypes"),
        (([1.0], [1.0]), (), "in the order of their keys, each once"),
        (([1.0], [2.0]), (), "in the order of their keys"),
        (([1.0],), ([1.0], [2.0]), "2 samples have results, all 1 or none must"),
        (([2.0], [1.0]), ([1.0], [[1.0], [2.0]]), "kept samples of different ranks or dtypes"),
        (np.arange(KEPT + 1)[:, None], (), f"{KEPT + 1} samples, at most {KEPT} may be kept"),
    ],
)  # fmt: skip
def test_samples_that_no_run_keeps_are_one_error(path: Path, samples: Any, results: Any, message: str) -> None:
    entries, own = listed(*samples)
    given, known = listed(*results)
    rewritten(path, {"format": "octavo-samples", "results": given, "samples": entries, "schema_version": 1}, known + own)
    with pytest.raises(ProfileError, match=message) as error:
        Profile.load(path)
    assert str(error.value).startswith(f"{samples_path(path)}: not valid kept samples: ")


def test_more_bytes_than_are_ever_kept_are_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(Profile.load(path).kept_samples) == KEPT
    monkeypatch.setattr(kept_samples, "MAX_BYTES", 3 * 768 + 5)
    with pytest.raises(ProfileError, match=f"{KEPT} samples, at most 3 may be kept"):
        Profile.load(path)


def test_a_file_of_version_6_is_read(tmp_path: Path) -> None:
    """Written by the last version that kept samples within the JSON: numbers with one decimal as a table, and others."""
    old = Profile.load(OLD)
    assert (old.samples, old.keep_samples, [array.shape for (array,) in old.kept_samples]) == (3, 2, [(1, 3, 8, 8)] * 2)
    assert [array.shape for (array,) in old.kept_results] == [(1, 10)] * 2
    (_, (tenths,)) = old.kept_samples
    np.testing.assert_array_equal(tenths, tenths.round(1))
    old.save(tmp_path / "new.json")
    assert json.loads((tmp_path / "new.json").read_text())["schema_version"] == 7
    again = Profile.load(tmp_path / "new.json")
    assert contents(again) == contents(old)
    for key, value in old.items():
        assert (again[key].minimum, again[key].maximum, again[key].histogram) == (value.minimum, value.maximum, value.histogram)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data.pop("kept_results"), "field 'kept_results' is missing"),
        (lambda data: data.update(samples_file=None), "unknown field 'samples_file'"),
        (lambda data: data.update(kept_samples={}), "kept_samples: they must be a list"),
        (lambda data: data.update(kept_samples=[{}]), "kept_samples: what a run takes or gives must be a list"),
        (lambda data: data.update(kept_samples=[[None]]), "kept_samples: an array must be an object of dtype, encoding"),
        (lambda data: data["kept_samples"][0][0].update(values="AA A"), "kept_samples: values must be base64 text"),
        (lambda data: data["kept_samples"][0][0].update(table=[0]), "kept_samples: table must be base64 text"),
        (lambda data: data["kept_samples"][0][0].update(values="AAAA"), "kept_samples: values of shape .* must take 768 bytes"),
        (lambda data: data["kept_samples"].reverse(), "kept_samples: samples must stand in the order of their keys"),
        (lambda data: data["kept_results"].clear(), "does not fit its checksum"),
    ],
)  # fmt: skip
def test_a_hostile_file_of_version_6_is_one_error(tmp_path: Path, change: Any, message: str) -> None:
    data = json.loads(OLD.read_text())
    change(data)
    if "checksum" not in message:
        data["checksum"] = checksum_of(data)
    (tmp_path / "p.json").write_text(json.dumps(data))
    with pytest.raises(ProfileError, match=message) as error:
        Profile.load(tmp_path / "p.json")
    assert str(error.value).startswith(f"{tmp_path / 'p.json'}: not a valid profile: ")
