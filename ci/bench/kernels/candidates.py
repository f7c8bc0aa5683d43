"""Candidates of one kernel, each a project of its own with one artifact: builds those that are missing, then times all.

`products.py` and `attention.py` define the candidates; `candidates_gpu.py` has what their GPU scripts share.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent.parent
ARCH: Final = "sm_90"
ELEMENT: Final = "bf16"
PERSISTENT: Final = ", persistent = true"
PINGPONG: Final = f'{PERSISTENT}, order = "pingpong"'
STORED: Final = ', store = "tma"'
"""Schedule suffix in the build file's syntax."""
SHARED: Final = ("dims", "eight_rows")
"""Modules imported by kernels."""


@dataclass(frozen=True)
class Candidate:
    """Rows and columns of a tile, the fixed part of the schedule in the build file's syntax, rows of tiles per group, blocks
    that split K, and a prefix of the name."""

    rows: int
    columns: int
    schedule: str
    group: int = 8
    split: int = 1
    label: str = ""

    @property
    def name(self) -> str:
        """The folder's name."""
        schedule_text = self.schedule.replace('"', "").replace(" = ", "").replace(", ", "_")
        group = f"_group{self.group}" if self.group != 8 else ""
        return f"{self.label}{self.rows}x{self.columns}{f'_split{self.split}' if self.split > 1 else ''}_{schedule_text}{group}"


@dataclass(frozen=True)
class Part:
    """A kernel of a candidate: constants and schedule in the build file's syntax, and an edit of its text."""

    kernel: str
    constants: str
    schedule: str
    edit: Callable[[str], str] = str

    @property
    def table(self) -> str:
        """Its table in the build file."""
        return f'[[kernel]]\nname = "{self.kernel}"\nconstants = {{ {self.constants} }}\nschedule = {{ {self.schedule} }}\n'


def tma(
    rows: int, columns: int, consumers: int, stages: int, more: str = "", group: int = 8, split: int = 1
) -> Candidate:  # fmt: skip
    """A candidate whose operands are copied by TMA."""
    return Candidate(rows, columns, f'copy = "tma", consumers = {consumers}, stages = {stages}{more}', group, split)


def arguments(description: str) -> argparse.ArgumentParser:
    """The arguments of a script that builds candidates."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="candidates whose names hold this")
    parser.add_argument("--build-only", action="store_true")
    parser.add_argument("--out", type=Path, default=None, help="where the report goes; FOLDER without it")
    return parser


def run(
    options: argparse.Namespace,
    candidates: Sequence[Candidate],
    parts: Callable[[Candidate], Sequence[Part]],
    script: str,
    more: Sequence[str] = (),
) -> int:
    """Build, then time with `script`; returns the exit status. `parts` returns the kernels of a candidate, `more` are arguments
    for the script."""
    folders = {one: options.folder / one.name for one in candidates if options.only in one.name}
    failed = [one for one, folder in folders.items() if not built(folder, parts(one)) and not build(parts(one), folder)]
    for one in failed:
        print(f"not built: {one.name}", file=sys.stderr)
    if options.build_only or len(failed) == len(folders):
        return int(bool(failed))
    command = [sys.executable, str(ROOT / "ci" / "bench" / script), str(options.folder), "--only", options.only, *more]
    command += ["--out", str(options.out or options.folder)]
    return subprocess.run(command, check=False).returncode or int(bool(failed))


def built(folder: Path, parts: Sequence[Part]) -> bool:
    """Whether all artifacts of a candidate exist."""
    return all(any(folder.glob(f"artifacts/build/{ARCH}a/{part.kernel}-*.cubin")) for part in parts)


def build(parts: Sequence[Part], folder: Path) -> bool:
    """Write the project and build it."""
    (folder / "kernels").mkdir(parents=True, exist_ok=True)
    for name in SHARED:
        shutil.copy(ROOT / "kernels_src" / f"{name}.py", folder / "kernels")
    for part in parts:
        text = (ROOT / "kernels_src" / f"{part.kernel}.py").read_text(encoding="utf-8")
        (folder / "kernels" / f"{part.kernel}.py").write_text(part.edit(text), encoding="utf-8")
    head = f'[build]\nkernels = "kernels"\narch = ["{ARCH}"]\n'
    (folder / "build.toml").write_text("\n".join([head, *(part.table for part in parts)]), encoding="utf-8")
    command = [sys.executable, "-P", "-m", "tilec", "build", "--project", str(folder)]
    return subprocess.run(command, check=False).returncode == 0
