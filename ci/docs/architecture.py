"""Generates the page for contributors: the pipeline's picture, the stages, the folders, and each package with its
`__init__.py` docstring."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Final

from tilec.pipeline import STAGES

OTHERS: Final = {
    "kernels_src": "the shipped kernels and their float64 references; `tuning` has the measurements of them",
    "examples": "kernels written from the documentation alone, with references and shapes; a program that fixes kernels",
    "docs": "the documentation; `ci/docs` generates its reference pages when the site is built",
    "artifacts": "what `tilec build` makes, and the gallery",
    "tests": "the tests",
    "ci": "the gate, checks, benchmarks and their results",
}
"""The folders that are no packages, and what each is for."""


def architecture(root: Path) -> str:
    """The page. Packages have the first sentence of their docstring in the table of folders."""
    parts = [
        "# Architecture\n",
        "Data flows one way. Stages do not import each other; `tilec/pipeline.py` joins them. `ci/check_layers.py` holds both, "
        "and that no imports go in a circle. [Contributing](contributing.md#where-things-go) says where a new operation, word, "
        "error or kernel goes.\n",
        "![The pipeline, from the Python kernel to the launcher](../artifacts/gallery/pipeline.svg)\n",
        f"The products of a build, in order, as `tilec dump --stage` and `tilec build --dump-stage` name them: "
        f"{', '.join(f'`{name}`' for name in stages())}.\n",
        "## Folders\n",
        "| folder | what |\n|---|---|",
        *(f"| {name} | {description} |" for name, description in folders(root)),
        "",
        "## What each package says\n",
        *(_package(path, root) for path in sorted(packages(root))),
    ]
    return "\n".join(parts)


def folders(root: Path) -> list[tuple[str, str]]:
    """The folders of the repository, linked to what their package says, and what each is for."""
    rows: list[tuple[str, str]] = []
    for path in (*sorted((root / "tilec").glob("*/__init__.py")), root / "engine/__init__.py"):
        name = path.parent.relative_to(root).as_posix()
        rows.append((f"[`{name}`](#{_anchor(name)})", _first_sentence(_docstring(path))))
    return [*rows, *((f"`{name}`", description) for name, description in OTHERS.items())]


def stages() -> list[str]:
    """Names of the pipeline's stages."""
    return [stage.name for stage in STAGES]


def packages(root: Path) -> list[Path]:
    """All packages of the compiler and the engine."""
    return [path for top in ("tilec", "engine") for path in (root / top).rglob("__init__.py") if path.parent.name != "tilec"]


def _package(path: Path, root: Path) -> str:
    name = path.parent.relative_to(root).as_posix()
    return f"### {name} {{: #{_anchor(name)} }}\n\n{_markdown(_docstring(path))}\n"


def _anchor(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name)


def _docstring(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""


def _first_sentence(text: str) -> str:
    """Up to the first period that ends a sentence, on one line."""
    paragraph = " ".join(text.partition("\n\n")[0].split())
    return re.split(r"(?<=\.)\s", paragraph, maxsplit=1)[0].replace("|", "\\|")


def _markdown(docstring: str) -> str:
    """A docstring as Markdown: indented lines, tables included, become code blocks."""
    return re.sub(r"(?m)^((?:[ ]{2,}.*\n?)+)", lambda found: f"\n```text\n{found[0].rstrip()}\n```\n", docstring)
