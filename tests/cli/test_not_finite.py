"""Results that are not finite: a failure where the reference is finite, and unsuitable inputs where the reference is not."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tilec.artifact.records import TensorSpec
from tilec.cli import commands
from tilec.ir.expr import const
from tilec.project.trial.comparison import Written, compared

pytestmark = pytest.mark.usefixtures("kept_workers")

ROOT = """
import tilec
from tilec import Dim, In, Out, bid, cdiv, f32, grid, load, sqrt, store

class N(Dim): "elements"

@tilec.kernel
def root(x: In[f32, N], out: Out[f32, N]):
    grid(cdiv(N, 64))
    store(out, bid(0), sqrt(load(x, bid(0), shape=64, pad=0)), mask=True)
"""
OWN = "\ndef root_inputs(rng, dims):\n    return {'x': rng.uniform(1, 2, dims['N'])}\n"
BUILD = '[build]\narch = ["sm_90"]\n[[kernel]]\nname = "root"\n'


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path / "store"))
    (tmp_path / "kernels_src").mkdir()
    (tmp_path / "kernels_src/root.py").write_text(ROOT)
    (tmp_path / "build.toml").write_text(BUILD)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def reference(project: Path, text: str) -> None:
    (project / "kernels_src/reference.py").write_text("import numpy as np\n" + text)


def test_they_are_counted_and_the_first_is_named(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reference(project, "def root(x):\n    return np.sqrt(np.abs(x.astype(float)))\n")
    assert commands.run(["run", "root", "--dims", "N=1000"]) == 1
    out = capsys.readouterr().out
    x = np.random.default_rng([0, 1]).normal(size=1000).astype(np.float32)
    first = int(np.argmax(x < 0))
    expected = (
        f"WRONG: not finite in {int((x < 0).sum())} of 1000 results, first at `out[{first}]`, which is nan; the reference says"
    )
    assert expected in out
    assert commands.run(["test", "root", "--json"]) == 1
    (one, *_) = json.loads(capsys.readouterr().out)["launches"]
    assert not one["right"] and one["problem"] == "" and one["written"][0]["not_finite"] > 0
    reference(project, "def root(x):\n    return np.sqrt(np.abs(x.astype(float)))\n" + OWN)
    assert commands.run(["test", "root"]) == 0


def test_a_reference_that_is_not_finite_itself_asks_for_other_inputs(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "def root(x):\n    with np.errstate(invalid='ignore'):\n        return np.sqrt(x.astype(float))\n"
    reference(project, text)
    assert commands.run(["test", "root"]) == 1
    out = capsys.readouterr().out
    assert "unsuitable inputs" in out.splitlines()[-1] and "right" not in out
    assert "the random inputs are unsuitable: the reference of `out` is nan or inf in " in out
    assert "write `def root_inputs(rng, dims)` next to it" in out
    reference(project, text + OWN)
    assert commands.run(["test", "root"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("right")
    reference(project, text + "\ndef root_inputs(rng, dims):\n    return {}\n")  # the author accepts these inputs
    assert commands.run(["test", "root"]) == 0


def verdict(found: list[float], expected: list[float]) -> Written:
    spec = TensorSpec("out", "out", "f32", (const(len(found)),), None, 4)
    one = compared(spec, np.array(found, np.float32), np.array(expected), (None, None))
    assert isinstance(one, Written)
    return one


def test_equal_values_that_are_not_finite_are_right() -> None:
    nan, inf = float("nan"), float("inf")
    same = verdict([nan, inf, -inf, 1.0], [nan, inf, -inf, 1.0])
    assert (same.error, same.not_finite, same.undefined) == (0, 0, 2)
    for found, expected in ((nan, inf), (inf, -inf), (1.0, nan), (1.0, -inf)):
        other = verdict([1.0, found], [1.0, expected])
        assert other.error == inf and other.not_finite == 0 and other.worst == (1,)
    missing = verdict([5.0, 1.0, inf, nan], [1.0, 1.0, 1.0, 1.0])
    assert (missing.not_finite, missing.worst, missing.error) == (2, (2,), inf)
