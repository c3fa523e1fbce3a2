"""examples/generate.py: a trained checkpoint becomes an ONNX decoder that writes the same in a session as in ONNX Runtime."""

from __future__ import annotations

import dataclasses
import struct
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest

import octavo
from example_programs import EXAMPLES, Programs, programs
from octavo.runtime.executable import Executable

__all__ = ["programs"]
PROGRAM = EXAMPLES / "generate.py"
PROMPT, TOKENS, STEPS = "Once upon a time", 40, 12
LAYERS = 1
"""Of the checkpoint's, which quantized models have."""


def cut(source: Path, target: Path, kept: int) -> Path:
    """Write the first layers of a checkpoint, with a head of its own, as a checkpoint."""
    raw = source.read_bytes()
    dim, hidden, layers, heads, kv_heads, vocabulary, length = struct.unpack_from("<7i", raw)
    kv = dim // heads * kv_heads
    sizes = [dim, dim * dim, kv * dim, kv * dim, dim * dim, dim, hidden * dim, hidden * dim, hidden * dim]
    at, parts = 28 + 4 * vocabulary * dim, [raw[28 : 28 + 4 * vocabulary * dim]]
    for size in sizes:
        parts.append(raw[at : at + 4 * size * kept])
        at += 4 * size * layers
    header = struct.pack("<7i", dim, hidden, kept, heads, kv_heads, -vocabulary, length)
    target.write_bytes(header + b"".join(parts) + raw[at:] + parts[0])
    return target


@dataclasses.dataclass(frozen=True)
class Story:
    """The example's module, what it reads, the float model, and one of the first layers, float and quantized."""

    generate: Any
    shape: Any
    decoder: Any
    few: Any
    tokenizer: Any
    path: Path
    floats: Executable
    few_layers: Executable
    integers: Executable

    @property
    def given(self) -> tuple[Any, ...]:
        return self.tokenizer.encode(PROMPT), TOKENS, self.generate.Choice(0.0, 0)


@pytest.fixture(scope="module")
def story(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Story:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLES)
        import generate
        import llama2c
    for module in ("generate", "llama2c"):
        assert isinstance(sys.modules.pop(module), ModuleType)
    folder, checkpoint = tmp_path_factory.mktemp("story"), shared / "models/llama/stories260K.bin"
    shape, weights = llama2c.read_checkpoint(checkpoint)
    tokenizer, decoder = llama2c.Tokenizer(shared / "models/llama/tok512.bin", shape.vocabulary), llama2c.Decoder(shape, weights)
    path = folder / "decoder.onnx"
    onnx.save(decoder.model(), path)
    floats = octavo.compile(octavo.load(path))
    texts = generate.texts_of(floats, decoder, shape, 3)
    few = llama2c.Decoder(*llama2c.read_checkpoint(cut(checkpoint, folder / "cut.bin", LAYERS)))
    onnx.save(few.model(), folder / "cut.onnx")
    model = octavo.load(folder / "cut.onnx")
    integers = octavo.compile(generate.quantized(model, texts, few, shape, "fast", 8))
    return Story(generate, shape, decoder, few, tokenizer, path, floats, octavo.compile(model), integers)


def test_the_float_session_writes_what_onnx_runtime_writes(story: Story) -> None:
    pytest.importorskip("onnxruntime")
    found = story.generate.write_in_session(story.floats, story.decoder, story.shape.length, *story.given)
    expected = story.generate.write_in_onnxruntime(story.path, story.decoder, story.shape, *story.given)
    assert found.tokens == expected.tokens
    assert len(found.tokens) == found.prompt + TOKENS
    assert story.tokenizer.decode(found.tokens).startswith("Once upon a time, there was a little girl named Lily.")


@pytest.mark.parametrize("kind", ["floats", "integers"])
def test_steps_of_a_session_have_the_bytes_of_calls_without_one(story: Story, kind: str) -> None:
    executable: Executable = getattr(story, kind)
    decoder = story.decoder if executable is story.floats else story.few
    past = story.generate.empty_past(decoder, story.shape)
    tokens = story.tokenizer.encode(PROMPT)
    with executable.session(carry=decoder.states, capacity={"past": 64}) as session:
        for _ in range(STEPS):
            inputs = story.generate.inputs_of(tokens, session.length)
            made = executable({**inputs, **past})
            past = {name: made[output] for output, name in decoder.states.items()}
            scores = session(inputs)["logits"]
            assert scores.tobytes() == made["logits"].tobytes()
            tokens = [int(scores[0, -1].argmax())]
        states = session.state()
        assert {name: array.tobytes() for name, array in states.items()} == {
            name: array.tobytes() for name, array in past.items()
        }


