"""The references of a project, compared with the interpreter while a side file is prepared."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.files import ROOT
from tests.qualify import bundles
from tilec.cli import commands
from tilec.qualify.side_file import read

RIGHT = "def add(x, y):\n    return x.astype('f8') + y.astype('f8')\n"


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILEC_TRUST", "none")
    return bundles.written(tmp_path, "add")


@pytest.mark.parametrize(
    ("text", "status", "message"),
    [
        (RIGHT, 0, "launches agree, 0 differ, 0 not compared"),
        (RIGHT.replace("+ y", "- y"), 1, "add, smallest: differs: `out[0]` is "),
        (RIGHT.replace("y)", "y, z)"), 0, "asks for `z`"),
        ("def other(x):\n    return x\n", 0, "no reference"),
        ("def add(x, y):\n    return 1 / 0\n", 0, "ZeroDivisionError"),
        (
            "def add(x, y):\n    raise NotImplementedError('even')\n",
            0,
            "`reference.py:add` is not for such inputs: even",
        ),
    ],
)
def test_a_reference_agrees_differs_or_says_nothing(
    path: Path, text: str, status: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    (path.parent / "reference.py").write_text(text)
    arguments = ["qualify", str(path), "--prepare", "--references", str(path.parent), "-j", "1"]
    assert commands.run(arguments) == status
    out, err = capsys.readouterr()
    assert message in out + err


def test_shipped_references_are_called_from_a_bundle_or_say_what_they_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TILEC_TRUST", "none")
    path = bundles.written(tmp_path, "matmul_split", "sample_token")
    assert commands.run(["qualify", str(path), "--prepare", "--references", str(ROOT / "kernels_src"), "-j", "1"]) == 0
    entries = read(path.with_suffix(".qualify")).entries
    assert {launch.reference for launch in entries["matmul_split"].launches} == {"agrees"}
    (reason,) = {launch.reference for launch in entries["sample_token"].launches}
    assert reason.startswith("`reference.py:sample_token` is not for such inputs: it takes candidates as `topk_blocks` leaves")
    assert f"note: sample_token: {reason}" in capsys.readouterr().err


def test_a_side_file_says_at_how_many_launches_references_agreed(path: Path) -> None:
    (path.parent / "reference.py").write_text(RIGHT)
    assert commands.run(["qualify", str(path), "--prepare", "--references", str(path.parent), "-j", "1"]) == 0
    entry = read(path.with_suffix(".qualify")).entries["add"]
    assert {launch.reference for launch in entry.launches} == {"agrees"}


def test_a_result_too_large_for_its_dtype_is_infinite() -> None:
    import numpy as np

    from tilec.qualify.references import _overflowing

    found = _overflowing("f16", np.array([1.0, -70000.0, 65504.0, 1e6]))
    assert found.tolist() == [1.0, -np.inf, 65504.0, np.inf]
    assert _overflowing("i32", np.array([1 << 40])).tolist() == [1 << 40]
