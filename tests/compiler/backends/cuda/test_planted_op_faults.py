"""Faults planted in the kernels of ops without weights: each is found by a case of its family's tests, or by a check."""

import shutil

import pytest
import test_cuda_functions
import test_moves
import test_norms
import test_pairs
import test_places
import test_pools
import test_run_time_inputs
from emulated_ops import few_at_a_time, wrong

from octavo.compiler.backends.cuda.compiler import DEVICE
from octavo.errors import ExecutableError

SOURCES = {
    "pairs": lambda: list(test_pairs.add_cases()),
    "choices": lambda: list(test_pairs.choice_cases()),
    "moves": lambda: [*list(test_moves.gather_cases())[::5], *list(test_moves.concat_cases())],
    "functions": lambda: list(test_cuda_functions.function_cases()),
    "tables": lambda: list(test_pairs.lookup_cases()),
    "changes": lambda: list(test_moves.move_cases())[1::5],
    "edges": lambda: list(test_moves.edge_cases()),
    "pools": lambda: list(test_pools.pool_cases())[::3],
    "places": lambda: [*list(test_places.place_cases())[5::4], *list(test_places.topk_cases())[5:17]],
    "rows": lambda: list(test_pools.softmax_cases())[3::7],
    "norms": lambda: list(test_norms.norm_cases())[::2],
    "logarithms": lambda: list(test_pools.log_softmax_cases())[2::3],
    "norms over rows": lambda: list(test_norms.l2_cases())[2::4],
    "run time": lambda: [*test_run_time_inputs.matmul_cases(), *list(test_run_time_inputs.conv2d_cases())[::6]],
    "resizes": lambda: list(test_norms.resize_cases())[::2],
}

FAULTS = [
    ("pairs", "pair.cuh", "a + P::a_shift), P::a_ratio()", "a), P::a_ratio()"),
    ("pairs", "pair.cuh", "P::bias + a * P::a_multiplier", "a * P::a_multiplier"),
    ("choices", "pair.cuh", "return a == b", "return a >= b"),
    ("choices", "pair.cuh", "condition[c_axes.at(item)] ?", "condition[item] ?"),
    ("moves", "gather.cuh", "if (P::has_padding && padding) {", "if (false) {"),
    ("moves", "gather.cuh", "* P::pitch + first", "* P::run + first"),
    ("moves", "concat.cuh", "% Part::length + Part::first", "% Part::length"),
    ("changes", "change.cuh", "int(q) - P::change_from, P::change_multiplier()", "int(q), P::change_multiplier()"),
    ("tables", "change.cuh", "? 128 : 0)]", "? 127 : 0)]"),
    ("edges", "quantize.cuh", ": zero_points[channel]", ": zero_points[0]"),
    ("edges", "quantize.cuh", ">= 0.5f", "> 0.5f"),
    ("pools", "average.cuh", "sum - present * P::x_zero_point", "sum"),
    ("pools", "average.cuh", "(2 * magnitude + count)", "(2 * magnitude)"),
    ("pools", "pool2d.cuh", "maximum(present, 1)", "P::kernel_height * P::kernel_width"),
    ("places", "reduce.cuh", "* places + (places - 1 - place)", "* places + place"),
    ("places", "reduce.cuh", "? order : 255 - order", "? order : order"),
    ("places", "topk.cuh", "<< 32 | i;", "<< 32 | (i ^ 1);"),
    ("places", "topk.cuh", "before += other < lane ? theirs : 0", "before += other <= lane ? theirs : 0"),
    ("rows", "softmax.cuh", "exponentials[found.distance(i)], factor", "exponentials[found.distance(0)], factor"),
    ("functions", "float_function.cuh", "a > b ? a : b", "a >= b ? a : b"),
    ("functions", "float_function.cuh", "__fmaf_rn(full, -ln2_low,", "__fmaf_rn(full, ln2_low,"),
    ("functions", "float_function.cuh", "two_to(half)", "two_to(parts.power >> 2)"),
    (
        "functions",
        "float_function.cuh",
        "__fmaf_rn(value, x, coefficients[i])",
        "__fadd_rn(__fmul_rn(value, x), coefficients[i])",
    ),
    ("functions", "float_function.cuh", "x > limit ? 1.0f", "x > limit ? 0.5f"),
    ("logarithms", "softmax.cuh", "* rest >> 14", "* rest >> 15"),
    ("logarithms", "softmax.cuh", "1LL << 39", "1LL << 38"),
    ("norms over rows", "norm.cuh", "step < 5", "step < 3"),
    ("norms over rows", "norm.cuh", "? maximum(7 - exponent, 0) : 7", "? maximum(8 - exponent, 0) : 7"),
    ("norms over rows", "norm.cuh", "magnitude + ((1LL << right) >> 1)", "magnitude"),
    ("run time", "dynamic.cuh", "(qmax - qmin) / 2.0f", "(qmax - qmin + 1.0f) / 2.0f"),
    ("run time", "dynamic.cuh", ": __fsub_rn(127.0f, above)", ": __fsub_rn(128.0f, above)"),
    ("run time", "dynamic.cuh", "scale == 0.0f ? 1.0f : scale", "scale"),
    ("run time", "dynamic.cuh", "low = lower_end(low, from[2 * i])", "low = from[0]"),
    (
        "run time",
        "dynamic.cuh",
        "int zero_point = int(parameters[2 * row + 1]), q = 0;",
        "int zero_point = int(parameters[1]), q = 0;",
    ),
    ("run time", "dynamic.cuh", "* weights[channel]", "* weights[0]"),
    ("norms", "norm.cuh", "__fmul_rn(root, float(P::columns))", "root"),
    ("resizes", "resize.cuh", "half - 1 + (sum >> shift & 1)", "half - 1"),
]


def with_fault(folder, header, there, instead):
    shutil.copytree(DEVICE, folder)
    text = (folder / header).read_text()
    assert there in text
    (folder / header).write_text(text.replace(there, instead, 1))
    return folder


@pytest.mark.parametrize(("source", "header", "there", "instead"), FAULTS)
def test_a_planted_fault_gives_other_results(source, header, there, instead, tmp_path):
    device = with_fault(tmp_path / "device", header, there, instead)
    assert any(wrong(few, device=device) for few in few_at_a_time(SOURCES[source]()))


@pytest.mark.parametrize("there", ["  shared[lane] = value;\n  __syncthreads();", "    __syncthreads();\n  }\n  T found"])
def test_a_dropped_barrier_is_a_race(there, tmp_path):
    device = with_fault(tmp_path / "device", "row_joins.cuh", there, there.replace("__syncthreads();", ""))
    with pytest.raises(ExecutableError, match="data race"):
        wrong([test_norms.layer_norm_case("int8", (2, 3, 300))], check="races", seed=1, device=device)
