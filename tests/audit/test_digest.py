"""`tilec audit` refuses a bundle with another digest than the given one before reading it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tests.bundle import samples
from tilec.cli import commands


def test_audit_takes_a_digest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.bundle"
    path.write_bytes(samples.bundle())
    assert commands.run(["audit", str(path), "--digest", "0" * 64]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"its sha256 is {hashlib.sha256(path.read_bytes()).hexdigest()}, not {'0' * 64}" in captured.err
