"""The fingerprint names exact binaries, is cheap the second time, and says what to install when something is missing."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tilec import toolchain
from tilec.diagnostics import CompileError


def test_fingerprint_is_the_same_with_and_without_a_memo(tmp_path: Path) -> None:
    memo = tmp_path / "deep" / "toolchain.json"
    first = toolchain.fingerprint(memo)
    assert toolchain.fingerprint(memo) == first
    assert set(first) == {"python", *(package.distribution for package in toolchain.PACKAGES)}
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


def test_the_prover_s_packages_are_in_the_fingerprint_and_any_of_their_files_changes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert {"islpy", "networkx", "numpy", "ml-dtypes"} <= toolchain.fingerprint(tmp_path / "real.json").keys()
    package = tmp_path / "islpy"
    (package / "deep").mkdir(parents=True)
    (tmp_path / "islpy.libs").mkdir()
    files = [package / "_isl.cpython-311.so", package / "deep" / "module.py", tmp_path / "islpy.libs" / "libisl.so.23"]
    for file in files:
        file.write_bytes(b"first")
    monkeypatch.setattr(toolchain, "_module_folder", {"islpy": package}.get)
    packages = (toolchain.Package("islpy", "islpy", (), whole=True),)
    memo = tmp_path / "memo.json"
    seen = {toolchain.fingerprint(memo, packages)["islpy"]}
    for file in files:
        status = file.stat()
        file.write_bytes(b"other")  # of the same size, in place
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
        seen.add(toolchain.fingerprint(memo, packages)["islpy"])
    assert len(seen) == 4
    assert toolchain.fingerprint(memo, packages) == toolchain.fingerprint(tmp_path / "none.json", packages)


def test_a_binary_edited_in_place_under_its_old_stamp_changes_the_fingerprint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    binary = tmp_path / "tool"
    binary.write_bytes(b"one")
    monkeypatch.setattr(toolchain, "_module_folder", {"any": tmp_path}.get)
    packages = (toolchain.Package("llvmlite", "any", ("tool",)),)
    memo = tmp_path / "memo.json"
    before, status = toolchain.fingerprint(memo, packages), binary.stat()
    binary.write_bytes(b"two")
    os.utime(binary, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert toolchain.fingerprint(memo, packages) != before


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
