"""WHERE and the choice of boxes give what LiteRT gives: of any number that data says, none among them."""

import numpy as np
import pytest
from litert_results import litert

import octavo
from octavo.errors import UnsupportedOpError
from octavo.ir.graph.unbound import UnboundModel
from tflite_writer import Op, Tensor, write

INT8 = {"dtype": "int8", "scale": (0.05,), "zero_point": (3,)}
KINDS = {name: {"dtype": name} for name in ("bool", "float32", "int32", "int64")} | {"int8": INT8}


def constant(name, value, **fields):
    value = np.asarray(value)
    return Tensor(name=name, shape=value.shape, dtype=str(value.dtype), value=value, **fields)


def where(shape, params, stated=(1, 1)):
    tensors = [Tensor(name="x", shape=shape, **params), Tensor(name="y", shape=stated, dtype="int64")]
    return write(tensors, [Op(name="WHERE", inputs=(0,), outputs=(1,))], (0,), (1,))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(7,), (3, 4), (2, 3, 5, 2), (0, 3)])
def test_where(kind, shape, rng, tmp_path):
    """All, none, some; saved and loaded."""
    path = tmp_path / "m.tflite"
    path.write_bytes(where(shape, KINDS[kind]))
    octavo.compile(octavo.load(path)).save(tmp_path / "where")
    executable = octavo.load_executable(tmp_path / "where")
    for x in (np.ones(shape), np.zeros(shape), rng.integers(0, 2, shape)):
        x = x.astype(KINDS[kind]["dtype"])
        np.testing.assert_array_equal(executable(x)["y"], litert(path, {"x": x})["y"], strict=True)


def test_where_of_a_constant_and_of_nothing_with_axes(tmp_path):
    value = np.bool_([[True, False, True], [False, False, True]])
    tensors = [Tensor(name="x", shape=(2,)), constant("c", value), Tensor(name="y", shape=(1, 2), dtype="int64")]
    tensors.append(Tensor(name="z", shape=(2,)))
    ops = [Op(name="WHERE", inputs=(1,), outputs=(2,)), Op(name="ABS", inputs=(0,), outputs=(3,))]
    path = tmp_path / "m.tflite"
    path.write_bytes(write(tensors, ops, (0,), (2, 3)))
    np.testing.assert_array_equal(octavo.compile(octavo.load(path))(np.float32([-1, 2]))["y"], np.argwhere(value))
    path.write_bytes(where((), KINDS["bool"]))
    with pytest.raises(UnsupportedOpError, match="a condition without axes"):
        octavo.load(path)


def test_where_of_what_is_computed_is_quantized_with_the_rest(rng, tmp_path):
    """Places of a layer's positive results: the layer is integer, and the places are those of its own results."""
    weight = rng.normal(size=(5, 8)).astype(np.float32)
    tensors = [
        Tensor(name="x", shape=(3, 8)),
        constant("w", weight),
        Tensor(name="d", shape=(3, 5)),
        constant("z", np.float32(0)),
    ]
    tensors += [Tensor(name="above", shape=(3, 5), dtype="bool"), Tensor(name="y", shape=(1, 2), dtype="int64")]
    ops = [
        Op(name="FULLY_CONNECTED", inputs=(0, 1, -1), outputs=(2,), options_class="FullyConnectedOptions"),
        Op(name="GREATER", inputs=(2, 3), outputs=(4,), options_class="GreaterOptions"),
        Op(name="WHERE", inputs=(4,), outputs=(5,)),
    ]
    path = tmp_path / "m.tflite"
    path.write_bytes(write(tensors, ops, (0,), (2, 5)))
    model = octavo.load(path)
    samples = [rng.normal(size=(3, 8)).astype(np.float32) for _ in range(8)]
    executable = octavo.compile(octavo.quantize(model, octavo.profile(model, samples)))
    for x in samples[:3]:
        found = executable(x)
        np.testing.assert_array_equal(found["y"], np.argwhere(found["d"] > 0))
    assert all(op.integer for op in octavo.explain(executable).ops if op.macs)


def test_what_reads_places_is_refused(tmp_path):
    tensors = [Tensor(name="x", shape=(4,), dtype="bool"), Tensor(name="y", shape=(1, 1), dtype="int64")]
    tensors.append(Tensor(name="f", shape=(1, 1)))
    ops = [Op(name="WHERE", inputs=(0,), outputs=(1,)), Op(name="CAST", inputs=(1,), outputs=(2,), options_class="CastOptions")]
    path = tmp_path / "m.tflite"
    path.write_bytes(write(tensors, ops, (0,), (2,)))
    with pytest.raises(UnsupportedOpError, match=r"op WHERE .* which op CAST reads, depends on data; let it be an output"):
        octavo.load(path)


def choice(boxes, most, overlap, score, sigma=None):
    """A choice of at most `most`, fed where that is None; with a sigma that of scores too."""
    tensors = [Tensor(name="boxes", shape=(boxes, 4)), Tensor(name="scores", shape=(boxes,))]
    tensors.append(Tensor(name="most", shape=(), dtype="int32") if most is None else constant("most", np.int32(most)))
    tensors += [constant("overlap", np.float32(overlap)), constant("score", np.float32(score))]
    tensors += [] if sigma is None else [constant("sigma", np.float32(sigma))]
    operands, size = len(tensors), most or 0
    tensors.append(Tensor(name="numbers", shape=(size,), dtype="int32"))
    tensors += [] if sigma is None else [Tensor(name="marks", shape=(size,))]
    tensors.append(Tensor(name="many", shape=(), dtype="int32"))
    results = tuple(range(operands, len(tensors)))
    op = Op(name=f"NON_MAX_SUPPRESSION_V{4 if sigma is None else 5}", inputs=tuple(range(operands)), outputs=results)
    return write(tensors, [op], (0, 1) if most is not None else (0, 1, 2), results)


