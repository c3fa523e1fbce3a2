"""The cache of machine code on disk: an entry is never mistaken for another, many processes share them, and they are bounded."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from octavo.runtime import code_cache
from octavo.runtime.code_cache import ObjectCache, user_cache

CODE = bytes(range(256)) * 20


@pytest.fixture
def cache(tmp_path):
    return ObjectCache(folder=tmp_path, limit_bytes=1 << 20)


@pytest.fixture
def own_folder(tmp_path, monkeypatch):
    """An empty cache of this test's own; its entries are under the folder returned."""
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "objects-2"


def entries(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*/*") if path.is_file())


# ---------------------------------------------------------------------------------------------------------- one entry


def test_an_entry_is_read_back_and_others_are_not_here(cache):
    assert cache.read("ab" * 32) is None
    cache.write("ab" * 32, CODE)
    assert cache.read("ab" * 32) == CODE
    assert cache.read("ab" * 31 + "ac") is None


@pytest.mark.parametrize("damage", ["flipped", "cut", "longer", "empty", "foreign"])
def test_a_damaged_entry_is_not_here_and_goes(cache, damage):
    cache.write("ab" * 32, CODE)
    (path,) = entries(cache.folder)
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[-100] ^= 1
    path.write_bytes(
        {"flipped": bytes(flipped), "cut": whole[:-1], "longer": whole + b"\0", "empty": b"", "foreign": CODE}[damage]
    )
    assert cache.read("ab" * 32) is None
    assert entries(cache.folder) == []


def test_an_entry_under_another_name_is_not_here(cache):
    """An entry says what it is for: no renaming makes it code for something else."""
    cache.write("ab" * 32, CODE)
    (path,) = entries(cache.folder)
    path.rename(path.with_name("ab" * 31 + "ac"))
    assert cache.read("ab" * 31 + "ac") is None


def test_trim_removes_what_was_used_least_recently(tmp_path):
    cache = ObjectCache(folder=tmp_path, limit_bytes=3 * (len(CODE) + 100))
    keys = [f"{number:02x}" * 32 for number in range(5)]
    for age, key in enumerate(keys):
        cache.write(key, CODE)
        os.utime(cache._path(key), (1000 + age, 1000 + age))
    assert cache.read(keys[0]) == CODE  # used just now
    cache.trim()
    assert [key for key in keys if cache.read(key)] == [keys[0], keys[3], keys[4]]


def test_trim_leaves_drafts_in_the_making(cache):
    cache.write("ab" * 32, CODE)
    fresh, stale = cache.folder / "ab" / ".fresh", cache.folder / "ab" / ".stale"
    for draft in (fresh, stale):
        draft.write_bytes(b"half")
    long_ago = time.time() - 2 * code_cache._STALE_S
    os.utime(stale, (long_ago, long_ago))
    cache.trim()
    assert fresh.exists()
    assert not stale.exists()
    assert cache.read("ab" * 32) == CODE


def test_a_full_disk_or_a_lost_folder_is_no_error(cache, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    cache.write("ab" * 32, CODE)
    assert entries(cache.folder) == []
    lost = ObjectCache(folder=cache.folder / "none" / "such", limit_bytes=1)
    lost.write("ab" * 32, CODE)
    lost.trim()
    assert lost.read("ab" * 32) is None


# ------------------------------------------------------------------------------------------------------- the environment


@pytest.mark.parametrize("word", ["off", "OFF"])
def test_it_can_be_switched_off(monkeypatch, word):
    monkeypatch.setenv("OCTAVO_CACHE", word)
    assert user_cache() is None


def test_it_lies_in_the_users_cache_folder_and_is_theirs_alone(tmp_path, monkeypatch):
    monkeypatch.delenv("OCTAVO_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    cache = user_cache()
    assert cache is not None
    assert cache.folder.is_relative_to(tmp_path)
    assert cache.folder.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_others_can_write_to_is_refused(own_folder):
    own_folder.mkdir(parents=True)
    own_folder.chmod(0o777)
    with pytest.warns(UserWarning, match="others can write"):
        assert user_cache() is None


def test_its_size_can_be_set(own_folder, monkeypatch):
    monkeypatch.setenv("OCTAVO_CACHE_MIB", "3")
    assert user_cache().limit_bytes == 3 << 20
    monkeypatch.setenv("OCTAVO_CACHE_MIB", "lots")
    with pytest.warns(UserWarning, match="OCTAVO_CACHE_MIB"):
        assert user_cache().limit_bytes == code_cache.DEFAULT_MIB << 20


def test_a_home_that_cannot_be_written_means_no_cache(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "file"))
    assert user_cache() is None
