"""Builds candidates of attention at prefill, then checks and times them on this machine's GPU beside torch's attention.

    python ci/bench/attention.py FOLDER                  build what is missing, check, time
    python ci/bench/attention.py FOLDER --build-only     on a machine with no GPU; FOLDER then goes to one that has it
    python ci/bench/attention.py FOLDER --only 128x128   candidates whose names hold this

Each candidate is a project of its own below FOLDER: `kernels_src/flash_attention.py`, tile sizes, a schedule. Where they are
built already no compiler is needed. `attention_gpu.py` checks and times them. Exit code 1 where a build fails or a candidate is
wrong.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from products import ARCH, ELEMENT, ROOT, Candidate, built

WIDTH: Final = 128


def tma(rows: int, columns: int, consumers: int, stages: int, more: str = "") -> Candidate:
    """A candidate whose operands come by `tma`."""
    return Candidate(rows, columns, f'copy = "tma", consumers = {consumers}, stages = {stages}{more}')


CANDIDATES: Final = (
    Candidate(64, 64, "warps = 4, blocks = 2"),  # as other architectures have it
    tma(128, 128, 2, 2),
    tma(128, 128, 2, 3),
    tma(128, 64, 2, 4),
    tma(192, 128, 3, 2),
    tma(192, 64, 3, 4),
    tma(64, 128, 1, 2),
    tma(64, 64, 1, 2, ", blocks = 2"),
)


def main() -> int:
    """Build, then time; the exit status."""
    parser = argparse.ArgumentParser(description="candidates of attention at prefill beside torch's")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="candidates whose names hold this")
    parser.add_argument("--build-only", action="store_true")
    parser.add_argument("--out", type=Path, default=None, help="where the report goes; FOLDER without it")
    options = parser.parse_args()
    chosen = [one for one in CANDIDATES if options.only in one.name]
    failed = [one.name for one in chosen if not built(options.folder / one.name) and not build(one, options.folder / one.name)]
    for name in failed:
        print(f"not built: {name}", file=sys.stderr)
    if options.build_only or len(failed) == len(chosen):
        return int(bool(failed))
    command = [sys.executable, str(ROOT / "ci/bench/attention_gpu.py"), str(options.folder), "--only", options.only]
    command += ["--out", str(options.out or options.folder)]
    return subprocess.run(command, check=False).returncode or int(bool(failed))


def build(candidate: Candidate, folder: Path) -> bool:
    """Make the project and build it."""
    (folder / "kernels").mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / "kernels_src/flash_attention.py", folder / "kernels")
    constants = f'E = "{ELEMENT}", D = {WIDTH}, BM = {candidate.rows}, BN = {candidate.columns}'
    (folder / "build.toml").write_text(
        f'[build]\nkernels = "kernels"\narch = ["{ARCH}"]\n\n[[kernel]]\nname = "flash_attention"\n'
        f"constants = {{ {constants} }}\nschedule = {{ {candidate.schedule} }}\n",
        encoding="utf-8",
    )
    command = [sys.executable, "-P", "-m", "tilec", "build", "--project", str(folder)]
    return subprocess.run(command, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
