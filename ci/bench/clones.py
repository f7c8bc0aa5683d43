"""Temporary clones of the project for benchmarks: copies, builds in fresh processes with separate stores, and comparisons."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def clone(folder: Path) -> Path:
    """A copy of the project as a user has it."""
    shutil.copytree(ROOT / "kernels_src", folder / "kernels_src")
    shutil.copytree(ROOT / "engine" / "models", folder / "engine" / "models")
    shutil.copy(ROOT / "build.toml", folder)
    return folder


def command(project: Path, options: list[str]) -> tuple[list[str], dict[str, str]]:
    """The command line of a build and its environment, without the caller's remotes."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"TILEC_CACHE_DIR": f"{project}-store", "PYTHONPATH": path}
    for name in ("TILEC_REMOTE_CACHE", "TILEC_REMOTE_ALLOW", "TILEC_REMOTE_KEY_FILE"):
        environment.pop(name, None)
    return [sys.executable, "-P", "-m", "tilec", "build", "--project", str(project), "--json", *options], environment


def build(project: Path, options: list[str], more: dict[str, str] | None = None) -> tuple[float, dict[str, Any]]:
    """Seconds and report of one build, which must succeed."""
    line, environment = command(project, options)
    start = time.perf_counter()
    done = subprocess.run(line, capture_output=True, text=True, env=environment | (more or {}), cwd=project)
    if done.returncode != 0:
        sys.exit(f"{' '.join(line)} failed with {done.returncode}:\n{done.stderr[-3000:]}")
    return time.perf_counter() - start, json.loads(done.stdout)


def products(project: Path) -> dict[str, str]:
    """Digest of every file that a build wrote."""
    folder = project / "artifacts" / "build"
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}
