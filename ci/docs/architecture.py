"""Generates the page for contributors: the pipeline's picture, the stages, and each package with its `__init__.py`
docstring."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tilec.pipeline import STAGES


def architecture(root: Path) -> str:
    """The page; the table of folders is the README's."""
    readme = (root / "README.md").read_text(encoding="utf-8")
    folders = readme.partition("\n## Folders\n")[2].partition("\n## ")[0].strip()
    parts = [
        "# Architecture\n",
        "Data flows one way. Stages do not import each other; `tilec/pipeline.py` joins them. `ci/check_layers.py` holds both, "
        "and that no imports go in a circle. Where a new operation, word, error or kernel goes is told in "
        "[Contributing](contributing.md#where-things-go).\n",
        "![The pipeline, from the Python kernel to the launcher](../artifacts/gallery/pipeline.svg)\n",
        f"The products of a build, in order, as `tilec dump --stage` and `tilec build --dump-stage` name them: "
        f"{', '.join(f'`{name}`' for name in stages())}.\n",
        f"## Folders\n\n{folders}\n",
        "## What each package says\n",
        *(_package(path, root) for path in sorted(packages(root))),
    ]
    return "\n".join(parts)


def stages() -> list[str]:
    """Names of the pipeline's stages."""
    return [stage.name for stage in STAGES]


def packages(root: Path) -> list[Path]:
    """All packages of the compiler and the engine."""
    return [path for top in ("tilec", "engine") for path in (root / top).rglob("__init__.py") if path.parent.name != "tilec"]


def _package(path: Path, root: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    name = str(path.parent.relative_to(root))
    return f"### {name} {{: #{re.sub(r'[^a-z0-9]+', '-', name)} }}\n\n{_markdown(text)}\n"


def _markdown(docstring: str) -> str:
    """A docstring as Markdown: indented lines, tables included, become code blocks."""
    return re.sub(r"(?m)^((?:[ ]{2,}.*\n?)+)", lambda found: f"\n```text\n{found[0].rstrip()}\n```\n", docstring)
