"""Build commands for the wheel of tilec: setuptools plus three steps. pyproject.toml refers to these classes.

- The engine is installed as the package `tilec_engine`. Any distribution may use the name `engine`, and two that do overwrite
  each other. In the repository it stays `engine`, which `python -m engine` runs; in the wheel its imports of itself, and
  mentions of `python -m` in its texts, are renamed.
- The shipped project (`tilec.shipped`) is copied into `tilec/shipped`.
- The archive is rewritten with one time stamp and one mode for all members, so that two checkouts of one commit give the same
  bytes; `SOURCE_DATE_EPOCH` has no effect.

An editable install (`pip install -e .`) uses the checkout unchanged.
"""

from __future__ import annotations

import ast
import os
import shutil
import sys
import zipfile
from pathlib import Path
from typing import Any, Final

from setuptools.command.bdist_wheel import bdist_wheel as _bdist_wheel
from setuptools.command.build_py import build_py as _build_py
from setuptools.command.egg_info import egg_info as _egg_info

ROOT: Final = Path(__file__).resolve().parents[1]
ENGINE: Final = "engine"
INSTALLED_ENGINE: Final = "tilec_engine"
EARLIEST: Final = (1980, 1, 1, 0, 0, 0)
MODE: Final = 0o100644


class build_py(_build_py):
    """Copies modules, then performs the first two steps."""

    def run(self) -> None:
        """Copy modules, unless the install is editable."""
        super().run()
        if not self.editable_mode:
            built = Path(self.build_lib)
            rename_engine(built)
            copy_shipped(built)


class egg_info(_egg_info):
    """Lists the packages of the wheel."""

    def write_file(self, what: str, filename: str, data: Any) -> None:
        """Write a metadata file."""
        if what == "top-level names":
            data = data.replace(f"{ENGINE}\n", f"{INSTALLED_ENGINE}\n")
        super().write_file(what, filename, data)  # pyright: ignore[reportUnknownMemberType]


class bdist_wheel(_bdist_wheel):
    """Writes the wheel, then performs the third step."""

    def run(self) -> None:
        """Build the wheel."""
        super().run()
        for kind, _, path in self.distribution.dist_files:
            if kind == "bdist_wheel":
                rewrite(Path(path))


def rename_engine(built: Path) -> None:
    """Rename the package `engine` in a folder of built packages to `tilec_engine`."""
    source, target = built / ENGINE, built / INSTALLED_ENGINE
    shutil.rmtree(target, ignore_errors=True)
    source.rename(target)
    for path in sorted(target.rglob("*.py")):
        path.write_text(renamed(path.read_text(encoding="utf-8")), encoding="utf-8")


def renamed(text: str) -> str:
    """The text of an engine module for the renamed package."""
    lines = text.split("\n")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == ENGINE:
            line = lines[node.lineno - 1]
            at = node.col_offset
            assert line[at:].startswith(f"from {ENGINE}"), line
            lines[node.lineno - 1] = line[:at] + line[at:].replace(f"from {ENGINE}", f"from {INSTALLED_ENGINE}", 1)
        assert not isinstance(node, ast.Import) or all(one.name.partition(".")[0] != ENGINE for one in node.names), text[:80]
    return "\n".join(lines).replace(f"-m {ENGINE}", f"-m {INSTALLED_ENGINE}")


def copy_shipped(built: Path) -> None:
    """Copy the files of the shipped project."""
    writes_no_bytecode = sys.dont_write_bytecode
    sys.path.insert(0, str(built))
    sys.dont_write_bytecode = True  # it would be part of the wheel
    try:
        from tilec.shipped import shipped_files
    finally:
        sys.path.pop(0)
        sys.dont_write_bytecode = writes_no_bytecode
    for name in shipped_files(ROOT):
        target = built / "tilec" / "shipped" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, target)


def rewrite(path: Path) -> None:
    """Rewrite an archive with the same members in the same order, without data that depends on machine or time."""
    temporary = path.with_suffix(".tmp")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as new:
        for name in old.namelist():
            entry = zipfile.ZipInfo(name, EARLIEST)
            entry.create_system, entry.external_attr, entry.compress_type = 3, MODE << 16, zipfile.ZIP_DEFLATED
            new.writestr(entry, old.read(name))
    os.replace(temporary, path)
