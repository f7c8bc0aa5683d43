"""Candidates of one kernel, each a project of its own below one folder: builds those that are missing, checks and times all.

`products` and `attention` define candidates; `candidates_gpu` has what both launch with. Every folder with a built kernel is a
candidate; one built at another commit may be there under another name. Each first runs at odd sizes, in a child process: one
that faults, hangs or is wrong is reported and left out.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ci.bench.front import Outcome
from ci.bench.kernels import children
from ci.bench.kernels.projects import ARCH, Part, write

if TYPE_CHECKING:
    from ci.bench.kernels.candidates_gpu import Candidates

ELEMENT: Final = "bf16"
CUBLAS, TRITON = "cuBLAS", "Triton"
OVERLAPPED: Final = ", overlapped"
UNMERGED: Final = f"{OVERLAPPED} and not merged"
"""The parts alone: the next kernel can add them."""


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


def tma(rows: int, columns: int, consumers: int, stages: int, more: str = "", group: int = 8) -> Candidate:
    """A candidate whose operands are copied by TMA."""
    return Candidate(rows, columns, f'copy = "tma", consumers = {consumers}, stages = {stages}{more}', group)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of a case with candidates."""
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="candidates whose names hold this")
    parser.add_argument("--build-only", action="store_true", help="for a machine that has no GPU")
    children.add_child(parser)


def study(
    case: str, options: argparse.Namespace, parts: Mapping[Candidate, Sequence[Part]], bench: Callable[[], type[Candidates]],
    table: Callable[[Mapping[str, Any]], str], **about: str,
) -> Outcome | int:  # fmt: skip
    """Build candidates from their kernels, check each, time those that are right; status 1 if one is not. `bench` imports what
    needs torch, `about` is added to the data."""
    if options.child is not None:
        return bench().check(options.folder, options.child)
    wanted = {options.folder / one.name: kernels for one, kernels in parts.items() if options.only in one.name}
    failed = [path for path, kernels in wanted.items() if not built(path, kernels) and build(kernels, path)]
    for path in failed:
        print(f"not built: {path.name}", file=sys.stderr)
    if options.build_only or len(failed) == len(wanted):
        return int(bool(failed))
    found = {path.parents[3].name for path in options.folder.glob("*/artifacts/build/*/*.cubin")}
    wrong = checked(case, options.folder, sorted(name for name in found if options.only in name))
    chosen = bench()(options.folder, [name for name, text in wrong.items() if not text])
    rows: list[dict[str, Any]] = []
    for size in chosen.TIMED:
        rows.append(chosen.row(size))
        print(json.dumps(rows[-1]), flush=True)
    data = {"wrong": {name: text for name, text in wrong.items() if text}, "rows": rows, "gpu": chosen.gpu, **about}
    return Outcome(data, {f"{options.name}.md": table(data)}, int(bool(failed or wrong_lines(data))), whole=not options.only)


def checked(case: str, folder: Path, names: list[str]) -> dict[str, str]:
    """What is wrong with each candidate, empty if nothing."""
    found: dict[str, str] = {}
    for record in children.run(case, [folder], names):
        found.setdefault(record["kernel"], record["text"])
    return {name: found.get(name, "not checked") for name in names}


def wrong_lines(data: Mapping[str, Any]) -> list[str]:
    """A line of the page for each candidate that was wrong."""
    texts = [f"{name}: {text}" for name, text in data["wrong"].items()]
    return [f"- wrong: {text}" for text in [*texts, *(text for row in data["rows"] for text in row["wrong"])]]


def built(folder: Path, parts: Sequence[Part]) -> bool:
    """Whether all artifacts of a project exist."""
    return all(any(folder.glob(f"artifacts/build/{ARCH}a/{part.kernel}-*.cubin")) for part in parts)


def build(parts: Sequence[Part], folder: Path) -> int:
    """Write a project and build it; returns the exit status."""
    write(parts, folder)
    return subprocess.run([sys.executable, "-P", "-m", "tilec", "build", "--project", str(folder)], check=False).returncode
