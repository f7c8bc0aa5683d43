"""The fingerprint names exact binaries, is cheap the second time, and says what to install when something is missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tilec import toolchain
from tilec.diagnostics import CompileError


def test_fingerprint_is_the_same_with_and_without_a_memo(tmp_path: Path) -> None:
    memo = tmp_path / "deep" / "toolchain.json"
    first = toolchain.fingerprint(memo)
    assert toolchain.fingerprint(memo) == first
    assert set(first) == {package.distribution for package in toolchain.PACKAGES}
    assert first["llvmlite"].split()[1].startswith("sha256:")
    assert not any("/" in value for value in first.values())


def test_a_changed_binary_changes_the_fingerprint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    binary = tmp_path / "bin" / "tool"
    binary.write_bytes(b"one")
    monkeypatch.setattr(toolchain, "_module_folder", {"any": tmp_path}.get)
    monkeypatch.setattr(toolchain, "PACKAGES", (toolchain.Package("llvmlite", "any", ("bin/tool",)),))
    memo = tmp_path / "memo.json"
    before = toolchain.fingerprint(memo)
    binary.write_bytes(b"other")
    assert toolchain.fingerprint(memo) != before


def test_a_damaged_memo_is_ignored(tmp_path: Path) -> None:
    memo = tmp_path / "memo.json"
    good = toolchain.fingerprint(memo)
    entries = json.loads(memo.read_text())
    memo.write_text(json.dumps(dict.fromkeys(entries, "short")))
    assert toolchain.fingerprint(memo) == good
    memo.write_text("{")
    assert toolchain.fingerprint(memo) == good


def test_a_missing_package_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = toolchain.Package("nvidia-nvjitlink", "no.such.module", ("lib/x.so",))
    monkeypatch.setattr(toolchain, "PACKAGES", (absent, toolchain.Package("no-such-dist", "llvmlite", ())))
    with pytest.raises(CompileError) as caught:
        toolchain.fingerprint(tmp_path / "memo.json")
    assert [d.code for d in caught.value.diagnostics] == ["E0601", "E0601"]
    assert all(d.hint == "run `pip install 'tilec[compiler]'`" for d in caught.value.diagnostics)
