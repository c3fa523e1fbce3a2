"""Small programs of common kinds that read texts, sounds and tables, for benchmarks/torch_programs.py."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

Tensor = torch.Tensor
attention = functional.scaled_dot_product_attention
WORDS, WIDTH, HEADS = 50, 32, 4


def heads(x: Tensor, count: int = HEADS) -> Tensor:
    """Return [batch, heads, tokens, width of a head]."""
    return x.view(x.shape[0], x.shape[1], count, -1).transpose(1, 2)


def merged(x: Tensor) -> Tensor:
    """Return [batch, tokens, width] again."""
    return x.transpose(1, 2).reshape(x.shape[0], x.shape[2], -1)


class Feed(nn.Sequential):
    """Two linear layers with a GELU between them."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(approximate="tanh"), nn.Linear(2 * WIDTH, WIDTH))


class Attend(nn.Module):
    """Attention of `x` to `other`, itself where there is none, with what scaled_dot_product_attention takes besides."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(
        self,
        x: Tensor,
        other: Tensor | None = None,
        mask: Tensor | None = None,
        *,
        is_causal: bool = False,
        scale: float | None = None,
    ) -> Tensor:
        read = x if other is None else other
        query, key, value = heads(self.query(x)), heads(self.key(read)), heads(self.value(read))
        return self.out(merged(attention(query, key, value, attn_mask=mask, dropout_p=0.0, is_causal=is_causal, scale=scale)))


class Bert(nn.Module):
    """Tokens, places and types; padding is masked by booleans; normalized behind each step; pooled by the first token."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places, self.types = nn.Embedding(WORDS, WIDTH, 0), nn.Embedding(64, WIDTH), nn.Embedding(2, WIDTH)
        self.attend, self.feed, self.norm1, self.norm2 = Attend(), Feed(), nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.pool, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH, eps=1e-12)
        self.register_buffer("position_ids", torch.arange(64).expand(1, -1), persistent=False)

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        places = self.position_ids[:, : ids.shape[1]]
        x = self.norm(self.words(ids) + self.places(places) + self.types(torch.zeros_like(ids)))
        allowed = mask[:, None, None, :].to(torch.bool).expand(-1, 1, ids.shape[1], -1)
        x = self.norm1(x + self.attend(x, mask=allowed))
        x = self.norm2(x + self.feed(x))
        return x, torch.tanh(self.pool(x[:, 0]))


