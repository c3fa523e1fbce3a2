"""Samples that are no good for calibration are warned of, and no others."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import octavo
from octavo.cli.main import main
from octavo.evaluation import calibration_warnings
from octavo.ir.identity import TensorTable
from small_file import digits, write_small_net


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> octavo.Model:
    path = tmp_path_factory.mktemp("model") / "m.onnx"
    write_small_net(path)
    return octavo.load(path)


def said(model: octavo.Model, samples: np.ndarray) -> str:
    return "\n".join(calibration_warnings(model, octavo.profile(model, [samples], keep_samples=4)))


def test_good_samples_raise_none(model: octavo.Model) -> None:
    assert said(model, digits(0, 300)) == ""


@pytest.mark.parametrize("factor", [255, 1 / 16])
def test_another_scale_than_the_network_s_is_named(model: octavo.Model, factor: float) -> None:
    line = said(model, digits(0, 300) * np.float32(factor))
    assert line.startswith("the samples look unnormalised for this network: behind its first layer, stem/conv")


def test_constant_samples_are_named(model: octavo.Model) -> None:
    zeros = np.zeros((4, 1, 8, 8), np.float32)
    assert "input pixels is 0 everywhere, in all 4 samples" in said(model, zeros)
    same = np.repeat(digits(0, 1), 4, axis=0)
    assert "all 4 samples are the same one" in said(model, same)


def test_ranges_that_grow_are_named(model: octavo.Model) -> None:
    growing = digits(0, 40) * np.linspace(0.2, 6, 40, dtype=np.float32)[:, None, None, None]
    assert "ranges still grow with the samples" in said(model, growing)


def test_outputs_that_samples_hardly_cover_are_named(model: octavo.Model) -> None:
    profile = octavo.profile(model, [digits(0, 100)], keep_samples=4)
    (name,) = model.output_ids
    ends = np.linspace(-0.5, 0.0, 32, dtype=np.float32)
    rare = np.linspace(0, 1, 32, dtype=np.float32) ** 4
    reach = rare[-1] - rare[-4]  # of 32 values the fourth largest is the lower end of the bootstrap's interval
    known = replace(profile[name], bucket_minimum=ends + profile[name].minimum + 0.5, bucket_maximum=rare * profile[name].maximum)
    (line,) = calibration_warnings(model, replace(profile, tensors={**profile, name: known}))
    assert line.startswith(f"the output {known.source_name}, in [")
    share = reach * known.maximum / (known.maximum - known.minimum)
    assert line.endswith(f"on 100 samples, may go {share:.0%} of that further: do they hold what the network looks for?")


def test_colours_of_no_convention_are_named(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, size, 8, 8)) for name, size in (("picture", 3), ("y", 8))]
    weight = numpy_helper.from_array(rng.normal(size=(8, 3, 1, 1)).astype(np.float32), "w")
    graph = helper.make_graph([helper.make_node("Conv", ["picture", "w"], ["y"])], "colours", ends[:1], ends[1:], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    model = octavo.load(tmp_path / "m.onnx")
    samples = rng.uniform(-1, 1, (40, 3, 8, 8)).astype(np.float32)
    assert said(model, samples) == ""
    assert said(model, samples * 8).startswith("input picture looks unnormalised: pictures of [-7.998; 8]")


def test_quantize_warns_and_gives_a_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_small_net(tmp_path / "m.onnx")
    for name, factor in (("right", 1), ("wrong", 255)):
        np.savez(tmp_path / "x.npz", x=digits(0, 64) * np.float32(factor))
        profile, out = tmp_path / f"{name}.json", tmp_path / "m.int8.onnx"
        assert main(f"profile {tmp_path}/m.onnx --data {tmp_path}/x.npz -o {profile}".split()) == 0
        capsys.readouterr()
        assert main(f"quantize {tmp_path}/m.onnx --profile {profile} --preset fast -o {out}".split()) == 0
        printed = capsys.readouterr().out
        assert ("warning: the samples look unnormalised" in printed) == (name == "wrong")
        assert "verdict: " in printed
        assert "% of the samples keep their class" in printed
        assert "octavo evaluate" in printed


def test_long_names_are_said_by_ids_which_differ(model: octavo.Model) -> None:
    growing = digits(0, 40) * np.linspace(0.2, 6, 40, dtype=np.float32)[:, None, None, None]
    chain = "model_1/a_convolution/of_many_ops_that_were_fused;model_1/a_convolution/"
    chained = TensorTable([replace(entry, source_name=f"{chain}{entry.id}") for entry in model.tensors.values()])
    renamed = replace(model, tensors=chained)
    ids = [f"{entry.id} (+" for entry in model.tensors.values() if entry.kind != "constant"]
    line = said(renamed, growing)
    assert chain not in line
    assert sum(each in line for each in ids) == 3
