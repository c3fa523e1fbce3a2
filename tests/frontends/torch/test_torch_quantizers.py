"""benchmarks/torch_quantizers.py on a reduced set, and PT2E's forms and numbers op by op."""

import warnings

import numpy as np
import pytest

import octavo
from octavo.errors import UnsupportedOpError

SETUP = "needs PyTorch and torchao: make test-torch"


@pytest.fixture(scope="module")
def bench(patterns_once):
    pytest.importorskip("torch", reason=SETUP)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("torchao", reason=SETUP, exc_type=ImportError)
        import torch_quantizers

    return torch_quantizers


@pytest.fixture(scope="module")
def dense(bench):
    return bench.trained("dense", epochs=1)


@pytest.fixture
def small(bench):
    """A net of one convolution and one dense layer, untrained."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(36, 10))


def test_what_pt2e_quantized_is_integer_and_chooses_pytorch_s_classes(bench, dense):
    result = bench.measure("dense", "xnnpack", net=dense, evaluation=300)
    assert result.loads == "yes"
    assert result.heavy_integer == result.heavy == 4
    assert result.agreement >= 0.99
    assert (result.unit, result.largest <= 1) == ("steps", True)


@pytest.mark.parametrize("variant", ["xnnpack_dynamic", "x86_dynamic"])
def test_what_is_quantized_at_run_time_is_integer_and_chooses_pytorch_s_classes(bench, dense, variant):
    result = bench.measure("dense", variant, net=dense, evaluation=300)
    assert result.loads == "yes"
    assert result.heavy_integer == result.heavy == 4
    assert result.agreement >= 0.99
    assert (result.unit, result.largest <= 1e-6) == ("of range", True)


def test_run_time_scales_are_those_of_the_definition(bench):
    """The oracle's scale, zero point and integers are PyTorch's own, bit for bit."""
    import torch

    from octavo.numerics import dynamic

    ops = torch.ops.quantized_decomposed
    rng = np.random.default_rng(1)
    for dtype, qmin, qmax in (("int8", -128, 127), ("uint8", 0, 255), ("uint8", 0, 127), ("int8", -127, 127)):
        for is_symmetric in (False, True):
            style = dynamic.TorchStyle(dtype=dtype, qmin=qmin, qmax=qmax, eps=2**-12, is_symmetric=is_symmetric)
            choose = ops.choose_qparams_symmetric if is_symmetric else ops.choose_qparams
            for shift, scale in ((0, 1), (3, 0.2), (-3, 0.2), (0, 0), (0, 1e-5), (1e4, 1e5)):
                x = (shift + scale * rng.standard_normal((1, 501))).astype(np.float32)
                found = choose.tensor(torch.from_numpy(x), qmin, qmax, 2**-12, getattr(torch, dtype))
                args = (*found, qmin, qmax, getattr(torch, dtype))
                theirs = ops.quantize_per_tensor.tensor(torch.from_numpy(x), *args).numpy()
                relabel = 128 if dtype == "int8" else 0
                parameters = dynamic.dynamic_parameters(x, style)
                assert parameters.tolist() == [[found[0].item(), found[1].item() + relabel]]
                ours = dynamic.dynamic_quantize(x, parameters, style)
                np.testing.assert_array_equal(ours, theirs.astype(np.int32) + relabel)


def test_a_network_trained_quantized_is_integer(bench, small):
    """Its weights, too, which PyTorch did not fold here."""
    variant = bench.Variant(quantizer=lambda: bench._xnnpack(is_qat=True), trains=True, convert={"fold_quantize": False})
    program = bench.quantized(small, variant, samples=64)
    explanation = octavo.explain(octavo.load(program))
    assert [op.integer for op in explanation.ops if op.macs] == [True] * 2


def test_the_reference_representation_is_refused():
    """It spells a product of integers as a product of that op's; benchmarks/torch_quantizers.py makes a whole one."""
    torch = pytest.importorskip("torch", reason="needs PyTorch: make test-torch")

    class Reference(torch.nn.Module):
        def forward(self, x):
            return torch.ops.higher_order.out_dtype(torch.ops.aten.mm.default, torch.int32, x, x)

    program = torch.export.export(Reference(), (torch.ones(3, 3, dtype=torch.int8),))
    with pytest.raises(UnsupportedOpError, match="call convert_pt2e without use_reference_representation"):
        octavo.load(program)


