"""Networks of Hugging Face with open sizes: does each load, equal PyTorch at three sizes, quantize, and decode in a session?

    python benchmarks/hugging_face_networks.py [NAME ...] [--keep DIR]

Fifteen networks of transformers in small configurations, with random weights, are exported by torch.onnx.export with named open
dimensions; decoders take and return their cache's tensors. A line each: whether it loads; how far float is from PyTorch at most,
of three sizes; how near int8 is to it, in dB; of decoders, how far a session's steps are from PyTorch's pass over the whole text.
Needs the extra `transformers`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers
from transformers import DynamicCache, EncoderDecoderCache

import octavo

Arrays = dict[str, npt.NDArray[Any]]
Sizes = dict[str, int]
VOCABULARY, WIDTH, HEADS = 99, 32, 4
BODY: dict[str, Any] = {"hidden_size": WIDTH, "num_attention_heads": HEADS, "intermediate_size": 64}
TEXT: dict[str, Any] = {**BODY, "vocab_size": VOCABULARY, "max_position_embeddings": 128}
EXPORTED: Sizes = {"batch": 2, "sequence": 5, "past": 7, "source": 6, "samples": 900, "images": 3}
"""The sizes of the example that is traced: none is 0 or 1, which PyTorch takes for fixed."""


@dataclass(frozen=True)
class Input:
    """An input: token ids, a mask of ones, or floats; "past + sequence" is a size, too."""

    name: str
    shape: tuple[str | int, ...]
    kind: str = "float"

    def value(self, sizes: Mapping[str, int], rng: np.random.Generator) -> npt.NDArray[Any]:
        """Draw it."""
        shape = tuple(sum(sizes[each] for each in size.split(" + ")) if isinstance(size, str) else size for size in self.shape)
        if self.kind == "ids":
            return rng.integers(3, VOCABULARY - 3, shape)
        if self.kind == "mask":
            mask = np.ones(shape, np.int64)
            mask[1:, : shape[1] // 3] = 0  # all texts but the first are shorter, and padded on the left
            return mask
        return rng.standard_normal(shape).astype(np.float32)


@dataclass(frozen=True)
class Network:
    """One file: a module, its inputs, the names of its outputs, and which of these are carried on to which inputs."""

    name: str
    module: Callable[[], torch.nn.Module]
    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]
    sizes: tuple[Sizes, ...]
    carry: dict[str, str] = field(default_factory=dict)


class Chosen(torch.nn.Module):
    """A network of which some outputs are of interest."""

    def __init__(self, net: torch.nn.Module, outputs: tuple[str, ...], inputs: tuple[Input, ...]) -> None:
        super().__init__()
        self.net, self.outputs, self.names = net, outputs, [each.name for each in inputs]

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = self.net(**dict(zip(self.names, inputs, strict=True)))
        return tuple(made[name] for name in self.outputs)


class WithPast(torch.nn.Module):
    """A decoder that takes keys and values of each layer behind its other inputs, and returns them longer."""

    def __init__(self, net: torch.nn.Module, inputs: tuple[Input, ...]) -> None:
        super().__init__()
        self.net, self.names = net, [each.name for each in inputs]

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        given: dict[str, Any] = dict(zip(self.names, inputs, strict=False))
        past = inputs[len(given) :]
        own: Any = DynamicCache(list(zip(past[::2], past[1::2], strict=True)))
        source = given.pop("encoder_hidden_states", None)
        if source is None:
            made = self.net(**given, cache=own, use_cache=True)
        else:  # of which each step makes keys and values anew
            cache = EncoderDecoderCache(own, DynamicCache())
            made = self.net(**given, encoder_outputs=(source,), cache=cache, use_cache=True)
        return made.logits, *(state for layer in own.layers for state in (layer.keys, layer.values))


def states(layers: int, heads: int, width: int) -> tuple[tuple[Input, ...], dict[str, str]]:
    """Return the inputs for keys and values, and which output is carried on to which."""
    names = [f"{layer}.{part}" for layer in range(layers) for part in ("key", "value")]
    inputs = tuple(Input(f"past.{name}", ("batch", heads, "past", width)) for name in names)
    return inputs, {f"present.{name}": f"past.{name}" for name in names}


def sizes_of(names: str, *rows: tuple[int, ...]) -> tuple[Sizes, ...]:
    """Return a row of sizes each, by name."""
    return tuple(dict(zip(names.split(), row, strict=True)) for row in rows)


def text(name: str, kind: str, **settings: Any) -> Network:
    """Return an encoder of texts with a mask."""
    inputs = Input("input_ids", ("batch", "sequence"), "ids"), Input("attention_mask", ("batch", "sequence"), "mask")
    sizes = sizes_of("batch sequence", (1, 1), (3, 17), (2, 40))
    return Network(name, lambda: Chosen(made(kind, settings), ("logits",), inputs), inputs, ("logits",), sizes)


def decoder(name: str, kind: str, settings: dict[str, Any], *, layers: int, heads: int, is_masked: bool = False) -> Network:
    """Return a decoder of texts with a past."""
    given: tuple[Input, ...] = (Input("input_ids", ("batch", "sequence"), "ids"),)
    if is_masked:
        given = *given, Input("attention_mask", ("batch", "past + sequence"), "mask")
    past, carry = states(layers, heads, WIDTH // HEADS)
    sizes = sizes_of("batch sequence past", (1, 9, 0), (2, 1, 13), (3, 6, 20))
    return Network(name, lambda: WithPast(made(kind, settings), given), (*given, *past), ("logits", *carry), sizes, carry)


def translation(
    name: str, kind: str, settings: dict[str, Any], layers: int, source: Input, lengths: tuple[int, ...]
) -> list[Network]:
    """Return the encoder, and the decoder that reads its states, of a network that has both."""
    encoded = ("last_hidden_state",)
    is_open = isinstance(source.shape[-1], str)
    read = Input("encoder_hidden_states", ("batch", "source" if is_open else lengths[0], WIDTH))
    ids = Input("decoder_input_ids", ("batch", "sequence"), "ids")
    past, carry = states(layers, HEADS, WIDTH // HEADS)
    sizes = sizes_of("batch source", *zip((1, 3, 2), lengths, strict=True))
    more = sizes_of(
        "batch sequence past source",
        *((*row, length) for row, length in zip(((1, 4, 0), (2, 1, 13), (3, 6, 20)), lengths, strict=True)),
    )
    return [
        Network(
            f"{name} encoder", lambda: Chosen(made(kind, settings).get_encoder(), encoded, (source,)), (source,), encoded, sizes
        ),
        Network(
            f"{name} decoder",
            lambda: WithPast(made(kind, settings), (ids, read)),
            (ids, read, *past),
            ("logits", *carry),
            more,
            carry,
        ),
    ]


def image(name: str, kind: str, **settings: Any) -> Network:
    """Return a classifier of images."""
    inputs = (Input("pixel_values", ("batch", 3, 32, 32)),)
    sizes = sizes_of("batch", (1,), (3,), (8,))
    return Network(name, lambda: Chosen(made(kind, settings), ("logits",), inputs), inputs, ("logits",), sizes)


def clip(layers: int) -> Network:
    """Return CLIP: how alike images and texts are."""
    body = {**BODY, "num_hidden_layers": layers}
    texts = {**body, "vocab_size": VOCABULARY, "max_position_embeddings": 32, "eos_token_id": VOCABULARY - 1}
    settings = {"text_config": texts, "vision_config": {**body, "image_size": 32, "patch_size": 8}, "projection_dim": 16}
    inputs = Input("input_ids", ("batch", "sequence"), "ids"), Input("pixel_values", ("images", 3, 32, 32))
    outputs = "logits_per_image", "text_embeds", "image_embeds"
    sizes = sizes_of("batch sequence images", (1, 7, 1), (4, 3, 2), (2, 20, 5))
    return Network("CLIP", lambda: Chosen(made("CLIPModel", settings), outputs, inputs), inputs, outputs, sizes)


def wav2vec2(settings: dict[str, Any]) -> Network:
    """Return Wav2Vec2: sound of any length to letters."""
    convolutions = {"conv_dim": (16, 16, 16), "conv_kernel": (10, 3, 3), "conv_stride": (5, 2, 2), "num_feat_extract_layers": 3}
    settings = {**settings, **convolutions, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4}
    inputs = (Input("input_values", ("batch", "samples")),)
    sizes = sizes_of("batch samples", (1, 400), (2, 1601), (3, 1000))
    return Network("Wav2Vec2", lambda: Chosen(made("Wav2Vec2ForCTC", settings), ("logits",), inputs), inputs, ("logits",), sizes)


def networks(layers: int = 2) -> list[Network]:
    """Return all, each of so many layers; those that have an encoder and a decoder are two files."""
    texts = {**TEXT, "num_hidden_layers": layers}
    grouped = {**texts, "num_key_value_heads": 2, "head_dim": WIDTH // HEADS}
    single = {**grouped, "num_key_value_heads": 1}
    distil = {"vocab_size": VOCABULARY, "dim": WIDTH, "n_layers": layers, "n_heads": HEADS, "hidden_dim": 64}
    gpt = {"vocab_size": VOCABULARY, "n_embd": WIDTH, "n_layer": layers, "n_head": HEADS, "n_positions": 128}
    both = {"vocab_size": VOCABULARY, "d_model": WIDTH}
    t5 = {**both, "d_kv": WIDTH // HEADS, "d_ff": 64, "num_layers": layers, "num_heads": HEADS, "feed_forward_proj": "gated-gelu"}
    # PyTorch 2.13 can't export its own attention with a bias for each head, where sizes are open.
    t5 |= {"decoder_start_token_id": 0, "attn_implementation": "eager"}
    side = {"layers": layers, "attention_heads": HEADS, "ffn_dim": 64}
    whisper = {**both, **{f"{part}_{key}": value for part in ("encoder", "decoder") for key, value in side.items()}}
    whisper |= {"num_mel_bins": 16, "max_source_positions": 30, "max_target_positions": 64}
    whisper |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    swin = {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": (layers, 2), "num_heads": (2, 4), "window_size": 4}
    pixels = {**BODY, "num_hidden_layers": layers, "image_size": 32, "patch_size": 8}
    return [
        text("BERT", "BertForSequenceClassification", **texts),
        text("DistilBERT", "DistilBertForMaskedLM", **distil),
        text("RoBERTa", "RobertaForTokenClassification", **texts),
        decoder("GPT-2", "GPT2LMHeadModel", gpt, layers=layers, heads=HEADS),
        decoder("LLaMA", "LlamaForCausalLM", grouped, layers=layers, heads=2, is_masked=True),
        decoder("Qwen", "Qwen3ForCausalLM", grouped, layers=layers, heads=2),
        decoder("Gemma", "GemmaForCausalLM", single, layers=layers, heads=1),
        decoder("Phi", "PhiForCausalLM", texts, layers=layers, heads=HEADS),
        decoder("Mistral", "MistralForCausalLM", {**grouped, "sliding_window": None}, layers=layers, heads=2),
        *translation("T5", "T5ForConditionalGeneration", t5, layers, Input("input_ids", ("batch", "source"), "ids"), (9, 3, 40)),
        *translation(
            "Whisper",
            "WhisperForConditionalGeneration",
            whisper,
            layers,
            Input("input_features", ("batch", 16, 60)),
            (30, 30, 30),
        ),
        image("ViT", "ViTForImageClassification", **pixels),
        clip(layers),
        image("Swin", "SwinForImageClassification", **swin, attn_implementation="eager"),
        wav2vec2(texts),
    ]


def made(kind: str, settings: Mapping[str, Any]) -> Any:
    """Return a network of transformers with random weights whose products keep the size of what they read."""
    torch.manual_seed(0)
    network = getattr(transformers, kind)
    found = network(network.config_class(**settings)).eval()
    with torch.no_grad():
        for parameter in found.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, parameter[0].numel() ** -0.5)
            else:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return found


def drawn(network: Network, sizes: Mapping[str, int], seed: int) -> Arrays:
    """Return random inputs of these sizes."""
    rng = np.random.default_rng(seed)
    return {each.name: each.value(sizes, rng) for each in network.inputs}


def tensors(inputs: Arrays) -> tuple[torch.Tensor, ...]:
    """Return inputs as PyTorch takes them."""
    return tuple(map(torch.from_numpy, inputs.values()))


def expected(module: torch.nn.Module, inputs: Arrays) -> list[npt.NDArray[Any]]:
    """Return PyTorch's outputs."""
    with torch.no_grad():
        return [each.numpy() for each in module(*tensors(inputs))]


