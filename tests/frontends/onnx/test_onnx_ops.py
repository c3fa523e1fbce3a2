"""Each ONNX op, imported and run by TVM alone, gives what ONNX Runtime gives; as plain Relax ops without PrimFuncs."""

import numpy as np
import onnx
import pytest
from onnx.helper import make_node
from tvm import relax

from octavo.errors import UnsupportedOpError
from octavo.frontends import load
from octavo.frontends.onnx.ops import same_padding
from reference_sessions import reference_session

RNG = np.random.default_rng(7)
X = (1, 4, 9, 11)


def weights(*shape, rng=RNG):
    """Of the cases, drawn once in their order; a test gives its own numbers."""
    return rng.standard_normal(shape).astype(np.float32)


def ints(*values):
    return np.asarray(values, np.int64)


VOLUME, VOLUMES = (1, 4, 6, 5, 7), (2, 4, 6, 5, 7)

# name -> (op, attributes, shape of the input x, constant inputs in order (None: absent), opset)
CASES = {
    "conv": ("Conv", {"pads": [1, 2, 0, 1], "strides": [2, 1]}, X, [weights(6, 4, 3, 3), weights(6)], 17),
    "conv_no_bias": ("Conv", {"dilations": [2, 2]}, X, [weights(6, 4, 3, 3)], 17),
    "conv_same_upper": ("Conv", {"auto_pad": "SAME_UPPER", "strides": [2, 2]}, X, [weights(6, 4, 4, 3), weights(6)], 17),
    "conv_same_lower": ("Conv", {"auto_pad": "SAME_LOWER", "strides": [2, 3]}, X, [weights(6, 4, 4, 3), weights(6)], 17),
    "conv_valid": ("Conv", {"auto_pad": "VALID"}, X, [weights(6, 4, 3, 3)], 17),
    "conv_groups": ("Conv", {"group": 2}, X, [weights(6, 2, 3, 3), weights(6)], 17),
    "conv_depthwise": ("Conv", {"group": 4, "pads": [1, 1, 1, 1]}, X, [weights(8, 1, 3, 3), weights(8)], 17),
    "conv1d": ("Conv", {"pads": [1, 1]}, (1, 3, 17), [weights(5, 3, 3), weights(5)], 17),
    "conv_transpose": ("ConvTranspose", {"strides": [2, 2], "pads": [1, 1, 1, 1]}, X, [weights(4, 3, 3, 3), weights(3)], 17),
    "conv_transpose_dilated": (
        "ConvTranspose",
        {"dilations": [2, 3], "group": 2, "pads": [1, 0, 0, 2]},
        X,
        [weights(4, 3, 3, 2)],
        17,
    ),
    "conv_transpose_stated": ("ConvTranspose", {"strides": [2, 3], "output_shape": [20, 31]}, X, [weights(4, 3, 3, 3)], 17),
    "conv_transpose_1d": ("ConvTranspose", {"strides": [3], "pads": [1, 2]}, (1, 3, 17), [weights(3, 5, 4), weights(5)], 17),
    "conv3d": ("Conv", {"pads": [1, 0, 1, 1, 1, 0], "strides": [2, 1, 2]}, VOLUME, [weights(6, 4, 3, 3, 3), weights(6)], 17),
    "conv3d_batch": ("Conv", {"pads": [2, 1, 1, 0, 1, 1], "dilations": [2, 1, 1]}, VOLUMES, [weights(6, 4, 3, 3, 3)], 17),
    "conv3d_groups": ("Conv", {"group": 2, "pads": [1] * 6}, VOLUMES, [weights(6, 2, 3, 1, 3), weights(6)], 17),
    "conv3d_padding_alone": ("Conv", {"pads": [9, 0, 0, 9, 0, 0], "dilations": [8, 1, 1]}, VOLUME, [weights(2, 4, 2, 1, 1)], 17),
    "conv3d_same": ("Conv", {"auto_pad": "SAME_UPPER", "strides": [2, 2, 1]}, VOLUME, [weights(6, 4, 2, 3, 3)], 17),
    "conv_transpose_3d": (
        "ConvTranspose",
        {"strides": [2, 2, 1], "pads": [1] * 6, "output_padding": [1, 0, 0]},
        VOLUMES,
        [weights(4, 3, 3, 3, 3), weights(3)],
        17,
    ),
    "conv_transpose_3d_groups": (
        "ConvTranspose",
        {"strides": [3, 1, 2], "dilations": [2, 1, 1], "group": 2},
        VOLUME,
        [weights(4, 3, 4, 2, 2), weights(6)],
        17,
    ),
    "max_pool_3d": ("MaxPool", {"kernel_shape": [3, 2, 2], "strides": [2, 2, 1]}, VOLUMES, [], 17),
    "max_pool_3d_padded": (
        "MaxPool",
        {"kernel_shape": [3, 2, 2], "strides": [2, 2, 1], "pads": [1, 0, 0, 1, 1, 1]},
        VOLUME,
        [],
        17,
    ),
    "max_pool_3d_depth": ("MaxPool", {"kernel_shape": [2, 1, 1], "ceil_mode": 1, "strides": [4, 1, 1]}, VOLUME, [], 17),
    "average_pool_3d": (
        "AveragePool",
        {"kernel_shape": [3, 3, 2], "strides": [2, 1, 2], "pads": [1, 1, 0, 1, 1, 1]},
        VOLUMES,
        [],
        17,
    ),
    "max_pool": ("MaxPool", {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 1]}, X, [], 17),
    "max_pool_same": ("MaxPool", {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"}, X, [], 17),
    "max_pool_same_lower": ("MaxPool", {"kernel_shape": [2, 4], "strides": [2, 2], "auto_pad": "SAME_LOWER"}, X, [], 17),
    "max_pool_ceil": ("MaxPool", {"kernel_shape": [3, 3], "strides": [3, 2], "ceil_mode": 1}, (1, 2, 10, 10), [], 17),
    "average_pool": ("AveragePool", {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}, X, [], 17),
    "average_pool_include": ("AveragePool", {"kernel_shape": [3, 3], "pads": [1, 0, 1, 2], "count_include_pad": 1}, X, [], 17),
    "average_pool_same": ("AveragePool", {"kernel_shape": [2, 4], "strides": [2, 2], "auto_pad": "SAME_LOWER"}, X, [], 17),
    "lp_pool_ceil": (
        "LpPool",
        {"kernel_shape": [2, 3], "strides": [2, 2], "pads": [1, 0, 0, 1], "ceil_mode": 1},
        (1, 2, 8, 8),
        [],
        18,
    ),
    "lp_pool_ceil_apart": ("LpPool", {"kernel_shape": [2], "strides": [3], "p": 3, "ceil_mode": 1}, (1, 2, 7), [], 18),
    "lp_pool_ceil_padding": ("LpPool", {"kernel_shape": [2], "strides": [2], "pads": [1, 1], "ceil_mode": 1}, (1, 2, 7), [], 18),
    "lp_pool_dilated": (
        "LpPool",
        {"kernel_shape": [3], "strides": [2], "dilations": [2], "p": 1, "ceil_mode": 1},
        (1, 2, 8),
        [],
        18,
    ),
    "lp_pool_3d": ("LpPool", {"kernel_shape": [2, 3, 2], "strides": [2, 2, 1], "ceil_mode": 1}, VOLUME, [], 18),
    "average_pool_ceil": ("AveragePool", {"kernel_shape": [3, 3], "strides": [3, 2], "ceil_mode": 1}, (1, 2, 10, 10), [], 17),
    "global_average_pool": ("GlobalAveragePool", {}, X, [], 17),
    "global_max_pool": ("GlobalMaxPool", {}, X, [], 17),
    "reduce_mean": ("ReduceMean", {"axes": [2, 3], "keepdims": 0}, X, [], 13),
    "reduce_mean_18": ("ReduceMean", {"keepdims": 1}, X, [ints(-1, 1)], 18),
    "gather_scalar": ("Gather", {"axis": -2}, X, [np.int64(-3)], 17),
    "gather_row": ("Gather", {"axis": 1}, X, [ints(-1, 0, 2)], 17),
    "gather_table": ("Gather", {"axis": 3}, X, [ints([0, -1], [5, 2])], 17),
    "tile": ("Tile", {}, X, [ints(1, 2, 1, 3)], 17),
    "expand_keeping": ("Expand", {}, (1, 4, 1), [ints(2, 1, 1, 5)], 17),
    "gemm_column": ("Gemm", {"alpha": 0.5, "beta": 2.0, "transA": 1, "transB": 1}, (7, 3), [weights(5, 7), weights(3, 1)], 17),
    "gemm_negative": ("Gemm", {"alpha": -0.5}, (3, 7), [weights(7, 5)], 17),
    "relu": ("Relu", {}, X, [], 17),
    "clip": ("Clip", {}, X, [np.float32(-0.5), np.float32(0.75)], 17),
    "clip_opset_6": ("Clip", {"min": -0.5, "max": 0.75}, X, [], 6),
    "clip_opset_6_one_sided": ("Clip", {"min": 0.0}, X, [], 6),
    "clip_min": ("Clip", {}, X, [np.float32(0.0)], 17),
    "clip_min_only": ("Clip", {}, X, [np.float32(0.25)], 17),
    "clip_max": ("Clip", {}, X, [None, np.float32(0.75)], 17),
    "clip_nothing": ("Clip", {}, X, [], 17),
    "clip_crossed": ("Clip", {}, X, [np.float32(0.75), np.float32(-0.5)], 17),
    "leaky_relu": ("LeakyRelu", {"alpha": 0.2}, X, [], 17),
    "prelu": ("PRelu", {}, X, [weights(4, 1, 1)], 17),
    "sigmoid": ("Sigmoid", {}, X, [], 17),
    "hard_swish": ("HardSwish", {}, X, [], 17),
    "hard_sigmoid": ("HardSigmoid", {"alpha": 0.3, "beta": 0.4}, X, [], 17),
    "tanh": ("Tanh", {}, X, [], 17),
    "elu": ("Elu", {}, X, [], 17),
    "softmax": ("Softmax", {"axis": 1}, X, [], 17),
    "softmax_opset_11": ("Softmax", {"axis": 1}, X, [], 11),
    "softmax_opset_11_last": ("Softmax", {"axis": 1}, (3, 5), [], 11),
    "log_softmax": ("LogSoftmax", {}, (3, 5), [], 17),
    "gemm": ("Gemm", {"transB": 1}, (3, 8), [weights(5, 8), weights(5)], 17),
    "gemm_scaled": ("Gemm", {"alpha": 0.5, "beta": 2.0, "transA": 1}, (8, 3), [weights(8, 5), weights(1, 5)], 17),
    "gemm_no_bias": ("Gemm", {}, (3, 8), [weights(8, 5)], 17),
    "matmul": ("MatMul", {}, (2, 3, 8), [weights(8, 5)], 17),
    "add": ("Add", {}, X, [weights(4, 1, 1)], 17),
    "sub": ("Sub", {}, X, [weights(11)], 17),
    "mul_scalar": ("Mul", {}, X, [np.float32(1.5)], 17),
    "div": ("Div", {}, X, [np.abs(weights(4, 1, 1)) + 1], 17),
    "pow": ("Pow", {}, X, [np.float32(2.0)], 17),
    "batch_norm": (
        "BatchNormalization",
        {"epsilon": 0.01},
        X,
        [weights(4), weights(4), weights(4), np.abs(weights(4)) + 0.1],
        17,
    ),
    "batch_norm_opset_9": ("BatchNormalization", {}, X, [weights(4), weights(4), weights(4), np.abs(weights(4)) + 0.1], 9),
    "instance_norm": ("InstanceNormalization", {}, X, [weights(4), weights(4)], 17),
    "mean_variance_norm": ("MeanVarianceNormalization", {"axes": [1, 3]}, X, [], 17),
    "lp_norm": ("LpNormalization", {"axis": 1}, X, [], 17),
    "lp_norm_1": ("LpNormalization", {"p": 1}, X, [], 17),
    "layer_norm_broadcast": ("LayerNormalization", {"axis": 1}, (2, 3, 8), [weights(8), weights(3, 1)], 17),
    "layer_norm": ("LayerNormalization", {}, (2, 3, 8), [weights(8), weights(8)], 17),
    "transpose": ("Transpose", {"perm": [0, 2, 3, 1]}, X, [], 17),
    "flatten": ("Flatten", {}, X, [], 17),
    "flatten_axis": ("Flatten", {"axis": -1}, X, [], 17),
    "reshape": ("Reshape", {}, X, [ints(0, -1, 11)], 17),
    "squeeze": ("Squeeze", {}, (1, 4, 1, 3), [ints(2)], 17),
    "unsqueeze": ("Unsqueeze", {}, (4, 3), [ints(0, 3)], 17),
    "unsqueeze_one": ("Unsqueeze", {}, (4, 3), [np.int64(-1)], 17),
    "pad": ("Pad", {}, X, [ints(0, 0, 1, 2, 0, 1, 0, 3), np.float32(0.5)], 17),
    "pad_opset_2": ("Pad", {"pads": [0, 0, 1, 2, 0, 1, 0, 3], "value": 1.5}, X, [], 2),
    "pad_reflect": ("Pad", {"mode": "reflect"}, X, [ints(0, 0, 1, 2, 0, 0, 3, 1)], 17),
    "pad_edge": ("Pad", {"mode": "edge"}, X, [ints(0, 0, 1, 2, 0, 0, 3, 1)], 17),
    "pad_axes": ("Pad", {}, X, [ints(1, 2, 3, 4), None, ints(2, -1)], 18),
    "slice": ("Slice", {}, X, [ints(1, -4), ints(8, 2**62), ints(2, 3), ints(2, 1)], 17),
    "gather": ("Gather", {"axis": 1}, X, [ints(3, 1, -1)], 17),
    "expand": ("Expand", {}, (1, 4, 1), [ints(2, 1, 5)], 17),
    "resize_nearest": (
        "Resize",
        {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
        X,
        [None, np.float32([1, 1, 2, 2])],
        13,
    ),
    "resize_linear": ("Resize", {"mode": "linear"}, X, [None, np.float32([1, 1, 3, 2])], 13),
    "resize_align": (
        "Resize",
        {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
        X,
        [None, None, ints(1, 4, 20, 15)],
        13,
    ),
    "resize_opset_10": ("Resize", {"mode": "nearest"}, X, [np.float32([1, 1, 2, 3])], 10),
    "upsample_opset_9": ("Upsample", {"mode": "nearest"}, X, [np.float32([1, 1, 2, 2])], 9),
    "depth_to_space": ("DepthToSpace", {"blocksize": 2}, X, [], 17),
    "space_to_depth": ("SpaceToDepth", {"blocksize": 3}, (1, 2, 9, 12), [], 17),
    "identity": ("Identity", {}, X, [], 17),
    "erf": ("Erf", {}, X, [], 17),
    "cast": ("Cast", {"to": onnx.TensorProto.FLOAT}, X, [], 17),
    "pad_negative": ("Pad", {}, X, [ints(0, 0, -1, 2, 0, -1, 3, -2), np.float32(0.5)], 17),
    "pad_negative_edge": ("Pad", {"mode": "edge"}, X, [ints(0, 0, -1, 2, 0, 0, 3, -1)], 17),
    "dft": ("DFT", {"axis": 1}, (2, 9, 1), [], 17),
    "dft_one_side_longer": ("DFT", {"axis": 2, "onesided": 1}, (2, 3, 10, 1), [ints(16)[0]], 17),
    "dft_inverse_shorter": ("DFT", {"inverse": 1}, (2, 12, 3, 2), [ints(8)[0], ints(1)[0]], 20),
    "stft": ("STFT", {}, (2, 64, 1), [ints(10)[0], np.hanning(16).astype(np.float32)], 17),
    "stft_both_sides": ("STFT", {"onesided": 0}, (2, 64, 1), [ints(12)[0], None, ints(15)[0]], 17),
    "col2im": ("Col2Im", {}, (1, 8, 9), [ints(4, 4), ints(2, 2)], 18),
    "col2im_padded": ("Col2Im", {"strides": [2, 2], "pads": [1, 1, 2, 2]}, (2, 12, 16), [ints(5, 5), ints(2, 2)], 18),
    "col2im_dilated": ("Col2Im", {"strides": [2, 2], "dilations": [2, 2]}, (1, 8, 4), [ints(6, 5), ints(2, 2)], 18),
    "max_unpool": (
        "MaxUnpool",
        {"kernel_shape": [2, 2], "strides": [2, 2]},
        (1, 2, 2, 2),
        [ints(0, 3, 9, 14, 17, 18, 24, 29).reshape(1, 2, 2, 2)],
        17,
    ),
    "reverse_sequence": ("ReverseSequence", {}, (5, 3, 2), [ints(5, 2, 1)], 17),
    "reverse_sequence_of_batch": ("ReverseSequence", {"batch_axis": 0, "time_axis": 1}, (3, 5, 2), [ints(5, 2, 1)], 17),
    "top_k_opset_1": ("TopK", {"k": 2, "axis": 0}, (4, 3), [], 9),
    "top_k_opset_10": ("TopK", {}, (4, 7), [ints(3)], 10),
    "deformed": (
        "DeformConv",
        {"pads": [1, 2, 1, 2], "offset_group": 2},
        X,
        [weights(6, 4, 3, 3), 2 * weights(1, 36, 9, 13), weights(6), np.abs(weights(1, 18, 9, 13))],
        19,
    ),
    "deformed_groups": (
        "DeformConv",
        {"group": 2, "strides": [2, 1], "dilations": [1, 2]},
        (2, 4, 9, 11),
        [weights(6, 2, 2, 3), weights(2, 12, 4, 7)],
        22,
    ),
}


def model_of(make_onnx, op, attributes, shape, constants, opset):
    names = [None if value is None else f"c{index}" for index, value in enumerate(constants)]
    outputs = ["y", "places"] if op == "TopK" else ["y"]
    node = make_node(op, ["x", *(name or "" for name in names)], outputs, name="node", **attributes)
    values = {name: value for name, value in zip(names, constants, strict=True) if name}
    return make_onnx([node], {"x": shape}, {"y": None}, {name: np.asarray(v) for name, v in values.items()}, opset)


def reference(model, *inputs):
    session = reference_session(model)
    return session.run(None, dict(zip([i.name for i in session.get_inputs()], inputs, strict=True)))


@pytest.mark.parametrize("case", CASES)
def test_op(case, run, make_onnx):
    op, attributes, shape, constants, opset = CASES[case]
    proto = model_of(make_onnx, op, attributes, shape, constants, opset)
    model = load(proto)
    relax.analysis.well_formed(model.module)
    assert [name.name_hint for name in model.module.get_global_vars()] == ["main"]
    x = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    (expected,) = reference(proto, x)
    (actual,) = run(model.bound(), x)
    assert actual.shape == expected.shape
    assert actual.shape == model.tensors[model.output_ids[0]].shape
    np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=2e-5)


REJECTED = {
    "pad_of_nothing": ("Pad", {}, X, [ints(0, 0, -9, 0, 0, 0, 2, 0)], 17, "take all of"),
    "dft_of_its_parts": ("DFT", {"axis": 2}, (2, 9, 1), [], 17, "axis 2 is none that a signal"),
    "col2im_counts": ("Col2Im", {}, (1, 8, 9), [ints(5, 4), ints(2, 2)], 18, "columns of shape"),
    "max_unpool_shape": (
        "MaxUnpool",
        {"kernel_shape": [2, 2], "strides": [2, 2]},
        (1, 1, 2, 2),
        [ints(0, 3, 9, 14).reshape(1, 1, 2, 2), ints(1, 1, 5, 5)],
        17,
        "output_shape",
    ),
    "conv_rank": ("Conv", {}, (2, 3), [weights(4, 3)], 17, "no 1-d to 3-d convolution"),
    "gather_out_of_range": ("Gather", {"axis": 1}, (2, 3), [ints(-4)], 17, "out of range on axis 1"),
    "tile_nothing": ("Tile", {}, (2, 3), [ints(0, 1)], 17, "do not fit"),
    "unknown_op": ("Multinomial", {"sample_size": 3, "dtype": 6}, (2, 3), [], 17, "is not supported by the importer"),
}


@pytest.mark.parametrize("case", REJECTED)
def test_rejected_form_names_op_node_tensor_and_reason(case, make_onnx):
    *description, reason = REJECTED[case]
    with pytest.raises(UnsupportedOpError, match=reason) as caught:
        load(model_of(make_onnx, *description))
    assert f"op {description[0]} (node 'node', output tensor 'y')" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "dilation", "lower", "expected"),
    [
        (9, 4, 2, 1, False, (1, 2)),
        (9, 4, 2, 1, True, (2, 1)),
        (224, 3, 2, 1, False, (0, 1)),
        (7, 3, 1, 2, False, (2, 2)),
        # The stride skips more than the kernel covers: nothing is padded, never a negative amount.
        (9, 1, 3, 1, True, (0, 0)),
    ],
)
def test_same_padding(size, kernel, stride, dilation, lower, expected):
    assert same_padding(size, kernel, stride, dilation, lower=lower) == expected


