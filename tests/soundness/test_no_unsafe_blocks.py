"""No shipped kernel has an `unsafe` block: neither its source nor a file that it may import, and not its tile IR."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.shipped import EXAMPLES, ROOT
from tilec.frontend import load_kernel
from tilec.project.read.buildfile import read_build_file

PROJECTS = [ROOT, ROOT / "tilec" / "kernels", EXAMPLES]
WITH_ONE = ROOT / "tests" / "soundness" / "corpus" / "l12_unsafe.py"


def mentions(source: str) -> list[int]:
    """The lines of a source that name `unsafe` other than in a text or a comment."""
    found: list[int] = []
    for node in ast.walk(ast.parse(source)):
        named = (
            (isinstance(node, ast.Name) and node.id == "unsafe")
            or (isinstance(node, ast.Attribute) and node.attr == "unsafe")
            or (isinstance(node, ast.ImportFrom) and any(alias.name == "unsafe" for alias in node.names))
        )
        if named:
            found.append(getattr(node, "lineno", 0))
    return found


def sources(project: Path) -> Iterator[Path]:
    """The files in the folder of a project's kernels."""
    yield from sorted(read_build_file(project / "build.toml").kernels.rglob("*.py"))


@pytest.mark.parametrize("project", PROJECTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_source_has_an_unsafe_block(project: Path) -> None:
    files = list(sources(project))
    assert len(files) > 10
    assert {path.name: lines for path in files if (lines := mentions(path.read_text(encoding="utf-8")))} == {}


@pytest.mark.parametrize("project", PROJECTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_tile_ir_has_an_unsafe_block(project: Path) -> None:
    """Of the first specialisation of each kernel, with what its functions add."""
    build = read_build_file(project / "build.toml")
    first = {entry.name: entry.specialisations()[0] for entry in reversed(build.entries)}
    for name, constants in first.items():
        assert load_kernel(build.kernels / f"{name}.py", constants, root=build.root).unsafe == (), name


@pytest.mark.parametrize(
    "source",
    [
        "import tilec as tl\nwith tl.unsafe('x'):\n    pass\n",
        "from tilec import unsafe as trusted\nwith trusted('x'):\n    pass\n",
        "from tilec import *\nwith unsafe('x'):\n    pass\n",
        WITH_ONE.read_text(encoding="utf-8"),
    ],
)
def test_an_unsafe_block_is_found_however_it_is_named(source: str) -> None:
    assert mentions(source)
