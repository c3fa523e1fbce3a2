"""Torch programs with an open batch: mixed samples give PyTorch's values or one clear refusal, others run apart."""

import warnings

import numpy as np
import pytest
from torch_checks import Apply, torch

import octavo
from octavo.errors import UnsupportedOpError

nn, functional = torch.nn, torch.nn.functional
Dim = torch.export.Dim


def load(function, shape, parts=(), inputs=1):
    batch = Dim("batch", min=8, max=64)
    values = tuple(torch.randn(8, *shape) for _ in range(inputs))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net = Apply(function, *parts).eval()
        return net, octavo.load(torch.export.export(net, values, dynamic_shapes=(({0: batch},) * inputs,)))


LIBRARY = torch.library.Library("octavo_samples", "DEF")
LIBRARY.define("linear(Tensor x) -> Tensor")
LIBRARY.define("my_conv1d(Tensor x) -> Tensor")
for name in ("linear", "my_conv1d"):
    LIBRARY.impl(name, lambda x: x.cumsum(0), "CompositeImplicitAutograd")
"""Ops that are not known, whatever they are called, composed of one that mixes samples."""


def row_of_samples(x):
    """The samples as the last axis: what slides along a row slides along them."""
    return x.T[None]


MIXING = {
    "tril": lambda x: x.tril(),
    "triu": lambda x: x.triu(1),
    "cumsum": lambda x: x.cumsum(0),
    "cumprod": lambda x: x.cumprod(0),
    "cummax": lambda x: x.cummax(0).values,
    "logcumsumexp": lambda x: x.logcumsumexp(0),
    "flip": lambda x: x.flip(0),
    "flipud": lambda x: x.flipud(),
    "rot90": lambda x: x.rot90(2),
    "roll": lambda x: x.roll(1, 0),
    "roll of all": lambda x: x.roll(1),
    "softmax": lambda x: x.softmax(0),
    "log_softmax": lambda x: x.T.log_softmax(-1).T,
    "sort": lambda x: x.sort(0).values,
    "msort": lambda x: x.msort(),
    "argsort": lambda x: x.argsort(0),
    "order of one axis": lambda x: x[x[:, 0].argsort()],
    "index": lambda x: x[(x[:, 0] > 0).long()],
    "take": lambda x: x.take((x > 0).long()),
    "index_select": lambda x: x.index_select(0, (x[:, 0] > 0).long()),
    "gather": lambda x: x.gather(0, (x > 0).long()),
    "scatter_add": lambda x: x.scatter_add(0, (x > 0).long(), x),
    "embedding": lambda x: functional.embedding((x[:, 0] > 0).long(), x),
    "bucketize": lambda x: torch.bucketize(x, x[:, 0].abs().cumsum(0)),
    "eye": lambda x: x + torch.eye(x.shape[0], 6),
    "fft": lambda x: torch.view_as_real(torch.fft.fft(x, dim=0)).flatten(1),
    "cumsum in place": lambda x: x.clone().cumsum_(0),
    "tril in place": lambda x: x.clone().tril_(),
    "index_fill in place": lambda x: x.clone().index_fill_(0, torch.tensor([1]), 2.0),
    "scatter in place": lambda x: x.clone().scatter_(0, (x > 0).long(), x),
    "pad of rows that takes as many": lambda x: functional.pad(x, (0, 0, 1, -1)),
    "ops of another library": lambda x: torch.ops.octavo_samples.my_conv1d(torch.ops.octavo_samples.linear(x)),
    "view of columns": lambda x: x.T.reshape(-1, 6),
    "repeat": lambda x: x.repeat(2, 1).reshape(-1, 2, 6),
    "attention": lambda x: functional.scaled_dot_product_attention(x[None], x[None], x[None])[0],
    "avg_pool": lambda x: functional.avg_pool1d(row_of_samples(x), 3, 1, 1)[0].T,
    "conv": lambda x: functional.conv1d(row_of_samples(x), torch.ones(6, 6, 3), padding=1)[0].T,
    "group_norm": lambda x: functional.group_norm(row_of_samples(x), 2)[0].T,
    "instance_norm": lambda x: functional.instance_norm(row_of_samples(x))[0].T,
    "interpolate": lambda x: functional.interpolate(row_of_samples(x), scale_factor=2, mode="linear")[0].T[::2][: x.shape[0]],
    "einsum": lambda x: torch.einsum("nc,mc->nc", x, x.flip(1)),
}
"""Of rows of 6."""
OPEN = "it is not supported for open sizes; fix batch"
REFUSED = {
    **dict.fromkeys(("cumprod", "cummax", "logcumsumexp", "roll", "roll of all", "eye"), OPEN),
    **dict.fromkeys(("scatter_add", "index_fill in place", "scatter in place"), "along .*; fix batch"),
    "fft": "a transform of open sizes; fix batch",
    "interpolate": "an image of open size; fix batch",
}

