"""The project shipped with tilec: build.toml, the kernels it names, and the steps of its models.

In a checkout these files lie at the repository root. A wheel carries copies in this folder (`ci/wheel.py` puts them there), so
that users of the wheel can build what it ships: `tilec new --shipped` copies them to a folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

BUILD_FILE: Final = "build.toml"
SHIPPED: Final = (BUILD_FILE, "kernels_src/*.py", "kernels_src/tuning/*.json", "engine/models/*/*.step")
"""Patterns of its files, relative to its folder."""


def project_folder() -> Path:
    """The folder of the shipped project."""
    here = Path(__file__).resolve().parent
    return here if (here / BUILD_FILE).is_file() else here.parents[1]


def shipped_files(folder: Path) -> Iterator[Path]:
    """The files of the shipped project in `folder`, as relative paths."""
    for pattern in SHIPPED:
        yield from sorted(path.relative_to(folder) for path in folder.glob(pattern))
