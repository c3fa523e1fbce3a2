"""Task language: its figures are those of NumPy on the scores, and tokens alone are enough to make a decoder's inputs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import octavo
from octavo.cli.main import main
from octavo.errors import DataError
from octavo.evaluation import InferenceModel, Port, TokenWindows, evaluate
from octavo.runtime.inputs import InputSpec
from octavo.runtime.size import Size

VOCABULARY, WIDTH = 11, 6
BATCH, SEQUENCE, PAST = (Size.named(name) for name in ("batch", "sequence", "past"))
Array = npt.NDArray[Any]


def write_decoder(path: Path, seed: int, noise: float = 0.0) -> None:
    """Write scores of the next token by the last one's embedding, the position's, and a past that is read by its mean."""
    rng = np.random.default_rng(seed)
    arrays = {
        "embed": rng.normal(0, 1, (VOCABULARY, WIDTH)),
        "places": rng.normal(0, 1, (64, WIDTH)),
        "head": rng.normal(0, 1, (WIDTH, VOCABULARY)),
    }
    arrays["head"] += noise * np.random.default_rng(99).normal(0, 1, arrays["head"].shape)
    nodes = [
        helper.make_node("Gather", ["embed", "input_ids"], ["token"]),
        helper.make_node("Gather", ["places", "position_ids"], ["place"]),
        helper.make_node("Add", ["token", "place"], ["x"]),
        helper.make_node("Concat", ["past.key", "x"], ["present.key"], axis=1),
        helper.make_node("MatMul", ["x", "head"], ["logits"]),
    ]
    ids = [helper.make_tensor_value_info(name, TensorProto.INT64, [1, "sequence"]) for name in ("input_ids", "position_ids")]
    past, present = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, rows, WIDTH])
        for name, rows in (("past.key", "past"), ("present.key", "past + sequence"))
    )
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, "sequence", VOCABULARY])
    weights = [numpy_helper.from_array(value.astype(np.float32), name) for name, value in arrays.items()]
    graph = helper.make_graph(nodes, "decoder", [*ids, past], [logits, present], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two decoders, one a bit off."""
    folder = tmp_path_factory.mktemp("decoders")
    write_decoder(folder / "m.onnx", 1)
    write_decoder(folder / "other.onnx", 1, noise=0.2)
    return folder / "m.onnx", folder / "other.onnx"


def tokens(count: int, length: int) -> Array:
    return np.random.default_rng(5).integers(0, VOCABULARY, (count, length))


def log_shares(path: Path, windows: Array) -> Array:
    executable = octavo.compile(octavo.load(path))
    scores = [
        executable(
            {
                "input_ids": row[None],
                "position_ids": np.arange(len(row))[None],
                "past.key": np.zeros((1, 0, WIDTH), np.float32),
            }
        )["logits"][0]
        for row in windows
    ]
    values = np.array(scores, np.float64)
    return values - np.log(np.exp(values).sum(axis=-1, keepdims=True))


def test_figures_are_those_of_numpy(files: tuple[Path, Path]) -> None:
    windows = tokens(4, 9)
    one, other = (log_shares(path, windows) for path in files)
    models = [octavo.load(files[0]), octavo.compile(octavo.load(files[1]))]
    found = evaluate(*models, windows, task="language")
    logits = found.outputs[0]
    assert logits.kl_divergence == pytest.approx((np.exp(one) * (one - other)).sum(axis=-1).mean(), rel=1e-6)
    assert logits.agreement == found.agreement == np.mean(one.argmax(-1) == other.argmax(-1))
    assert logits.decides == "next token"
    assert found.metric is not None
    losses = [-np.take_along_axis(each[:, :-1], windows[:, 1:, None], 2).mean() for each in (one, other)]
    assert (found.metric.reference, found.metric.candidate) == pytest.approx(np.exp(losses), rel=1e-6)
    assert found.metric.drop == found.metric.candidate - found.metric.reference
    whole = [
        {"input_ids": row[None], "position_ids": np.arange(9)[None], "past.key": np.zeros((1, 0, WIDTH), np.float32)}
        for row in windows
    ]
    assert evaluate(*models, whole, task="language").outputs == found.outputs


def test_the_same_twice_has_no_divergence(files: tuple[Path, Path]) -> None:
    found = evaluate(files[0], files[0], tokens(2, 5), task="language")
    assert found.outputs[0].kl_divergence == 0
    assert found.missed(min_agreement=1, max_kl=0, max_drop=0) == ()


def scores_of(values: Sequence[float], wanted: Sequence[int] = (1, 3, 2)) -> InferenceModel:
    """Return a model that gives the same scores whatever it takes."""
    return InferenceModel(
        label="fixed",
        inputs=(Port(name="ids", shape=(1, 3), dtype="int64"),),
        outputs=(Port(name="logits", shape=wanted, dtype="float32"),),  # pyright: ignore[reportArgumentType]
        run=lambda _: [np.tile(np.array(values, np.float32), (1, 3, 1))],
    )