class Gpt(nn.Module):
    """Causal attention by the flag, one product for queries, keys and values, and the embedding's transpose at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(64, WIDTH)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(WIDTH) for _ in range(3))
        self.all, self.out, self.feed = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), Feed()

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.size(1)))
        query, key, value = self.all(self.norm1(x)).split(WIDTH, dim=2)
        x = x + self.out(merged(attention(heads(query), heads(key), heads(value), is_causal=True)))
        x = x + self.feed(self.norm2(x))
        return functional.linear(self.norm3(x), self.words.weight)


class Llama(nn.Module):
    """Rotated queries and keys, two heads of keys for four of queries, a gated feed, root mean squares."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm1, self.norm2 = nn.Embedding(WORDS, WIDTH), nn.RMSNorm(WIDTH, eps=1e-6), nn.RMSNorm(WIDTH)
        self.query, self.key, self.value = (nn.Linear(WIDTH, size, bias=False) for size in (WIDTH, WIDTH // 2, WIDTH // 2))
        self.out, self.gate, self.up = (nn.Linear(WIDTH, size, bias=False) for size in (WIDTH, 48, 48))
        self.down, self.head = nn.Linear(48, WIDTH, bias=False), nn.Linear(WIDTH, WORDS, bias=False)
        self.register_buffer("frequencies", 1.0 / 10000 ** (torch.arange(0, 8, 2).float() / 8))

    def rotated(self, x: Tensor) -> Tensor:
        angles = torch.outer(torch.arange(x.shape[2], device=x.device).float(), self.frequencies)
        angles = torch.cat([angles, angles], -1)
        left, right = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
        return x * angles.cos() + torch.cat([-right, left], -1) * angles.sin()

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        y = self.norm1(x)
        query, key, value = heads(self.query(y)), heads(self.key(y), 2), heads(self.value(y), 2)
        size = ids.shape[1]
        mask = torch.full((size, size), float("-inf")).triu(1)
        y = attention(self.rotated(query), self.rotated(key), value, attn_mask=mask, enable_gqa=True)
        x = x + self.out(merged(y))
        y = self.norm2(x)
        return self.head(x + self.down(functional.silu(self.gate(y)) * self.up(y)))


class Vit(nn.Module):
    """Patches as tokens behind a class token."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.token = nn.Conv2d(3, WIDTH, 8, 8), nn.Parameter(torch.randn(1, 1, WIDTH))
        self.places, self.attend, self.feed = nn.Parameter(torch.randn(1, 17, WIDTH)), Attend(), Feed()
        self.norm1, self.norm2, self.head = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), x), dim=1) + self.places
        x = x + self.attend(self.norm1(x))
        x = x + self.feed(self.norm2(x))
        return self.head(x[:, 0])


class Swin(nn.Module):
    """Windows of a rolled image, with a bias by the distance of places, and a mask that is written region by region."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.norm, self.all = nn.Conv2d(3, WIDTH, 4, 4), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.bias, self.out, self.merge = nn.Parameter(torch.randn(49, HEADS)), nn.Linear(WIDTH, WIDTH), nn.Linear(128, 64)
        places = torch.stack(torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij")).flatten(1)
        apart = (places[:, :, None] - places[:, None]).permute(1, 2, 0) + 3
        self.register_buffer("index", apart[..., 0] * 7 + apart[..., 1])

    def windows(self, x: Tensor) -> Tensor:
        batch, height, width, channels = x.shape
        x = x.view(batch, height // 4, 4, width // 4, 4, channels)
        return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, channels)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).permute(0, 2, 3, 1)
        batch = x.shape[0]
        rolled = torch.roll(self.norm(x), shifts=(-2, -2), dims=(1, 2))
        regions = torch.zeros(1, 8, 8, 1)
        for count, (rows, columns) in enumerate((r, c) for r in ((0, 4), (4, 6), (6, 8)) for c in ((0, 4), (4, 6), (6, 8))):
            regions[:, rows[0] : rows[1], columns[0] : columns[1]] = count
        region = self.windows(regions).squeeze(-1)
        apart = region.unsqueeze(1) - region.unsqueeze(2)
        mask = apart.masked_fill(apart != 0, -100.0).masked_fill(apart == 0, 0.0)
        query, key, value = self.all(self.windows(rolled)).reshape(-1, 16, 3, HEADS, 8).permute(2, 0, 3, 1, 4).unbind(0)
        bias = self.bias[self.index.view(-1)].view(16, 16, -1).permute(2, 0, 1).contiguous()
        scores = query * 8**-0.5 @ key.transpose(-2, -1) + bias.unsqueeze(0)
        scores = (scores.view(batch, 4, HEADS, 16, 16) + mask.unsqueeze(1).unsqueeze(0)).view(-1, HEADS, 16, 16)
        y = self.out((scores.softmax(-1) @ value).transpose(1, 2).reshape(-1, 16, WIDTH))
        y = y.view(batch, 2, 2, 4, 4, -1).permute(0, 1, 3, 2, 4, 5).reshape(batch, 8, 8, -1)
        x = x + torch.roll(y, shifts=(2, 2), dims=(1, 2))
        quarters = [x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]]
        return self.merge(torch.cat(quarters, -1)).mean((1, 2))


class Whisper(nn.Module):
    """Convolutions on a spectrogram, and a decoder whose attention is causal by a float mask, then crosses over."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv1d(12, WIDTH, 3, padding=1), nn.Conv1d(WIDTH, WIDTH, 3, stride=2, padding=1)
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Parameter(torch.randn(64, WIDTH))
        self.own, self.cross, self.encode = Attend(), Attend(), Attend()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH) for _ in range(4)])
        waves = torch.arange(128)[:, None] * torch.exp(-math.log(10000.0) / 15 * torch.arange(16))[None]
        self.register_buffer("waves", torch.cat([waves.sin(), waves.cos()], 1))
        self.register_buffer("mask", torch.empty(64, 64).fill_(-math.inf).triu_(1), persistent=False)

    def forward(self, sound: Tensor, ids: Tensor) -> Tensor:
        x = functional.gelu(self.conv2(functional.gelu(self.conv1(sound)))).permute(0, 2, 1)
        x = x + self.waves[: x.shape[1]]
        x = self.norms[0](x + self.encode(x))
        size = ids.shape[-1]
        y = self.words(ids) + self.places[:size]
        y = y + self.own(self.norms[1](y), mask=self.mask[:size, :size])
        y = y + self.cross(self.norms[2](y), x)
        return self.norms[3](y) @ torch.transpose(self.words.weight, 0, 1)


class T5(nn.Module):
    """Attention without scale, with a bias by buckets of distances, as an encoder has it; padding as a large number."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.bias, self.attend = nn.Embedding(WORDS, WIDTH), nn.Embedding(8, HEADS), Attend()
        self.norm1, self.norm2, self.feed = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH), Feed()

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x, size = self.words(ids), ids.shape[1]
        apart = torch.arange(size)[None] - torch.arange(size)[:, None]
        near = torch.abs(apart)
        far = 2 + (torch.log(near.float() / 2) / math.log(16 / 2) * 2).to(torch.long)
        bucket = (apart > 0).to(torch.long) * 4 + torch.where(near < 2, near, torch.min(far, torch.full_like(far, 3)))
        bias = self.bias(bucket).permute([2, 0, 1]).unsqueeze(0)
        padding = (1.0 - mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        x = x + self.attend(self.norm1(x), mask=bias + padding, scale=1.0)
        return x + self.feed(self.norm2(x))


class Layers(nn.Module):
    """PyTorch's own encoder and decoder layers, and MultiheadAttention that gives its weights."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 64, batch_first=True, norm_first=True, activation="gelu")
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.decoder = nn.TransformerDecoderLayer(WIDTH, HEADS, 64, batch_first=True)
        self.attend = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, add_bias_kv=True)

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        padding = mask == 0
        x = self.encoder(x, src_key_padding_mask=padding)
        causal = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        y = self.decoder(x.flip(1), x, tgt_mask=causal, memory_key_padding_mask=padding)
        return self.attend(y, x, x, key_padding_mask=padding, average_attn_weights=True)


class Lstm(nn.Module):
    """Two layers in both directions, and the last states beside all steps."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.lstm = nn.Embedding(WORDS, 16), nn.LSTM(16, 12, 2, batch_first=True, bidirectional=True, dropout=0.1)
        self.tags = nn.Linear(24, 7)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        steps, (hidden, cell) = self.lstm(self.words(ids))
        return self.tags(steps), torch.cat([hidden[-2], cell[-1]], -1)


class Recurrent(nn.Module):
    """A GRU with a first state, RNNs of both activations, an LSTM with a projection, and steps by single cells."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.tanh = nn.GRU(8, 10), nn.RNN(10, 9, 2, bidirectional=True)
        self.relu, self.projected = nn.RNN(18, 8, nonlinearity="relu"), nn.LSTM(8, 12, proj_size=6)
        self.cell, self.single = nn.GRUCell(6, 5), nn.LSTMCell(5, 4)

    def forward(self, x: Tensor, state: Tensor) -> Tensor:
        x, _ = self.gru(x, state)
        x, _ = self.projected(self.relu(self.tanh(x)[0])[0])
        hidden = self.cell(x[-1])
        return self.single(hidden, (x[0, :, :4], x[1, :, 2:]))[0]


class Temporal(nn.Module):
    """Causal convolutions with rising dilation, their weights normalized, gated."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            nn.utils.parametrizations.weight_norm(nn.Conv1d(8, 16, 3, dilation=2**step)) for step in range(3)
        )
        self.last = nn.Conv1d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        for step, conv in enumerate(self.convs):
            x = x + functional.glu(conv(functional.pad(x, (2 * 2**step, 0))), dim=1)
        return self.last(x).log_softmax(1)


