"""The stand-alone assembler is limited by its processor time, never by wall-clock time."""

from __future__ import annotations

import time
from itertools import count
from pathlib import Path

import pytest

from tilec.assemble import ptxas


def replace_ptxas(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> None:
    program = folder / "ptxas"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(ptxas, "find_ptxas", lambda: program)
    monkeypatch.setattr(ptxas, "MOST_SECONDS", 1)


def test_an_assembler_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    replace_ptxas(monkeypatch, tmp_path, "while :; do :; done")
    cubin, output = ptxas.run(b"", "sm_90a")
    assert cubin is None
    assert "1 s of processor time" in output


def test_an_assembler_that_only_waits_is_not_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It takes longer than its limit in wall-clock time, but hardly any processor time."""
    replace_ptxas(monkeypatch, tmp_path, "read line < $0; /bin/sleep 1.5; echo made > cubin; echo said >&2")
    hours = count()
    monkeypatch.setattr(time, "monotonic", lambda: 3600.0 * next(hours))
    assert ptxas.run(b"", "sm_90a") == (b"made\n", "said\n")
