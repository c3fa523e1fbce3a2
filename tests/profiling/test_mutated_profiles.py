"""500 mutated profile files: each is one clear error, or says exactly what the whole file said."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from profiled_net import Profiled

from octavo.cli.main import main
from octavo.errors import ProfileError
from octavo.profiling import Profile, samples_path

MUTATIONS = 500
VALUES: list[Any] = [
    None, True, 0, -1, 1, 3, 2**53, 10**400, 0.5, -0.0, 1e-45, 3.4e38, 1e39, "", "x", "NaN", "constant", [], [0], [[]],
    {}, {"x": 1},
]  # fmt: skip


def flip_bits(content: bytes, rng: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 20))):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def write_bytes_over(content: bytes, rng: random.Random) -> bytes:
    changed = bytearray(content)
    changed[rng.randrange(len(changed))] = rng.choice(b'0123456789-+.eE,:"{}[] \n\\x\x00\xff')
    return bytes(changed)


def truncate(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content))]


def cut_out(content: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(content))
    return content[:start] + content[start + rng.choice((1, 2, 10, 4096)) :]


def repeat(content: bytes, rng: random.Random) -> bytes:
    start, end = sorted(rng.randrange(len(content)) for _ in range(2))
    return content[:end] + content[start:]


def change_digit(content: bytes, rng: random.Random) -> bytes:
    """The changes that are the hardest to see: of one digit of one number."""
    digits = [place for place, byte in enumerate(content) if byte in b"0123456789"]
    changed = bytearray(content)
    place = rng.choice(digits)
    changed[place] = rng.choice([digit for digit in b"0123456789" if digit != content[place]])
    return bytes(changed)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) within a JSON value."""
    found: list[tuple[Any, Any]] = []
    pending = [value]
    while pending:
        container = pending.pop()
        keys = container if isinstance(container, dict) else range(len(container))
        for key in keys:
            found.append((container, key))
            if isinstance(container[key], (dict, list)):
                pending.append(container[key])
    return found


def on_json(change: Callable[[Any, random.Random], None]) -> Callable[[bytes, random.Random], bytes]:
    def mutate(content: bytes, rng: random.Random) -> bytes:
        data = json.loads(content)
        change(data, rng)
        return json.dumps(data).encode()

    mutate.__name__ = change.__name__
    return mutate


@on_json
def change_field(data: Any, rng: random.Random) -> None:
    container, key = rng.choice(places(data))
    container[key] = copy.deepcopy(rng.choice(VALUES))


@on_json
def remove_field(data: Any, rng: random.Random) -> None:
    container, key = rng.choice(places(data))
    del container[key]


@on_json
def remove_tensors(data: Any, rng: random.Random) -> None:
    for key in rng.sample(sorted(data["tensors"]), rng.randint(1, len(data["tensors"]))):
        del data["tensors"][key]


@on_json
def exchange_tensors(data: Any, rng: random.Random) -> None:
    tensors = data["tensors"]
    one, other = rng.sample(sorted(tensors), 2)
    tensors[one], tensors[other] = tensors[other], tensors[one]


@on_json
def widen_one_range(data: Any, rng: random.Random) -> None:
    """A change that leaves every field consistent with the others: both ends of a range move within their bins."""
    tensor = rng.choice(sorted(data["tensors"].items()))[1]
    for name in ("min", "max"):
        old = tensor[name]
        tensor[name] = old * (1 + 2**-20)
        tensor[f"channel_{name}"] = [tensor[name] if value == old else value for value in tensor[f"channel_{name}"]]
    tensor["source_name"] += "?"


@on_json
def change_header(data: Any, rng: random.Random) -> None:
    key = rng.choice([key for key in data if key != "tensors"])
    value = data[key]
    if isinstance(value, dict):
        value[rng.choice(sorted(value))] = ["0"]
    elif isinstance(value, list):
        value[rng.randrange(len(value))] += 1
    else:
        data[key] = value + 1 if isinstance(value, int) else value + rng.choice("0 x")


CHANGES = (
    flip_bits, write_bytes_over, truncate, cut_out, repeat, change_digit, change_field, remove_field, remove_tensors,
    exchange_tensors, widen_one_range, change_header,
)  # fmt: skip
HARMLESS = {flip_bits, write_bytes_over, cut_out, repeat, change_digit, change_field}
"""May hit white space, write what was there already, or write a number in another way."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Original:
    """The bytes of a profile's files."""

    profile: bytes
    samples: bytes


@pytest.fixture(scope="module")
def original(net: Profiled, tmp_path_factory: pytest.TempPathFactory) -> Original:
    path = tmp_path_factory.mktemp("original") / "profile.json"
    net.profile([net.samples[:3]]).save(path)
    return Original(profile=path.read_bytes(), samples=samples_path(path).read_bytes())


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_mutated_profile_is_one_clear_error_and_never_another_range(
    original: Original, tmp_path: Path, change: Callable[[bytes, random.Random], bytes]
) -> None:
    rng = random.Random(change.__name__)
    path, again = tmp_path / "profile.json", tmp_path / "again.json"
    samples_path(path).write_bytes(original.samples)
    refused = 0
    count = -(-MUTATIONS // len(CHANGES))
    for _ in range(count):
        path.write_bytes(change(original.profile, rng))
        try:
            loaded = Profile.load(path)
        except ProfileError as error:
            said = str(error)
            assert said.startswith(f"{path}: ")
            assert "\n" not in said
            assert len(said) < 400
            refused += 1
            continue
        loaded.save(again)
        assert again.read_bytes() == original.profile
    assert refused == count or (change in HARMLESS and refused > count * 0.8)


@pytest.mark.parametrize("change", [flip_bits, write_bytes_over, truncate, cut_out, repeat], ids=lambda change: change.__name__)
def test_mutated_samples_are_one_clear_error(
    original: Original, tmp_path: Path, change: Callable[[bytes, random.Random], bytes]
) -> None:
    rng = random.Random(f"samples {change.__name__}")
    path = tmp_path / "profile.json"
    path.write_bytes(original.profile)
    for _ in range(40):
        changed = change(original.samples, rng)
        samples_path(path).write_bytes(changed)
        if changed == original.samples:
            continue
        with pytest.raises(ProfileError) as error:
            Profile.load(path)
        assert str(error.value).startswith(f"{samples_path(path)}: not the samples kept for {path}: ")


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_the_command_line_prints_one_line(
    original: Original,
    tmp_path: Path,
    change: Callable[[bytes, random.Random], bytes],
    capsys: pytest.CaptureFixture[str],
) -> None:
    rng = random.Random(f"cli {change.__name__}")
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_bytes(original.profile)
    for path in (good, bad):
        samples_path(path).write_bytes(original.samples)
    for words in (["merge", str(good), str(bad), "-o", str(tmp_path / "new.json")], ["diff", str(bad), str(good)]):
        bad.write_bytes(change(original.profile, rng))
        code = main(["profile", *words])
        error = capsys.readouterr().err
        if code:
            (line,) = error.splitlines()
            assert line.startswith(f"octavo: error: {bad}: ")
            assert not (tmp_path / "new.json").exists()
        else:
            assert change in HARMLESS
            (tmp_path / "new.json").unlink(missing_ok=True)
