"""Commands show what a kernel prints; no bundle has a kernel that does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tilec.cli import commands

pytestmark = pytest.mark.usefixtures("kept_workers")

KERNEL = """
import tilec
from tilec import Const, Dim, In, Out, bid, f32, grid, load, store

class N(Dim): "elements"

@tilec.kernel
def double(x: In[f32, N], out: Out[f32, N], *, DEBUG: Const):
    grid(N)
    i = bid(0)
    v = load(x, i)
    if DEBUG:
        print("element {} of {}: {}", i, N, v > 1000.0)
    store(out, i, v * 2.0)
"""
BUILD = """[build]
kernels = "."
arch = ["sm_90"]
[[kernel]]
name = "double"
constants = {{ DEBUG = {} }}
"""
REFERENCE = "def double(x):\n    return 2 * x\n"
LINES = [f"bid ({i}): element {i} of 3: 0" for i in range(3)]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "double.py").write_text(KERNEL)
    (tmp_path / "reference.py").write_text(REFERENCE)
    (tmp_path / "build.toml").write_text(BUILD.format(1))
    return tmp_path


def printed(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    assert commands.run(list(arguments)) == status
    captured = capsys.readouterr()
    return captured.out + captured.err


def test_run_and_test_show_the_lines(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = printed(capsys, "run", "double", "--dims", "N=3")
    assert [line.strip() for line in shown.splitlines() if "bid (" in line] == LINES and "as the reference" in shown
    assert json.loads(printed(capsys, "run", "double", "--dims", "N=3", "--json"))["printed"] == LINES
    assert "bid (0): element 0 of " in printed(capsys, "test", "double")
    (project / "build.toml").write_text(BUILD.format(0))
    assert "printed" not in json.loads(printed(capsys, "run", "double", "--dims", "N=3", "--json"))


def test_emulate_shows_the_lines_of_the_ptx(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = printed(capsys, "emulate", "double", "--dims", "N=3")
    assert sorted(line.strip() for line in shown.splitlines() if "bid (" in line) == LINES and "nothing found" in shown
    (row,) = json.loads(printed(capsys, "emulate", "double", "--dims", "N=3", "--json"))
    assert sorted(row["printed"]) == LINES and row["printed_differs"] == "" and not row["differs"]


def test_a_kernel_that_prints_is_in_no_bundle(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pack = ("bundle", "pack", "--kernel", "double", "-o", str(project / "out"))
    shown = printed(capsys, *pack, status=1)
    assert "error[E0718]: `double-DEBUG=1`" in shown and "if DEBUG:" in shown
    assert not list((project / "out").glob("*.bundle"))
    (project / "build.toml").write_text(BUILD.format(0))
    printed(capsys, *pack)
    assert len(list((project / "out").glob("*.bundle"))) == 1
