"""A project to run commands in."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilec.project.trial.scaffold import scaffold


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The output of `tilec new softmax`, with a store of its own; the command runs there."""
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path / "store"))
    scaffold(tmp_path / "softmax", "softmax")
    monkeypatch.chdir(tmp_path / "softmax")
    return tmp_path / "softmax"
