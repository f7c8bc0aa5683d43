"""The fingerprint names exact files, is cached, and says what to install if something is missing."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from tilec import toolchain
from tilec.diagnostics.diagnostic import CompileError


class Memory:
    """Notes in a dictionary."""

    def __init__(self) -> None:
        self.notes: dict[str, str] = {}

    def get_text(self, name: str) -> str | None:
        return self.notes.get(name)

    def set_texts(self, notes: Mapping[str, str]) -> None:
        self.notes |= notes


def test_fingerprint_is_the_same_with_and_without_a_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory()
    first = toolchain.fingerprint(memory)
    monkeypatch.setattr(toolchain, "_sha256", lambda path: pytest.fail(f"{path} is hashed again"))
    assert toolchain.fingerprint(memory) == first
    assert set(first) == {"python", *(package.distribution for package in toolchain.PACKAGES)}
    assert all(text.split()[-1].startswith("sha256:") for name, text in first.items() if name != "python")
    assert not any("/" in value for value in first.values())


@pytest.mark.parametrize("package", [package for package in toolchain.PACKAGES if not package.binaries], ids=str)
def test_every_library_that_is_loaded_counts(package: toolchain.Package) -> None:
    folder = toolchain._module_folder(package.module)  # pyright: ignore[reportPrivateUsage]
    assert folder is not None
    counted = {path for path, _ in toolchain._modules(folder)}  # pyright: ignore[reportPrivateUsage]
    libraries = {str(path) for path in folder.rglob("*") if ".so" in path.name and "tests" not in path.parts}
    assert libraries <= counted
    modules = {str(path) for path in folder.rglob("*.py") if "tests" not in path.parts}
    assert modules and modules <= counted


def test_a_byte_of_any_file_changes_the_fingerprint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "islpy"
    (package / "deep").mkdir(parents=True)
    (tmp_path / "islpy.libs").mkdir()
    files = [package / "_isl.cpython-311.so", package / "deep" / "module.py", tmp_path / "islpy.libs" / "libisl.so.23"]
    for file in files:
        file.write_bytes(b"first")
    monkeypatch.setattr(toolchain, "_module_folder", {"islpy": package}.get)
    packages = (toolchain.Package("islpy", "islpy"),)
    memory = Memory()
    seen = {toolchain.fingerprint(memory, packages)["islpy"]}
    for file in files:
        status = file.stat()
        file.write_bytes(b"other")  # of the same size, in place
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
        seen.add(toolchain.fingerprint(memory, packages)["islpy"])
    assert len(seen) == 4
    assert toolchain.fingerprint(memory, packages) == toolchain.fingerprint(Memory(), packages)


def test_a_file_edited_in_place_under_its_old_stamp_changes_the_fingerprint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    binary = tmp_path / "bin" / "tool"
    binary.write_bytes(b"one")
    monkeypatch.setattr(toolchain, "_module_folder", {"any": tmp_path}.get)
    packages = (toolchain.Package("llvmlite", "any", ("bin/tool",)),)
    time.sleep(toolchain.SETTLED_NS / 1e9 + 0.02)
    memory = Memory()
    before, status = toolchain.fingerprint(memory, packages), binary.stat()
    assert memory.notes
    binary.write_bytes(b"two")
    os.utime(binary, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert toolchain.fingerprint(memory, packages) != before


def test_a_damaged_memory_is_ignored() -> None:
    memory = Memory()
    good = toolchain.fingerprint(memory)
    (note,) = memory.notes
    entries = json.loads(memory.notes[note])
    invalid = [json.dumps(dict.fromkeys(entries, "short")), json.dumps({name: ["x", 3] for name in entries})]
    for text in (*invalid, "{", "[" * 99_999, "3"):
        memory.notes[note] = text
        assert toolchain.fingerprint(memory) == good


def test_the_versions_in_a_manifest_do_not_depend_on_the_version_of_python() -> None:
    python_311 = {"python": "CPython 3.11", "islpy": "2026.2 cp311 sha256:aa", "networkx": "3.6 sha256:bb", "plain": "1"}
    python_313 = {"python": "CPython 3.13", "islpy": "2026.2 cp313 sha256:cc", "networkx": "3.6 sha256:bb", "plain": "1"}
    assert (
        toolchain.stated(python_311)
        == toolchain.stated(python_313)
        == {"islpy": "2026.2", "networkx": "3.6 sha256:bb", "plain": "1"}
    )
    fingerprint = toolchain.fingerprint(Memory())
    stated = toolchain.stated(fingerprint)
    assert stated.keys() == fingerprint.keys() - {"python"}
    assert stated["nvidia-nvjitlink"] == fingerprint["nvidia-nvjitlink"]
    assert not any("cp3" in text for text in stated.values())


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = toolchain.Package("nvidia-nvjitlink", "no.such.module", ("lib/x.so",))
    monkeypatch.setattr(toolchain, "PACKAGES", (absent, toolchain.Package("no-such-dist", "llvmlite")))
    with pytest.raises(CompileError) as caught:
        toolchain.fingerprint(Memory())
    assert [d.code for d in caught.value.diagnostics] == ["E0601", "E0601"]
    assert all(d.hint == "run `pip install 'tilec[compiler]'`" for d in caught.value.diagnostics)
