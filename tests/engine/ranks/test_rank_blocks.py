"""Weights of blocks on ranks: the parts of all ranks are the whole that one GPU has, logits of the two agree, and those of a
rank with the weights of another do not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ci.bench.engine import low_bit_weights, ranks_parts, ranks_worker, weights
from ci.bench.engine.low_bit_weights import LowBitWeights
from ci.bench.engine.ranks_check import apart
from ci.bench.engine.ranks_parts import Asked, Found
from ci.bench.engine.ranks_report import wrong
from ci.bench.engine.ranks_worker import MISTAKE, ONE_GPU, RankBlocks, block_weights
from engine.backends.interpreter import InterpreterBackend
from engine.models.families import read_config
from engine.ranks import worker
from engine.ranks.interpreter import InterpreterRanks

BLOCK = 1 << 16


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorter than some tensors, so that they repeat."""
    monkeypatch.setattr(weights, "BLOCK", BLOCK)
    monkeypatch.setattr(low_bit_weights, "BLOCK", BLOCK)


@pytest.mark.parametrize("form", ["16bit", "fp8", "int4"])
@pytest.mark.parametrize("family", ["qwen3", "qwen3_moe"])
def test_the_parts_of_ranks_are_the_whole(family: str, form: str, tiny_folder: Callable[..., Path]) -> None:
    config = read_config(tiny_folder(family))
    whole = LowBitWeights(config, "bf16", form)
    parts = [RankBlocks(config, "bf16", form, rank, 2) for rank in range(2)]
    axes = dict.fromkeys((0, 1, None), 0)
    for name in whole.tensor_names:
        expected, found = whole.tensor(name), [part.tensor(name) for part in parts]
        axis = parts[0]._shards[name].axis  # pyright: ignore[reportPrivateUsage]
        axes[axis] += 1
        if axis is None:
            assert all(np.array_equal(one, expected) for one in found), name
        else:
            assert np.array_equal(np.concatenate(found, axis), expected), name
    assert all(axes.values())


@pytest.mark.parametrize("form", ["16bit", "fp8", "int4"])
@pytest.mark.parametrize("family", ["qwen3", "qwen3_moe"])
def test_tensors_are_those_that_the_engine_dequantises(family: str, form: str, tiny_folder: Callable[..., Path]) -> None:
    """Codes times scales, by loops over blocks; those of experts are stacked in the order of their numbers, gate before up."""
    config: Any = read_config(tiny_folder(family))
    weights = LowBitWeights(config, "bf16", form)
    alone, stacked = dict(weights.tensors()), dict(weights.tensors(stacked=True))
    for name, found in alone.items():
        expected = weights.tensor(name).astype(np.float32)
        if f"{name}_scales" in weights.tensor_names and form == "fp8":
            of_blocks = np.kron(weights.tensor(f"{name}_scales"), np.ones((128, 128), np.float32))
            expected = expected * of_blocks
        elif f"{name}_scales" in weights.tensor_names:
            words = weights.tensor(name)
            fields = np.stack([words >> np.uint32(4 * number) & np.uint32(15) for number in range(8)], axis=-1)
            zeros, scales = (
                np.repeat(weights.tensor(f"{name}{end}").astype(np.float32).T, 128, axis=1) for end in ("_zeros", "_scales")
            )
            expected = (fields.reshape(len(words), -1).astype(np.float32) - zeros) * scales
        assert np.array_equal(found, expected), name
    experts = {name for name in stacked if name not in alone}
    if family == "qwen3":
        assert not experts and stacked.keys() == alone.keys()
        return
    assert experts == {f"model.layers.{layer}.mlp.experts.{one}_proj" for layer in range(2) for one in ("gate_up", "down")}
    for name in experts:
        prefix, of = name.removesuffix("_proj").rsplit(".", 1)
        for expert in range(config.num_experts):
            parts = [alone[f"{prefix}.{expert}.{one}_proj.weight"] for one in of.split("_")]
            assert np.array_equal(stacked[name][expert], np.concatenate(parts)), name


@pytest.fixture
def on_interpreter(
    tiny_folder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Any]]:
    """Parts of `ranks_check` on a tiny mixture of the interpreter."""
    config = read_config(tiny_folder("qwen3_moe"))
    made = list[Any]()

    def one(_: Any) -> InterpreterBackend:
        made.append(backend := InterpreterBackend())
        backend.load(config, LowBitWeights(config, "bf16", "16bit"), 128, "bf16")
        return backend

    def two(_: Any, options: list[str] | tuple[str, ...] = ()) -> InterpreterRanks:
        ranks = [block_weights(config, "", 0 if MISTAKE in options else rank, 2) for rank in range(2)]
        made.append(backend := InterpreterRanks(2))
        backend.load(config, ranks, 128, "bf16")
        return backend

    monkeypatch.setattr(ranks_parts, "on_one", one)
    monkeypatch.setattr(ranks_parts, "on_two", two)
    for name, value in {"LENGTHS": (5, 17), "STEPS": 2, "EVERY": 1, "AGAIN": 1}.items():
        monkeypatch.setattr(ranks_parts, name, value)

    def run(part: str) -> tuple[dict[str, Any], Path]:
        asked = Asked(part, "qwen3-30b-a3b", tmp_path, tmp_path / f"{part}.json", one_gpu=True)
        monkeypatch.setattr(ranks_parts, "rows_over_pages", lambda *_, **__: {"same": True})
        found = Found(asked.file)
        ranks_parts.PARTS[part](asked, found)
        return found.data, ranks_parts.array_file(asked.file)

    yield run
    for backend in made:
        backend.close()


def test_logits_of_ranks_are_those_of_one_within_rounding(on_interpreter: Callable[..., Any]) -> None:
    (one, alone), (two, shared) = on_interpreter("one"), on_interpreter("two")
    each = apart(alone, shared)
    assert len(each) == 6 and max(each) > 0 and len(one["rounding"]) == 4 and two["same"]
    record = {"models": {"m": {"one": one, "two": two, "apart": each}}, "failed": {}}
    assert not wrong(record)


def test_a_rank_with_the_weights_of_another_is_seen(on_interpreter: Callable[..., Any]) -> None:
    found, _ = on_interpreter("planted")
    assert found["mistaken"] > 5 * found["right"] > 0


@pytest.mark.parametrize("options", [[], [ONE_GPU], [MISTAKE], [ONE_GPU, MISTAKE]])
def test_a_worker_takes_its_options(
    options: list[str], tiny_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, opened = read_config(tiny_folder()), list[Any]()
    monkeypatch.setattr(worker, "rank_weights", None)
    monkeypatch.setattr(worker, "open_gpu", before := worker.open_gpu)
    monkeypatch.setattr(ranks_worker, "DriverCalls", lambda: "calls")
    monkeypatch.setattr(ranks_worker, "Device", lambda: "device")
    monkeypatch.setattr(ranks_worker, "open_rank", lambda *given: opened.append(given))
    ranks_worker.prepare(options)
    name = "model.layers.0.self_attn.q_proj.weight"
    given = SimpleNamespace(dtype="bf16", dummy=0, weight_format=None)
    first, second = (
        worker.rank_weights(config, "", rank, 2, **vars(given)).tensor(name)
        for rank in range(2)  # pyright: ignore
    )
    assert np.array_equal(first, second) == (MISTAKE in options)
    if ONE_GPU in options:
        assert worker.open_gpu(1, 2) == ("calls", "device") and opened == [(0, 1, "calls")]
    else:
        assert worker.open_gpu is before
