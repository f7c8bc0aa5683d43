"""Bundles have at most 8 MiB, for a model and an architecture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pytest

from tests.shipped import ROOT
from tilec.cli import commands

LIMIT: Final = 8 << 20
"""Bytes of a file: CUBINs of both dtypes, manifests, proofs, and texts for the audit."""


@pytest.mark.parametrize("fixture", ["shipped_bundle", "shipped_int4_bundle", "shipped_cache_bundle"])
def test_the_kernels_of_one_dtype_take_half_of_the_limit(fixture: str, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(fixture)
    assert 1 << 20 < path.stat().st_size <= LIMIT // 2


@pytest.mark.campaign
def test_the_largest_bundle_has_at_most_8_mebibytes(
    shipped_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """That of the dense model with the largest layers: INT4 weights, a cache of FP8 codes, on sm_100."""
    monkeypatch.setenv("TILEC_CACHE_DIR", str(shipped_store))
    model = ["--model", "qwen3-32b", "--arch", "sm_100", "--weights", "int4", "--cache", "fp8"]
    assert commands.run(["bundle", "pack", "--project", str(ROOT), *model, "-o", str(tmp_path), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["bundles"]
    assert row["bytes"] == Path(row["file"]).stat().st_size <= LIMIT
