"""Aligned versions in a build: which are added, that they change nothing about the general ones, and what
removes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.project import project
from tilec.ir.aligned import ALIGNED
from tilec.project.build.driver import BuildResult
from tilec.project.read.plan import artifact_name, is_artifact_name

pytestmark = pytest.mark.usefixtures("kept_workers")
GENERAL = {"copy_a-BLOCK=128", "copy_a-BLOCK=256", "copy_b-BLOCK=128", "copy_b-BLOCK=256"}
ADDED = {"copy_a-BLOCK=128-aligned", "copy_a-BLOCK=256-aligned"}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path / "store"))
    return project.make(tmp_path / "p")


def ask(root: Path, line: str = "#! aligned") -> None:
    path = root / "kernels_src" / "copy_a.py"
    path.write_text(path.read_text() + f"{line}\n")


def names(root: Path, arch: str) -> set[str]:
    return {path.stem for path in (root / "artifacts/build" / arch).glob("*.cubin")}


def files(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in (root / "artifacts/build").rglob("*.*") if "aligned" not in path.stem}


def statuses(result: BuildResult) -> dict[str, int]:
    found = project.statuses(result)
    return {status: found.count(status) for status in set(found)}


def test_they_are_added_and_change_nothing_else(root: Path) -> None:
    ask(root)
    assert statuses(project.build(root)) == {"built": 8}
    before = files(root)
    again = project.build(root, aligned=True)
    assert (
        statuses(again) == {"hit": 8, "built": 4}
        and [item.planned.name in ADDED for item in again.results] == [False] * 8 + [True] * 4
    )
    assert files(root) == before
    for arch in ("sm_90a", "sm_100a"):
        assert names(root, arch) == GENERAL | ADDED
    manifest = json.loads((root / "artifacts/build/sm_90a/copy_a-BLOCK=128-aligned.json").read_text())
    assert manifest["constants"] == {"BLOCK": 128, ALIGNED: "N % 8 == 0"}
    assert statuses(project.build(root, aligned=True)) == {"hit": 12}


def test_an_entry_may_have_none(root: Path) -> None:
    ask(root)
    project.build(root, aligned=True)
    text = (root / "build.toml").read_text()
    (root / "build.toml").write_text(text.replace('name = "copy_a"\n', 'name = "copy_a"\naligned = false\n'))
    assert statuses(project.build(root, aligned=True)) == {"hit": 8}
    assert names(root, "sm_90a") == GENERAL
    (root / "build.toml").write_text(text.replace('name = "copy_a"\n', 'name = "copy_a"\naligned = true\n'))
    assert statuses(project.build(root, aligned=True)) == {"hit": 12}
    (root / "build.toml").write_text(text.replace("[build]\n", "[build]\naligned = false\n"))
    assert statuses(project.build(root, aligned=True)) == {"hit": 8}
    text = text.replace("[build]\n", "[build]\naligned = false\n")
    (root / "build.toml").write_text(text.replace('name = "copy_a"\n', 'name = "copy_a"\naligned = true\n'))
    assert statuses(project.build(root, aligned=True)) == {"hit": 12}


def test_each_architecture_decides_for_itself(root: Path) -> None:
    ask(root, "#! aligned sm_100a")
    assert statuses(project.build(root, aligned=True)) == {"built": 10}
    assert names(root, "sm_90a") == GENERAL and names(root, "sm_100a") == GENERAL | ADDED


def test_they_stay_unless_they_are_stale(root: Path) -> None:
    """A build that asks for none, as of a ratchet or a bundle of a model, leaves those of its artifacts; one of a kernel that
    has no more use for them removes them."""
    ask(root)
    project.build(root, aligned=True)
    project.build(root)
    assert names(root, "sm_90a") == GENERAL | ADDED
    text = (root / "build.toml").read_text()
    (root / "build.toml").write_text(text.replace("BLOCK = [128, 256]", "BLOCK = 128", 1))
    project.build(root)
    assert names(root, "sm_90a") == (GENERAL | ADDED) - {"copy_a-BLOCK=256", "copy_a-BLOCK=256-aligned"}
    path = root / "kernels_src" / "copy_a.py"
    path.write_text(path.read_text().replace("#! aligned\n", ""))
    project.build(root, aligned=True)
    assert names(root, "sm_90a") == GENERAL - {"copy_a-BLOCK=256"}


def test_an_edit_makes_both_again(root: Path) -> None:
    ask(root)
    project.build(root, aligned=True)
    ask(root, "X = 1")
    again = project.build(root, aligned=True)
    assert {item.planned.name for item in again.results if item.status == "built"} == ADDED | {
        "copy_a-BLOCK=128",
        "copy_a-BLOCK=256",
    }
    assert {reason for item in again.results for reason in item.reasons} == {"source of kernels_src/copy_a.py changed"}


def test_no_other_artifact_has_such_a_name() -> None:
    constants = {"BLOCK": 1, "E": "bf16", "F": 0.5}
    name = artifact_name("k", {**constants, ALIGNED: "N % 8 == 0"})
    assert name == f"{artifact_name('k', constants)}-aligned" and is_artifact_name(name)
    assert artifact_name("k", {ALIGNED: "N % 8 == 0"}) == "k-aligned"
    assert artifact_name("k", {"aligned": True}) == "k-aligned=True"
