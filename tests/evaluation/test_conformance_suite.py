"""Conformance cases of target descriptions: what they cover, that they find faults, and that Octavo's own kernels pass them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import octavo
from conformance_modules import entries, run_together, some
from numpy_npu import FAULTS, NumpyNpu
from octavo.cli.main import main
from octavo.errors import DataError
from octavo.evaluation import conformance
from octavo.target import OpSupport, TargetDescription
from octavo.target.limits import Limit

INT8 = {"activations": ("int8",)}
NPU = TargetDescription(
    name="npu",
    ops=(
        OpSupport(op="nn.conv2d", **INT8, weights=("int8",), fusions=("bias", "nn.relu", "clip")),
        OpSupport(op="matmul", **INT8, weights=("int8",), fusions=("bias", "nn.relu")),
        OpSupport(op="add", **INT8),
        OpSupport(op="nn.max_pool2d", **INT8, same_params=True),
        OpSupport(op="nn.avg_pool2d", **INT8),
        OpSupport(op="concat", **INT8),
        OpSupport(op="elementwise", **INT8),
        OpSupport(op="reshape", **INT8, same_params=True),
    ),
)


@pytest.fixture(name="cases", scope="module")
def fixture_cases(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("conformance") / "cases"
    conformance.write(NPU, folder)
    return folder


def numpy_report(folder: Path, fault: str = "") -> conformance.Report:
    npu = NumpyNpu(fault)
    return conformance.run(folder, lambda case, _: npu(case.folder))


def test_the_cases_reach_the_borders(cases):
    covers = {entry["name"]: entry["covers"] for entry in entries(cases)}
    assert len(covers) > 100
    for name in ("conv2d-int8-half_even-ties", "matmul-int8-half_even-ties", "add-int8-half_even-ties"):
        assert covers[name]["positive_ties"] > 2
        assert covers[name]["negative_ties"] > 2
    assert covers["avg_pool2d-int8-half_even-general"]["negative_ties"] > 2
    for name in ("conv2d-int8-half_even-saturation", "add-int8-half_even-saturation"):
        assert min(covers[name]["below"], covers[name]["above"]) > 10
    for op in ("conv2d", "matmul"):
        sums = covers[f"{op}-int8-half_even-near_overflow"]
        assert (sums["least_sum"], sums["greatest_sum"]) == (-(2**31 - 1), 2**31 - 1)
    assert covers["conv2d-int8-half_even-padding_127"]["beside_padding"] > 10


def test_an_implementation_in_numpy_passes(cases):
    report = numpy_report(cases)
    assert report.passed, report.summary
    assert report.summary.endswith(f"npu: {len(report.results)} of {len(report.results)} cases passed")


@pytest.fixture(name="few", scope="module")
def fixture_few(cases, tmp_path_factory) -> Path:
    """Every fourth case: each fault is found by some of them."""
    names = [entry["name"] for entry in entries(cases)][::4]
    return some(cases, tmp_path_factory.mktemp("few") / "cases", names)


LOOKS_LIKE = {
    "half_up": "off by one at ties",
    "half_away": "off by one at ties",
    "wraps": "it wraps instead of saturating",
    "no_clamp": "the clamp is missing",
    "zero_padding": "only where the window touches the padding",
    "truncates": "off by one, not at ties alone",
    "accumulator_16": "only where sums leave 16 bits",
    "no_bias": "each channel is off by a number of its own",
}
"""What most cases that find a fault say of it."""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_and_called_what_it_is(few, fault):
    report = numpy_report(few, fault)
    assert not report.passed
    assert all(result.difference is not None for result in report.failed)
    said = [result.problem for result in report.failed]
    assert sum(LOOKS_LIKE.get(fault, "") in problem for problem in said) > len(said) / 2, said


def own_kernels(folder: Path, description: TargetDescription) -> conformance.Report:
    """What Octavo's kernels of a description give for its cases."""
    return run_together(folder, lambda _: description)[0]


def test_octavo_s_own_kernels_pass(cases, tmp_path):
    """Every fifth case: each op, a part of all that it sweeps."""
    names = [entry["name"] for entry in entries(cases)][::5]
    report = own_kernels(some(cases, tmp_path / "fifth", names), NPU)
    assert {result.op for result in report.results} == {support.op for support in NPU.ops}
    assert report.passed, report.summary