def test_layer_norm_gives_its_statistics(rng, run, make_onnx):
    proto = make_onnx(
        [make_node("LayerNormalization", ["x", "g"], ["y", "", "inverse"], axis=-2, epsilon=0.1)],
        {"x": (2, 3, 8)},
        {"y": (2, 3, 8), "inverse": (2, 1, 1)},
        {"g": weights(3, 8, rng=rng)},
    )
    x = np.random.default_rng(3).standard_normal((2, 3, 8)).astype(np.float32)
    for actual, expected in zip(run(load(proto).bound(), x), reference(proto, x), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=2e-5)


def test_indices_of_run_time_stay_in_range(rng, run, make_onnx, capfd):
    """Those beyond the axis take its ends; TVM has nothing to warn of."""
    proto = make_onnx(
        [make_node("Gather", ["table", "i"], ["y"])],
        {"i": (5,)},
        {"y": None},
        {"table": weights(4, 3, rng=rng)},
        dtype=onnx.TensorProto.INT64,
    )
    model = load(proto)
    (taken,) = run(model.bound(), ints(-9, -1, 0, 4, 10**9))
    table = onnx.numpy_helper.to_array(proto.graph.initializer[0])
    np.testing.assert_array_equal(taken, table[[0, 3, 0, 3, 3]])
    assert "Warning" not in capfd.readouterr().err


