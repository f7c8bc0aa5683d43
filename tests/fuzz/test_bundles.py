"""A short run of the campaign of `tests.fuzz.bundles`, and tests that it detects violations."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tests.bundle import mutants, samples
from tests.fuzz import bundles
from tests.fuzz.watch import watched
from tilec.artifact.bundle_format import canonical, encode


def test_mutants_of_bundles(tmp_path: Path) -> None:
    tally = bundles.campaign(400, 20261122, tmp_path)
    assert tally.sound(), tally.text()
    assert tally.worst_seconds < 10 * bundles.LIMIT_SECONDS, tally.text()  # CPU time, also on a slow machine
    assert tally.accepted > 10 and tally.refused["E0705"] > 200
    assert set(tally.kinds) == set(bundles.KINDS)


def test_the_watch_sees_code_files_and_processes(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    inside = tmp_path / "inside"
    inside.mkdir()
    with watched(inside) as found:
        (inside / "x").write_text("1")
        (inside / "x").read_text()
        assert not found
        outside.write_text("1")
        assert len(found) == 1 and "outside" in found[0]
        exec("1")
        assert any(line.startswith("exec") for line in found)
        before = len(found)
        (inside / "x").rename(tmp_path / "y")
        assert len(found) > before
    outside.write_text("2")
    assert len(found) == before + 1  # no longer watched


def test_the_oracle_refuses_other_files() -> None:
    base = bundles.bases()[0]
    assert bundles.examine(base.data) == ""
    assert bundles.examine(base.data[:-32] + bytes(32)) == "trailer"
    assert bundles.examine(mutants.with_manifest(base.data, b" " + canonical(base.manifest))) == "not canonical"
    description = {name: value for name, value in base.manifest.items() if name not in ("blobs", "texts")}
    wrong = {digest: code + b"x" for digest, code in base.blobs.items()}
    assert bundles.examine(encode(description, wrong)) == "blob"
    other = samples.cubin("scale", 1, sm=100)
    digest = hashlib.sha256(other).hexdigest()
    kernel = {"name": "scale", "blob": digest, "steps": [], "manifest": samples.manifest("scale", other, {})}
    assert (
        bundles.examine(
            samples.encode({"model": "m", "arch": "sm_90a", "config": {}, "kernels": [kernel], **samples.STEP}, {digest: other})
        )
        == "code"
    )


@pytest.mark.parametrize("kind", bundles.KINDS)
def test_mutants_are_a_function_of_the_seed(kind: str) -> None:
    import random

    base = bundles.bases()[0]
    assert bundles.KINDS[kind](base, random.Random(3)) == bundles.KINDS[kind](base, random.Random(3))
