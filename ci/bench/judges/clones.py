"""Temporary clones of the project for campaigns: copies, builds in fresh processes with separate stores, and comparisons."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from ci.bench.front import Outcome, earlier
from ci.evidence import ROOT


def clone(folder: Path) -> Path:
    """A copy of the project as a user has it."""
    shutil.copytree(ROOT / "kernels_src", folder / "kernels_src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "engine" / "models", folder / "engine" / "models")
    shutil.copy(ROOT / "build.toml", folder)
    return folder


def command(project: Path, options: list[str], module: str = "tilec") -> tuple[list[str], dict[str, str]]:
    """The command line of a build by `module` and its environment, without the caller's remotes."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"TILEC_CACHE_DIR": f"{project}-store", "PYTHONPATH": path}
    for name in ("TILEC_REMOTE_CACHE", "TILEC_REMOTE_ALLOW", "TILEC_REMOTE_KEY_FILE"):
        environment.pop(name, None)
    return [sys.executable, "-P", "-m", module, "build", "--project", str(project), "--json", *options], environment


def build(
    project: Path, options: list[str], more: dict[str, str] | None = None, module: str = "tilec"
) -> tuple[float, dict[str, Any]]:
    """Seconds and report of one build, which must succeed."""
    line, environment = command(project, options, module)
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


def by_part(
    options: argparse.Namespace,
    runs: Mapping[str, Callable[[Path], dict[str, Any]]],
    every: Collection[str],
    pages: Callable[[dict[str, Any]], dict[str, str]],
) -> Iterator[Outcome]:
    """Run the parts of a campaign, each in a folder of its own, and keep earlier results of the others; status 1 if a part is
    not `ok`. `every`: names of all parts."""
    record: dict[str, Any] = earlier(options) | {"cores": len(os.sched_getaffinity(0))}
    for number, (part, run) in enumerate(runs.items(), 1):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            record[part] = run(Path(folder))
        status = int(not all(record[name]["ok"] for name in [*runs][:number]))
        yield Outcome(record, pages(record), status, whole=number == len(every))
