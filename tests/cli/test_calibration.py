"""Calibration data on the command line: folders of images, streamed .npz files, several inputs, and what does not fit."""

from __future__ import annotations

import json
import shlex
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from PIL import Image

import octavo
from child_python import run_python
from octavo.cli.main import main
from octavo.errors import DataError
from octavo.profiling import ImageFolder


def command(line: str) -> int:
    return main(shlex.split(line))


def write_model(path: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    """Write the sum of all inputs, doubled."""
    names = list(shapes)
    nodes = [helper.make_node("Sum", names, ["s"]), helper.make_node("Add", ["s", "s"], ["y"])]
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, shapes[names[0]])
    graph = helper.make_graph(nodes, "sum", inputs, [output])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "image.onnx", {"x": (1, 3, 8, 6)})
    write_model(tmp_path / "pair.onnx", {"a": (1, 4), "b": (1, 4)})
    (tmp_path / "images").mkdir()
    for number in range(3):
        pixels = np.random.default_rng(number).integers(0, 256, (10, 12, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / "images" / f"{number}.png")
    return tmp_path


def test_a_folder_of_images_is_profiled_as_its_options_say(here: Path) -> None:
    options = "--fit crop --mean 127.5 --std 58.4,57.1,57.4 --colour BGR"
    assert command(f"profile image.onnx --data images {options} -o p.json") == 0
    folder = ImageFolder(
        folder="images", size=(8, 6), fit="crop", mean=(127.5,) * 3, std=(58.4, 57.1, 57.4), colour="BGR", layout="NCHW"
    )
    octavo.profile(octavo.load("image.onnx"), folder, keep_samples=64).save("q.json")
    assert Path("p.json").read_bytes() == Path("q.json").read_bytes()
    said = json.loads(octavo.Profile.load("p.json").preprocessing)
    assert said["mean"] == [127.5, 127.5, 127.5]
    assert (said["size"], said["colour"], said["fit"]) == ([8, 6], "BGR", "crop")


def test_a_npz_is_streamed_and_gives_the_bytes_of_its_arrays(here: Path) -> None:
    random = np.random.default_rng(0)
    a, b = (random.standard_normal((50, 4)).astype(np.float32) for _ in range(2))
    np.savez("plain.npz", b=b, a=a)
    np.savez_compressed("packed.npz", a=a, b=b)
    for name in ("plain", "packed"):
        assert command(f"profile pair.onnx --data {name}.npz --preprocessing halved -o {name}.json") == 0
    octavo.profile(octavo.load("pair.onnx"), [{"a": a, "b": b}], keep_samples=64).save("arrays.json")
    assert Path("plain.json").read_bytes() == Path("packed.json").read_bytes()
    streamed, whole = octavo.Profile.load("plain.json"), octavo.Profile.load("arrays.json")
    assert (streamed.preprocessing, whole.preprocessing) == ("halved", "")
    assert streamed.bucket_samples == whole.bucket_samples
    assert all(streamed[key].histogram == whole[key].histogram for key in whole)


_PEAKS = """
from octavo.cli.main import main
for path in sys.argv[1:]:
    assert main(['profile', 'wide.onnx', '--data', path, '-o', 'p.json']) == 0
    (peak,) = (line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM:'))
    print(int(peak) // 1024)
"""
"""Not by getrusage, whose peak begins with that of the process that started this one: pytest's, which is larger."""


def test_memory_does_not_grow_with_the_file(here: Path) -> None:
    write_model(here / "wide.onnx", {"x": (1, 1 << 19)})
    for count in (2, 40):
        np.savez_compressed(f"x{count}.npz", x=np.zeros((count, 1 << 19), np.float32))
    done = run_python(_PEAKS, "x2.npz", "x40.npz", check=True)
    peaks = [int(line) for line in done.stdout.splitlines() if line.isdigit()]
    # 38 samples more are 76 MB.
    assert len(peaks) == 2
    assert peaks[1] - peaks[0] < 30, peaks


def test_a_damaged_npz_is_one_error(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez("x.npz", a=np.zeros((400, 4), np.float32), b=np.zeros((400, 4), np.float32))
    content = bytearray(Path("x.npz").read_bytes())
    content[4000] ^= 255  # within the numbers of the first array: only its checksum tells
    Path("x.npz").write_bytes(content)
    assert command("profile pair.onnx --data x.npz -o p.json") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("octavo: error: x.npz: cannot read the samples: Bad CRC-32")
    assert not Path("p.json").exists()


def test_a_npz_that_ends_early_is_one_error(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with zipfile.ZipFile("x.npz", "w") as archive:
        for name in "ab":
            np.save("whole.npy", np.zeros((10, 4), np.float32))
            archive.writestr(f"{name}.npy", Path("whole.npy").read_bytes()[:-20])
    assert command("profile pair.onnx --data x.npz -o p.json") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "the file ends before its last sample" in line


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("pair.onnx --data images", 1, "images: a folder of images is for a model with one input of 4 dimensions"),
        ("image.onnx --data images --resize 9,9", 1, "input x must have shape"),
        ("image.onnx --data images --layout NHWC", 1, "input x must have shape"),
        ("image.onnx --data images --std 0", 1, "std not 0"),
        ("image.onnx --data empty", 1, "empty: no images in it"),
        ("pair.onnx --data x.npz --mean 3", 2, "--mean goes with a folder of images"),
    ],
)
def test_what_does_not_fit(here: Path, line: str, code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "empty").mkdir()
    np.savez("x.npz", a=np.zeros((2, 4), np.float32), b=np.zeros((2, 4), np.float32))
    assert command(f"profile {line} -o p.json") == code
    (error,) = capsys.readouterr().err.splitlines()
    assert said in error


@pytest.mark.parametrize("option", ["--resize 9", "--resize a,b", "--resize 0,4", "--mean 1,2", "--std x"])
def test_options_that_are_no_numbers(here: Path, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        command(f"profile image.onnx --data images {option} -o p.json")
    assert left.value.code == 2
    assert "expected " in capsys.readouterr().err


def test_an_image_that_is_none_is_named(here: Path) -> None:
    (here / "images" / "9.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"9\.png: cannot read the image"):
        list(ImageFolder(folder="images", size=(8, 6)))