def test_the_integer_model_names_the_float_model_s_next_token(story: Story) -> None:
    text = story.generate.write_in_session(story.floats, story.decoder, story.shape.length, *story.given).tokens
    scores = [
        executable({**story.generate.inputs_of(text, 0), **story.generate.empty_past(story.few, story.shape)})["logits"]
        for executable in (story.few_layers, story.integers)
    ]
    assert float((scores[0].argmax(axis=-1) == scores[1].argmax(axis=-1)).mean()) >= 0.9


def test_tokens_are_drawn_by_their_shares(story: Story) -> None:
    scores = np.log(np.array([0.5, 0.3, 0.2], np.float32))
    rng = np.random.default_rng(0)
    drawn = [story.generate.Choice(1.0, 0)(scores, rng) for _ in range(2000)]
    assert np.bincount(drawn) / 2000 == pytest.approx([0.5, 0.3, 0.2], abs=0.04)
    assert story.generate.Choice(0.0, 0)(scores, rng) == 0


@pytest.mark.parametrize("text", ["Lily's dog", "naïve 😀", ""])
def test_texts_are_tokens_and_back(story: Story, text: str) -> None:
    assert story.tokenizer.decode(story.tokenizer.encode(text)) == text


@pytest.mark.parametrize("bits", [8, 4])
def test_the_program_writes_and_compares(bits: int, shared: Path, tmp_path: Path, programs: Programs) -> None:
    pytest.importorskip("onnxruntime")
    checkpoint = cut(shared / "models/llama/stories260K.bin", tmp_path / "cut.bin", LAYERS)
    tokenizer = shared / "models/llama/tok512.bin"
    words = ("--prompt", PROMPT, "--tokens", 6, "--samples", 1, "--preset", "fast", "--bits", bits)
    done = programs.run(PROGRAM, checkpoint, tokenizer, *words)
    assert done.code == 0, done
    speeds = [line for line in done.out.splitlines() if "tokens/s" in line]
    assert [line.partition(":")[0] for line in speeds] == [f"{bits} bits", "float", "ONNX Runtime, float"]
    assert done.out.count("6 of 6 tokens are the float model's") >= 2
    assert done.out.count(f"\n{PROMPT}") == 3
    assert f"{bits} bits on the float model's text: next token " in done.out


@pytest.mark.parametrize(
    ("checkpoint", "tokenizer", "words", "message"),
    [
        (slice(0, 1000), slice(None), (), "cut off: .* takes 1056540 bytes, the file has 1000; download it again"),
        (slice(0, 20), slice(None), (), "20 bytes are no llama2.c checkpoint"),
        (slice(4, None), slice(None), (), "no llama2.c checkpoint .of version 0"),
        (slice(None), slice(0, 3000), (), "tokenizer.bin: cut off, or no llama2.c tokenizer of 512 pieces"),
        (slice(None), slice(2, None), (), "piece 0 is not there"),
        (slice(None), slice(None), ("--tokens", 510), "the prompt's 5 tokens and 510 more are over the 512"),
        (slice(None), slice(None), ("--tokens", 0), "must be at least 1"),
    ],
)
def test_what_cannot_be_read_is_one_line(
    checkpoint: slice, tokenizer: slice, words: tuple[Any, ...], message: str, shared: Path, tmp_path: Path, programs: Programs
) -> None:
    files = {"checkpoint.bin": ("stories260K.bin", checkpoint), "tokenizer.bin": ("tok512.bin", tokenizer)}
    for name, (source, part) in files.items():
        (tmp_path / name).write_bytes((shared / "models/llama" / source).read_bytes()[part])
    done = programs.run(PROGRAM, *(tmp_path / name for name in files), *words)
    assert done.code == 1
    assert len(done.err.splitlines()) == 1
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(done.err)
