"""`python -m engine.quantize --calibration`: the layers that are computed, the folders that are written, what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import dense_reference
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from numpy.typing import NDArray

from engine.checkpoint.weights import WeightPlan
from engine.models.families import read_config
from engine.tools.quantize import calibration, command
from engine.tools.quantize.calibration import Calibration, sequences_of
from engine.tools.quantize.decoder import rms_norm
from engine.tools.quantize.int4 import Int4
from engine.tools.quantize.int8 import Int8
from engine.tools.quantize.integers import IntegerFormat
from engine.tools.tiny import WORDS, write_tiny_model

BF16 = np.dtype(ml_dtypes.bfloat16)
UP = "model.layers.1.mlp.up_proj.weight"


def quantize(*arguments: str | Path) -> int:
    return command.run([str(argument) for argument in arguments])


def write_text(path: Path, seed: int, words: int = 900) -> Path:
    """Words in another order, a paragraph each 40."""
    chosen = np.random.default_rng(seed).choice(WORDS.split(), words)
    path.write_text("\n".join(" ".join(chosen[begin : begin + 40]) for begin in range(0, words, 40)))
    return path


def change(folder: Path, name: str, to: Callable[[NDArray[Any]], NDArray[Any]]) -> None:
    """Change one tensor of a folder's only file."""
    path = folder / "model.safetensors"
    arrays = safetensors.numpy.load_file(path)
    arrays[name] = np.ascontiguousarray(to(arrays[name].copy()))
    path.write_bytes(safetensors.numpy.save(arrays))


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A model whose embeddings have few directions, so that the activations of its layers are correlated."""
    folder = tmp_path / "tiny"
    write_tiny_model(folder)

    def correlated(table: NDArray[Any]) -> NDArray[Any]:
        left, values, right = np.linalg.svd(table.astype(np.float64), full_matrices=False)
        values[6:] *= 0.1
        return (left * values @ right * 2).astype(BF16)

    change(folder, "model.embed_tokens.weight", correlated)
    return folder


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return write_text(tmp_path / "text.txt", 0)


def refused(name: str, what: str, fix: str) -> Any:
    raise AssertionError(f"{name} {what}; {fix}")


def plan_of(folder: Path) -> WeightPlan:
    return WeightPlan.for_model(read_config(folder), folder)


@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_layers_are_those_of_the_definition(family: str, tmp_path: Path) -> None:
    write_tiny_model(tmp_path / "tiny", family=family)
    config, plan = read_config(tmp_path / "tiny"), plan_of(tmp_path / "tiny")
    random = np.random.default_rng(3)
    sequences = [random.integers(0, config.vocab_size, tokens).tolist() for tokens in (90, 1, 17)]
    computed = Calibration(config, plan, Int4(64), (), sequences, refused)
    for _ in range(config.num_hidden_layers):
        computed.layer(lambda *_: None)
    tensors = {name: plan.tensor(name) for name in plan.tensor_names}
    norm, head = (tensors[name].astype(np.float32) for name in ("model.norm.weight", "lm_head.weight"))
    for ids, residual in zip(sequences, computed.residuals, strict=True):
        expected = dense_reference.logits(config, tensors, ids)
        logits = rms_norm(residual, norm, config.rms_norm_eps) @ head.T
        assert residual.dtype == np.float32
        assert np.abs(logits - expected).max() < 2e-5 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("arguments", "form"), [(("int4", "--group-size", "64"), Int4(64)), (("int8",), Int8())], ids=["int4", "int8"]
)
def test_the_engine_reads_what_is_written(
    arguments: Sequence[str], form: IntegerFormat, tiny: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("out", "again"):
        assert quantize(tiny, tmp_path / name, "--to", *arguments, "--calibration", text) == 0
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config == json.loads((tiny / "config.json").read_text()) | {"quantization_config": form.config(["lm_head"])}
    before, after = plan_of(tiny), plan_of(tmp_path / "out")
    linear = [name for name in before.tensor_names if name.endswith("_proj.weight")]
    assert set(after.quantised) == set(linear) and len(linear) == 14
    found, values = captured(tiny, form, text)
    assert sorted(found) == sorted(linear)
    for name in before.tensor_names:
        expected = values[name].astype(BF16) if name in linear else before.tensor(name)
        assert after.tensor(name).tobytes() == expected.tobytes()
    heading, *rows, total, _ = capsys.readouterr().out.splitlines()[: 1 + 14 + 2]
    assert heading.endswith("output error") and [row.split()[0] for row in rows] == found
    assert all(0 < float(row.split()[-2]) < 20 for row in (*rows, total))


def captured(folder: Path, form: IntegerFormat, text: Path) -> tuple[list[str], dict[str, NDArray[np.float32]]]:
    """The names in the order of their rounding, and what each rounded weight stands for."""
    config, plan = read_config(folder), plan_of(folder)
    names = [name for name in plan.tensor_names if name.endswith("_proj.weight")]
    rounded = Calibration(config, plan, form, names, sequences_of(text, folder, config), refused)
    found: list[str] = []
    values: dict[str, NDArray[np.float32]] = {}
    original = calibration.quantise
    with pytest.MonkeyPatch.context() as patch:

        def kept(*arguments: Any) -> Any:
            result = original(*arguments)
            made.append(result[1])
            return result

        made: list[NDArray[np.float32]] = []
        patch.setattr(calibration, "quantise", kept)
        for _ in range(config.num_hidden_layers):
            rounded.layer(lambda name, shape, errors: found.append(name))
        values.update(zip(found, made, strict=True))
    return found, values


def test_the_model_errs_by_less_on_other_text(tiny: Path, text: Path, tmp_path: Path) -> None:
    """The residual after the last layer, for text that calibrated nothing."""
    arguments = ("--to", "int4", "--group-size", "64")
    assert quantize(tiny, tmp_path / "nearest", *arguments) == 0
    assert quantize(tiny, tmp_path / "gptq", *arguments, "--calibration", text) == 0
    config = read_config(tiny)
    sequences = sequences_of(write_text(tmp_path / "other.txt", 1, 300), tiny, config)[:1]
    residuals: dict[str, NDArray[np.float64]] = {}
    for name in ("tiny", "nearest", "gptq"):
        computed = Calibration(config, plan_of(tmp_path / name), Int4(64), (), sequences, refused)
        computed.layer(lambda *_: None)
        computed.layer(lambda *_: None)
        residuals[name] = computed.residuals[0].astype(np.float64)
    gptq, nearest = (np.linalg.norm(residuals[name] - residuals["tiny"]) for name in ("gptq", "nearest"))
    assert gptq < 0.75 * nearest


def test_ignored_modules_are_computed_with_as_they_are(tiny: Path, text: Path, tmp_path: Path) -> None:
    ignored = ("--ignore", "re:.*down_proj", "--ignore", "re:.*0.self_attn.[qkv]_proj")
    assert quantize(tiny, tmp_path / "out", "--to", "int8", "--calibration", text, *ignored) == 0
    before, after = plan_of(tiny), plan_of(tmp_path / "out")
    assert len(after.quantised) == 14 - 2 - 3
    for name in ("model.layers.1.mlp.down_proj.weight", "model.layers.0.self_attn.k_proj.weight"):
        assert after.tensor(name).tobytes() == before.tensor(name).tobytes()


def test_sequences_are_spread_over_a_long_text(tiny: Path, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = read_config(tiny)
    every = sequences_of(text, tiny, config)
    assert len(every) > 2 and {len(ids) for ids in every} == {256}
    monkeypatch.setattr(calibration, "TOKENS", 8)
    monkeypatch.setattr(calibration, "SEQUENCES", 5)
    flat = [token for ids in every for token in ids]
    few = sequences_of(text, tiny, config)
    assert len(few) == 5 and few[0] == flat[:8] and all(len(ids) == 8 for ids in few)
    begins = [next(i for i in range(0, len(flat) + 256, 8) if flat[i : i + 8] == ids) for ids in few[:4]]
    assert begins == sorted(begins) and begins[3] > len(flat) // 2


def test_texts_of_llama_begin_with_its_token(text: Path, tmp_path: Path) -> None:
    write_tiny_model(tmp_path / "llama", family="llama")
    sequences = sequences_of(text, tmp_path / "llama", read_config(tmp_path / "llama"))
    first = {ids[0] for ids in sequences}
    assert len(first) == 1 and len(sequences) > 2 and {len(ids) for ids in sequences} == {256}
    assert all(first.isdisjoint(ids[1:]) for ids in sequences)


def put(row: int, value: float) -> Callable[[NDArray[Any]], NDArray[Any]]:
    def changed(weight: NDArray[Any]) -> NDArray[Any]:
        weight[row] = value
        return weight

    return changed


REFUSED: list[tuple[str, Callable[[Path, Path], object] | None, str, int, str]] = [
    ("fp8", None, "fp8", 2, "--calibration is of --to int4 and int8"),
    ("absent", lambda tiny, text: text.unlink(), "int8", 3, "text.txt: there is no such file; name a text file"),
    ("folder", lambda tiny, text: (text.unlink(), text.mkdir()), "int8", 3, "text.txt: is not a regular file"),
    ("bytes", lambda tiny, text: text.write_bytes(b"text \xff"), "int8", 2, "text.txt: is not UTF-8 at byte 5"),
    ("short", lambda tiny, text: text.write_text("a kernel"), "int8", 2, "tokens, and calibration takes at least 256"),
    ("tokenizer", lambda tiny, text: (tiny / "tokenizer.json").unlink(), "int8", 3, "the tokenizer is missing"),
    ("weight", lambda tiny, text: change(tiny, UP, put(3, np.nan)), "int8", 3, f'"{UP}" holds nan at [3, 0], which is no'),
    ("norm", lambda tiny, text: change(tiny, "model.layers.1.input_layernorm.weight", put(3, np.inf)), "int8", 3,
     'model.layers.1.self_attn.q_proj.weight" has inputs that are no numbers, for this text; take an undamaged checkpoint'),
]  # fmt: skip


@pytest.mark.parametrize(
    ("damage", "form", "status", "expected"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED]
)
def test_refusals_are_one_line_and_leave_nothing(
    damage: Callable[[Path, Path], object] | None, form: str, status: int, expected: str, tiny: Path, text: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    if damage is not None:
        damage(tiny, text)
    before = sorted(tiny.parent.iterdir())
    assert quantize(tiny, tiny.parent / "out", "--to", form, "--calibration", text) == status
    line = capsys.readouterr().err
    assert line.startswith("error: ") and line.count("\n") == 1 and expected in line
    assert sorted(tiny.parent.iterdir()) == before


def test_a_mixture_is_refused(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tiny_model(tmp_path / "mixture", family="qwen3_moe")
    assert quantize(tmp_path / "mixture", tmp_path / "out", "--to", "int8", "--calibration", text) == 3
    assert "is a mixture of experts, which cannot be calibrated" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mixture", "text.txt"]


@pytest.mark.parametrize(("failure", "status"), [(KeyboardInterrupt(), 130), (MemoryError(), 5)], ids=["interrupt", "memory"])
def test_a_failure_in_the_middle_leaves_nothing(
    failure: BaseException, status: int, tiny: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, calls = calibration.quantise, 0

    def fail_later(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 9:
            raise failure
        return original(*arguments)

    monkeypatch.setattr(calibration, "quantise", fail_later)
    assert quantize(tiny, tmp_path / "out", "--to", "int8", "--calibration", text) == status
    assert calls == 9 and sorted(path.name for path in tmp_path.iterdir()) == ["text.txt", "tiny"]
