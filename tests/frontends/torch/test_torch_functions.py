"""PyTorch functions that neither TVM nor PyTorch's decompositions make of others, and complex numbers: each gives what PyTorch
gives. Several share a program, as in test_torch_ops.py."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from torch_checks import Apply, Several, check, groups, load, torch

import octavo
from octavo.errors import ModelError, UnsupportedOpError
from octavo.ir.channels import find_rotatable, rotated
from octavo.ir.simplify import simplify

nn = torch.nn
functional = torch.nn.functional
fft = torch.fft

IMAGE, ROWS, VECTORS, VOLUME = (1, 6, 9, 10), (2, 4, 20), (2, 7), (1, 2, 4, 5, 6)
MANY = (2, 30, 4)
KERNEL = (4, 6, 3, 3)


class Rotated(nn.Module):
    """Pairs of a row turned as complex numbers, as rotary embeddings are written: by a buffer, and by what is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer(
            "turns", torch.polar(torch.ones(4, 10), torch.outer(torch.arange(4.0), 10 ** -torch.linspace(0, 2, 10)))
        )

    def forward(self, x):
        pairs = torch.view_as_complex(x.reshape(2, 4, 10, 2))
        more = torch.polar(torch.ones(10), torch.arange(10.0))
        return torch.view_as_real(pairs * self.turns * more).flatten(2)


