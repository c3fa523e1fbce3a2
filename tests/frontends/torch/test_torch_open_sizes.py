"""Torch programs with open sizes: any size gives what PyTorch gives, and the bytes of what is compiled for that size alone."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import tvm

import octavo
from octavo.errors import DataError, ModelError
from octavo.ir.graph.fixed_sizes import at_sizes

torch = pytest.importorskip("torch", reason="needs PyTorch: make test-torch")
nn, functional = torch.nn, torch.nn.functional
Dim = torch.export.Dim


def load(net, inputs, dims, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return octavo.load(torch.export.export(net.eval(), inputs, dynamic_shapes=dims), **options)


def compare(net, model, executable, inputs, sizes, *, atol=2e-6):
    named = {name: value.numpy() for name, value in zip(model.input_ids, inputs, strict=True)}
    results = list(executable(named).values())
    module = tvm.IRModule(at_sizes(dict(model.module.functions_items()), sizes))
    alone = octavo.compile(replace(model, module=module, sizes={}))(named).values()
    expected = net(*inputs)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for ours, static, theirs in zip(results, alone, expected, strict=True):
        assert ours.shape == tuple(theirs.shape)
        assert ours.tobytes() == static.tobytes(), sizes
        np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=1e-5, atol=atol)


class Decoder(nn.Module):
    """Attention behind a past, with all that is computed of sizes on the way: views, positions, a mask, a causal block."""

    def __init__(self):
        super().__init__()
        self.projected, self.out, self.place = nn.Linear(16, 48), nn.Linear(16, 16), nn.Embedding(64, 16)

    def forward(self, x, keys, values):
        b, s, _ = x.shape
        past = keys.shape[2]
        x = x + self.place(torch.arange(past, past + s))
        q, k, v = (part.view(b, s, 2, -1).transpose(1, 2) for part in self.projected(x).chunk(3, -1))
        k, v = torch.cat([keys, k], 2), torch.cat([values, v], 2)
        mask = torch.full((s, past + s), float("-inf")).triu(past + 1)
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        causal = functional.scaled_dot_product_attention(q, q, q, is_causal=True)
        return self.out((y + causal).transpose(1, 2).reshape(b, s, -1)), k, x[:, -1]


def test_a_decoder_takes_any_batch_sequence_and_past():
    torch.manual_seed(0)
    batch, sequence, past = Dim("batch"), Dim("sequence", min=1, max=8), Dim("past", min=0, max=50)
    net = Decoder()

    def made(b, s, p):
        return torch.randn(b, s, 16), torch.randn(b, 2, p, 8), torch.randn(b, 2, p, 8)

    model = load(net, made(3, 4, 5), ({0: batch, 1: sequence}, {0: batch, 2: past}, {0: batch, 2: past}))
    assert model.sizes == {"batch": (1, None), "sequence": (1, 8), "past": (0, 50)}
    executable = octavo.compile(model)
    for b, s, p in ((1, 1, 0), (2, 7, 19)):
        compare(net, model, executable, made(b, s, p), {"batch": b, "sequence": s, "past": p})


class Derived(nn.Module):
    """A size that is twice another, sizes as numbers, and ops that take sizes."""

    def forward(self, x, y):
        b = x.shape[0]
        places = torch.zeros(b, 3) + torch.arange(b)[:, None]
        return x + y.reshape(b, 2, -1).sum(1), torch.cat([x, y]).repeat(1, 2), places, y.cumsum(0), y[b:].flip(0), x.sum(0) / b


def test_sizes_that_are_computed():
    batch = Dim("batch")
    net = Derived()
    model = load(net, (torch.randn(3, 5), torch.randn(6, 5)), ({0: batch}, {0: 2 * batch}))
    executable = octavo.compile(model)
    for b in (1, 4):
        compare(net, model, executable, (torch.randn(b, 5), torch.randn(2 * b, 5)), {"batch": b})


class Halved(nn.Module):
    def forward(self, x):
        half = functional.max_pool2d(x, 2)
        quarter = functional.interpolate(functional.max_pool2d(half, 2), scale_factor=2.0) + half
        return torch.cat([x, functional.interpolate(quarter, scale_factor=2.0, mode="bilinear")], 1)


def test_a_size_that_is_a_multiple_of_a_dim():
    h, w = Dim("h", max=9), Dim("w")
    net = Halved()
    model = load(net, (torch.randn(2, 3, 8, 12),), ({0: Dim("batch"), 2: 4 * h, 3: 4 * w},))
    assert model.sizes == {"batch": (1, None), "h": (1, 9), "w": (1, None)}
    executable = octavo.compile(model)
    for rows, columns in ((1, 2), (9, 3)):
        sizes = {"batch": 3, "h": rows, "w": columns}
        compare(net, model, executable, (torch.randn(3, 3, 4 * rows, 4 * columns),), sizes)
    with pytest.raises(DataError, match=r"has 10 along axis 2, dimension 4\*h takes multiples of 4 only: 8 or 12"):
        executable(np.zeros((1, 3, 10, 8), np.float32))


class Skipped(nn.Module):
    """As a U-Net does: down, up, and padded to the size of what was skipped, which is a pixel more where that is odd."""

    def forward(self, x):
        up = functional.interpolate(functional.max_pool2d(x, 2), scale_factor=2.0)
        extra = [x.shape[-1] - up.shape[-1], x.shape[-2] - up.shape[-2]]
        return x + functional.pad(up, [extra[0] // 2, extra[0] - extra[0] // 2, 0, extra[1]], value=0.5)


class Views(nn.Module):
    """A view by a number, and the mean of what a slice leaves."""

    def forward(self, x, z):
        return torch.relu(x).view(-1, 3), torch.relu(z)[:, 3:].mean(1)


def test_a_view_leaves_nothing_out_and_a_mean_has_elements():
    auto = Dim.AUTO
    model = load(Views(), (torch.randn(6, 5), torch.randn(6, 9)), {"x": {0: auto}, "z": {0: auto, 1: auto}})
    executable = octavo.compile(model)
    x, z = np.ones((3, 5), np.float32), np.ones((3, 4), np.float32)
    first, second = executable({"x": x, "z": z}).values()
    assert (first.shape, second.shape) == ((5, 3), (3,))
    for given, said in (
        ({"x": x[:2], "z": z[:2]}, r"5\*x_dim0 is 10 \(input x has 2 along axis 0\) and must be a multiple of 3: a reshape"),
        ({"x": x, "z": z[:, :3]}, r"z_dim1 is 3 \(input z has 3 along axis 1\) and must be at least 4: a tensor"),
    ):
        with pytest.raises(DataError, match=f"^input: {said} within would [^\n]*$"):
            executable(given)


def test_a_width_that_is_0_or_1():
    net = Skipped()
    model = load(net, (torch.randn(2, 3, 8, 12),), ({0: Dim("batch"), 2: Dim("height", min=4), 3: Dim("width", min=4)},))
    executable = octavo.compile(model)
    for rows, columns in ((7, 6), (4, 9)):
        compare(net, model, executable, (torch.randn(3, 3, rows, columns),), {"batch": 3, "height": rows, "width": columns})


def test_open_height_and_width_in_int8(rng):
    torch.manual_seed(0)
    body = (nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 1, 1))
    net = nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
    dims = ({0: Dim("batch"), 2: Dim("height", min=4), 3: Dim("width", min=4)},)
    model = load(net, (torch.randn(2, 3, 12, 14),), dims)
    samples = [rng.standard_normal((2, 3, h, w)).astype(np.float32) for h, w in ((9, 12), (16, 7), (8, 8))]
    quantized = octavo.quantize(model, octavo.profile(model, samples))
    executable = octavo.compile(quantized)
    for b, h, w in ((1, 5, 8), (3, 18, 11)):
        x = torch.from_numpy(rng.standard_normal((b, 3, h, w)).astype(np.float32))
        compare(net, quantized, executable, (x,), {"batch": b, "height": h, "width": w}, atol=0.05)


@pytest.mark.parametrize("is_dynamic", [False, True])
def test_what_pt2e_quantized_at_open_sizes(patterns_once, is_dynamic):
    """Integers may be a step off PyTorch's, which sums in float."""
    from torch_nets import quantize

    torch.manual_seed(0)
    body = (nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 1, 1, groups=8), nn.MaxPool2d(2))
    net = nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)).eval()
    dims = ({0: Dim("batch"), 2: Dim("height", min=8), 3: Dim("width", min=8)},)
    converted, program = quantize(net, {"is_per_channel": True, "is_dynamic": is_dynamic}, (2, 3, 12, 14), dims)
    model = octavo.load(program)
    executable = octavo.compile(model)
    for b, h, w in ((1, 9, 8), (3, 18, 31)):
        x = torch.randn(b, 3, h, w)
        compare(
            converted,
            model,
            executable,
            (x,),
            {"batch": b, "height": h, "width": w},
            atol=float(converted(x).detach().abs().max()) * 2 / 255,
        )


