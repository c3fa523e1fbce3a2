"""PyTorch ops: exported, imported and compiled, each gives what PyTorch gives. Several ops that read inputs of their own share a
program, for most of the time goes into exporting and compiling one, however small it is."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from torch_checks import Apply, Several, check, groups, load, torch

import octavo
from octavo.errors import UnsupportedOpError
from octavo.ir.graph.dataflow import call_to

nn = torch.nn
functional = torch.nn.functional
while_loop = torch._higher_order_ops.while_loop

IMAGE, ROWS, VECTORS = (1, 6, 9, 10), (2, 4, 20), (2, 7)
HEADS = (2, 4, 3, 8)


ROW_NET = (
    *(nn.Conv1d(4, 16, 5, padding=2), nn.BatchNorm1d(16), nn.ReLU(), nn.MaxPool1d(2)),
    *(nn.Conv1d(16, 16, 3, padding="same", groups=16), nn.BatchNorm1d(16), nn.ReLU6(), nn.AvgPool1d(2)),
    *(nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(16, 5)),
)


class Constants(nn.Module):
    """Arithmetic between parameters, a buffer that is not saved, and a constant made on the fly."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (nn.Parameter(torch.randn(6, 1, 1)) for _ in range(2))
        self.register_buffer("c", torch.arange(3), persistent=False)

    def forward(self, x):
        return x * (self.a @ self.b + self.b) + torch.tensor(0.5) * self.c.float().sum()


def overwritten(x):
    y = x * 2
    functional.relu_(y)
    return y + 1


def written_between(x):
    y = x * 2
    before = y + 1
    y.relu_()
    return y * before


def written_through_a_view(x):
    y = x * 2
    y[:, 0].add_(1)
    return y


def seen_through_a_view(x):
    y = x * 2
    seen = y.view(-1)
    y.relu_()
    return seen + 1


def promoted(x):
    return (x * 1).mul_(torch.full((), 0.1, dtype=torch.float64))


