"""Files that leave sizes open: any size gives the bytes of what is loaded for that size alone, and what LiteRT gives."""

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter, OpResolverType
from tflite import ActivationFunctionType as Activation
from tflite import Padding

import octavo
from octavo.errors import DataError, ModelError, UnsupportedOpError
from octavo.frontends.tflite.open_shapes import reshaped
from octavo.runtime.size import Size
from tflite_writer import Op, Tensor, write

ANY = (-1, -1, -1, 3)
STRIDES = {"StrideW": 2, "StrideH": 2, "Padding": Padding.SAME}
GAPS = {"DilationWFactor": 1, "DilationHFactor": 1}


def network(rng, path, signature=ANY, shape=(1, 8, 8, 3), dtype="int8", target=(-1, 6), pool="MAX_POOL_2D"):
    """A convolution and a depthwise one, both at stride 2 with padding SAME, a pool, a mean, a dense layer and a reshape."""
    batch, height, width, _ = shape
    small, smaller, least = ((batch, -(-height // n), -(-width // n), 6) for n in (2, 4, 8))
    tensors, is_int = [], dtype == "int8"

    def add(name, shape, *, scale=(), zero_point=0, value=None, kind=dtype, **fields):
        known = {"scale": scale, "zero_point": (zero_point,) * len(scale)} if scale else {}
        tensors.append(Tensor(name=name, shape=shape, dtype=kind, value=value, **known, **fields))
        return len(tensors) - 1

    def activation(name, shape, scale, zero_point, **fields):
        return add(name, shape, scale=(scale,) if is_int else (), zero_point=zero_point, **fields)

    def weights(name, shape, bias, of):
        """Weights, and their bias, for an operand of a scale."""
        if not is_int:
            return add(name, shape, value=rng.standard_normal(shape).astype(np.float32)), add(
                f"{name}_b", (bias,), value=rng.standard_normal(bias).astype(np.float32)
            )
        value = rng.integers(-127, 128, shape).astype(np.int8)
        sums = rng.integers(-900, 900, bias).astype(np.int32)
        w = add(name, shape, scale=(0.01,), value=value)
        return w, add(f"{name}_b", (bias,), scale=(0.01 * of,), value=sums, kind="int32")

    x = activation("x", shape, 0.05, 3, signature=signature)
    w1, b1 = weights("w1", (6, 3, 3, 3), 6, 0.05)
    y1 = activation("y1", small, 0.06, -5)
    w2, b2 = weights("w2", (1, 3, 3, 6), 6, 0.06)
    y2 = activation("y2", smaller, 0.05, 2)
    y3 = activation("y3", least, 0.05, 2)
    axes = add("axes", (2,), value=np.array([1, 2], np.int32), kind="int32")
    y4 = activation("y4", (batch, 6), 0.04, 1)
    w5, b5 = weights("w5", (6, 6), 6, 0.04)
    y5 = activation("y5", (batch, 6), 0.08, 0)
    wanted = add("wanted", (len(target),), value=np.array(target, np.int32), kind="int32")
    y6 = activation("y6", tuple(batch if dim == -1 else dim for dim in target), 0.08, 0)
    ops = [
        Op(name="CONV_2D", inputs=(x, w1, b1), outputs=(y1,), options_class="Conv2DOptions", options={**STRIDES, **GAPS}),
        Op(
            name="DEPTHWISE_CONV_2D",
            inputs=(y1, w2, b2),
            outputs=(y2,),
            options_class="DepthwiseConv2DOptions",
            options={**STRIDES, **GAPS, "DepthMultiplier": 1, "FusedActivationFunction": Activation.RELU},
        ),
        Op(
            name=pool,
            inputs=(y2,),
            outputs=(y3,),
            options_class="Pool2DOptions",
            options={**STRIDES, "FilterHeight": 3, "FilterWidth": 3},
        ),
        Op(name="MEAN", inputs=(y3, axes), outputs=(y4,), options_class="ReducerOptions", options={"KeepDims": False}),
        Op(name="FULLY_CONNECTED", inputs=(y4, w5, b5), outputs=(y5,), options_class="FullyConnectedOptions"),
        Op(name="RESHAPE", inputs=(y5, wanted), outputs=(y6,), options_class="ReshapeOptions"),
    ]
    path.write_bytes(write(tensors, ops, (x,), (y6,)))
    return path


def litert(path, x):
    """What LiteRT's own kernels give at the size of x."""
    interpreter = Interpreter(str(path), experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES)
    [given], [result] = interpreter.get_input_details(), interpreter.get_output_details()
    interpreter.resize_tensor_input(given["index"], x.shape)
    interpreter.allocate_tensors()
    interpreter.set_tensor(given["index"], x)
    interpreter.invoke()
    return interpreter.get_tensor(result["index"])


def random(rng, shape, dtype):
    return rng.integers(-128, 128, shape).astype(np.int8) if dtype == "int8" else rng.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("dtype", ["int8", "float32"])
def test_batch_height_and_width_are_open(rng, tmp_path, dtype):
    path = network(rng, tmp_path / "m.tflite", dtype=dtype)
    model = octavo.load(path)
    assert [spec.shape for spec in octavo.compile(model).inputs] == [tuple(map(Size.parse, ("batch", "x_dim1", "x_dim2", 3)))]
    executable = octavo.compile(model)
    for shape in ((1, 8, 8, 3), (2, 15, 9, 3), (3, 6, 21, 3)):
        x = random(rng, shape, dtype)
        [found] = executable(x).values()
        [alone] = octavo.compile(octavo.load(path, shapes={"x": shape}))(x).values()
        assert found.tobytes() == alone.tobytes()
        # A mean may be a step off LiteRT's.
        np.testing.assert_allclose(found, litert(path, x), rtol=0, atol=1 if dtype == "int8" else 2e-5)


def test_an_open_batch_alone_leaves_the_model_at_one_sample_and_takes_any_number(rng, tmp_path):
    """A reshape to [1, 6] is for one sample: with the batch open it keeps the samples apart."""
    path = network(rng, tmp_path / "m.tflite", signature=(-1, 8, 8, 3), target=(1, 6))
    model = octavo.load(path)
    assert (model.any_batch, model.batch_obstacle, model.sizes) == (True, "", {})
    x = random(rng, (5, 8, 8, 3), "int8")
    [found] = octavo.compile(model)(x).values()
    [at_once] = octavo.compile(octavo.load(path, sizes={"batch": (1, 8)}))(x).values()
    assert found.tobytes() == at_once.tobytes()
    np.testing.assert_array_equal(found, np.concatenate([litert(path, sample[None]) for sample in x]))


def test_samples_that_are_not_apart_stay_what_the_file_states(rng, tmp_path):
    path = network(rng, tmp_path / "m.tflite", signature=(-1, 8, 8, 3), target=(6,))
    model = octavo.load(path)
    assert not model.any_batch
    assert (
        "RESHAPE (output tensor 'y6'): where the open sizes of [batch, 6] go in a reshape to [6] is not" in model.batch_obstacle
    )
    with pytest.raises(DataError, match=r"holds 2 samples and the model is compiled for 1: .*in a reshape to"):
        octavo.compile(model)(random(rng, (2, 8, 8, 3), "int8"))


def test_dimensions_are_named_bounded_and_fixed(rng, tmp_path):
    path = network(rng, tmp_path / "m.tflite")
    assert octavo.load(path).sizes == {"batch": (1, None), "x_dim1": (1, None), "x_dim2": (1, None)}
    named = octavo.load(path, shapes={"x": (1, "height", "width", 3)}, sizes={"height": (4, 64)})
    assert named.sizes == {"height": (4, 64), "width": (1, None)}
    assert octavo.load(path, sizes={"batch": 2, "x_dim1": 16, "x_dim2": 9}).sizes == {}
    with pytest.raises(ModelError, match="there is no dimension 'rows' to give a size; the open ones are batch, x_dim1, x_dim2"):
        octavo.load(path, sizes={"rows": 4})


def test_what_cannot_be_open_names_the_op_and_the_reason(rng, tmp_path):
    path = network(rng, tmp_path / "m.tflite", pool="AVERAGE_POOL_2D")
    with pytest.raises(UnsupportedOpError, match=r"op AVERAGE_POOL_2D \(output tensor 'y3'\): padding SAME of an average"):
        octavo.load(path)
    assert octavo.load(path, sizes={"x_dim1": 8, "x_dim2": 8}).sizes == {"batch": (1, None)}


def test_a_file_of_one_sample_says_that_any_number_is_taken_one_after_another(shared):
    """Its attention is a product of rows, which would be those of all samples."""
    path = shared / "models/tflite/kwt1_speechcommands12_fp32.tflite"
    with pytest.raises(
        UnsupportedOpError, match=r"STRIDED_SLICE .* size n, which is open; leave out this size: the graph is of one"
    ):
        octavo.load(path, shapes={"input_1": ("n", 16000)})


N, S = Size.named("n"), Size.named("s")


@pytest.mark.parametrize(
    ("before", "declared", "wanted", "after"),
    [
        ([N, 7, 7, 4], [1, 196], None, [N, 196]),
        ([N, 7, 7, 4], [1, 196], [-1, 196], [N, 196]),
        ([N, 1, 1, 4], [1, 4], [1, 4], [N, 4]),
        ([N * S, 64], [1, 5, 64], None, [N, S, 64]),
        ([N, S, 8, 8], [1, 5, 64], [1, -1, 64], [1, N * S, 64]),
        ([N, S, 64], [5, 64], None, [N * S, 64]),
        ([N, 6], [2, 3], None, None),
    ],
)
def test_reshapes_at_other_sizes(before, declared, wanted, after):
    assert reshaped(before, declared, wanted, {"n": 1, "s": 5}) == after


def pooled(path):
    """A pool at stride 2, and one of windows of 3 x 2 without padding, which leave a row of each image, and a reshape."""
    shapes = {"x": (1, 12, 8, 3), "y": (1, 6, 4, 3), "z": (1, 2, 2, 3), "f": (4, 3)}
    tensors = [Tensor(name=name, shape=shape, dtype="float32") for name, shape in shapes.items()]
    tensors.append(Tensor(name="form", shape=(2,), dtype="int32", value=np.array([-1, 3], np.int32)))
    valid = {"StrideW": 2, "StrideH": 3, "Padding": Padding.VALID, "FilterHeight": 3, "FilterWidth": 2}
    pool, options = "Pool2DOptions", {**STRIDES, "FilterHeight": 2, "FilterWidth": 2}
    ops = [
        Op(name="MAX_POOL_2D", inputs=(0,), outputs=(1,), options_class=pool, options=options),
        Op(name="AVERAGE_POOL_2D", inputs=(1,), outputs=(2,), options_class=pool, options=valid),
        Op(name="RESHAPE", inputs=(2, 4), outputs=(3,), options_class="ReshapeOptions"),
    ]
    path.write_bytes(write(tensors, ops, (0,), (3,)))
    return path


def test_sizes_that_leave_windows_nothing_are_below_the_bounds(rng, tmp_path):
    path, given = pooled(tmp_path / "net.tflite"), {"x": ("n", "h", "w", 3)}
    model = octavo.load(path, shapes=given)
    assert model.sizes == {"n": (1, None), "h": (5, None), "w": (3, None)}
    executable = octavo.compile(model)
    for sizes in ({"n": 2, "h": 5, "w": 3}, {"n": 1, "h": 11, "w": 13}):
        x = rng.standard_normal((*sizes.values(), 3)).astype(np.float32)
        alone = octavo.compile(octavo.load(path, shapes={"x": x.shape}))
        assert executable({"x": x})["f"].tobytes() == alone({"x": x})["f"].tobytes()
    with pytest.raises(DataError, match=r"x has 4 along axis 1, dimension h takes 5 to any size$"):
        executable({"x": np.zeros((1, 4, 8, 3), np.float32)})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"shapes": {"x": (1, 4, 8, 3)}},
            "0 x 2 pixels of 2 x 4; larger inputs are needed; dimension x_dim1 is 4 and must be at least 5",
        ),
        ({"shapes": {"x": (1, "h", "w", 3)}, "sizes": {"w": 2}}, "dimension w is 2 and must be at least 3"),
        ({"shapes": {"x": (1, "h", 8, 3)}, "sizes": {"h": (1, 4)}}, "dimension h is 4 at most and must be at least 5"),
    ],
)
def test_a_size_too_small_for_windows_is_named_with_the_least(tmp_path, options, message):
    with pytest.raises(UnsupportedOpError, match=rf"AVERAGE_POOL_2D \(.*{message}$"):
        octavo.load(pooled(tmp_path / "net.tflite"), **options)