class Rows(nn.Module):
    def forward(self, x):
        return x.softmax(1)


OPEN = ({0: Dim("batch"), 1: Dim("sequence", min=2, max=64)},)


@pytest.mark.parametrize(
    ("options", "bounds"),
    [
        ({}, {"batch": (1, None), "sequence": (1, 64)}),
        ({"sizes": {"sequence": (2, 9), "batch": 2}}, {"sequence": (2, 9)}),
        ({"shapes": {"x": ("rows", 7)}}, {"rows": (1, None)}),
        ({"sizes": {"batch": 1, "sequence": 5}}, {}),
    ],
)
def test_sizes_and_shapes_fix_bound_and_rename(options, bounds):
    assert load(Rows(), (torch.randn(3, 6),), OPEN, **options).sizes == bounds


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sizes": {"sequence": 65}}, r"dimension sequence is 65, the program was exported for \[1; 64\]"),
        ({"sizes": {"sequence": (1, 65)}}, r"dimension sequence is 1\.\.65, the program was exported for \[1; 64\]"),
        ({"sizes": {"width": 3}}, "there is no dimension 'width' to give a size; the open ones are batch, sequence"),
    ],
)
def test_options_that_do_not_fit(options, message):
    with pytest.raises(ModelError, match=message):
        load(Rows(), (torch.randn(3, 6),), OPEN, **options)


def test_a_batch_of_samples_apart_is_one_sample():
    dims = ({0: Dim("batch")},)
    model = load(Rows(), (torch.randn(3, 6),), dims)
    assert (model.any_batch, model.sizes) == (True, {})
    for joined in (
        lambda x: x.softmax(0),
        lambda x: x + torch.arange(x.shape[0])[:, None],
        lambda x: x / x.shape[0],
        lambda x: torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,)),
    ):
        net = Rows()
        net.forward = joined
        model = load(net, (torch.randn(3, 6),), dims)
        assert (model.any_batch, list(model.sizes)) == (False, ["batch"])
