"""The real stages: equal bytes wherever, however and by however many workers a kernel is built; loadable without a compiler."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tilec.runtime import load_artifact

KERNEL = '''"""Sum of two vectors."""
import tilec
from tilec import Const, Dim, Element, In, Out, bid, cdiv, grid, load, store


class E(Element):
    """bf16 or f16"""


class N(Dim):
    """number of elements"""


@tilec.kernel
def add(x: In[E, N], y: In[E, N], out: Out[E, N], *, E: Const, BLOCK: Const):
    grid(cdiv(N, BLOCK))
    i = bid(0)
    total = load(x, i, shape=BLOCK, pad=0) + load(y, i, shape=BLOCK, pad=0)
    store(out, i, total, mask=True)
'''
BUILD = """[build]
arch = ["sm_90", "sm_100", "sm_120"]
[[kernel]]
name = "add"
constants = { E = ["bf16", "f16"], BLOCK = 1024 }
"""


def build(root: Path, *options: str, seed: str = "0") -> subprocess.CompletedProcess[str]:
    """Writes the project if there is none, and runs `tilec build` in a fresh process."""
    if not (root / "build.toml").exists():
        (root / "kernels_src").mkdir(parents=True)
        (root / "kernels_src/add.py").write_text(KERNEL)
        (root / "build.toml").write_text(BUILD)
    environment = os.environ | {"TILEC_CACHE_DIR": f"{root}-store", "PYTHONHASHSEED": seed}
    command = [sys.executable, "-m", "tilec", "build", *options]
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=1800)


def products(root: Path) -> dict[str, bytes]:
    """Every file of the finished artifacts by relative path."""
    folder = root / "artifacts/build"
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.*")}


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("here") / "p"
    done = build(root, "--jobs", "1", seed="1")
    assert done.returncode == 0, done.stderr
    return root


@pytest.mark.campaign
def test_same_bytes_at_another_path_with_another_seed_and_more_workers(first: Path, tmp_path: Path) -> None:
    other = tmp_path / "quite" / "elsewhere"
    done = build(other, "--jobs", "2", seed="77")
    assert done.returncode == 0, done.stderr
    assert products(first) == products(other)
    assert len(products(first)) == 18


def test_artifacts_load_without_a_compiler(first: Path) -> None:
    for path in sorted((first / "artifacts/build").rglob("*.cubin")):
        manifest, cubin = load_artifact(path)
        assert manifest.arch == path.parent.name
        assert cubin[:4] == b"\x7fELF"
        assert manifest.obligations


def test_comment_assembles_nothing(first: Path) -> None:
    import json

    before = products(first)
    path = first / "kernels_src/add.py"
    path.write_text("# a comment\n" + path.read_text())
    report = json.loads(build(first, "--json", "--jobs", "1").stdout)
    assert {item["status"] for item in report["artifacts"]} == {"built"}
    for item in report["artifacts"]:
        assert item["stage_hits"]["mlir"] and item["stage_hits"]["ptx"] and item["stage_hits"]["cubin"]
    assert [item["stage_hits"]["proofs"] for item in report["artifacts"]].count(False) == 1  # of two floats, three targets
    after = products(first)
    assert {name for name in before if before[name] != after[name]} == {name for name in before if name.endswith(".json")}
