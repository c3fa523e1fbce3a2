"""The conformance suite of the description of GPUs: what kernels give is what the suite's oracles say."""

import json
from dataclasses import replace

import numpy as np
import tvm
from emulated_ops import Case, wrong

import octavo
from octavo.compiler.backends.cuda.description import CUDA
from octavo.evaluation import conformance
from octavo.ir.composites.attributes import read_composites
from octavo.ir.composites.weighted import WeightedOp


def case_of(folder):
    model = octavo.load(tvm.ir.load_json((folder / "model.json").read_text()))
    (composite,) = read_composites(octavo.partition(model, target=CUDA)).values()
    inputs, want = (dict(np.load(folder / f"{name}.npz")) for name in ("inputs", "expected"))
    (values,) = want.values()
    return Case(composite.op, inputs, values)


def of_one_dtype(number, support):
    """Return an op of one of the dtypes that it takes, another one than its neighbours': their own tests sweep both."""
    return replace(support, activations=support.activations[number % len(support.activations) :][:1])


def test_kernels_pass_the_conformance_suite(tmp_path):
    description = replace(CUDA, ops=tuple(of_one_dtype(*each) for each in enumerate(CUDA.ops)))
    suite = conformance.write(description, tmp_path / "cases")
    index = json.loads((tmp_path / "cases" / "index.json").read_text())
    left_out = (
        "no cases of this op yet",
        "no cases of float_output yet",
        "no cases of sum_output yet",
        "no cases of float_input yet",
        "no oracle of SoftmaxOp",
    )
    assert [each for each in suite.not_covered if not any(reason in each["reason"] for reason in left_out)] == []
    found = [case_of(tmp_path / "cases" / entry["name"]) for entry in index["cases"][::4]]
    cases = [case for case in found if not isinstance(case.op, WeightedOp)]  # whose own tests sweep them
    assert len(cases) > 60
    assert wrong(cases) == []