class Vocoder(nn.Module):
    """A sound from a spectrogram: transposed convolutions of rows, leaky, by normalized weights of the older kind."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.utils.weight_norm(nn.Conv1d(10, 16, 7, padding=3))
        self.up = nn.utils.weight_norm(nn.ConvTranspose1d(16, 8, 4, 2, 1))
        self.wide, self.last = nn.Conv1d(8, 8, 3, padding="same", dilation=3), nn.Conv1d(8, 1, 7, padding=3)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.leaky_relu(self.up(functional.leaky_relu(self.first(x), 0.1)), 0.1)
        return torch.tanh(self.last(functional.elu(x + self.wide(x))))


class Conformer(nn.Module):
    """Half a feed, attention by places that are shifted against each other, a gated convolution along the text."""

    def __init__(self) -> None:
        super().__init__()
        self.feed, self.query, self.key, self.value = Feed(), *(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.places, self.u, self.v = (
            nn.Linear(WIDTH, WIDTH, bias=False),
            *(nn.Parameter(torch.randn(HEADS, 8)) for _ in range(2)),
        )
        self.wide, self.deep = nn.Conv1d(WIDTH, 2 * WIDTH, 1), nn.Conv1d(WIDTH, WIDTH, 5, padding=2, groups=WIDTH)
        self.norm, self.last = nn.BatchNorm1d(WIDTH), nn.LayerNorm(WIDTH)
        self.register_buffer("waves", torch.randn(1, 31, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.5 * self.feed(x)
        batch, size, _ = x.shape
        waves = self.waves[:, 16 - size : 15 + size]
        query = self.query(x).view(batch, size, HEADS, 8)
        far = (query + self.v).transpose(1, 2) @ heads(self.places(waves)).transpose(-2, -1)
        far = (
            functional.pad(far, (1, 0)).view(batch, HEADS, -1, size)[:, :, 1:].view(batch, HEADS, size, 2 * size - 1)[..., :size]
        )
        near = torch.einsum("bihd,bhjd->bhij", query + self.u, heads(self.key(x)))
        x = x + merged(((near + far) / 8**0.5).softmax(-1) @ heads(self.value(x)))
        y = functional.glu(self.wide(x.transpose(1, 2)), dim=1)
        return self.last(x + functional.silu(self.norm(self.deep(y))).transpose(1, 2))


class Recommender(nn.Module):
    """Sums over bags of categories, and products of all pairs of features."""

    def __init__(self) -> None:
        super().__init__()
        self.sums, self.means = nn.EmbeddingBag(30, 8, mode="sum"), nn.EmbeddingBag(30, 8, mode="mean")
        self.dense, self.last = nn.Sequential(nn.Linear(5, 8), nn.ReLU()), nn.Linear(11, 1)
        self.register_buffer("pairs", torch.tril_indices(3, 3, -1))

    def forward(self, x: Tensor, first: Tensor, second: Tensor) -> Tensor:
        dense = self.dense(x)
        features = torch.stack([dense, self.sums(first), self.means(second)], 1)
        products = torch.bmm(features, features.transpose(1, 2))
        return torch.sigmoid(self.last(torch.cat([dense, products[:, self.pairs[0], self.pairs[1]]], 1))).squeeze(-1)


class Graph(nn.Module):
    """Messages along edges, summed where they arrive, weighed by a softmax over those of each node."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.weigh, self.last = nn.Linear(6, 8), nn.Linear(16, 1), nn.Linear(8, 3)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges[0], edges[1]
        x = self.layer(x)
        scores = functional.leaky_relu(self.weigh(torch.cat([x[source], x.index_select(0, target)], -1)), 0.2)
        weights = torch.exp(scores - scores.max())
        total = torch.zeros(x.shape[0], 1).index_add(0, target, weights)
        messages = x[source] * (weights / (total[target] + 1e-9))
        summed = torch.zeros_like(x).scatter_add_(0, target[:, None].expand(-1, 8), messages)
        most = torch.zeros_like(x).scatter_reduce(0, target[:, None].expand(-1, 8), messages, "amax", include_self=True)
        degree = torch.zeros(x.shape[0]).scatter_add(0, target, torch.ones_like(target, dtype=torch.float32))
        return self.last(functional.elu(summed + most) + degree[:, None].clamp(min=1).rsqrt()).log_softmax(-1)


