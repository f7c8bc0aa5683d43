"""Projects of a few kernels of this repository, written into a folder to be built there."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ci.evidence import ROOT

ARCH: Final = "sm_90"
SHARED: Final = ("dims", "eight_rows")
"""Modules imported by kernels."""


@dataclass(frozen=True)
class Part:
    """A kernel of a project: constants, and lines of its table, in the build file's syntax."""

    kernel: str
    constants: str
    more: str = ""

    @property
    def table(self) -> str:
        """Its table in the build file."""
        return f'[[kernel]]\nname = "{self.kernel}"\nconstants = {{ {self.constants} }}\n{self.more}\n'


def write(parts: Sequence[Part], folder: Path, more: str = "") -> None:
    """Write a project with these kernels of `kernels_src` or of the examples; `more` is of its build file."""
    (folder / "kernels").mkdir(parents=True, exist_ok=True)
    for name in (*SHARED, *(part.kernel for part in parts)):
        shipped = ROOT / "kernels_src" / f"{name}.py"
        shutil.copy(shipped if shipped.is_file() else ROOT / "examples" / "kernels" / f"{name}.py", folder / "kernels")
    tables = [f'[build]\nkernels = "kernels"\narch = ["{ARCH}"]', more, *(part.table for part in parts)]
    (folder / "build.toml").write_text("\n".join(tables), encoding="utf-8")