def listing(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


ADD = TargetDescription(name="adder", ops=(OpSupport(op="add", **INT8, rounding="half_up"), OpSupport(op="nn.layer_norm")))


@pytest.fixture(name="sums")
def fixture_sums(tmp_path) -> Path:
    conformance.write(ADD, tmp_path / "sums")
    return tmp_path / "sums"


def test_the_same_description_gives_the_same_bytes(sums, tmp_path):
    suite = conformance.write(ADD, tmp_path / "again")
    assert listing(tmp_path / "again") == listing(sums)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "sums"]
    assert suite.summary == f"{len(suite.cases)} cases of 1 ops; not covered: nn.layer_norm (no cases of this op yet)"
    assert json.loads((sums / "index.json").read_text())["not_covered"] == suite.not_covered


def test_sums_that_round_half_up_are_another_arithmetic(sums):
    assert own_kernels(sums, ADD).passed
    failed = numpy_report(sums).failed
    assert "add-int8-half_up-ties" in {result.name for result in failed}
    assert all("off by one" in result.problem for result in failed)


LIMITED = TargetDescription(
    name="limited",
    ops=(
        OpSupport(
            op="nn.conv2d",
            activations=("uint8",),
            activation_schemes=("symmetric",),
            weights=("int8",),
            weight_schemes=("symmetric",),
            weight_granularity=("per_tensor",),
            scales="power_of_two",
            limits={
                "kernel": Limit(one_of=(1, 3)),
                "stride": Limit(one_of=(2,)),
                "dilation": Limit(maximum=1),
                "padding": Limit(maximum=1),
                "groups": Limit(maximum=1),
                "input_channels": Limit(multiple_of=4),
                "output_channels": Limit(minimum=8, multiple_of=8, maximum=24),
            },
        ),
    ),
    activation_layout="NCHW",
)


def test_cases_keep_to_every_constraint(tmp_path):
    suite = conformance.write(LIMITED, tmp_path / "cases")
    assert suite.refused == []
    said = [json.loads((tmp_path / "cases" / entry["name"] / "case.json").read_text()) for entry in suite.cases]
    assert len(said) > 10
    for case in said:
        info, attributes = case["quantize_info"], case["attributes"]
        scales = [entry["scale"] for entry in (info["input"], info["weight"], info["output"])]
        assert np.all(np.frexp(scales)[0] == 0.5)
        assert (info["input"]["dtype"], info["input"]["zero_point"], info["weight"]["axis"]) == ("uint8", 0, None)
        assert (attributes["layout"], attributes["strides"], attributes["groups"]) == ("NCHW", [2, 2], 1)
        assert case["inputs"]["x"]["shape"][1] % 4 == 0
    assert {case["outputs"]["y"]["shape"][1] for case in said} == {8, 16, 24}
    assert own_kernels(tmp_path / "cases", LIMITED).passed


INT16 = {"activations": ("int16",), "activation_schemes": ("symmetric",)}
_CONV = {"weights": ("int8",), "weight_schemes": ("symmetric",), "fusions": ("bias", "nn.relu")}
WIDE = TargetDescription(
    name="wide",
    ops=(
        OpSupport(op="nn.conv2d", **INT16, **_CONV),
        *(OpSupport(op=op, **INT16) for op in ("add", "multiply", "maximum", "nn.avg_pool2d", "nn.adaptive_avg_pool2d", "mean")),
        *(OpSupport(op=op, **INT16) for op in ("nn.relu", "clip", "elementwise")),
        OpSupport(op="nn.max_pool2d", **INT16, same_params=True),
    ),
)


