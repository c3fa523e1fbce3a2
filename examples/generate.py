"""Write a story with a checkpoint of llama2.c, quantized to int8 or to weights of 4 bits, token by token.

The checkpoint becomes an ONNX decoder with a cache and open sizes (llama2c.py, without PyTorch). It is profiled on text that it
writes itself, or on a file's, and quantized; --bits 4 gives dense layers a scale for each 32 inputs. Each token is one step of a
session, which keeps the cache in place. The float model and ONNX Runtime write beside it.

    python examples/generate.py stories260K.bin tok512.bin --prompt "Once upon a time" --tokens 200
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import octavo
from llama2c import BEGIN, END, Decoder, FileError, Shape, Tokenizer, read_checkpoint
from octavo.evaluation import evaluate

RECIPES = {8: octavo.Recipe(), 4: octavo.Recipe(weight_bits=4, weight_block=32)}
"""How weights are quantized, by their bits."""
WINDOW = 256
"""Tokens of one text that is profiled on."""
Step = Callable[[list[int]], np.ndarray]
"""Takes the next tokens, returns the scores of what follows the last one."""


@dataclass(frozen=True)
class Written:
    """A text as tokens, those of the prompt first, and how long its steps of one token took."""

    tokens: list[int]
    prompt: int
    seconds: float

    @property
    def rate(self) -> float:
        """Tokens a second."""
        steps = len(self.tokens) - self.prompt - 1
        return steps / self.seconds if steps > 0 else float("nan")


@dataclass(frozen=True)
class Choice:
    """How the next token is chosen: the most likely one at temperature 0, else drawn."""

    temperature: float
    seed: int

    def __call__(self, scores: np.ndarray, rng: np.random.Generator) -> int:
        """Choose."""
        if not self.temperature:
            return int(scores.argmax())
        shares = np.exp((scores - scores.max()).astype(np.float64) / self.temperature)
        return int(rng.choice(len(scores), p=shares / shares.sum()))


def write(step: Step, prompt: list[int], count: int, choice: Choice) -> Written:
    """Write up to `count` tokens behind the prompt, fewer where the text ends."""
    rng = np.random.default_rng(choice.seed)
    tokens = [*prompt, choice(step(prompt), rng)]
    start = time.perf_counter()
    while len(tokens) - len(prompt) < count and tokens[-1] not in (BEGIN, END):
        tokens.append(choice(step(tokens[-1:]), rng))
    return Written(tokens, len(prompt), time.perf_counter() - start)


def inputs_of(tokens: list[int], before: int) -> dict[str, np.ndarray]:
    """Return what the decoder takes for tokens that stand behind `before` others."""
    return {"ids": np.array([tokens]), "positions": np.arange(before, before + len(tokens))[None]}


def write_in_session(executable: Any, decoder: Decoder, room: int, *given: Any) -> Written:
    """Write in a session of an executable, which writes the cache where it lies."""
    with executable.session(carry=decoder.states, capacity={"past": room}) as session:

        def step(tokens: list[int]) -> np.ndarray:
            return session(inputs_of(tokens, session.length))["logits"][0, -1]

        return write(step, *given)


def write_in_onnxruntime(path: Path, decoder: Decoder, shape: Shape, *given: Any) -> Written | None:
    """Write in ONNX Runtime, which takes the cache as inputs and returns it longer; None where it is not installed."""
    try:
        import onnxruntime
    except ImportError:
        return None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_outputs()]
    past = empty_past(decoder, shape)

    def step(tokens: list[int]) -> np.ndarray:
        before = next(iter(past.values())).shape[2]
        made = dict(zip(names, session.run(None, {**inputs_of(tokens, before), **past}), strict=True))
        past.update({name: made[output] for output, name in decoder.states.items()})
        return made["logits"][0, -1]

    return write(step, *given)


def empty_past(decoder: Decoder, shape: Shape) -> dict[str, np.ndarray]:
    """Return a cache of no tokens."""
    return {name: np.zeros((1, shape.kv_heads, 0, shape.head), np.float32) for name in decoder.states.values()}


def texts_of(executable: Any, decoder: Decoder, shape: Shape, count: int) -> list[list[int]]:
    """Return texts that a model writes, each token drawn by how likely the model finds it."""
    room = min(shape.length, WINDOW)
    return [write_in_session(executable, decoder, room, [BEGIN], room - 1, Choice(1.0, seed)).tokens for seed in range(count)]


def texts_in(path: Path, tokenizer: Tokenizer, shape: Shape) -> list[list[int]]:
    """Return the tokens of a file, cut into windows."""
    room = min(shape.length, WINDOW)
    try:
        tokens = tokenizer.encode(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"{path}: {error}; give a text file in UTF-8") from error
    return [tokens[start : start + room] for start in range(0, len(tokens), room)]


def quantized(
    model: octavo.Model, texts: list[list[int]], decoder: Decoder, shape: Shape, preset: Any, bits: int
) -> octavo.Model:
    """Profile on texts, each from its beginning with an empty cache, and quantize."""
    past = empty_past(decoder, shape)
    batches = [{**inputs_of(tokens, 0), **past} for tokens in texts]
    return octavo.quantize(model, octavo.profile(model, batches), recipe=RECIPES[bits], preset=preset)


def parsed_arguments() -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("checkpoint", type=Path, help="of llama2.c, version 0 (stories260K.bin)")
    parser.add_argument("tokenizer", type=Path, help="of that checkpoint (tok512.bin)")
    parser.add_argument("--prompt", default="Once upon a time", help="what the text begins with (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=200, metavar="N", help="write so many at most (default: 200)")
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 takes the likeliest token (default)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="what tokens are drawn with (default: 0)")
    parser.add_argument("--text", type=Path, metavar="FILE", help="profile on this text (default: what the float model writes)")
    parser.add_argument("--samples", type=int, default=8, metavar="N", help="texts that it writes to be profiled on (default: 8)")
    parser.add_argument("--bits", type=int, choices=RECIPES, default=8, help="of weights (default: %(default)s)")
    parser.add_argument("--preset", choices=("fast", "balanced", "best"), default="balanced", help="how quantize searches")
    return parser.parse_args()


def main() -> None:
    """Read, quantize, write three times, compare."""
    args = parsed_arguments()
    shape, weights = read_checkpoint(args.checkpoint)
    tokenizer, decoder = Tokenizer(args.tokenizer, shape.vocabulary), Decoder(shape, weights)
    prompt = tokenizer.encode(args.prompt)
    if args.tokens < 1 or args.samples < 1 or args.temperature < 0:
        raise FileError("--tokens and --samples must be at least 1, --temperature at least 0")
    if len(prompt) + args.tokens > shape.length:
        raise FileError(
            f"the prompt's {len(prompt)} tokens and {args.tokens} more are over the {shape.length} that the checkpoint was "
            "trained for: give a shorter --prompt or fewer --tokens"
        )
    given = prompt, args.tokens, Choice(args.temperature, args.seed)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "decoder.onnx"
        onnx.save(decoder.model(), path)
        model = octavo.load(path)
        floats = octavo.compile(model)
        texts = texts_in(args.text, tokenizer, shape) if args.text else texts_of(floats, decoder, shape, args.samples)
        executable = octavo.compile(quantized(model, texts, decoder, shape, args.preset, args.bits))
        name = f"{args.bits} bits"
        written = {
            name: write_in_session(executable, decoder, shape.length, *given),
            "float": write_in_session(floats, decoder, shape.length, *given),
            "ONNX Runtime, float": write_in_onnxruntime(path, decoder, shape, *given),
        }
    report(written, tokenizer)
    print(f"{name} on the float model's text: {comparison(floats, executable, written['float'].tokens)}")


def report(texts: dict[str, Written | None], tokenizer: Tokenizer) -> None:
    """Print the texts and how fast they were written."""
    for name, text in texts.items():
        if text is None:
            print(f"{name}: not installed\n")
        else:
            same = sum(a == b for a, b in zip(text.tokens, texts["float"].tokens, strict=False)) - text.prompt
            count = len(text.tokens) - text.prompt
            print(f"{name}: {text.rate:.0f} tokens/s; {same} of {count} tokens are the float model's")
            print(f"{tokenizer.decode(text.tokens)}\n")


def comparison(floats: Any, executable: Any, tokens: list[int]) -> str:
    """Compare both models on one text, the float model's: texts of their own differ from one token on."""
    found = evaluate(floats, executable, np.array([tokens]), task="language", layers=0)
    logits = next(output for output in found.outputs if output.name == "logits")
    return (
        f"next token {logits.agreement:.1%} the same, KL divergence {logits.kl_divergence:.5f}, "
        f"perplexity {found.metric.candidate:.3f} for {found.metric.reference:.3f}"
    )


if __name__ == "__main__":
    try:
        main()
    except (FileError, octavo.OctavoError) as error:
        raise SystemExit(f"error: {error}") from None
