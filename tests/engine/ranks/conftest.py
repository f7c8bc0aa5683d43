"""Tiny models that two ranks can share, with whole blocks of every format in each, and ranks on GPUs that launch nothing."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from fake_gpus import RUN, WORKER, Ranks, loaded, model_of
from interpreter_ranks import one_rank, two_ranks

from engine.backends.interpreter import InterpreterBackend
from engine.models.families import read_config
from engine.ranks import load
from engine.ranks.gpus import GpuRanks
from engine.ranks.interpreter import InterpreterRanks
from engine.tools import tiny
from tilec.runtime import Bundle, open_bundle

sys.path.append(str(Path(__file__).resolve().parents[2] / "runtime"))
from fake_driver import FakeDriver

SHARED = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 32}
"""Each of two ranks has 256 rows of q_proj, 128 of k_proj and v_proj, 256 columns of o_proj and 128 of down_proj."""

SHARED_EXPERTS = {"num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 64, "moe_intermediate_size": 256}
"""Of a mixture: 512 rows of q_proj, 128 of k_proj and v_proj, 512 columns of o_proj and 128 of each expert's down_proj."""


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Writes a tiny model of 16 bits, or returns what was written with these arguments."""
    written: dict[tuple[str, bool], Path] = {}

    def folder(family: str = "qwen3", *, tied: bool = False) -> Path:
        if (family, tied) not in written:
            target = tmp_path_factory.mktemp("ranks") / family
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(tiny, "SIZES", {**tiny.SIZES, **SHARED})
                experts = tiny.KINDS["qwen3_moe"]
                patch.setitem(tiny.KINDS, "qwen3_moe", replace(experts, keys={**experts.keys, **SHARED_EXPERTS}))
                tiny.write_tiny_model(target, family=family, tied=tied, hidden_size=SHARED["hidden_size"])
            written[family, tied] = target
        return written[family, tied]

    return folder


@pytest.fixture(scope="module")
def one(folder: Path) -> Iterator[InterpreterBackend]:
    """One rank of the module's `folder`."""
    backend = one_rank(folder)
    yield backend
    backend.close()


@pytest.fixture(scope="module")
def two(folder: Path) -> Iterator[InterpreterRanks]:
    """Two ranks of the module's `folder`."""
    backend = two_ranks(folder)
    yield backend
    backend.close()


@pytest.fixture(scope="session")
def bundle(shipped_ranks_bundle: Path) -> Bundle:
    return open_bundle(shipped_ranks_bundle)


@pytest.fixture
def ranks(bundle: Bundle) -> Iterator[Ranks]:
    drivers = [FakeDriver(devices=2) for _ in range(2)]
    found = loaded(bundle, drivers)
    assert all(isinstance(one, tuple) for one in found), found
    made = Ranks([backend for backend, _ in found], drivers, [api for _, api in found])
    yield made
    for backend in made.backends:
        backend.close()
    for driver, api in zip(drivers, made.apis, strict=True):
        assert not driver.buffers and not api.blocks and not api.opened, "something was not freed"


@pytest.fixture(scope="session")
def bundle_folder(shipped_ranks_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model without weights."""
    with open_bundle(shipped_ranks_bundle) as bundle:
        config = model_of(bundle)
    folder = tmp_path_factory.mktemp("model")
    numbers = {field.name: getattr(config, field.name) for field in fields(config)}
    described = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", **numbers}
    (folder / "config.json").write_text(json.dumps(described), encoding="utf-8")
    return folder


@pytest.fixture
def started(
    bundle_folder: Path, shipped_ranks_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., GpuRanks]]:  # fmt: skip
    """Loads two ranks with changes to their processes."""
    found: list[GpuRanks] = []
    original = load.load_gpus

    def start(change: str = "", **options: Any) -> GpuRanks:
        command = [sys.executable, "-c", f"{WORKER}{change}\n{RUN}"]
        monkeypatch.setattr(
            load, "load_gpus", lambda *given, **named: original(*given, **named, command=lambda _, fd: [*command, str(fd)])
        )
        given = {"dummy": 0, "bundle": shipped_ranks_bundle, **options}
        ranks, bundle = load.load_ranks(bundle_folder, read_config(bundle_folder), 2, "cuda", 1024, **given)
        assert isinstance(ranks, GpuRanks) and bundle is not None
        found.append(ranks)
        return ranks

    yield start
    for ranks in found:
        ranks.close()
        ranks.bundle.close()
        assert not any(Path(f"/proc/{pid}").exists() for pid in ranks.pids)
