import io
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest

from octavo.cli.samples import read_samples, write_npz
from octavo.errors import DataError
from octavo.evaluation.conformance.case import read_arrays

X = np.arange(12, dtype=np.float32).reshape(3, 4)


class Exploit:
    """Unpickling this would run code."""

    def __reduce__(self):
        return (pytest.fail, ("a sample file ran code",))


def write_pickle(path: Path) -> None:
    path.write_bytes(pickle.dumps(Exploit()))


def write_objects(path: Path) -> None:
    np.savez(path, x=np.array([Exploit()], dtype=object))


def write_truncated(path: Path) -> None:
    np.savez(path, x=np.zeros(1000))
    path.write_bytes(path.read_bytes()[:3000])


def write_huge_claim(path: Path) -> None:
    """A header of 1.5 TiB on an array of one number."""
    header = io.BytesIO()
    claim = {"descr": "<f4", "fortran_order": False, "shape": (2**31, 3, 8, 8)}
    np.lib.format.write_array_header_1_0(header, claim)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", header.getvalue() + bytes(4))


def write_no_arrays(path: Path) -> None:
    np.savez(path)


def write_zip_of_text(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("notes.txt", "hello")


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (lambda path: None, "cannot read the samples: No such file or directory"),
        (lambda path: path.mkdir(), "cannot read the samples: Is a directory"),
        (lambda path: path.write_bytes(b""), "not a .npz or .npy file of numbers"),
        (lambda path: path.write_text("1, 2, 3\n"), "not a .npz or .npy file of numbers"),
        (write_pickle, "not a .npz or .npy file of numbers"),
        (write_objects, "not a .npz or .npy file of numbers"),
        (write_huge_claim, "x.npy claims float32"),
        (write_truncated, "not a .npz or .npy file of numbers"),
        (write_no_arrays, "the file holds no arrays"),
        (write_zip_of_text, "notes.txt is not an array"),
    ],
)
def test_a_foreign_file_is_refused_in_one_line(tmp_path: Path, write, said: str) -> None:
    path = tmp_path / "x.npz"
    write(path)
    with pytest.raises(DataError) as error:
        read_samples(path)
    message = str(error.value)
    assert message.startswith(f"{path}: ")
    assert said in message
    assert "numpy.savez" in message
    assert "\n" not in message


def test_one_array_needs_no_name_and_several_keep_theirs(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    np.savez(tmp_path / "one.npz", anything=X)
    np.savez_compressed(tmp_path / "two.npz", a=X, b=X + 1)
    assert np.array_equal(read_samples(tmp_path / "x.npy"), X)
    assert np.array_equal(read_samples(tmp_path / "one.npz"), X)
    two = read_samples(tmp_path / "two.npz")
    assert isinstance(two, dict)
    assert list(two) == ["a", "b"]
    assert np.array_equal(two["b"], X + 1)


def test_results_have_the_same_bytes_and_any_name(tmp_path: Path) -> None:
    arrays = {"file": X, "StatefulPartitionedCall:0": X.astype(np.int8), "head/dense": X[:, ::2], "": np.float32(3)}
    first, second = io.BytesIO(), io.BytesIO()
    write_npz(first, arrays)
    write_npz(second, {name: np.array(value) for name, value in arrays.items()})
    assert first.getvalue() == second.getvalue()
    (tmp_path / "y.npz").write_bytes(first.getvalue())
    with np.load(tmp_path / "y.npz", allow_pickle=False) as read:
        assert {name: (value.dtype, value.shape) for name, value in read.items()} == {
            name: (np.asarray(value).dtype, np.shape(value)) for name, value in arrays.items()
        }
        assert all(np.array_equal(read[name], value) for name, value in arrays.items())


def test_what_a_command_wrote_claims_no_more_than_it_holds(tmp_path: Path) -> None:
    write_huge_claim(tmp_path / "y.npz")
    with pytest.raises(DataError, match=r"y\.npz: cannot read arrays .*claims float32"):
        read_arrays(tmp_path / "y.npz")


@pytest.mark.parametrize(("at", "value"), [(6, 86), (8, 1), (10, 14), (10, 77)], ids=["version", "encrypted", "lzma", "unknown"])
def test_archives_that_no_one_can_open_are_refused(tmp_path: Path, at: int, value: int) -> None:
    """Fields of the directory at the end of the file: what a reader must know of a member."""
    path = tmp_path / "x.npz"
    np.savez(path, x=X)
    data = bytearray(path.read_bytes())
    data[data.rindex(b"PK\1\2") + at] = value
    path.write_bytes(data)
    for read, said in ((read_samples, "not a .npz"), (read_arrays, "cannot read arrays")):
        with pytest.raises(DataError, match=said):
            read(path)