def masked_by_positions(x):
    """As transformers write a causal mask over packed sequences: numbers and boolean values of positions alone."""
    at = torch.arange(x.shape[-1])
    sequence = (torch.diff(at // 2, prepend=at[:1]) != 0).cumsum(-1)
    allowed = at.new_ones([], dtype=torch.bool) & (at[None] <= at[:, None]) & (sequence[None] == sequence[:, None])
    return torch.where(allowed[0], x, x.new_zeros(()))


MODULES: dict[str, tuple[Any, tuple[int, ...]]] = {
    "conv": (nn.Conv2d(6, 8, 3), IMAGE),
    "conv same": (nn.Conv2d(6, 8, (3, 2), padding="same", dilation=2), IMAGE),
    "conv valid": (nn.Conv2d(6, 8, 3, padding="valid"), IMAGE),
    "conv grouped": (nn.Conv2d(6, 8, 3, dilation=2, groups=2, stride=(2, 1), padding=(1, 2)), IMAGE),
    "conv of one image": (nn.Conv2d(6, 8, 3, padding="same"), IMAGE[1:]),
    "conv reflect": (nn.Conv2d(6, 8, 3, padding=1, padding_mode="reflect"), IMAGE),
    "transposed conv": (nn.ConvTranspose2d(6, 4, 3, stride=2, padding=1, output_padding=1), IMAGE),
    "transposed conv 1d": (nn.ConvTranspose1d(4, 6, 3, 2, 1, 1, groups=2, dilation=2), ROWS),
    "conv 1d": (nn.Conv1d(4, 5, 3), ROWS),
    "conv 1d same": (nn.Conv1d(4, 5, 4, padding="same", dilation=2, bias=False), ROWS),
    "conv 1d grouped": (nn.Conv1d(4, 8, 3, groups=2, stride=2, padding=2, dilation=2), ROWS),
    "conv 1d of one row": (nn.Conv1d(4, 5, 3, padding=1), ROWS[1:]),
    "conv 1d, normalized": (nn.Sequential(nn.Conv1d(4, 5, 3), nn.BatchNorm1d(5), nn.MaxPool1d(2, padding=1)), ROWS),
    "batch norm": (nn.BatchNorm2d(6), IMAGE),
    "batch norm, plain": (nn.BatchNorm2d(6, affine=False, eps=1e-2), IMAGE),
    "batch norm 1d": (nn.BatchNorm1d(7), VECTORS),
    "layer norm": (nn.LayerNorm(7), VECTORS),
    "layer norm, plain": (nn.LayerNorm((9, 10), elementwise_affine=False, eps=0.1), IMAGE),
    "layer norm without bias": (nn.LayerNorm(7, bias=False), VECTORS),
    "group norm": (nn.GroupNorm(2, 6), IMAGE),
    "group norm, plain": (nn.GroupNorm(3, 6, affine=False, eps=0.1), IMAGE),
    "instance norm": (nn.InstanceNorm2d(6, affine=True, eps=0.1), IMAGE),
    "instance norm by running statistics": (nn.InstanceNorm2d(6, track_running_stats=True), IMAGE),
    "rms norm": (nn.RMSNorm(7), VECTORS),
    "response norm": (nn.LocalResponseNorm(3), IMAGE),
    "linear": (nn.Linear(7, 5), VECTORS),
    "linear, 3 dimensions": (nn.Linear(7, 5, bias=False), (2, 3, 7)),
    "lstm": (nn.LSTM(4, 5, batch_first=True), (1, 2, 4)),
    "gru": (nn.GRU(4, 5, batch_first=True), (1, 2, 4)),
    "lstm, two layers": (nn.LSTM(4, 5, 2), (2, 1, 4)),
    "rnn, two layers": (nn.RNN(4, 3, 2, bidirectional=True), (2, 1, 4)),
    "rnn": (nn.RNN(4, 3, nonlinearity="relu"), (2, 1, 4)),
    "gru, two layers": (nn.GRU(4, 3, 2, bidirectional=True), (2, 1, 4)),
    "lstm, both ways": (nn.LSTM(4, 5, 2, bidirectional=True, batch_first=True, bias=False), (2, 3, 4)),
    "relu": (nn.ReLU(), IMAGE),
    "relu in place": (nn.ReLU(inplace=True), IMAGE),
    "relu6": (nn.ReLU6(), IMAGE),
    "relu6 in place": (nn.ReLU6(inplace=True), IMAGE),
    "hardtanh": (nn.Hardtanh(-0.5, 0.7), IMAGE),
    "hardswish": (nn.Hardswish(), IMAGE),
    "hardsigmoid": (nn.Hardsigmoid(), IMAGE),
    "silu": (nn.SiLU(), IMAGE),
    "gelu": (nn.GELU(), IMAGE),
    "gelu tanh": (nn.GELU(approximate="tanh"), IMAGE),
    "sigmoid": (nn.Sigmoid(), IMAGE),
    "tanh": (nn.Tanh(), IMAGE),
    "leaky relu": (nn.LeakyReLU(0.2), IMAGE),
    "prelu": (nn.PReLU(6), IMAGE),
    "prelu, one": (nn.PReLU(), IMAGE),
    "elu": (nn.ELU(), IMAGE),
    "selu": (nn.SELU(), IMAGE),
    "softplus": (nn.Softplus(), IMAGE),
    "mish": (nn.Mish(), IMAGE),
    "softmax": (nn.Softmax(1), IMAGE),
    "log softmax": (nn.LogSoftmax(-1), IMAGE),
    "dropout": (nn.Dropout(), IMAGE),
    "dropout 2d": (nn.Dropout2d(), IMAGE),
    "dropout in place": (nn.Sequential(nn.Hardswish(inplace=True), nn.Dropout(inplace=True), nn.ReLU(inplace=True)), IMAGE),
    "identity": (nn.Sequential(nn.Identity(), nn.ReLU()), IMAGE),
    "constants": (Constants(), IMAGE),
}

FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "written in place": (overwritten, (IMAGE,)),
    "written between two reads": (written_between, (IMAGE,)),
    "written through a view": (written_through_a_view, (IMAGE,)),
    "seen through a view": (seen_through_a_view, (IMAGE,)),
    "written by a wider number": (promoted, (IMAGE,)),
    "masked by positions": (masked_by_positions, (VECTORS,)),
    "written at places": (lambda x: x.index_put((torch.tensor([1, 0]),), x[:2] * 2), (VECTORS,)),
    "added at places": (lambda x: x.index_put((torch.tensor([1, 1]),), x[:2], accumulate=True), (VECTORS,)),
    "scattered": (lambda x: x.scatter(0, torch.tensor([[1, 0]]), x * 3).scatter(1, torch.tensor([[1], [0]]), 2.0), (VECTORS,)),
    "put at places of any axes": (
        lambda x, v: torch.ops.aten.index_put(x, (None, torch.tensor([[2], [0]]), None, torch.tensor([1, 4])), v),
        (IMAGE, (2, 2, 1, 9)),
    ),
    "put behind an axis": (lambda x: torch.ops.aten.index_put(x, (None, torch.tensor([2, 0])), torch.tensor(0.5)), (IMAGE,)),
    "put where it is true": (lambda x: x.index_put((x[:, :, 0, 0] > 0,), torch.tensor(0.5)), (IMAGE,)),
    "index along axes apart": (lambda x: x[:, torch.tensor([[2], [0]]), :, torch.tensor([1, 4])], (IMAGE,)),
    "added along an axis": (
        lambda x: x.index_add(1, torch.tensor([6, 0, 6]), x[:, :3], alpha=2).index_copy(0, torch.tensor([1]), x[:1]),
        (VECTORS,),
    ),
    "scattered and reduced": (
        lambda x, i: tuple(
            x.scatter_reduce(1, i.abs().long().clamp(max=6), i * 2, kind, include_self=own)
            for kind in ("sum", "prod", "amax", "amin", "mean")
            for own in (True, False)
        ),
        (VECTORS, (2, 5)),
    ),
    "rows scattered": (
        lambda x, i: torch.zeros(4, 7).scatter_add(0, (i > 0).long()[:, None].expand(-1, 7), x),
        (VECTORS, (2,)),
    ),
    "like another, of a dtype": (lambda x: torch.ones_like(x.long(), dtype=torch.float32) + x, (VECTORS,)),
    "windows": (lambda x: x.unfold(2, 4, 2).unfold(1, 3, 3), (IMAGE,)),
    "bags": (
        lambda w, x, o: tuple(
            functional.embedding_bag(x.abs().long().clamp(max=4), w, torch.tensor([0, 4]) + (o > 9).long(), mode=mode)
            for mode in ("sum", "mean")
        ),
        ((5, 3), (9,), (2,)),
    ),
    "bags of one size": (
        lambda w, x: tuple(functional.embedding_bag(x.abs().long(), w, mode=mode) for mode in ("sum", "mean", "max")),
        ((5, 3), VECTORS),
    ),
    "bags, weighed": (
        lambda w, x: functional.embedding_bag(x.abs().long(), w, mode="sum", per_sample_weights=x),
        ((5, 3), VECTORS),
    ),
    "quotients, rounded": (
        lambda x, y: tuple(
            torch.div(*pair, rounding_mode=mode)
            for mode in ("floor", "trunc")
            for pair in ((x * 9, y), ((x * 9).int(), (y * 3).int() * 2 + 1), ((x * 9).long(), 4))
        ),
        (VECTORS, VECTORS),
    ),
    "products": (lambda x: (x.prod(), x.prod(1, keepdim=True), (x * 2).long().prod(-1)), (VECTORS,)),
    "affine grids": (
        lambda x: tuple(functional.affine_grid(x, [2, 3, 4, 5], align_corners=corners) for corners in (True, False)),
        ((2, 2, 3),),
    ),
    "affine grid of a volume": (lambda x: functional.affine_grid(x, [1, 1, 2, 1, 3], align_corners=False), ((1, 3, 4),)),
    "a branch": (
        lambda x: torch.cond(x.sum() > 0, lambda x: (x.relu(), x * 2), lambda x: (x - 1, x.neg()), (x,)),
        (VECTORS,),
    ),
    "branches that are known, and a branch in a branch": (
        lambda x: torch.cond(
            torch.tensor(2) > 1,
            lambda x: torch.cond(x.amax() > 9, lambda x: x.exp(), lambda x: x + 3, (x,)),
            lambda x: x - 1.0,
            (x,),
        ),
        (VECTORS,),
    ),
    "a loop": (
        lambda x: while_loop(lambda count, _: count < 3, lambda count, y: (count + 1, y * 2 + count), (torch.tensor(1), x))[1],
        (VECTORS,),
    ),
    "largest in any order": (
        lambda x: tuple(x.topk(3, dim, largest, sorted=False)[0].sum(dim) for dim, largest in ((-1, True), (1, False))),
        (ROWS,),
    ),
    "masked by infinity": (lambda x: x.masked_fill(x > 0, float("-inf")).amax(-1).exp(), (VECTORS,)),
    "to a device": (lambda x: x.to("cpu", torch.float32) + x.to("cpu", torch.int32), (IMAGE,)),
    "add in place": (lambda x, y: (x * 1).add_(y), (IMAGE, IMAGE)),
    "clamp from below": (lambda x: x.clamp(min=0.1), (IMAGE,)),
    "clamp from above": (lambda x: x.clamp(max=0.1), (IMAGE,)),
    "clamp_max": (lambda x: torch.clamp_max(x, 0.2), (IMAGE,)),
    "clamp_min": (lambda x: torch.clamp_min(x, 0), (IMAGE,)),
    "clamp": (lambda x: torch.clamp(x, -0.3, 0.3), (IMAGE,)),
    "clamp, bounds crossed": (lambda x: torch.clamp(x, 0.5, -0.5), (IMAGE,)),
    "clamp by tensors": (lambda x, y: torch.clamp(x, y, y + 1), (IMAGE, IMAGE)),
    "add": (lambda x, y: x + y, (IMAGE, IMAGE)),
    "add with alpha": (lambda x, y: torch.add(x, y, alpha=3), (IMAGE, IMAGE)),
    "sub with alpha": (lambda x, y: torch.sub(x, y, alpha=0.5), (IMAGE, IMAGE)),
    "add a number": (lambda x: x + 2, (IMAGE,)),
    "rsub": (lambda x: 2 - x, (IMAGE,)),
    "rsub with alpha": (lambda x: torch.rsub(x, 3, alpha=2), (IMAGE,)),
    "mul, broadcast": (lambda x, y: x * y, (IMAGE, (1, 6, 1, 1))),
    "celu": (lambda x: functional.celu(x, 0.5), (IMAGE,)),
    "running sum": (lambda x: x.cumsum(1) + (x > 0).cumsum(-1), (IMAGE,)),
    "sampled by a grid": (lambda x, g: functional.grid_sample(x, g * 0.5, align_corners=False), (IMAGE, (1, 4, 3, 2))),
    "variance and mean": (lambda x: torch.add(*torch.var_mean(x, (1, -1), keepdim=True)), (IMAGE,)),
    "div": (lambda x, y: x / (y.abs() + 1), (IMAGE, IMAGE)),
    "reciprocal": (lambda x: 1 / (x.abs() + 1), (IMAGE,)),
    "square": (lambda x: x**2, (IMAGE,)),
    "maximum": (lambda x, y: torch.maximum(x, y), (IMAGE, IMAGE)),
    "where": (lambda x: torch.where(x > 0, x, x * 0.1), (IMAGE,)),
    "max pool": (lambda x: functional.max_pool2d(x, 3), (IMAGE,)),
    "max pool of a volume": (lambda x: functional.max_pool3d(x, 2, padding=1, ceil_mode=True), ((1, 2, 5, 6, 7),)),
    "avg pool of a volume": (lambda x: functional.avg_pool3d(x, (1, 2, 2)), ((2, 5, 6, 7),)),
    "conv of a volume": (torch.nn.Conv3d(2, 4, 3, stride=(1, 2, 1), padding=1, bias=False), ((2, 2, 5, 6, 7),)),
    "conv of one volume, same": (torch.nn.Conv3d(2, 4, (3, 1, 2), padding="same", groups=2), ((2, 5, 6, 7),)),
    "transposed conv of a volume": (
        torch.nn.ConvTranspose3d(2, 4, 3, stride=2, padding=1, output_padding=(1, 0, 1)),
        ((1, 2, 3, 4, 5),),
    ),
    "where the extremes are": (lambda x: x.max(1)[1] + x.min(1, keepdim=True)[1].sum(1), (IMAGE,)),
    "einsum of batches": (lambda x, y: torch.einsum("bij,bkj->bik", x, y), ((2, 3, 4), (2, 5, 4))),
    "max pool, padded": (lambda x: functional.max_pool2d(x, 3, padding=1), (IMAGE,)),
    "max pool, ceil": (lambda x: functional.max_pool2d(x, 2, 2, ceil_mode=True), (IMAGE,)),
    "max pool, dilated": (lambda x: functional.max_pool2d(x, 2, 1, dilation=2), (IMAGE,)),
    "max pool of one image": (lambda x: functional.max_pool2d(x, 2), ((6, 8, 8),)),
    "avg pool": (lambda x: functional.avg_pool2d(x, 3), (IMAGE,)),
    "avg pool, padding counts": (lambda x: functional.avg_pool2d(x, 3, 2, 1), (IMAGE,)),
    "avg pool, padding does not": (lambda x: functional.avg_pool2d(x, 3, 2, 1, count_include_pad=False), (IMAGE,)),
    "avg pool, ceil": (lambda x: functional.avg_pool2d(x, 3, 2, 1, ceil_mode=True), (IMAGE,)),
    "max pool 1d": (lambda x: functional.max_pool1d(x, 3, 2, 1, 2, ceil_mode=True), (ROWS,)),
    "avg pool 1d": (lambda x: functional.avg_pool1d(x, 2), (ROWS,)),
    "avg pool 1d, padded": (lambda x: functional.avg_pool1d(x, 3, 2, 1, count_include_pad=False), (ROWS,)),
    "adaptive pool 1d": (lambda x: functional.adaptive_avg_pool1d(x, 4), (ROWS,)),
    "adaptive max pool 1d": (lambda x: functional.adaptive_max_pool1d(x, 1), (ROWS,)),
    "adaptive pool to 1": (lambda x: functional.adaptive_avg_pool2d(x, 1), (IMAGE,)),
    "adaptive pool": (lambda x: functional.adaptive_avg_pool2d(x, (4, 3)), (IMAGE,)),
    "adaptive pool, one side": (lambda x: functional.adaptive_avg_pool2d(x, (None, 1)), (IMAGE,)),
    "adaptive max pool": (lambda x: functional.adaptive_max_pool2d(x, 1), (IMAGE,)),
    "nearest": (lambda x: functional.interpolate(x, scale_factor=2), (IMAGE,)),
    "nearest, any size": (lambda x: functional.interpolate(x, size=(5, 13)), (IMAGE,)),
    "bilinear": (lambda x: functional.interpolate(x, scale_factor=2, mode="bilinear"), (IMAGE,)),
    "bilinear, any size": (lambda x: functional.interpolate(x, size=(20, 7), mode="bilinear"), (IMAGE,)),
    "bilinear, corners": (lambda x: functional.interpolate(x, size=(20, 7), mode="bilinear", align_corners=True), (IMAGE,)),
    "bicubic": (lambda x: functional.interpolate(x, size=(20, 7), mode="bicubic", align_corners=False), (IMAGE,)),
    "bicubic, corners": (lambda x: functional.interpolate(x, scale_factor=2, mode="bicubic", align_corners=True), (IMAGE,)),
    "bilinear, smoothed": (lambda x: functional.interpolate(x, size=(4, 13), mode="bilinear", antialias=True), (IMAGE,)),
    "bicubic, smoothed": (lambda x: functional.interpolate(x, scale_factor=0.4, mode="bicubic", antialias=True), (IMAGE,)),
    "nearest, exact": (lambda x: functional.interpolate(x, size=(5, 13), mode="nearest-exact"), (IMAGE,)),
    "rows, resized": (
        lambda x: (functional.interpolate(x, size=13), functional.interpolate(x, scale_factor=2, mode="linear")),
        (ROWS,),
    ),
    "flatten": (lambda x: x.flatten(1), (IMAGE,)),
    "view": (lambda x: x.view(1, -1), (IMAGE,)),
    "reshape": (lambda x: x.reshape(6, 90), (IMAGE,)),
    "permute": (lambda x: x.permute(0, -1, 1, 2), (IMAGE,)),
    "transpose": (lambda x: x.transpose(1, -1), (IMAGE,)),
    "t": (lambda x: x.t(), (VECTORS,)),
    "squeeze": (lambda x: x.squeeze(), (IMAGE,)),
    "squeeze nothing": (lambda x: x.mean((2, 3), keepdim=True).squeeze(-1).squeeze(1), (IMAGE,)),
    "unsqueeze": (lambda x: x.unsqueeze(-1), (IMAGE,)),
    "chunk": (lambda x: torch.cat([part * i for i, part in enumerate(x.chunk(4, 1))], 1), (IMAGE,)),
    "split": (lambda x: x.split([1, 5], 1)[1], (IMAGE,)),
    "split evenly": (lambda x: x.split(4, 1)[1], (IMAGE,)),
    "cat": (lambda x, y: torch.cat([x, y], -1), (IMAGE, IMAGE)),
    "stack": (lambda x, y: torch.stack([x, y], 1), (IMAGE, IMAGE)),
    "slice": (lambda x: x[:, 1:5:2, :-1], (IMAGE,)),
    "select": (lambda x: x[:, 2], (IMAGE,)),
    "select from the end": (lambda x: x[..., -3], (IMAGE,)),
    "index": (lambda x: x[:, [2, -1, 0]], (IMAGE,)),
    "index by a tensor": (lambda x, y: x[:, (y * 2).clamp(-2, 2).long()], (IMAGE, (2, 3))),
    "index select": (lambda x: x.index_select(-1, torch.tensor([3, 1])), (IMAGE,)),
    "index along two axes": (lambda x: x[:, [2, -1, 0], [1, 1, 0]], (IMAGE,)),
    "index along two axes by a tensor": (lambda x, y: x[0, y.abs().long(), torch.tensor([[2], [-1]])], (IMAGE, (2, 3))),
    "embedding": (lambda w, x: functional.embedding(x.abs().clamp(max=3).long(), w), ((5, 3), VECTORS)),
    "pad": (lambda x: functional.pad(x, (1, 2, 0, 1), value=0.5), (IMAGE,)),
    "pad reflect": (lambda x: functional.pad(x, (1, 2, 1, 1), mode="reflect"), (IMAGE,)),
    "pad replicate": (lambda x: functional.pad(x, (1, 2, 1, 1), mode="replicate"), (IMAGE,)),
    "expand": (lambda x: x.mean((2, 3), keepdim=True).expand(-1, -1, 3, 4), (IMAGE,)),
    "pixel shuffle": (lambda x: functional.pixel_shuffle(x, 2), ((1, 8, 3, 4),)),
    "channel shuffle": (lambda x: functional.channel_shuffle(x, 2), (IMAGE,)),
    "unbind": (lambda x: x.unbind(1)[2], (IMAGE,)),
    "mean": (lambda x: x.mean((2, 3)), (IMAGE,)),
    "mean kept": (lambda x: x.mean([-2, -1], keepdim=True), (IMAGE,)),
    "mean of all": (lambda x: x.mean(), (IMAGE,)),
    "sum": (lambda x: x.sum(1), (IMAGE,)),
    "amax": (lambda x: x.amax((2, 3)), (IMAGE,)),
    "max along an axis": (lambda x: x.max(1)[0], (IMAGE,)),
    "argmax": (lambda x: x.argmax(1), (IMAGE,)),
    "var": (lambda x: x.var(1), (IMAGE,)),
    "std": (lambda x: x.std((2, 3)), (IMAGE,)),
    "std of the population": (lambda x: x.std((2, 3), correction=0, keepdim=True), (IMAGE,)),
    "normalize": (lambda x: functional.normalize(x, dim=1), (IMAGE,)),
    "matmul": (lambda x, y: x @ y.t(), (VECTORS, VECTORS)),
    "bmm": (lambda x, y: torch.bmm(x, y.transpose(1, 2)), ((2, 3, 4), (2, 3, 4))),
    "einsum": (lambda x, y: torch.einsum("ab,cb->ac", x, y), (VECTORS, VECTORS)),
    "attention": (lambda x, y: functional.scaled_dot_product_attention(x, y, y), (HEADS, (2, 4, 5, 8))),
    "attention, 3 dimensions": (lambda x: functional.scaled_dot_product_attention(x, x, x * 2, scale=0.3), (HEADS[1:],)),
    "attention, causal": (lambda x: functional.scaled_dot_product_attention(x, x, x, is_causal=True), (HEADS,)),
    "attention, masked": (lambda x, m: functional.scaled_dot_product_attention(x, x, x, m), (HEADS, (3, 3))),
    "attention, masked by truth": (
        lambda x, m: functional.scaled_dot_product_attention(x, x, x, m.abs() > m.abs().amin(-1, keepdim=True)),
        (HEADS, (2, 1, 3, 3)),
    ),
    "attention, shared keys": (
        lambda x, y: functional.scaled_dot_product_attention(x, y, y, enable_gqa=True),
        (HEADS, (2, 2, 3, 8)),
    ),
    "two results": (lambda x: (x.relu(), x * 2), (IMAGE,)),
    "glu": (lambda x: functional.glu(x, 1), (IMAGE,)),
}


def _with_states(x, layer):
    """What a recurrent layer gives, and its states behind the last step."""
    result, states = layer(x)
    return (result, *states) if isinstance(states, tuple) else (result, states)


@pytest.mark.parametrize("names", groups(MODULES, 20))
def test_modules(names):
    parts, shapes = zip(*(MODULES[name] for name in names), strict=True)
    applied = [Apply(_with_states if isinstance(part, nn.RNNBase) else (lambda x, m: m(x)), part) for part in parts]
    check(Several(applied, [1] * len(parts)), shapes, names)


@pytest.mark.parametrize("names", groups(FUNCTIONS, 26))
def test_functions(names):
    functions, shapes = zip(*(FUNCTIONS[name] for name in names), strict=True)
    inputs = [shape for each in shapes for shape in each]
    check(Several([Apply(function) for function in functions], [len(each) for each in shapes]), inputs, names)


def test_recurrent_layers_are_not_decomposed(monkeypatch):
    """PyTorch would trace each step of each layer."""
    monkeypatch.setattr(torch.export.ExportedProgram, "run_decompositions", None)
    layers = nn.GRU(4, 3, 2, bidirectional=True, batch_first=True)
    model = load(Apply(_with_states, layers), [torch.zeros(2, 40, 4)])
    [block] = model.module["main"].body.blocks
    products = [binding for binding in block.bindings if call_to(binding.value, "matmul") is not None]
    assert len(products) == 2 * 2  # of a layer and direction one for all inputs; the steps are one op


@pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")  # PyTorch's own, of how it computes them
def test_projected_states():
    check(Apply(_with_states, nn.LSTM(4, 5, proj_size=3)), [(2, 1, 4)])


def test_picking_by_index_says_nothing(capfd):
    """TVM warns of every index that it doesn't bound."""
    check(Apply(lambda x, w: functional.embedding((x[:, -1, :3, 0] > 0).long(), w)), (IMAGE, (5, 3)))
    assert "Warning" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("function", "shape", "least"),
    [
        (nn.Sequential(*ROW_NET), ROWS, 25),
        (nn.MultiheadAttention(8, 2, batch_first=True), (2, 5, 8), 15),
    ],
)
def test_rows_and_attention_are_quantized(function, shape, least):
    """All of a net on rows is integer; of attention all but its softmax and the two products around it, which stay float."""
    torch.manual_seed(0)
    is_attention = isinstance(function, nn.MultiheadAttention)
    net = Apply((lambda x, m: m(x, x, x, need_weights=False)[0]) if is_attention else (lambda x, m: m(x)), function)
    x = torch.randn(16, *shape)
    model = load(net, [x[0]])
    quantized = octavo.quantize(model, octavo.profile(model, [sample.numpy() for sample in x]))
    floats = [op.op for op in octavo.explain(quantized).counted if not op.integer]
    assert len(floats) <= (3 if is_attention else 0), floats
    executable = octavo.compile(quantized)
    theirs = np.stack([net(sample).detach().numpy() for sample in x])
    ours = np.stack([next(iter(executable(sample.numpy()).values())) for sample in x])
    noise = 10 * np.log10((theirs**2).sum() / ((ours - theirs) ** 2).sum())
    assert noise > least, f"signal to quantization noise {noise:.1f} dB"


