"""Which bundles the audit's result is about."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.bench.judges.audit import audited, packed
from tilec.cli.project import open_project

ROOT = Path(__file__).resolve().parents[2]


def test_every_dense_model_and_every_format() -> None:
    build = open_project(str(ROOT))
    names = {
        f"{model.bundle_name(weights, cache, 1)}-{target}"
        for target, model, weights, cache in audited(build, (), build.targets)
    }
    dense = {f"{model.name}-{target}" for target in build.targets for model in build.models if not model.requested}
    assert len(dense) == 21 and dense < names
    assert {
        "qwen3-4b-fp8-sm_90a", "qwen3-4b-int4-cache-fp8-sm_90a", "qwen3-4b-w8a8-sm_90a", "qwen3-4b-cache-fp8-sm_90a",
        "qwen3-30b-a3b-sm_90a", "qwen3-30b-a3b-int4-sm_90a",
    } < names  # fmt: skip
    assert not any("gpus" in name or ("fp8" in name and not name.endswith("sm_90a")) for name in names)


def test_missing_bundles_are_named(tmp_path: Path) -> None:
    build = open_project(str(ROOT))
    chosen = list(audited(build, ("qwen3-4b",), build.targets[:1]))
    for _, model, weights, cache in chosen[1:]:
        (tmp_path / f"{model.bundle_name(weights, cache, 1)}-{build.targets[0]}.bundle").touch()
    with pytest.raises(SystemExit, match=r"lacks qwen3-4b-sm_90a\.bundle; `tilec bundle pack`"):
        packed(chosen, tmp_path)