class Spectral(nn.Module):
    """A Fourier neural operator's layer: weights for a part of the transform, written into zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.randn(6, 3, 3, 2, dtype=torch.cfloat))

    def forward(self, x):
        spectrum = fft.rfft2(x, norm="ortho")
        kept = torch.zeros(1, 3, *spectrum.shape[2:], dtype=torch.cfloat)
        kept[:, :, :3, :2] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, :3, :2], self.weights)
        return fft.irfft2(kept, s=x.shape[-2:], norm="ortho")


def written_in_slices(x):
    """As temporal shifts write channels of another step."""
    y = torch.zeros_like(x)
    y[:, :-1, :8] = x[:, 1:, :8]
    y[:, 1:, 8:] = x[:, :-1, 8:]
    y[:, ::2, 3:5] = 1.0
    y[:, 2] = x[:, 0]
    return y


def _checked(x):
    torch._check(torch.all((x * 0).sum(0) == 0).item())
    return x + 1


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "adaptive maxima": (lambda x: functional.adaptive_max_pool2d(x, (4, 3)), (IMAGE,)),
    "adaptive maxima, evenly": (lambda x: functional.adaptive_max_pool2d(x, (3, 5)), (IMAGE,)),
    "adaptive maxima of rows": (lambda x: functional.adaptive_max_pool1d(x, 6), (ROWS,)),
    "adaptive maxima of volumes": (lambda x: functional.adaptive_max_pool3d(x, (2, 2, 4)), (VOLUME,)),
    "means by another divisor": (lambda x: functional.avg_pool2d(x, 3, 2, padding=1, divisor_override=4), (IMAGE,)),
    "norm of the batch": (lambda x: functional.batch_norm(x, None, None, training=True, eps=0.1), ((3, *IMAGE[1:]),)),
    "norm of one image": (nn.BatchNorm2d(6, track_running_stats=False), (IMAGE,)),
    "norm of rows": (nn.BatchNorm1d(4, track_running_stats=False), (ROWS,)),
    "norm of vectors": (lambda x: functional.batch_norm(x, None, None, training=True), ((5, 7),)),
    "weights standardized": (
        lambda x, w: functional.conv2d(x, functional.batch_norm(w.reshape(1, 4, -1), None, None, training=True).reshape_as(w)),
        (IMAGE, KERNEL),
    ),
    "bilinear form": (nn.Bilinear(7, 7, 3), (VECTORS, VECTORS)),
    "bilinear form without bias": (nn.Bilinear(4, 4, 3, bias=False), (MANY, MANY)),
    "distances": (
        lambda x, y: tuple(torch.cdist(x[:, :9], y[:, :5], p) for p in (0.0, 1.0, 2.0, 3.0, float("inf"))),
        (MANY, MANY),
    ),
    "distances of many": (torch.cdist, (MANY, MANY)),
    "distances of pairs": (lambda x: (functional.pdist(x), functional.pdist(x, 1.0)), (VECTORS,)),
    "running extremes": (lambda x: (x.cummax(1)[0], x.cummin(-1)[0]), (ROWS,)),
    "running products": (lambda x: (x.cumprod(1), (x * 2).long().cumprod(-1)), (VECTORS,)),
    "running logarithms of sums": (lambda x: (x * 9).logcumsumexp(1), (ROWS,)),
    "ranks": (
        lambda x, y: (
            torch.searchsorted(torch.linspace(-1, 1, 9), x),
            torch.searchsorted(x.sort(1)[0], y, right=True, out_int32=True),
            torch.bucketize(x, torch.tensor([-0.5, 0.0, 0.5]), right=True),
        ),
        (VECTORS, VECTORS),
    ),
    "third least": (lambda x: x.kthvalue(3, 1, keepdim=True), (VECTORS,)),
    "hypotenuse": (torch.hypot, (VECTORS, VECTORS)),
    "powers of two, what erf leaves": (lambda x: (torch.exp2(x), torch.erfc(x)), (VECTORS,)),
    "what erf came from, at its ends, too": (
        lambda x: torch.erfinv(torch.cat([x / 3, x.clamp(-0.9999, 0.9999), x.sign()])),
        (VECTORS,),
    ),
    "random slope": (nn.RReLU(), (VECTORS,)),
    "booleans compared": (
        lambda x: ((x > 0) != 0, (x > 0) == (x < 1), torch.count_nonzero(x > 0, dim=1), (x * 3).long() >= 0.5, (x > 0) < 1),
        (VECTORS,),
    ),
    "booleans as numbers": (
        lambda x, y: (
            *(op(x > 0, y > 0) for op in (torch.add, torch.mul, torch.maximum, torch.minimum)),
            *((x > 0) * number for number in (3, 2.5)),
            *((x > 0).amax(1), (x > 0).amin(1), (x > 0).max(1).values),
        ),
        (VECTORS, VECTORS),
    ),
    "numbers of few bits, in order": (
        lambda x: tuple(
            each
            for dtype in (torch.bool, torch.uint8, torch.int8, torch.int16)
            for y in [(x.abs() * 30).to(dtype) if dtype == torch.uint8 else (x * 30).to(dtype)]
            for each in (*y.sort(dim=1, descending=True, stable=True), *y.sort(dim=1, stable=True))
            + (() if dtype == torch.bool else (y.topk(2, 1).values, y.kthvalue(2, 1).values, y.median(1).values))
        ),
        (VECTORS,),
    ),
    "what only a check reads": (_checked, (VECTORS,)),
    "any": (lambda x: ((x > 0).any(), x.any(), (x > 9).any()), (VECTORS,)),
    "where, of two dtypes": (lambda x: torch.where(x > 0, x, torch.tensor(2)), (VECTORS,)),
    "picked by known booleans": (lambda x: x[:, [True, False, True, False, False, True]], (IMAGE,)),
    "scattered where it is true": (lambda x, y: x.masked_scatter(x > 0, y), (VECTORS, (20,))),
    "written in slices": (written_in_slices, ((2, 4, 16),)),
    "other views": (lambda x: (x.movedim(1, -1), torch.tensor_split(x, 4, 1)[2], torch.atleast_3d(x[0, 0])), (IMAGE,)),
    "rotations": (Rotated(), (ROWS,)),
    "complex arithmetic": (
        lambda x, y: (
            torch.view_as_real(torch.complex(x, y) / torch.complex(y, x + 3) - 1j * x + 2),
            (torch.exp(1j * x) * torch.conj(torch.complex(x, y))).angle().cos(),
            torch.complex(x, y).matmul(torch.complex(y, x).transpose(1, 2)).imag,
        ),
        (ROWS, ROWS),
    ),
    "spectra": (
        lambda x: (fft.rfft(x).abs(), fft.fft2(x).real, fft.ifft(fft.fft(x, dim=1), dim=1).real, fft.fftshift(fft.fft(x)).abs()),
        (ROWS,),
    ),
    "filtered by spectra": (
        lambda x, k: (
            fft.irfft(fft.rfft(x, n=40) * fft.rfft(k, n=40), n=40),
            fft.irfft(fft.rfft(x[..., 1:]), n=19, norm="ortho"),
        ),
        (ROWS, (4, 20)),
    ),
    "spectral layer": (Spectral(), (IMAGE,)),
    "short spectra": (
        lambda x: torch.stft(x[:, 0], 8, 4, window=torch.hann_window(8), return_complex=True).abs(),
        (ROWS,),
    ),
}


@pytest.mark.parametrize("names", groups(FUNCTIONS, 19))
def test_functions(names):
    functions, shapes = zip(*(FUNCTIONS[name] for name in names), strict=True)
    inputs = [shape for each in shapes for shape in each]
    parts = [each if isinstance(each, nn.Module) else Apply(each) for each in functions]
    check(Several(parts, [len(each) for each in shapes]), inputs, names)


def test_they_say_nothing(capfd):
    """TVM warns of every index that it doesn't bound."""
    names = ["adaptive maxima", "written in slices"]
    functions, shapes = zip(*(FUNCTIONS[name] for name in names), strict=True)
    check(Several([Apply(each) for each in functions], [1, 1]), [shape for each in shapes for shape in each], names)
    assert "Warning" not in capfd.readouterr().err


