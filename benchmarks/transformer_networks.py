"""Transformers of the sizes that are in use, made on the spot from their configurations, with random weights, as ONNX.

Weights have heavy tails, and a few channels of norms are 12 times as large, as in trained networks. Needs PyTorch and Hugging
Face's transformers.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from torch.nn import functional

VOCABULARY = 2000
EAGER: dict[str, Any] = {"attn_implementation": "eager"}
WHISPER: dict[str, Any] = {
    "d_model": 512,
    "encoder_attention_heads": 8,
    "encoder_ffn_dim": 2048,
    "decoder_attention_heads": 8,
    "decoder_ffn_dim": 2048,
    "num_mel_bins": 80,
    "vocab_size": VOCABULARY,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}


class Called(nn.Module):
    """A module whose outputs are those that a function takes from it."""

    def __init__(self, module: nn.Module, call: Callable[..., Any]) -> None:
        super().__init__()
        self.module, self.call = module, call

    def forward(self, *inputs: Any) -> Any:
        """Call it."""
        return self.call(self.module, *inputs)


class Decoder(nn.Module):
    """LLaMA's: RMSNorm, rotary positions, grouped queries, a causal mask, gated SiLU, and a cache as inputs and outputs."""

    def __init__(self, width: int, heads: int, shared: int, inner: int, layers: int) -> None:
        super().__init__()
        self.heads, self.shared, self.size = heads, shared, width // heads
        self.embedding, self.layers = nn.Embedding(VOCABULARY, width), nn.ModuleList()
        of_shared = shared * self.size
        sizes = {"q": width, "k": of_shared, "v": of_shared, "o": width, "gate": inner, "up": inner}
        for _ in range(layers):
            dense = {name: nn.Linear(width, size, bias=False) for name, size in sizes.items()}
            norms = {"norm1": nn.RMSNorm(width), "norm2": nn.RMSNorm(width)}
            self.layers.append(nn.ModuleDict({**dense, "down": nn.Linear(inner, width, bias=False), **norms}))
        self.norm, self.last = nn.RMSNorm(width), nn.Linear(width, VOCABULARY, bias=False)

    def _rotated(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        half = self.size // 2
        angles = positions[:, None, :, None].float() / 10000 ** (torch.arange(0, self.size, 2) / self.size)
        cos, sin, low, high = torch.cos(angles), torch.sin(angles), x[..., :half], x[..., half:]
        return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)

    def forward(self, ids: torch.Tensor, positions: torch.Tensor, past: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Return scores of the next tokens, and the cache with these."""
        x, present = self.embedding(ids), list[torch.Tensor]()
        batch, rows, _ = x.shape
        for number, layer in enumerate(self.layers):
            y = layer["norm1"](x)
            counts = {"q": self.heads, "k": self.shared, "v": self.shared}
            q, k, v = (layer[name](y).view(batch, rows, count, self.size).transpose(1, 2) for name, count in counts.items())
            k = torch.cat([past[2 * number], self._rotated(k, positions)], 2)
            v = torch.cat([past[2 * number + 1], v], 2)
            present += [k, v]
            wide = [each.repeat_interleave(self.heads // self.shared, 1) for each in (k, v)]
            scores = self._rotated(q, positions) @ wide[0].transpose(2, 3) / self.size**0.5
            later = torch.arange(k.shape[2])[None, :] > positions[0][:, None]
            found = scores.masked_fill(later, float("-inf")).softmax(-1) @ wide[1]
            x = x + layer["o"](found.transpose(1, 2).reshape(batch, rows, -1))
            y = layer["norm2"](x)
            x = x + layer["down"](functional.silu(layer["gate"](y)) * layer["up"](y))
        return (self.last(self.norm(x)), *present)


def _tails(shape: torch.Size) -> torch.Tensor:
    """Return random numbers of Student's distribution of 4 degrees, by its quantiles: its sampler takes minutes for a network."""
    share = torch.rand(shape).clamp_(1e-7, 1 - 1e-7)
    root = (share * (1 - share)).mul_(4).sqrt_()
    size = root.arccos().div_(3).cos_().div_(root).sub_(1).clamp_(min=0).sqrt_().mul_(2)
    return size.copysign_(share.sub_(0.5))


def _as_trained(module: nn.Module) -> nn.Module:
    """Give weights heavy tails and norms outlier channels."""
    for name, parameter in module.named_parameters():
        if parameter.dim() >= 2 and "emb" not in name:
            parameter.data.copy_(_tails(parameter.shape).mul_(parameter.std() * 0.8))
        elif parameter.dim() == 1 and "weight" in name and ("norm" in name.lower() or "ln" in name):
            parameter.data.uniform_(0.5, 1.5)
            parameter.data[torch.randperm(parameter.numel())[: max(1, parameter.numel() // 64)]] *= 12
    return module.eval()


def _ids(count: int) -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (1, count))


def _bert(layers: int) -> tuple[Any, ...]:
    config = transformers.BertConfig(num_hidden_layers=layers, vocab_size=VOCABULARY, max_position_embeddings=1024, **EAGER)
    module = Called(transformers.BertModel(config), lambda m, i, a: m(input_ids=i, attention_mask=a).last_hidden_state)
    mask, open_sizes = torch.ones(1, 48, dtype=torch.long), {1: torch.export.Dim("s")}
    return module, (_ids(48), mask), ["input_ids", "attention_mask"], ((open_sizes, open_sizes),)


def _gpt2(layers: int) -> tuple[Any, ...]:
    module = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=layers, vocab_size=VOCABULARY, **EAGER))
    called = Called(module, lambda m, i: m(i, use_cache=False).logits)
    return called, (_ids(32),), ["ids"], (({1: torch.export.Dim("s")},),)


def _llama(layers: int) -> tuple[Any, ...]:
    past = [torch.randn(1, 8, 16, 64) * 0.5 for _ in range(2 * layers)]
    rows, before = torch.export.Dim("s", min=1, max=2048), torch.export.Dim("p", min=1, max=4096)
    names = ["ids", "positions", *(f"past{number}" for number in range(2 * layers))]
    dims = {1: rows}, {1: rows}, [{2: before}] * (2 * layers)
    return Decoder(2048, 32, 8, 8192, layers), (_ids(4), torch.arange(16, 20)[None], past), names, dims


def _vit(layers: int) -> tuple[Any, ...]:
    module = transformers.ViTForImageClassification(transformers.ViTConfig(num_hidden_layers=layers, num_labels=1000, **EAGER))
    return Called(module, lambda m, x: m(x).logits), (torch.randn(1, 3, 224, 224),), ["x"], None


def _swin(layers: int) -> tuple[Any, ...]:
    config = transformers.SwinConfig(image_size=224, depths=[2, 2, max(layers - 6, 2), 2], num_labels=1000)
    module = transformers.SwinForImageClassification(config)
    return Called(module, lambda m, x: m(x).logits), (torch.randn(1, 3, 224, 224),), ["x"], None


def _whisper(layers: int) -> Any:
    return transformers.WhisperModel(transformers.WhisperConfig(encoder_layers=layers, decoder_layers=layers, **WHISPER, **EAGER))


def _whisper_encoder(layers: int) -> tuple[Any, ...]:
    called = Called(_whisper(layers).encoder, lambda m, x: m(x).last_hidden_state)
    return called, (torch.randn(1, 80, 3000),), ["x"], None


def _whisper_decoder(layers: int) -> tuple[Any, ...]:
    """A step behind a past: keys and values of the tokens before, and those of what was encoded, are inputs."""

    def call(module: Any, ids: torch.Tensor, past: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        own, encoded = transformers.DynamicCache(), transformers.DynamicCache()
        for number in range(layers):
            own.update(*past[4 * number : 4 * number + 2], number)
            encoded.update(*past[4 * number + 2 : 4 * number + 4], number)
        cache = transformers.EncoderDecoderCache(own, encoded)
        # It looks whether there is something encoded, whose keys and values it then takes from the cache.
        made = module(input_ids=ids, encoder_hidden_states=past[2].new_zeros(1, 1, 512), past_key_values=cache, use_cache=True)
        present = [each for number in range(layers) for each in (own.layers[number].keys, own.layers[number].values)]
        return made.last_hidden_state, *present

    past = [torch.randn(1, 8, count, 64) * 0.5 for _ in range(layers) for count in (16, 16, 1500, 1500)]
    rows, before = torch.export.Dim("s", min=1, max=400), torch.export.Dim("p", min=1, max=400)
    dims = (({1: rows}, [{2: before}, {2: before}, {}, {}] * layers),)
    names = ["ids", *(f"past{number}" for number in range(4 * layers))]
    return Called(_whisper(layers).decoder, call), (_ids(4), past), names, dims


_MADE: dict[str, tuple[Callable[[int], tuple[Any, ...]], int]] = {
    "bert": (_bert, 12),
    "gpt2": (_gpt2, 12),
    "llama": (_llama, 4),
    "vit": (_vit, 12),
    "swin": (_swin, 12),
    "whisper_encoder": (_whisper_encoder, 6),
    "whisper_decoder": (_whisper_decoder, 6),
}


def _made(name: str, layers: int | None) -> tuple[Any, ...]:
    """Return a network's module, example inputs, their names, and what is open of these: the same each time."""
    torch.manual_seed(0)
    function, most = _MADE[name]
    module, *rest = function(min(most, layers or most))
    return _as_trained(module), *rest


def int8_run(name: str, layers: int | None, threads: int) -> Callable[[dict[str, Any]], list[Any]]:
    """Return a function of arrays: the network in PyTorch, which quantizes its dense layers as they run."""
    torch.set_num_threads(threads)
    made, inputs, _, _ = _made(name, layers)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = torch.ao.quantization.quantize_dynamic(made, {nn.Linear}, dtype=torch.qint8)
    alone = len(inputs) - isinstance(inputs[-1], list)

    def run(arrays: dict[str, Any]) -> list[Any]:
        given: list[Any] = [torch.from_numpy(each) for each in arrays.values()]
        with torch.inference_mode():
            found = module(*given[:alone], *([given[alone:]] if alone < len(inputs) else []))
        return [each.numpy() for each in (found if isinstance(found, tuple) else (found,))]

    return run


def make(name: str, path: Path, layers: int | None = None) -> None:
    """Write a network of `NETWORKS`; with fewer layers where a number is given."""
    module, inputs, names, dims = _made(name, layers)
    # PyTorch's newer exporter does not take Swin's windows.
    how: dict[str, Any] = (
        {"dynamo": False, "opset_version": 17} if name == "swin" else {"dynamo": True, "external_data": name == "llama"}
    )
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        if dims is not None:
            how["dynamic_shapes"] = dims
        torch.onnx.export(module, inputs, path, input_names=names, **how)
