"""What ops need of sizes beyond the shapes of their results: a call at others is one line, and so is a model of such sizes."""

import numpy as np
import onnx
import pytest

import octavo
from octavo.errors import DataError, ModelError
from octavo.ir.graph.needed_sizes import needed_sizes
from octavo.runtime.size import Size
from reference_sessions import reference_session

SLICED = """<ir_version: 9, opset_import: ["": 18]> sliced (float[N,S] x) => (RESULT)
<int64[1] three = {3}, int64[1] end = {9223372036854775807}, int64[1] one = {1}, int64[1] two = {2}> {
    z = Slice(x, three, end, one)
    OP
}"""
RESHAPED = """<ir_version: 9, opset_import: ["": 18]> reshaped (INPUTS) => (float[A,B] y) {
    s = Constant<value_ints = [WANTED]>()
    REST
}"""
MEAN, PLACE = "y = ReduceMean<keepdims = 0>(z, one)", "int64[A,B] y"
PICKED = "y, places = TopK<axis = 1>(z, two)"


def sliced(op, result="float[A] y"):
    return SLICED.replace("RESULT", result).replace("OP", op)


def reshaped(inputs, wanted, rest="y = Reshape(x, s)"):
    return RESHAPED.replace("INPUTS", inputs).replace("WANTED", wanted).replace("REST", rest)


OTHERS = "k = Shape<start = 0, end = 1>(z) t = Concat<axis = 0>(s, k) y = Reshape(x, t)"
LEFT_OUT = "a reshape within would leave elements out"
EMPTY = "a tensor within would be empty, or read beyond its end"
ALONG_N, ALONG_S = ("input x has {} along axis 0", "input x has {} along axis 1")
CASES = {
    "a reshape by a number": (
        *(reshaped("float[N,5] x", "-1, 3"), (6, 5), (2, 5)),
        f"5*N is 10 ({ALONG_N.format(2)}) and must be a multiple of 3: {LEFT_OUT}",
    ),
    "a reshape of two open ones": (
        *(reshaped("float[N,M] x", "-1, 4"), (2, 6), (3, 5)),
        f"M*N is 15 ({ALONG_S.format(5)}; {ALONG_N.format(3)}) and must be a multiple of 4: {LEFT_OUT}",
    ),
    "a reshape by what is shared": (
        *(reshaped("float[N,6] x", "-1, 4"), (2, 6), (3, 6)),
        f"3*N is 9 ({ALONG_N.format(3)}) and must be a multiple of 2: {LEFT_OUT}",
    ),
    "a reshape by an open one": (
        *(reshaped("float[N,M] x, float[K,2] z", "-1", OTHERS), (4, 6), (4, 5)),
        f"M*N is 20 (input z has 3 along axis 0; {ALONG_S.format(5)}; {ALONG_N.format(4)}) "
        f"and must be a multiple of K, which is 3: {LEFT_OUT}",
    ),
    "a mean": (*(sliced(MEAN), (2, 4), (2, 3)), f"S is 3 ({ALONG_S.format(3)}) and must be at least 4: {EMPTY}"),
    "a place": (
        *(sliced("y = ArgMax<axis = 1>(z)", PLACE), (2, 4), (2, 2)),
        f"S is 2 ({ALONG_S.format(2)}) and must be at least 4: {EMPTY}",
    ),
    "the largest two": (
        *(sliced(PICKED, "float[N,2] y"), (2, 5), (2, 4)),
        f"S is 4 ({ALONG_S.format(4)}) and must be at least 5: {EMPTY}",
    ),
}


def given(rng, proto, shape):
    inputs = {"x": rng.standard_normal(shape).astype(np.float32)}
    return inputs | ({"z": np.zeros((3, 2), np.float32)} if len(proto.graph.input) > 1 else {})


@pytest.mark.parametrize("name", CASES)
def test_a_call_at_sizes_that_an_op_cannot_take_is_one_line(rng, name):
    text, good, bad, said = CASES[name]
    proto = onnx.parser.parse_model(text)
    executable = octavo.compile(octavo.load(proto))
    inputs = given(rng, proto, good)
    np.testing.assert_allclose(executable(inputs)["y"], reference_session(proto).run(["y"], inputs)[0], rtol=1e-5)
    for call in (executable, executable.bind):
        with pytest.raises(DataError) as error:
            call(given(rng, proto, bad))
        assert str(error.value) == f"input: {said}"
    np.testing.assert_allclose(executable(inputs)["y"], reference_session(proto).run(["y"], inputs)[0], rtol=1e-5)


@pytest.mark.parametrize(
    ("text", "size", "said"),
    [
        (sliced(MEAN), 3, r"mean of a tensor \[1,0\] has no elements to reduce"),
        (sliced("y = ArgMin<axis = 1>(z)", PLACE), 2, r"argmin of a tensor \[1,0\] has no elements to reduce"),
        (sliced(PICKED, "float[N,2] y"), 4, r"topk of a tensor \[N,1\] has fewer elements than are picked"),
    ],
)
def test_a_model_of_such_a_size_is_one_line(text, size, said):
    with pytest.raises(ModelError, match=f"^[^\n]*: {said}; give it other sizes$"):
        octavo.load(onnx.parser.parse_model(text), sizes={"S": size})


def test_what_shapes_and_bounds_say_is_not_needed():
    text = """<ir_version: 9, opset_import: ["": 18]> fine (float[N,P] x, float[N,S,8] z) =>
    (float[N,1] a, float[N,1] b, float[M,4] c) <int64[1] one = {1}, int64[2] wanted = {-1, 4}> {
        a = ReduceMean(x, one)
        b = ReduceMax(x, one)
        c = Reshape(z, wanted)
    }"""
    proto = onnx.parser.parse_model(text)
    assert needed_sizes(octavo.load(proto).module) == ()
    assert needed_sizes(octavo.load(proto, sizes={"P": (0, None)}).module) == (Size.named("P"),)