def test_operands_of_before_opset_7_begin_at_an_axis(rng, run, make_onnx):
    b = weights(4, rng=rng)
    node = make_node("Sub", ["x", "b"], ["y"], broadcast=1, axis=1)
    x = weights(*X, rng=rng)
    (actual,) = run(load(make_onnx([node], {"x": X}, {"y": X}, {"b": b}, 6)).bound(), x)
    np.testing.assert_array_equal(actual, x - b.reshape(4, 1, 1))


@pytest.mark.parametrize("time", [0, 1])
def test_lengths_of_run_time_turn_their_steps_round(time, rng, run, make_onnx):
    nodes = [make_node("Cast", ["n"], ["count"], to=onnx.TensorProto.INT64)]
    nodes.append(make_node("ReverseSequence", ["x", "count"], ["y"], time_axis=time, batch_axis=1 - time))
    proto = make_onnx(nodes, {"x": (4, 4, 2), "n": (4,)}, {"y": (4, 4, 2)})
    x, n = weights(4, 4, 2, rng=rng), np.float32([4, 1, 3, 2])
    (actual,) = run(load(proto).bound(), x, n)
    np.testing.assert_array_equal(actual, reference(proto, x, n)[0])


@pytest.mark.parametrize("op", ["Div", "Mod"])
def test_products_that_wrap_around_are_divided_as_they_are(op, run, make_onnx):
    """TVM would take the factor out of a quotient, or reduce it: right for numbers that never wrap."""
    nodes = [
        make_node("Cast", ["x"], ["i"], to=onnx.TensorProto.INT32),
        make_node("Mul", ["i", "factor"], ["product"]),
        make_node("Add", ["product", "one"], ["sum"]),
        make_node(op, ["sum", "divisor"], ["z"]),
        make_node("Cast", ["z"], ["y"], to=onnx.TensorProto.FLOAT),
    ]
    constants = {name: np.asarray(value, np.int32) for name, value in (("factor", 65536), ("one", 1), ("divisor", 256))}
    proto = make_onnx(nodes, {"x": (4,)}, {"y": (4,)}, constants)
    x = np.float32([1, 1234567, 8388607, -77777])
    (actual,) = run(load(proto).bound(), x)
    np.testing.assert_array_equal(actual, reference(proto, x)[0])


@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMin"])
@pytest.mark.parametrize("axes", [{}, {"axes": [1]}, {"axes": [0, -1], "keepdims": 0}])
def test_extremes_of_booleans(op, axes, rng, run, make_onnx):
    x = rng.choice(np.float32([0, 1]), (3, 2, 4))
    attributes = dict(axes)
    constants = {"axes": ints(*attributes.pop("axes"))} if axes else {}
    nodes = [
        make_node("Cast", ["x"], ["b"], to=onnx.TensorProto.BOOL),
        make_node(op, ["b", *constants], ["z"], **attributes),
        make_node("Cast", ["z"], ["y"], to=onnx.TensorProto.FLOAT),
    ]
    (actual,) = run(load(make_onnx(nodes, {"x": x.shape}, {"y": None}, constants, 20)).bound(), x)
    expected = (x.max if op == "ReduceMax" else x.min)(tuple(axes.get("axes", (0, 1, 2))), keepdims=bool(axes.get("keepdims", 1)))
    np.testing.assert_array_equal(actual, expected)