def export(network: Network, module: torch.nn.Module, path: Path) -> None:
    """Write a network with its sizes open, under their names."""
    example = tensors(drawn(network, EXPORTED, 0))
    shapes = tuple(
        {axis: size.replace(" + ", "_") for axis, size in enumerate(each.shape) if isinstance(size, str)}
        for each in network.inputs
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's exporter tells of its own code
        torch.onnx.export(
            module,
            example,
            path,
            input_names=[each.name for each in network.inputs],
            output_names=list(network.outputs),
            dynamic_shapes=(shapes,),
            dynamo=True,
            verbose=False,
        )


HEADER = f"{'network':<16}{'loads':>6}{'float error':>13}{'int8 dB':>9}{'session error':>15}"


@dataclass
class Line:
    """What one network came to."""

    name: str
    loads: bool = False
    error: float | None = None
    quality: float | None = None
    session: float | None = None
    why: str = ""

    def __str__(self) -> str:
        error, session = ("" if each is None else f"{each:.1e}" for each in (self.error, self.session))
        quality = "" if self.quality is None else f"{self.quality:.1f}"
        return f"{self.name:<16}{'yes' if self.loads else 'no':>6}{error:>13}{quality:>9}{session:>15}  {self.why}".rstrip()


def relative_error(found: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> float:
    """Return the largest difference by the largest value."""
    assert found.shape == wanted.shape, (found.shape, wanted.shape)
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


def decibels(wanted: npt.NDArray[Any], found: npt.NDArray[Any]) -> float:
    """Return the signal-to-noise ratio."""
    return float(10 * np.log10(np.square(wanted).sum() / np.square(found - wanted).sum()))


def float_error(network: Network, module: torch.nn.Module, executable: Any) -> float:
    """Return how far an executable is from PyTorch at most."""
    errors: list[float] = []
    for seed, sizes in enumerate(network.sizes):
        inputs = drawn(network, sizes, seed)
        found = executable(inputs)
        wanted = expected(module, inputs)
        errors += [relative_error(found[name], want) for name, want in zip(network.outputs, wanted, strict=True)]
    return max(errors)


def quality(network: Network, module: torch.nn.Module, executable: Any) -> float:
    """Return the least signal-to-noise ratio of the first output over the sizes."""
    found: list[float] = []
    for seed, sizes in enumerate(network.sizes):
        inputs = drawn(network, sizes, seed + 50)
        found.append(decibels(expected(module, inputs)[0], executable(inputs)[network.outputs[0]]))
    return min(found)


STEPS = (5, 1, 1, 3, 1)
"""Tokens of each step of a session."""


def in_session(network: Network, executable: Any) -> tuple[npt.NDArray[Any], npt.NDArray[Any], Arrays]:
    """Return what steps of a session give, what calls with a past give, and the inputs of all steps at once."""
    whole = drawn(network, {"batch": 2, "sequence": sum(STEPS), "past": 0, "source": 4}, 90)
    whole = {name: np.ones_like(value) if name == "attention_mask" else value for name, value in whole.items()}
    past = {name: whole[name] for name in network.carry.values()}
    found: list[list[npt.NDArray[Any]]] = [[], []]
    before = 0
    with executable.session(carry=network.carry, capacity={"past": sum(STEPS)}) as step:
        for count in STEPS:
            inputs = {name: value for name, value in whole.items() if name not in past}
            for each in network.inputs:
                if each.kind != "float":  # a mask is of all tokens, ids are of the step's
                    inputs[each.name] = whole[each.name][:, before if each.kind == "ids" else 0 : before + count]
            found[0].append(step(inputs)["logits"])
            made = executable({**inputs, **past})
            found[1].append(made["logits"])
            past = {name: made[output] for output, name in network.carry.items()}
            before += count
    return np.concatenate(found[0], 1), np.concatenate(found[1], 1), whole


def load(network: Network, path: Path) -> octavo.Model:
    """Load a file; a sum of sizes, which PyTorch has no name for, is said here."""
    sums = {each.name: each.shape for each in network.inputs if any(" + " in str(size) for size in each.shape)}
    return octavo.load(path, shapes=sums)


def quantized(network: Network, model: octavo.Model) -> octavo.Model:
    """Profile on samples of several sizes, and quantize."""
    samples = [drawn(network, sizes, seed) for seed, sizes in enumerate(network.sizes * 2, 100)]
    return octavo.quantize(model, octavo.profile(model, samples))


def go(network: Network, folder: Path, line: Line) -> None:
    """Take one network the whole way, and write down what it came to."""
    module = network.module()
    path = folder / f"{network.name.replace(' ', '_')}.onnx"
    if not path.exists():
        export(network, module, path)
    model = load(network, path)
    line.loads = True
    executable = octavo.compile(model)
    line.error = float_error(network, module, executable)
    integer = octavo.compile(quantized(network, model))
    line.quality = quality(network, module, integer)
    for each in (executable, integer) if network.carry else ():
        steps, calls, whole = in_session(network, each)
        assert steps.tobytes() == calls.tobytes(), "a session gives the bytes of calls with a past"
        if each is executable:
            line.session = relative_error(steps, expected(module, whole)[0])


def main(every: Callable[[int], list[Network]] = networks, about: str | None = __doc__) -> int:
    """Print the table; 1 where a network goes not the whole way."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="networks, by the beginnings of their names (default: all)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the exported files, and take those that are there")
    parser.add_argument("--layers", type=int, default=2, metavar="N", help="of each network (default: 2)")
    args = parser.parse_args()
    chosen = [
        each for each in every(args.layers) if any(each.name.lower().startswith(name.lower()) for name in args.names or [""])
    ]
    if args.keep:
        args.keep.mkdir(parents=True, exist_ok=True)
    print(HEADER, flush=True)
    failed = 0
    with tempfile.TemporaryDirectory() as temporary:
        for network in chosen:
            line = Line(network.name)
            try:
                go(network, args.keep or Path(temporary), line)
            except Exception as error:
                line.why = f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}"
                failed += 1
            print(line, flush=True)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
