"""The files of this project that git tracks; in an unpacked archive, every file of the requested folders."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]


def copy_kernels(folder: Path, *names: str) -> None:
    """Copy shipped kernels, and the dims that they share, into a folder, which is created."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (*names, "dims"):
        shutil.copy(ROOT / "kernels_src" / f"{name}.py", folder)


def tracked(*folders: str) -> list[str]:
    """Paths under `folders`, relative to the project, sorted."""
    if (ROOT / ".git").exists():
        command = ["git", "ls-files", "-z", "--", *folders]
        text = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        return sorted(name for name in text.split("\0") if name and (ROOT / name).is_file())
    found = (path.relative_to(ROOT) for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file())
    return sorted(str(PurePosixPath(path)) for path in found if "__pycache__" not in path.parts)
