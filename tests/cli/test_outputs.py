import os
from pathlib import Path

import pytest

from octavo.cli.outputs import OutputError, check_output, write_file


def test_writing_replaces_the_whole_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "y.npz"
    path.write_bytes(b"old and longer")
    write_file(path, lambda file: file.write(b"new"))
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["y.npz"]


def test_a_failure_half_way_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "y.npz"
    path.write_bytes(b"old")

    def write(file) -> None:
        file.write(b"half of the new")
        raise RuntimeError("the model broke")

    with pytest.raises(RuntimeError, match="the model broke"):
        write_file(path, write)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["y.npz"]


def test_a_new_file_has_the_permissions_of_any_other(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"")
    write_file(tmp_path / "y.npz", lambda file: file.write(b"new"))
    assert (tmp_path / "y.npz").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_a_full_disk_is_said_with_the_path(tmp_path: Path) -> None:
    def write(file) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OutputError, match=r"y\.npz: cannot write: No space left on device"):
        write_file(tmp_path / "y.npz", write)
    assert os.listdir(tmp_path) == []


def test_a_missing_folder_is_found_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"there is no folder .*missing; make it first"):
        check_output(tmp_path / "missing" / "y.npz")


def test_a_file_in_place_of_the_folder_is_found(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OutputError, match="cannot write in folder"):
        check_output(tmp_path / "file" / "y.npz")


def test_a_folder_in_place_of_the_file_is_found(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="it is a folder"):
        check_output(tmp_path)


def test_an_input_is_never_written_over(tmp_path: Path) -> None:
    source = tmp_path / "m.onnx"
    source.write_bytes(b"model")
    with pytest.raises(OutputError, match="it is an input of this command"):
        check_output(tmp_path / "." / "m.onnx", source)


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="no /proc here")
def test_a_folder_that_takes_no_files_is_found() -> None:
    with pytest.raises(OutputError, match="cannot write in folder /proc"):
        check_output(Path("/proc/y.npz"))