APART = {
    "triangles": ((5, 5), lambda x: x.tril() + x.triu(1)),
    "along rows": ((6,), lambda x: x.softmax(-1).cumsum(1).flip(1).roll(1, 1).sort().values),
    "columns": ((6,), lambda x: x[:][:, [0, 2]]),
    "pooled, time first": ((4, 6), lambda x: functional.avg_pool1d(x.permute(1, 0, 2), 3, 1, 1).transpose(0, 1)),
    "joined with a token": ((4, 6), lambda x: torch.cat([torch.ones(1, 1, 6).expand(x.shape[0], -1, -1), x], 1)),
    "rows of all samples": ((4, 6), lambda x: x.reshape(-1, 6).softmax(1).view(-1, 4, 6)),
    "time first, in rows": ((4, 6), lambda x: x.transpose(0, 1).reshape(-1, 6).relu().view(4, -1, 6).transpose(0, 1)),
    "einsum": ((4, 6), lambda x: torch.einsum("b i k, b j k -> b i j", x, x)),
    "einsum of the last axes": ((4, 6), lambda x: torch.einsum("...ik,...jk->...ij", x, x)),
    "normalized": ((4, 6), lambda x: functional.group_norm(functional.layer_norm(functional.normalize(x, dim=1), [6]), 2)),
    "in place": ((6,), lambda x: x.clone().abs_().masked_fill_(x > 1, 0.5).flip(1)),
    "split": ((4, 6), lambda x: torch.cat(x.mT.tensor_split(2, 1)[::-1], 1)),
    "padded": ((4, 6), lambda x: functional.pad(x, (1, -1, 2, 0))),
    "repeated": ((6,), lambda x: x.repeat_interleave(2, 0).view(-1, 2, 6)),
}
"""Shape of a sample and function."""


def compare(net, model, shape):
    x = torch.randn(9, *shape)
    (ours,), theirs = octavo.compile(model)(x.numpy()).values(), net(x).detach().numpy()
    assert ours.shape == theirs.shape
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("name", [name for name in MIXING if name not in REFUSED])
def test_samples_that_are_mixed(name):
    net, model = load(MIXING[name], (6,))
    assert (model.any_batch, list(model.sizes)) == (False, ["batch"])
    compare(net, model, (6,))


@pytest.mark.parametrize("name", REFUSED)
def test_samples_that_are_mixed_in_ways_that_are_not_supported(name):
    with pytest.raises(UnsupportedOpError, match=REFUSED[name]):
        load(MIXING[name], (6,))


@pytest.mark.parametrize("name", APART)
def test_samples_that_are_not_mixed(name):
    shape, function = APART[name]
    net, model = load(function, shape)
    assert (model.any_batch, model.sizes) == (True, {})
    compare(net, model, shape)


def test_samples_of_a_recurrence():
    _, model = load(lambda x, lstm: lstm(x)[0], (4, 6), [nn.LSTM(6, 3, batch_first=True)])
    assert model.any_batch


def test_samples_in_attention():
    """Which turns heads of samples into a batch, and this into rows that begin with time."""
    torch.manual_seed(0)
    net, model = load(lambda x, attention: attention(x, x, x)[0], (4, 6), [nn.MultiheadAttention(6, 2, batch_first=True)])
    assert model.any_batch
    compare(net, model, (4, 6))