# ---------------------------------------------------------------------------------------------------------- quantized ops


def affine(dtype, scale, zero_point, low, high, *, channels=None, as_tensors=False):
    """x quantized and dequantized, as one function."""
    import torch.ao.quantization.fx._decomposed  # registers the ops

    ops = torch.ops.quantized_decomposed

    def function(x):
        if channels is not None:
            parameters = (torch.tensor(scale), torch.tensor(zero_point), channels, low, high, dtype)
            q = ops.quantize_per_channel(x, *parameters)
            return q, ops.dequantize_per_channel(q, *parameters)
        if as_tensors:
            parameters = (torch.tensor(scale), torch.tensor(zero_point), low, high, dtype)
            q = ops.quantize_per_tensor.tensor(x, *parameters)
            return q, ops.dequantize_per_tensor.tensor(q, *parameters)
        q = ops.quantize_per_tensor(x, scale, zero_point, low, high, dtype)
        return q, ops.dequantize_per_tensor(q, scale, zero_point, low, high, dtype)

    return Apply(function)


@pytest.mark.parametrize(
    "module",
    [
        affine(torch.int8, 0.02, 5, -128, 127),
        affine(torch.uint8, 0.02, 120, 0, 255),
        affine(torch.uint8, 0.04, 60, 0, 127),
        affine(torch.int8, 0.02, 5, -128, 127, as_tensors=True),
        affine(torch.int8, [0.01, 0.02, 0.03, 0.01, 0.015, 0.02], [0, 3, -5, 0, 0, 1], -128, 127, channels=1),
        affine(torch.int8, [0.01, 0.02, 0.03, 0.01, 0.015, 0.02], [0, 0, 0, 0, 0, 0], -127, 127, channels=1),
    ],
)
def test_quantize_and_dequantize(module):
    """PyTorch multiplies by the reciprocal of the scale where Octavo divides: they may differ by one step at a boundary."""
    x = torch.randn(1, 6, 40, 40, generator=torch.Generator().manual_seed(0)) * 2
    q, real = module(x)
    actual = list(octavo.compile(load(module, [x]))(x.numpy()).values())
    assert actual[0].dtype == q.numpy().dtype
    difference = np.abs(actual[0].astype(int) - q.numpy().astype(int))
    assert difference.max() <= 1
    assert (difference == 0).mean() > 0.9999
    same = difference == 0
    np.testing.assert_array_equal(actual[1][same], real.numpy()[same])


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (affine(torch.int8, 0.0, 5, -128, 127), "every scale must be finite and positive"),
        (affine(torch.int8, 0.1, 200, -128, 127), "a zero point lies outside of int8"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(module, said):
    with pytest.raises(UnsupportedOpError, match=f"node 'quantize_per_tensor' .*{said}"):
        load(module, [torch.randn(2, 2)])


def test_an_input_written_in_place_beside_an_op_that_is_decomposed():
    """PyTorch then writes what an input becomes as a copy to it, which nobody reads."""
    names = ["relu in place", "rms norm"]
    parts, shapes = zip(*(MODULES[name] for name in names), strict=True)
    check(Several(list(parts), [1, 1]), shapes, names)