@pytest.fixture(name="wide", scope="module")
def fixture_wide(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wide") / "cases"
    suite = conformance.write(WIDE, folder)
    assert suite.not_covered == suite.refused == []
    return folder


def test_cases_of_16_bits_reach_the_borders_and_own_kernels_pass_them(wide, tmp_path):
    covers = {entry["name"]: entry["covers"] for entry in entries(wide)}
    assert covers["conv2d-int16-half_even-beyond_32_bits"]["greatest_sum"] > 2**31
    assert covers["conv2d-int16-half_even-beyond_32_bits"]["least_sum"] < -(2**31)
    for op in ("conv2d", "add", "multiply"):
        assert min(covers[f"{op}-int16-half_even-saturation"][side] for side in ("below", "above")) > 10
        assert min(covers[f"{op}-int16-half_even-ties"][f"{sign}_ties"] for sign in ("positive", "negative")) > 2
    endings = (
        "ties",
        "general",
        "saturation",
        "32_bits",
        "near_overflow",
        "other_scale",
        "padding_0",
        "zero_point_0",
        "output_0",
    )
    chosen = [name for name in covers if name.endswith(endings)]
    assert len(chosen) > 25
    report = own_kernels(some(wide, tmp_path / "chosen", chosen), WIDE)
    assert report.passed, report.summary


def test_int16_results_that_wrap_and_sums_of_32_bits_are_called_what_they_are(wide, tmp_path):
    """The accumulators of the details, reduced as hardware without the width would."""
    names = [f"conv2d-int16-half_even-{name}" for name in ("saturation", "beyond_32_bits")]

    def wraps(case, _):
        if case.name.endswith("saturation"):
            return {"y": np.rint(case.details["real"]).astype(np.int64).astype(np.int16)}
        scales = case.details["real"] / case.details["accumulator"]
        return {"y": np.clip(np.rint(case.details["accumulator"].astype(np.int32) * scales), -32768, 32767).astype(np.int16)}

    saturation, sums = conformance.run(some(wide, tmp_path / "chosen", names), wraps).results
    assert "it wraps instead of saturating" in saturation.problem
    assert "only where sums leave 32 bits" in sums.problem


def test_values_beyond_the_bounds_that_become_something_else_are_called_so(cases, tmp_path):
    chosen = some(cases, tmp_path / "chosen", ["conv2d-int8-half_even-saturation"])

    def lost(case, _):
        return {"y": np.where(case.details["real"] > 128, 0, case.expected["y"]).astype(np.int8)}

    (result,) = conformance.run(chosen, lost).results
    assert "only beyond the bounds of the result: saturation" in result.problem


def of_experts(op):
    """A description of hardware that has one kind of products by several weights."""
    support = OpSupport(op=op, activations=("int8", "uint8"), weights=("int8",), fusions=("nn.relu", "clip"))
    return TargetDescription(name="experts", ops=(support,))


EXPERTS = of_experts("stacked_matmul")


def test_matrices_that_each_have_a_weight_of_their_own(tmp_path):
    """Octavo's kernels pass; one that gives the first two results in each other's place fails, and where it does is said."""
    suite = conformance.write(EXPERTS, tmp_path / "cases")
    assert suite.not_covered == suite.refused == []
    names = {case["name"].removeprefix("stacked_matmul-int8-half_even-"): case for case in suite.cases}
    assert {"experts_2", "experts_5", "batch_2", "per_channel", "weight_zero_point_127"} <= names.keys()
    assert names["ties"]["covers"]["positive_ties"] > 2
    assert names["ties"]["covers"]["negative_ties"] > 2
    assert own_kernels(tmp_path / "cases", EXPERTS).passed
    chosen = some(tmp_path / "cases", tmp_path / "chosen", [names["general"]["name"], names["batch_2"]["name"]])

    def turned(case, _):
        accumulator, real = case.details["accumulator"], case.details["real"]
        scale, zero_point = np.polyfit(accumulator.reshape(-1), real.reshape(-1), 1)
        swapped = accumulator.copy()
        swapped[..., :2, :, :] = accumulator[..., 1::-1, :, :]
        return {"y": np.clip(np.rint(swapped * scale + zero_point), -128, 127).astype(np.int8)}

    for result in conformance.run(chosen, turned).results:
        assert result.difference is not None
        assert result.difference.count > result.difference.size / 3
        assert result.difference.index[-3] == 0


def test_weights_that_an_index_chooses(tmp_path):
    """Octavo's kernels pass; one that gives zeros fails."""
    target = of_experts("gathered_matmul")
    suite = conformance.write(target, tmp_path / "cases")
    assert suite.not_covered == suite.refused == []
    names = {case["name"].removeprefix("gathered_matmul-int8-half_even-"): case["name"] for case in suite.cases}
    assert {"experts_2", "experts_5", "batch_2", "per_channel", "ties"} <= names.keys()
    assert own_kernels(tmp_path / "cases", target).passed
    chosen = some(tmp_path / "cases", tmp_path / "chosen", [names["general"]])
    (result,) = conformance.run(chosen, lambda case, _: {"y": np.zeros(case.details["accumulator"].shape, np.int8)}).results
    assert result.difference is not None


@pytest.mark.parametrize("rounding", ["float_multiplier", "shift"])
def test_own_kernels_pass_the_cases_of_other_ops(tmp_path, rounding):
    """By shifts every second op: tests/compiler/partition/test_accelerator_arithmetic.py has each with each rounding."""
    scales = "power_of_two" if rounding == "shift" else "any"
    names = ("subtract", "multiply", "maximum", "nn.avg_pool2d", "concat", "mean", "sum", "max", "argmin", "batch_matmul", "flip")
    names += ("nn.adaptive_avg_pool2d", "nn.relu", "clip")
    names = names[::2] if rounding == "shift" else names
    ops = tuple(OpSupport(op=op, **INT8, requantize=rounding, scales=scales) for op in (*names, "nn.softmax", "permute_dims"))
    description = TargetDescription(name="others", ops=ops)
    suite = conformance.write(description, tmp_path / "cases")
    if rounding == "float_multiplier":
        assert suite.not_covered == suite.refused == []
    assert len({case["op"] for case in suite.cases}) >= (8 if rounding == "shift" else 16)
    endings = (
        "ties",
        "general",
        "other_scale",
        "requantized",
        "saturation",
        "two_axes",
        "axis_1",
        "columns_10",
        "zero_point_3",
        "padding_127",
        "one_side",
    )
    chosen = [case["name"] for case in suite.cases if case["name"].endswith(endings)]
    report = own_kernels(some(tmp_path / "cases", tmp_path / "chosen", chosen), description)
    assert report.passed, report.summary


@pytest.mark.parametrize(
    ("requantize", "rounding", "other", "same"),
    [
        ("shift", "half_up", "", "half_up"),
        ("shift", "half_away", "", "half_away"),
        ("shift", "half_even", "half_up", ""),
        ("fixed_point", "once", "", "half_up"),
        ("fixed_point", "twice", "half_up", None),
        ("fixed_point", "twice_away", "half_away", None),
    ],
)
def test_arithmetics_of_accelerators_differ_at_ties(tmp_path, requantize, rounding, other, same):
    """Two roundings, one after the other, are those of no fault."""
    scales = "power_of_two" if requantize == "shift" else "any"
    how = {"requantize": requantize, "rounding": rounding, "scales": scales, "weight_granularity": ("per_tensor",)}
    how |= {"activation_schemes": ("symmetric",), "weight_schemes": ("symmetric",)}
    matmul = OpSupport(op="matmul", **INT8, weights=("int8",), fusions=("bias",), **how)
    description = TargetDescription(name="integers", ops=(matmul,))
    suite = conformance.write(description, tmp_path / "cases")
    assert suite.not_covered == suite.refused == []
    names = [f"matmul-int8-{requantize}_{rounding}-{case}" for case in ("ties", "general", "saturation", "near_overflow")]
    chosen = some(tmp_path / "cases", tmp_path / "chosen", names)
    assert own_kernels(chosen, description).passed
    assert "off by one" in numpy_report(chosen, other).results[0].problem
    assert same is None or numpy_report(chosen, same).results[0].passed


@pytest.mark.parametrize(("overflow", "bits"), [("wraps", 16), ("saturates", 21)])
def test_sums_beyond_the_accumulator(tmp_path, overflow, bits):
    """The NumPy NPU does what the case says; one that does the other thing is found, and the width of the accumulator named."""
    how = {**INT8, "weights": ("int8",), "accumulator_bits": bits, "overflow": overflow, "activation_schemes": ("symmetric",)}
    ops = (OpSupport(op="nn.conv2d", **how, fusions=("bias",)), OpSupport(op="matmul", **how))
    description = TargetDescription(name="narrow", ops=ops)
    suite = conformance.write(description, tmp_path / "cases")
    assert suite.not_covered == suite.refused == []
    for entry in (entry for entry in suite.cases if entry["name"].endswith("-overflow")):
        assert entry["covers"]["least_sum"] < -(2 ** (bits - 1))
        assert entry["covers"]["greatest_sum"] >= 2 ** (bits - 1)
    names = [f"{op}-int8-half_even-{case}" for op in ("conv2d", "matmul") for case in ("near_overflow", "overflow")]
    chosen = some(tmp_path / "cases", tmp_path / "chosen", names)
    assert own_kernels(chosen, description).passed
    assert numpy_report(chosen).passed
    failed = {result.name: result.problem for result in numpy_report(chosen, "other_overflow").failed}
    assert set(failed) == {names[1], names[3]}, failed
    assert all(f"only where sums leave {bits} bits: the width of the accumulator" in problem for problem in failed.values())


def test_a_case_is_a_model_that_loads(cases):
    case = conformance.Case(name="conv2d-int8-half_even-ties", folder=cases / "conv2d-int8-half_even-ties")
    executable = octavo.compile(octavo.load(case.module), target=NPU)
    (y,) = executable(case.inputs).values()
    assert np.array_equal(y, case.expected["y"])
    assert case.description["quantize_info"]["requantize"] == "float_multiplier"


COMMAND = """
import sys
from pathlib import Path
import numpy as np
sys.path.insert(0, {tests!r})
from numpy_npu import NumpyNpu
np.savez(sys.argv[2], **NumpyNpu({fault!r})(Path(sys.argv[1])))
"""


def test_a_command_is_run_for_each_case(cases, tmp_path, capsys):
    chosen = some(cases, tmp_path / "some", ("add-int8-half_even-ties", "add-int8-half_even-saturation"))
    for fault, code in (("", 0), ("half_up", 1)):
        script = tmp_path / f"npu{fault}.py"
        script.write_text(COMMAND.format(tests=str(Path(__file__).parents[1]), fault=fault))
        command = f"{sys.executable} {script} {{case}} {{output}}"
        reports = ["--junit", str(tmp_path / "r.xml"), "--html", str(tmp_path / "r.html")]
        assert main(["conformance", "run", str(chosen), "--command", command, *reports]) == code
    shown = capsys.readouterr().out
    assert "npu: 2 of 2 cases passed" in shown
    assert "FAILED add-int8-half_even-ties: off by one at ties" in shown
    (suite,) = ElementTree.parse(tmp_path / "r.xml").getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    (failure,) = suite.iter("failure")
    assert "another rounding of ties" in failure.get("message", "")
    page = (tmp_path / "r.html").read_text()
    assert page.count('class="failed"') == 1
    assert "The 1 that failed look like this:</p><ul><li>1 of them: off by one at ties" in page
    assert "<script" not in page
    assert "first at [" in page


def test_the_command_line_writes_cases(tmp_path, capsys):
    (tmp_path / "d.json").write_text(json.dumps(ADD.to_json()))
    assert main(["conformance", str(tmp_path / "d.json"), "-o", str(tmp_path / "cases")]) == 0
    assert "not covered: nn.layer_norm" in capsys.readouterr().out
    assert main(["conformance", str(tmp_path / "d.json"), "-o", str(tmp_path / "cases")]) == 1
    assert "is there already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "it gave no y, only nothing"),
        ({"y": np.zeros(3, np.int8)}, "y has shape (3,), expected"),
        ({"y": np.zeros((1, 5, 6, 7), np.int32)}, "y is int32, expected int8"),
        (np.zeros(3), "it returned ndarray, expected a dict of y"),
        (ValueError("no such op"), "it raised ValueError: no such op"),
    ],
)
def test_what_cannot_be_compared_fails_with_the_reason(cases, tmp_path, given, said):
    def implementation(_case, _inputs):
        if isinstance(given, Exception):
            raise given
        return given

    report = conformance.run(some(cases, tmp_path / "some", ("add-int8-half_even-ties",)), implementation)
    assert said in report.results[0].problem


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("run {output}", "{case} is missing"),
        ("run '{case} {output}", "No closing quotation"),
        (f"{sys.executable} -c 'raise SystemExit(3)' {{case}} {{output}}", "exit code 3"),
        (f"{sys.executable} -c 0 {{case}} {{output}}", "wrote no {output}"),
        ("/nowhere/npu {case} {output}", "cannot be run: No such file"),
    ],
)
def test_a_command_that_cannot_run_says_why(cases, tmp_path, command, said):
    chosen = some(cases, tmp_path / "some", ("add-int8-half_even-ties",))
    try:
        problem = conformance.run(chosen, command).results[0].problem
    except DataError as error:
        problem = str(error)
    assert said in problem


def test_a_folder_without_cases_is_refused(tmp_path):
    with pytest.raises(DataError, match="no cases"):
        conformance.run(tmp_path, "run {case} {output}")
    with pytest.raises(DataError, match="there is no folder"):
        conformance.write(ADD, tmp_path / "missing" / "cases")