class Standardized(nn.Conv2d):
    """A convolution whose weights are normalized whenever it runs, as networks without normalizations of activations have it."""

    def forward(self, x):
        weight = functional.batch_norm(self.weight.reshape(1, self.out_channels, -1), None, None, training=True, momentum=0.0)
        return functional.conv2d(x, weight.reshape_as(self.weight), self.bias, padding=1)


def test_standardized_weights_are_integers():
    torch.manual_seed(0)
    net = nn.Sequential(Standardized(3, 8, 3), nn.ReLU(), Standardized(8, 8, 3))
    x = torch.randn(8, 1, 3, 12, 12)
    model = load(net, [x[0]])
    quantized = octavo.quantize(model, octavo.profile(model, [sample.numpy() for sample in x]), preset="fast")
    assert all(op.integer for op in octavo.explain(quantized).counted)
    ours = np.stack([next(iter(octavo.compile(quantized)(sample.numpy()).values())) for sample in x])
    theirs = np.stack([net(sample).detach().numpy() for sample in x])
    assert 10 * np.log10((theirs**2).sum() / ((ours - theirs) ** 2).sum()) > 30


@pytest.mark.parametrize(("exponent", "sites"), [(2, [[16, 16, 16]]), (3, [])])
def test_channels_before_a_norm_of_squares_can_be_rotated(exponent, sites):
    """Its exponent stands in the program as a literal."""

    def normed(x, first, last):
        y = first(x)
        return last(y * (y.pow(exponent).mean(-1, keepdim=True) + 1e-5).rsqrt())

    simple, _ = simplify(load(Apply(normed, nn.Linear(8, 16), nn.Linear(16, 4)), [torch.randn(5, 8)]))
    sizes = [[each.size for each in site.rotations.values()] for site in find_rotatable(simple).sites()]
    assert sizes == sites


def uncast(x, w):
    """Compute in a region without automatic casts, and in one without gradients."""
    with torch.autocast("cpu", torch.bfloat16, enabled=False):
        y = x @ w
        z = y * 2
    with torch.no_grad():
        root = z.sin()
    return root + z, y


def test_regions_without_casts_or_gradients_compute_as_all_else():
    """By themselves: PyTorch exports none beside a branch."""
    check(Apply(uncast), [(2, 5), (5, 4)])


class Gemma(nn.Module):
    """A norm of squares in float32, whatever its input is, by 1 and a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(16))

    def forward(self, x):
        y = x.float()
        return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6) * (1 + self.weight.float())).type_as(x)


class Llama(Gemma):
    """The same by the weight, which is multiplied once the rest is cast back."""

    def forward(self, x):
        y = x.to(torch.float32)
        return self.weight * (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


@pytest.mark.parametrize("norm", [nn.RMSNorm(16), Llama(), Gemma()], ids=["PyTorch", "LLaMA", "Gemma"])
def test_norms_with_casts_to_the_same_type_can_be_rotated(norm):
    torch.manual_seed(0)
    nn.init.uniform_(norm.weight)
    net, x = nn.Sequential(nn.Linear(8, 16), norm, nn.Linear(16, 4)), torch.randn(5, 8)
    simple, _ = simplify(load(net, [x]))
    assert "astype" not in simple.module.script()
    [site] = find_rotatable(simple).sites()
    other = rotated(simple, site.rotations)
    assert {each.size for each in site.rotations.values()} == {16}
    [result] = octavo.compile(other)({other.input_ids[0]: x.numpy()}).values()
    np.testing.assert_allclose(result, net(x).detach().numpy(), rtol=1e-5, atol=2e-6)


def test_a_norm_of_the_batch_reads_all_samples():
    net = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6, track_running_stats=False)).eval()
    program = torch.export.export(net, (torch.randn(3, 5),), dynamic_shapes=({0: torch.export.Dim("batch", min=2)},))
    executable = octavo.compile(octavo.load(program))
    for batch in (2, 5):
        x = torch.randn(batch, 5)
        np.testing.assert_allclose(next(iter(executable(x.numpy()).values())), net(x).detach().numpy(), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize(
    ("function", "error", "said"),
    [
        (lambda x: torch.linalg.inv(x), UnsupportedOpError, r"linalg_inv_ex.default.* there is no converter"),
        (lambda x: torch.fft.fft(x), UnsupportedOpError, r"output '_fft_r2c' is complex; return torch.view_as_real"),
        (lambda x: torch.fft.fft(x).cumsum(0).real, UnsupportedOpError, r"'cumsum' .*complex numbers are not supported here"),
        (lambda x: x.cummax(0)[1], UnsupportedOpError, r"result 1 of 'cummax' is not supported"),
    ],
)
def test_what_is_refused(function, error, said):
    with pytest.raises(error, match=said):
        load(Apply(function), [torch.randn(4, 4)])


def test_a_complex_input_is_refused():
    with pytest.raises(ModelError, match="is complex64, which is not supported; give its parts"):
        load(Apply(lambda x: x.real), [torch.randn(4, 4, dtype=torch.cfloat)])