class Experts(nn.Module):
    """Each token goes to the best two of four networks, as long as these have room."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = (
            nn.Linear(16, 4),
            nn.Parameter(torch.randn(4, 16, 24)),
            nn.Parameter(torch.randn(4, 24, 16)),
        )

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = torch.topk(self.gate(x).softmax(-1), 2, dim=-1)
        mask = functional.one_hot(chosen, 4).permute(1, 0, 2).float()
        place = (mask.flatten(0, 1).cumsum(0) - 1).view_as(mask)
        mask = mask * (place < 6).to(mask.dtype)
        combined = torch.einsum("kte,tk->te", mask, weights / weights.sum(-1, keepdim=True))
        hidden = torch.einsum("td,edh->teh", x, self.up).relu()
        return torch.einsum("teh,ehd,te->td", hidden, self.down, combined) / 16


class Flow(nn.Module):
    """A branch by what was computed, and a loop until it is done."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.step = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cond(x.sum() > 0, lambda x: torch.relu(self.left(x)), lambda x: self.right(x) * 2, (x,))
        weight, bias = self.step.weight.detach(), self.step.bias.detach()

        def body(count: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            return count + 1, torch.tanh(x @ weight.T + bias)

        _, x = torch._higher_order_ops.while_loop(lambda count, _: count < 3, body, (torch.tensor(0), x))
        return x


class StateSpace(nn.Module):
    """A linear recurrence as sums that run along the text, read in both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out, self.decay = nn.Linear(8, 24), nn.Linear(16, 8), nn.Parameter(torch.rand(8))
        self.conv = nn.Conv1d(8, 8, 4, padding=3, groups=8)

    def forward(self, x: Tensor) -> Tensor:
        value, gate, step = self.into(x).tensor_split(3, -1)
        value = functional.silu(self.conv(value.mT)[..., : x.shape[1]].mT)
        decay = -functional.softplus(step) * torch.sigmoid(self.decay)
        total = decay.cumsum(1)
        forth = torch.exp(total) * (value * torch.exp(-total)).cumsum(1)
        back = torch.flip(torch.flip(value, [1]).cumsum(1), [1])
        return self.out(torch.cat([forth, back], -1) * gate.repeat_interleave(2, -1).sigmoid())


class Patches(nn.Module):
    """Windows of an image as rows, worked on and put back; corners that are cut, steps, and what wraps around."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(27, 27)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rows = functional.unfold(x, 3, padding=1, stride=2).transpose(1, 2)
        back = functional.fold(self.layer(rows).transpose(1, 2), (12, 12), 3, padding=1, stride=2)
        windows = x.unfold(2, 4, 2).unfold(3, 4, 2).mean((-2, -1))
        cut = x[..., 1:-2:2, -5:].roll(1, -1).flip((-2, -1))
        return back, windows, torch.movedim(cut, 1, -1).rot90(1, (1, 2))


class PointNet(nn.Module):
    """Points without order: a transformation that they agree on, then the largest of each feature."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.turn = nn.Conv1d(3, 16, 1), nn.BatchNorm1d(16), nn.Linear(16, 9)
        self.second, self.head = nn.Conv1d(3, 24, 1), nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        shared = torch.max(functional.relu(self.norm(self.first(x))), 2, keepdim=True)[0].view(-1, 16)
        turn = self.turn(shared).view(-1, 3, 3) + torch.eye(3).flatten().view(1, 3, 3).repeat(x.size(0), 1, 1)
        x = torch.bmm(x.transpose(2, 1), turn).transpose(2, 1)
        return self.head(functional.mish(self.second(x)).amax(-1))
