"""Trained networks: profiles that merge to the same bytes, and quantized files that keep the class ONNX Runtime finds."""

from __future__ import annotations

from functools import reduce
from pathlib import Path

import numpy as np
import pytest
import tvm
from PIL import Image

import octavo
import octavo.frontends
from apply_steps import with_steps
from octavo.export.onnx.onnx_export import export_onnx
from octavo.numerics.statistics.metrics import sqnr_db
from octavo.profiling import Profile, samples_path
from octavo.quantizer.quantize_graph import quantize_graph
from octavo.quantizer.recipe import Recipe
from octavo.target.tensor_support import TensorSupport
from reference_sessions import reference_session
from tvm_alone import tvm_alone

MOBILENET_V1 = "models/onnx/mobilenet_v1_0.25_224_fp32.onnx"


def test_resnet8_profile_is_one_file_however_the_images_come(shared: Path, tmp_path: Path) -> None:
    model = octavo.frontends.load(shared / "models/tflite/resnet8_cifar10_fp32.tflite")
    data = np.load(shared / "data/cifar10/cifar10.npz")["x"][:100].astype(np.float32)
    images, others = data[:30], data[60:]

    def saved(profile: Profile) -> bytes:
        profile.save(tmp_path / "p.json")
        return (tmp_path / "p.json").read_bytes()

    whole = octavo.profile(model, images)
    parts = [octavo.profile(model, part) for part in np.split(images, 3)]
    shuffled = octavo.profile(model, images[np.random.default_rng(0).permutation(30)])
    assert saved(reduce(Profile.merge, parts[::-1])) == saved(whole) == saved(shuffled)

    simulate, real = (tvm_alone(each.bound(), is_large=True) for each in (quantize_graph(model, whole), model))
    expected = np.concatenate([real(image[None])[0] for image in others])
    got = np.concatenate([simulate(image[None])[0] for image in others])
    assert (expected.argmax(1) == got.argmax(1)).mean() >= 0.95
    assert sqnr_db(expected, got) > 20


def test_mobilenet_v1_s_plan_gives_the_same_bytes(narrow: tuple[octavo.Model, Profile, np.ndarray], tmp_path: Path) -> None:
    model, profile, _ = narrow
    first = with_steps(model, profile)
    assert first.plan.corrections.weight_values
    assert first.plan.equalization.factors
    first.plan.save(tmp_path / "plan.json")
    again = octavo.quantize(model, plan=tmp_path / "plan.json")
    assert tvm.ir.save_json(again.bound()) == tvm.ir.save_json(first.bound())
    assert again.fingerprint == first.fingerprint


def test_mobilenet_v1_in_4_and_16_bits_comes_back_from_its_file(
    shared: Path, narrow: tuple[octavo.Model, Profile, np.ndarray], tmp_path: Path
) -> None:
    model, profile, sample = narrow
    (name,) = (entry.source_name for entry in model.tensors.values() if entry.id in model.input_ids)
    first = quantize_graph(model, profile).plan.layers[0]
    quantized = quantize_graph(
        model, profile, recipe=Recipe(weight_bits=4, tensors={str(first.output): TensorSupport(dtypes=("int16",))})
    )
    assert quantized.plan.activations[first.output].dtype == "int16"
    export_onnx(quantized, tmp_path / "w4.onnx")
    assert (tmp_path / "w4.onnx").stat().st_size < 0.22 * (shared / MOBILENET_V1).stat().st_size
    ours, again = (octavo.compile(each)(sample) for each in (quantized, octavo.load(tmp_path / "w4.onnx")))
    theirs = reference_session(tmp_path / "w4.onnx").run(None, {name: sample})
    for mine, back, other in zip(ours.values(), again.values(), theirs, strict=True):
        assert np.array_equal(mine, back)
        assert sqnr_db(mine, other) > 25, "steps at ties, and what the layers behind make of them"


def images(shared: Path, *, calibration: bool) -> list[np.ndarray]:
    """Return crops as MobileNetV2 takes them; indices that end in 0 are for calibration."""
    files = [file for file in sorted((shared / "data/images").glob("*.jpg")) if (int(file.name[:4]) % 10 == 0) == calibration]
    pixels = [np.asarray(Image.open(file).convert("RGB"), np.float32) for file in files]
    return [(values / 127.5 - 1).astype(np.float32).transpose(2, 0, 1)[None] for values in pixels]


@pytest.fixture(scope="module")
def narrow(shared: Path) -> tuple[octavo.Model, Profile, np.ndarray]:
    """The smallest network of images, its profile of two, and one of them."""
    model = octavo.frontends.load(shared / MOBILENET_V1)
    samples = [image.reshape(model.tensors[model.input_ids[0]].shape) for image in images(shared, calibration=False)[:2]]
    return model, octavo.profile(model, samples, keep_samples=2), samples[0]


def test_what_a_profile_s_file_holds_of_mobilenet_v1(narrow: tuple[octavo.Model, Profile, np.ndarray], tmp_path: Path) -> None:
    _, profile, _ = narrow
    profile.save(tmp_path / "profile.json")
    assert (tmp_path / "profile.json").stat().st_size < 2_000_000
    # A pixel is one byte, beside a table of at most 256 values; a score is a float32.
    pixels = sum(array.size for (array,) in profile.kept_samples)
    scores = sum(array.nbytes for (array,) in profile.kept_results)
    assert samples_path(tmp_path / "profile.json").stat().st_size < 1.01 * (pixels + scores)
