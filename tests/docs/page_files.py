"""The files that pages name, as small as can be: networks of the kinds that pages speak of, samples, images."""

from __future__ import annotations

import shutil
from importlib import resources
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from small_file import digits, write_small_net

SAMPLES = 16
CHANNELS = 3
"""Of the network: images have as many."""
DEMO = Path(str(resources.files("octavo.cli"))) / "demo_data"


def write_files(folder: Path) -> None:
    """Write what pages name: m.onnx, of the form of the demo's network and in colour, samples, labels; files of single pages.

    Nothing that a page shows depends on what a network has learnt: numbers are not compared.
    """
    write_small_net(folder / "m.onnx", CHANNELS)
    with np.load(DEMO / "digits.npz") as known:
        unseen = known["held_out"]
        pixels = np.repeat(known["images"][:, None].astype(np.float32) / 16, CHANNELS, axis=1)
        calibration = pixels[~unseen][:SAMPLES]
        np.savez(folder / "x.npz", x=pixels[unseen][:SAMPLES])
        np.save(folder / "y.npy", known["labels"][unseen][:SAMPLES])
    for name in ("calib", "monday", "tuesday"):
        np.savez(folder / f"{name}.npz", x=calibration)
    for name in ("images", "photos"):
        (folder / name).mkdir()
        for number, each in enumerate(digits(0, 3)):
            Image.fromarray((each[0] * 255).astype(np.uint8)).save(folder / name / f"{number}.png")
    _write_detector(folder)
    _write_recurrent(folder)


def _write_detector(folder: Path) -> None:
    """Write a network whose rows are YOLOX's for 32 x 32 pixels and one class, itself under another name, scenes and a box."""
    rng = np.random.default_rng(7)
    rows = 21  # of grids of 4 x 4, 2 x 2 and 1
    weight = rng.normal(size=(3 * 32 * 32, 6 * rows)).astype(np.float32) / 100
    nodes = [
        helper.make_node("Flatten", ["images"], ["flat"]),
        helper.make_node("MatMul", ["flat", "weight"], ["scores"]),
        helper.make_node("Reshape", ["scores", "shape"], ["output"]),
    ]
    constants = {"weight": weight, "shape": np.array([1, rows, 6])}
    _save(folder / "yolox.onnx", nodes, constants, {"images": (1, 3, 32, 32)}, {"output": (1, rows, 6)})
    shutil.copy(folder / "yolox.onnx", folder / "yolox.int8.onnx")
    np.savez(folder / "scenes.npz", images=rng.normal(size=(2, 3, 32, 32)).astype(np.float32))
    np.save(folder / "boxes.npy", np.array([[0, 0, 4, 4, 20, 20], [1, 0, 0, 0, 9, 9]], np.float32))


def _write_recurrent(folder: Path) -> None:
    """Write a network whose state goes from call to call, with shapes left open, itself under another name, and speech."""
    rng = np.random.default_rng(8)
    nodes = [
        helper.make_node("MatMul", ["input", "w"], ["heard"]),
        helper.make_node("Add", ["heard", "state"], ["sum"]),
        helper.make_node("Tanh", ["sum"], ["stateN"]),
        helper.make_node("MatMul", ["stateN", "v"], ["output"]),
    ]
    constants = {"w": rng.normal(size=(16, 8)).astype(np.float32) / 4, "v": rng.normal(size=(8, 2)).astype(np.float32)}
    inputs: dict[str, tuple[int | str, ...]] = {"input": ("n", 16), "state": ("n", 8)}
    _save(folder / "vad.onnx", nodes, constants, inputs, {"output": ("n", 2), "stateN": ("n", 8)})
    shutil.copy(folder / "vad.onnx", folder / "vad.int8.onnx")
    np.savez(folder / "speech.npz", input=rng.normal(size=(6, 16)).astype(np.float32))


def _save(
    path: Path,
    nodes: list[onnx.NodeProto],
    constants: dict[str, np.ndarray],
    inputs: dict[str, tuple[int | str, ...]] | dict[str, tuple[int, ...]],
    outputs: dict[str, tuple[int | str, ...]] | dict[str, tuple[int, ...]],
) -> None:
    ends = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape)) for name, shape in each.items()]
        for each in (inputs, outputs)
    ]
    arrays = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, path.stem, *ends, arrays)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
