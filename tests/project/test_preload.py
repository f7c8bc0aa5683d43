"""Modules that workers need are imported once, in the server that they are forked from, and not again in each of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import importlib, sys
from pathlib import Path
from tilec.project.build import worker
check = sys.argv[5] == "check"
for name in worker.CHECK_PRELOAD if check else worker.BUILD_PRELOAD:
    importlib.import_module(name)
importlib.import_module("tilec.workers.server")
before = set(sys.modules)
from tilec import pipeline
from tilec.cache import Store
from tilec.target.targets import TARGETS
root = Path(sys.argv[1])
kernel, constants = sys.argv[2], dict(eval(sys.argv[3]))
fingerprints = {stage.name: "" for stage in pipeline.STAGES} | {"link": ""}
request = pipeline.Request(kernel, f"kernels_src/{kernel}.py", str(root), constants, {}, {}, fingerprints)
task = worker.Task(request, kernel, (TARGETS[0],), ("0" * 64,), sys.argv[4], check=check)
found = []
worker.run_stages(task, found.append, pipeline.CHECK_STAGES if check else pipeline.STAGES)
assert not found[-1].diagnostics, found[-1].diagnostics
print(*sorted(name for name in set(sys.modules) - before if not name.startswith("encodings.")))
"""
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("command", ["build", "check"])
def test_a_worker_imports_nothing_of_the_compiler(tmp_path: Path, command: str) -> None:
    arguments = [str(ROOT), "rms_norm", repr({"E": "bf16", "H": 128}), str(tmp_path / "store"), command]
    done = subprocess.run([sys.executable, "-P", "-c", SCRIPT, *arguments], capture_output=True, text=True, timeout=1800)
    assert (done.stdout.split(), done.stderr) == ([], "")