def test_demands_and_extreme_scores() -> None:
    found = evaluate(scores_of([0, 0]), scores_of([1e4, -1e4]), np.array([[0, 1, 0]]), task="language")
    assert found.metric is not None
    assert found.metric.reference == 2
    assert found.metric.candidate == np.inf
    assert found.outputs[0].kl_divergence == pytest.approx(1e4 - np.log(2))
    assert found.missed(max_kl=1)[0] == "KL divergence 9999.3069 is more than 1"
    # A share of 0 in the reference counts for nothing.
    assert evaluate(scores_of([1e4, -1e4]), scores_of([0, 0]), np.zeros((1, 3), int), task="language").outputs[
        0
    ].kl_divergence == pytest.approx(np.log(2))
    with pytest.raises(DataError, match="of task language"):
        evaluate(scores_of([0, 0]), scores_of([0, 1]), np.zeros((1, 3), int), task="sequence").missed(max_kl=1)


def specs() -> list[InputSpec]:
    def spec(name: str, shape: tuple[Any, ...], dtype: str = "int64") -> InputSpec:
        return InputSpec(id=name, source_name=name, shape=shape, dtype=dtype)

    return [
        spec("input_ids", (BATCH, SEQUENCE)),
        spec("attention_mask", (BATCH, PAST + SEQUENCE)),
        spec("position_ids", (BATCH, SEQUENCE)),
        spec("past_key_values.0.key", (BATCH, 2, PAST, 4), "float32"),
    ]


def test_a_text_is_cut_into_windows_and_other_inputs_follow() -> None:
    text = np.arange(300, dtype=np.int32)
    first, second = TokenWindows(specs=specs()).batches(text, "text")
    assert [each["input_ids"].shape for each in (first, second)] == [(1, 256), (1, 44)]
    assert second["input_ids"].dtype == np.int64
    assert second["input_ids"][0, 0] == 256
    assert second["position_ids"].tolist() == [list(range(44))]
    assert second["attention_mask"].tolist() == [[1] * 44]
    assert second["past_key_values.0.key"].shape == (1, 2, 0, 4)
    fixed = InputSpec(id="ids", source_name="ids", shape=(2, 16), dtype="int32")
    [only] = TokenWindows(specs=[fixed]).batches(text[:50], "text")
    assert only["ids"].tolist() == [list(range(16)), list(range(16, 32))]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (np.array([[0, VOCABULARY]]), "input input_ids holds token 11, the model's are 0 to 10"),
        (np.array([[0, -1]]), "holds token -1"),
        (np.zeros((1, 4), np.float32), "tokens are whole numbers"),
        (np.zeros((2, 3, 4), np.int64), r"got int64 \[2, 3, 4\]"),
        (np.zeros(1, np.int64), "1 tokens are less than a run"),
    ],
)
def test_what_are_no_tokens_is_refused(files: tuple[Path, Path], data: Array, message: str) -> None:
    with pytest.raises(DataError, match=message):
        evaluate(files[0], files[0], data, task="language")


def test_models_of_another_kind_are_refused(files: tuple[Path, Path]) -> None:
    with pytest.raises(DataError, match="leave labels out"):
        evaluate(files[0], files[0], tokens(1, 4), labels=[1], task="language")
    with pytest.raises(DataError, match="an output logits of"):
        evaluate(scores_of([0, 1], (1, 2)), scores_of([0, 1], (1, 2)), tokens(1, 3), task="language")
    unknown = InputSpec(id="bias", source_name="bias", shape=(1, 4), dtype="float32")
    with pytest.raises(DataError, match=r"nothing says what input bias: float32 \[1,4\] takes"):
        list(TokenWindows(specs=[*specs(), unknown]).batches(np.arange(9), "text"))
    with pytest.raises(DataError, match="by one input"):
        list(TokenWindows(specs=[unknown]).batches(np.arange(9), "text"))


def test_the_command_line(files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    windows = tokens(4, 9)
    np.save(tmp_path / "tokens.npy", windows)
    (tmp_path / "tokens.txt").write_text("\n".join(" ".join(map(str, row)) for row in windows) + "\n")
    words = ["evaluate", str(files[0]), str(files[1]), "--task", "language", "--layers", "0"]
    assert main([*words, "--data", str(tmp_path / "tokens.npy"), "--json", "--max-kl", "0.00001"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["samples"] == 4
    assert len(found["missed"]) == 1
    assert main([*words, "--data", str(tmp_path / "tokens.txt"), "--max-drop", "100"]) == 0
    text = capsys.readouterr().out
    assert f"{found['outputs'][0]['kl_divergence']:.5f}" in text
    assert f"by tokens, perplexity: {found['metric']['reference']:.2f} tokens of the reference" in text
    (tmp_path / "words.txt").write_text("1 2\nonce upon\n")
    assert main([*words, "--data", str(tmp_path / "words.txt")]) != 0
    assert "words.txt: line 2: " in capsys.readouterr().err