def test_weights_that_pytorch_did_not_fold_become_the_integers_that_it_folds(bench, small, monkeypatch):
    monkeypatch.setattr(bench, "CALIBRATION", 16)
    integers = []
    for convert in (None, {"fold_quantize": False}):
        variant = bench.Variant(quantizer=lambda: bench._xnnpack(is_per_channel=True), convert=convert)
        model = octavo.load(bench.quantized(small, variant))
        integers.append([value for value in model.params.values() if value.dtype == np.int8])
    assert len(integers[0]) == len(integers[1]) == 2
    for folded, ours in zip(*integers, strict=True):
        np.testing.assert_array_equal(ours, folded)


def test_scales_found_at_run_time_are_pytorch_s(bench):
    """A range on one side of 0, and a tensor of zeros, whose scale is the smallest."""
    import torch

    class Net(torch.nn.Module):
        def forward(self, x):
            found = torch.ops.quantized_decomposed.choose_qparams.tensor(x, -128, 127, 2**-12, torch.int8)
            q = torch.ops.quantized_decomposed.quantize_per_tensor.tensor(x, *found, -128, 127, torch.int8)
            even = torch.ops.quantized_decomposed.choose_qparams_symmetric.tensor(x, 0, 255, 2**-12, torch.uint8)
            q2 = torch.ops.quantized_decomposed.quantize_per_tensor.tensor(x, *even, 0, 255, torch.uint8)
            back = torch.ops.quantized_decomposed.dequantize_per_tensor.tensor(q, *found, -128, 127, torch.int8)
            return q, q2, back

    rng = np.random.default_rng(0)
    executable = octavo.compile(octavo.load(torch.export.export(Net(), (torch.zeros(4, 50),))))
    shifts = ((0.0, 1.0), (3.0, 0.2), (-3.0, 0.2), (0.0, 0.0))
    for x in (shift + scale * rng.standard_normal((4, 50), np.float32) for shift, scale in shifts):
        x = x.astype(np.float32)
        for ours, theirs in zip(executable(x).values(), Net()(torch.from_numpy(x)), strict=True):
            np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-6)


def test_each_op_gives_pytorch_s_integers(bench):
    """XNNPACK's quantizer: of every op at least 99.9% of the values are equal and none is off by more than 1."""
    import torch
    from torch import nn

    class Net(nn.Module):
        """Every op reads an input or what only rounding made, so that no difference comes from the op before."""

        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(8, 12, 3, padding=1)
            self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
            self.linear = nn.Linear(16, 24)

        def forward(self, x, y):
            total = nn.functional.hardtanh(x + y, -2.5, 3.0)
            pooled = nn.functional.max_pool2d(total, 2)
            return (
                torch.relu(self.conv(x)),
                self.depthwise(y),
                self.linear(x),
                torch.relu(x + y),
                x * y,
                nn.functional.adaptive_avg_pool2d(x + y, 1),
                total,
                pooled + pooled,
            )

    torch.manual_seed(4)
    example = (torch.randn(8, 8, 16, 16), torch.randn(8, 8, 16, 16))
    with bench._quiet():
        from torchao.quantization.pt2e import quantize_pt2e

        prepared = quantize_pt2e.prepare_pt2e(
            torch.export.export(Net().eval(), example).module(), bench._xnnpack(is_per_channel=True)
        )
        prepared(*example)
        program = torch.export.export(quantize_pt2e.convert_pt2e(prepared), example)
        expected = [value.detach().numpy() for value in program.module()(*example)]
    executable = octavo.compile(octavo.load(program))
    assert all(op.integer for op in octavo.explain(executable).ops)
    got = executable(dict(zip(program.graph_signature.user_inputs, (value.numpy() for value in example), strict=True)))
    assert len(got) == len(expected) == 8
    for (name, ours), theirs in zip(got.items(), expected, strict=True):
        levels = np.unique(theirs)
        steps = np.rint(np.abs(ours - theirs) / np.diff(levels).min())
        assert steps.max() <= 1, name
        assert (steps == 0).mean() >= 0.999, f"{name}: {(steps == 0).mean():.5f}"
