"""The bundle of a model for one architecture has at most 8 MiB."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pytest

from tests.shipped import ROOT
from tilec.cli import commands
from tilec.project.read.buildfile import read_build_file
from tilec.target.targets import MAIN_TARGETS, Target

SHIPPED = read_build_file(ROOT / "build.toml")
LIMIT: Final = 8 << 20
"""Bytes of a file: CUBINs of both dtypes, manifests, proofs, and texts for the audit."""


@pytest.mark.parametrize("fixture", ["shipped_bundle", "shipped_int4_bundle", "shipped_cache_bundle"])
def test_the_kernels_of_one_dtype_take_half_of_the_limit(fixture: str, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(fixture)
    assert 1 << 20 < path.stat().st_size <= LIMIT // 2


@pytest.mark.campaign
@pytest.mark.parametrize("target", MAIN_TARGETS, ids=str)
@pytest.mark.parametrize("model", [model.name for model in SHIPPED.models])
def test_no_bundle_is_larger_than_8_mebibytes(
    model: str, target: Target, shipped_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """INT4 weights with a cache of FP8 codes, where a model has one: no other formats of a model have as much code."""
    monkeypatch.setenv("TILEC_CACHE_DIR", str(shipped_store))
    (own,) = (each for each in SHIPPED.models if each.name == model)
    command = ["bundle", "pack", "--project", str(ROOT), "--model", model, "--arch", str(target), "-o", str(tmp_path), "--json"]
    assert commands.run([*command, "--weights", "int4", "--cache", own.caches[-1]]) == 0
    (row,) = json.loads(capsys.readouterr().out)["bundles"]
    assert row["bytes"] == Path(row["file"]).stat().st_size <= LIMIT