def drawn(rng, boxes):
    """Boxes whose corners come in any order; scores of which no two are equal."""
    corners = rng.uniform(0, 10, (boxes, 4)).astype(np.float32)
    return {"boxes": corners, "scores": rng.permutation(np.linspace(-0.2, 1, boxes)).astype(np.float32)}


def same(found, wanted):
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert found[name].dtype == value.dtype
        if name == "marks":
            np.testing.assert_allclose(found[name], value, rtol=1e-6)
        else:
            np.testing.assert_array_equal(found[name], value)


@pytest.mark.parametrize(
    ("boxes", "most", "overlap", "score", "sigma"),
    [
        (200, 20, 0.2, 0.3, None),
        (200, 300, 0.5, -1.0, None),
        (64, 64, 0.3, 0.1, 0.0),
        (100, 30, 1.0, 0.2, 0.5),
        (100, 100, 0.4, 0.05, 0.1),
        (50, 10, 0.0, 0.0, None),
        (40, 5, 0.5, 2.0, 0.5),
        (40, 0, 0.5, 0.1, None),
        (0, 6, 0.5, 0.1, 0.0),
    ],
)
def test_choices(boxes, most, overlap, score, sigma, rng, tmp_path):
    """More than there are, none that is good enough, none wanted, no boxes; limits at their ends; scores that are lowered."""
    path = tmp_path / "m.tflite"
    path.write_bytes(choice(boxes, most, overlap, score, sigma))
    executable = octavo.compile(octavo.load(path))
    for _ in range(3):
        feeds = drawn(rng, boxes)
        same(executable(feeds), litert(path, feeds))


def test_a_share_that_reaches_the_limit_and_equal_scores(tmp_path):
    """Two boxes share just a third; of two of one score the first is taken."""
    boxes = np.float32([[0, 0, 2, 2], [0, 1, 2, 3], [9, 9, 8, 8], [0, 0, 2, 2]])
    path = tmp_path / "m.tflite"
    for overlap, count in ((np.float32(1) / np.float32(3), 2), (np.nextafter(np.float32(1) / np.float32(3), np.float32(1)), 3)):
        path.write_bytes(choice(4, 4, overlap, 0.0))
        feeds = {"boxes": boxes, "scores": np.float32([0.9, 0.8, 0.5, 0.9])}
        found = octavo.compile(octavo.load(path))(feeds)
        same(found, litert(path, feeds))
        assert found["many"] == count
        assert found["numbers"][0] == 0


def test_a_box_without_an_area_is_chosen_once(tmp_path):
    """LiteRT takes it again and again, for it does not overlap itself; ONNX Runtime takes it once."""
    path = tmp_path / "m.tflite"
    path.write_bytes(choice(3, 3, 0.5, 0.0, 0.0))
    boxes = np.float32([[0, 0, 2, 2], [1, 1, 1, 1], [5, 5, 6, 6]])
    found = octavo.compile(octavo.load(path))({"boxes": boxes, "scores": np.float32([0.5, 0.9, 0.7])})
    np.testing.assert_array_equal(found["numbers"], [1, 2, 0])
    np.testing.assert_array_equal(found["marks"], np.float32([0.9, 0.7, 0.5]))
    assert found["many"] == 3


def test_a_count_that_is_fed(rng, tmp_path):
    path = tmp_path / "m.tflite"
    path.write_bytes(choice(30, None, 0.3, 0.1))
    model = octavo.load(path)
    assert isinstance(model, UnboundModel)
    executable = octavo.compile(model)
    for most in (3, 9):
        feeds = {**drawn(rng, 30), "most": np.int32(most)}
        same(executable(feeds), litert(path, feeds))


def test_boxes_of_a_quantized_layer(rng, tmp_path):
    """int8 boxes and scores become real, as LiteRT takes them; what reads the choice gathers by it."""
    boxes, scores = {**INT8, "dtype": "int8"}, {"dtype": "int8", "scale": (1 / 256,), "zero_point": (-128,)}
    tensors = [Tensor(name="q", shape=(40, 4), **boxes), Tensor(name="s", shape=(40,), **scores)]
    tensors += [Tensor(name="b", shape=(40, 4)), Tensor(name="f", shape=(40,)), constant("most", np.int32(8))]
    tensors += [constant("overlap", np.float32(0.3)), constant("score", np.float32(0.2))]
    tensors += [Tensor(name="numbers", shape=(8,), dtype="int32"), Tensor(name="many", shape=(), dtype="int32")]
    tensors.append(Tensor(name="y", shape=(8, 4), **boxes))
    ops = [
        Op(name="DEQUANTIZE", inputs=(0,), outputs=(2,)),
        Op(name="DEQUANTIZE", inputs=(1,), outputs=(3,)),
        Op(name="NON_MAX_SUPPRESSION_V4", inputs=(2, 3, 4, 5, 6), outputs=(7, 8)),
        Op(name="GATHER", inputs=(0, 7), outputs=(9,), options_class="GatherOptions"),
    ]
    path = tmp_path / "m.tflite"
    path.write_bytes(write(tensors, ops, (0, 1), (9, 7, 8)))
    executable = octavo.compile(octavo.load(path))
    for _ in range(3):
        marks = rng.permutation(np.arange(-128, 128))[:40].astype(np.int8)
        corners = rng.permuted(np.tile(np.arange(-128, 128, dtype=np.int8), (40, 1)), axis=1)[:, :4]
        feeds = {"q": corners, "s": marks}
        same(executable(feeds), litert(path, feeds))
