"""The project that tilec comes with: build.toml, the kernels it names, and the steps of its models.

In a checkout these lie at its root. A wheel carries copies of them in this folder (`ci/wheel.py` puts them there), so that who
installed tilec can build what it ships: `tilec new --shipped` copies them to a folder of one's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

BUILD_FILE: Final = "build.toml"
SHIPPED: Final = (BUILD_FILE, "kernels_src/*.py", "kernels_src/tuning/*.json", "engine/models/*.step")
"""Patterns of its files, relative to its folder."""


def project_folder() -> Path:
    """Where the shipped project is."""
    here = Path(__file__).resolve().parent
    return here if (here / BUILD_FILE).is_file() else here.parents[1]


def shipped_files(folder: Path) -> Iterator[Path]:
    """The files of the shipped project in `folder`, relative to it."""
    for pattern in SHIPPED:
        yield from sorted(path.relative_to(folder) for path in folder.glob(pattern))
