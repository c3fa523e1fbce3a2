"""Loops of .tflite files that run as often as is fed give what LiteRT gives."""

import numpy as np
import pytest
from litert_results import litert

import octavo
from octavo.errors import UnsupportedOpError
from tflite_writer import Op, Tensor, write

ADD, MUL = ({"options_class": f"{name}Options", "options": {"FusedActivationFunction": 0}} for name in ("Add", "Mul"))
LESS = {"options_class": "LessOptions"}


def constant(name, value):
    value = np.asarray(value)
    return Tensor(name=name, shape=value.shape, dtype=str(value.dtype), value=value)


def drawn(*shape):
    return (np.random.default_rng(shape).standard_normal(shape) * 0.5).astype(np.float32)


def doubling(inner):
    """While its number is its own square it is doubled, or what `inner` makes of it: as LiteRT's nested_while.bin."""
    number = [Tensor(name="x", shape=())]
    square = [Tensor(name="square", shape=()), Tensor(name="same", shape=(), dtype="bool")]
    condition = (
        [*number, *square],
        [Op(name="MUL", inputs=(0, 0), outputs=(1,), **MUL), Op(name="EQUAL", inputs=(0, 1), outputs=(2,))],
    )
    body = [Op(name="ADD", inputs=(0, 0), outputs=(1,), **ADD)] if inner is None else [loop(*inner)]
    return (*condition, (0,), (2,)), ([*number, Tensor(name="y", shape=())], body, (0,), (1,))


def loop(condition, body, inputs=(0,), outputs=(1,)):
    fields = {"CondSubgraphIndex": condition, "BodySubgraphIndex": body}
    return Op(name="WHILE", inputs=inputs, outputs=outputs, options_class="WhileOptions", options=fields)


def nested_loops():
    """A loop of a loop, by a number that is fed."""
    main = [Tensor(name="x", shape=()), Tensor(name="y", shape=())]
    return write(main, [loop(1, 2)], (0,), (1,), *doubling((3, 4)), *doubling(None))


X = Tensor(name="x", shape=(2, 3))


def counted_loop():
    """x is added to a sum as often as is fed, in a loop that carries the count beside: that decides, and x does not."""
    whole = {"shape": (), "dtype": "int32"}
    main = [
        Tensor(name="x", shape=(2, 3)),
        Tensor(name="n", **whole),
        constant("zero", np.int32(0)),
        constant("sum", np.zeros((2, 3), np.float32)),
    ]
    main += [
        Tensor(name="i", **whole),
        Tensor(name="m", **whole),
        Tensor(name="of", shape=(2, 3)),
        Tensor(name="y", shape=(2, 3)),
    ]
    carried = [
        Tensor(name="i", **whole),
        Tensor(name="n", **whole),
        Tensor(name="of", shape=(2, 3)),
        Tensor(name="s", shape=(2, 3)),
    ]
    less = (
        [*carried, Tensor(name="on", shape=(), dtype="bool")],
        [Op(name="LESS", inputs=(0, 1), outputs=(4,), **LESS)],
        (0, 1, 2, 3),
        (4,),
    )
    made = [constant("one", np.int32(1)), Tensor(name="j", **whole), Tensor(name="t", shape=(2, 3))]
    steps = [Op(name="ADD", inputs=(0, 4), outputs=(5,), **ADD), Op(name="ADD", inputs=(3, 2), outputs=(6,), **ADD)]
    body = ([*carried, *made], steps, (0, 1, 2, 3), (5, 1, 2, 6))
    return write(main, [loop(1, 2, (2, 1, 0, 3), (4, 5, 6, 7))], (0, 1), (7, 4), less, body)


@pytest.mark.parametrize(
    ("content", "deciding", "fed"),
    [
        (nested_loops(), "x", [{"x": np.float32(value)} for value in (1, 0.5, 2)]),
        (counted_loop(), "n", [{"x": drawn(2, 3), "n": np.int32(count)} for count in (0, 1, 5)]),
    ],
)
def test_what_is_fed_decides_how_often_a_loop_runs(content, deciding, fed, tmp_path):
    path = tmp_path / "m.tflite"
    path.write_bytes(content)
    model = octavo.load(path)
    assert model.deciding == (deciding,)
    executable = octavo.compile(model)
    for feeds in fed:
        found, wanted = executable(feeds), litert(path, feeds)
        assert found.keys() == wanted.keys()
        for name, value in wanted.items():
            np.testing.assert_array_equal(found[name], value)
            assert found[name].dtype == value.dtype


def test_a_loop_that_runs_too_often_is_refused(tmp_path):
    path = tmp_path / "m.tflite"
    path.write_bytes(nested_loops())
    with pytest.raises(UnsupportedOpError, match=r"op WHILE \(output tensor 'y'\): it runs more than 1000 times"):
        octavo.load(path, values={"x": 0.0})


def test_a_loop_that_data_ends_is_refused(tmp_path):
    told, axes = Tensor(name="told", shape=(), dtype="bool"), constant("axes", np.int32([0, 1]))
    total, nine = Tensor(name="total", shape=()), constant("nine", np.float32(9))
    ops = [
        Op(name="SUM", inputs=(0, 1), outputs=(2,), options_class="ReducerOptions", options={"KeepDims": False}),
        Op(name="LESS", inputs=(2, 3), outputs=(4,), **LESS),
    ]
    path = tmp_path / "m.tflite"
    condition = ([X, axes, total, nine, told], ops, (0,), (4,))
    body = ([X, Tensor(name="y", shape=(2, 3))], [Op(name="ADD", inputs=(0, 0), outputs=(1,), **ADD)], (0,), (1,))
    path.write_bytes(write([X, Tensor(name="y", shape=(2, 3))], [loop(1, 2)], (0,), (1,), condition, body))
    with pytest.raises(UnsupportedOpError, match=r"op WHILE \(output tensor 'y'\): how often it runs is known at run time only"):
        octavo.load(path)
