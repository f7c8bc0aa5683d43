"""Builds candidates of the matrix product, then checks and times them on the GPU of this machine beside cuBLAS.

    python ci/bench/products.py FOLDER                  build what is missing, check, time
    python ci/bench/products.py FOLDER --build-only     on a machine with no GPU; FOLDER then goes to one that has it
    python ci/bench/products.py FOLDER --only 128x256   candidates whose names hold this

Each candidate is a project of its own below FOLDER: `kernels_src/matmul.py`, tile sizes, a schedule. Where they are built
already no compiler is needed. `products_gpu.py` checks and times them, and writes its report to `--out`. Exit code 1 where a
build fails or a kernel is wrong. Timing needs torch and cuda-bindings.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent.parent
ARCH: Final = "sm_90"
ELEMENT: Final = "bf16"


@dataclass(frozen=True)
class Candidate:
    """Rows and columns of a tile, what is fixed of the schedule as the build file writes it, rows of tiles walked at a time."""

    rows: int
    columns: int
    schedule: str
    group: int = 8

    @property
    def name(self) -> str:
        """A folder's name."""
        words = self.schedule.replace('"', "").replace(" = ", "").replace(", ", "_")
        return f"{self.rows}x{self.columns}_{words}" + (f"_group{self.group}" if self.group != 8 else "")


def tma(rows: int, columns: int, consumers: int, stages: int, more: str = "", group: int = 8) -> Candidate:
    """A candidate whose operands come by `tma`."""
    return Candidate(rows, columns, f'copy = "tma", consumers = {consumers}, stages = {stages}{more}', group)


PERSISTENT: Final = ", persistent = true"
CANDIDATES: Final = (
    tma(128, 256, 2, 3, PERSISTENT),
    tma(128, 256, 2, 3, PERSISTENT, 16),
    tma(128, 192, 2, 4, PERSISTENT),
    tma(128, 160, 2, 4, PERSISTENT),
    tma(128, 128, 2, 6, PERSISTENT),
    tma(128, 128, 2, 6, PERSISTENT, 4),
    tma(128, 128, 2, 6, PERSISTENT, 16),
    tma(128, 96, 2, 6, PERSISTENT),
    tma(128, 80, 2, 6),
    tma(128, 80, 2, 6, PERSISTENT),
    tma(64, 256, 1, 4, PERSISTENT),
    tma(64, 192, 1, 5, PERSISTENT),
    tma(64, 192, 1, 5),
    tma(64, 128, 1, 7),
    tma(64, 128, 1, 7, PERSISTENT),
    tma(64, 80, 1, 8),
    tma(64, 64, 1, 6, ", blocks = 2"),
    tma(64, 64, 1, 8),
    tma(64, 40, 1, 8),
    tma(64, 40, 1, 8, ", blocks = 2"),
    tma(64, 32, 1, 8, ", blocks = 2"),
)


def main() -> int:
    """Build, then time; the exit status."""
    parser = argparse.ArgumentParser(description="candidates of the matrix product beside cuBLAS")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="candidates whose names hold this")
    parser.add_argument("--build-only", action="store_true")
    parser.add_argument("--out", type=Path, default=None, help="where the report goes; FOLDER without it")
    parser.add_argument("--shapes", choices=("few", "all", "short"), default="few")
    options = parser.parse_args()
    chosen = [one for one in CANDIDATES if options.only in one.name]
    failed = [one.name for one in chosen if not built(options.folder / one.name) and not build(one, options.folder / one.name)]
    for name in failed:
        print(f"not built: {name}", file=sys.stderr)
    folders = [options.folder / one.name for one in chosen if one.name not in failed]
    if options.build_only or not folders:
        return int(bool(failed))
    command = [sys.executable, str(ROOT / "ci/bench/products_gpu.py"), str(options.folder), "--only", options.only]
    command += ["--shapes", options.shapes, "--out", str(options.out or options.folder)]
    return subprocess.run(command, check=False).returncode or int(bool(failed))


def built(folder: Path) -> bool:
    """Whether a candidate's artifact is there."""
    return any(folder.glob(f"artifacts/build/{ARCH}a/*.cubin"))


def build(candidate: Candidate, folder: Path) -> bool:
    """Make the project and build it."""
    (folder / "kernels").mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / "kernels_src/matmul.py", folder / "kernels")
    constants = f'E = "{ELEMENT}", BM = {candidate.rows}, BN = {candidate.columns}, BK = 64, GROUP = {candidate.group}'
    (folder / "build.toml").write_text(
        f'[build]\nkernels = "kernels"\narch = ["{ARCH}"]\n\n[[kernel]]\nname = "matmul"\nconstants = {{ {constants} }}\n'
        f"schedule = {{ {candidate.schedule} }}\n",
        encoding="utf-8",
    )
    command = [sys.executable, "-P", "-m", "tilec", "build", "--project", str(folder)]
    return subprocess.run(command, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
