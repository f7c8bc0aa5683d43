"""From `tilec new` to a kernel that is proven, run, tested, benchmarked and built: the commands of the new project's README,
one after the other, with an empty store and no GPU, in less than a minute of CPU time."""

from __future__ import annotations

import os
import re
import resource
import shlex
import subprocess
import sys
from pathlib import Path

from tests.shipped import ROOT

MOST_SECONDS = 60.0
NO_GPU = 3


def used() -> float:
    """CPU seconds of all child processes that this one has waited for."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def test_new_to_bench(tmp_path: Path) -> None:
    hidden = {"PYTHONPATH": str(ROOT), "TILEC_CACHE_DIR": str(tmp_path / "store"), "CUDA_VISIBLE_DEVICES": ""}
    environment = {**os.environ, **hidden}

    def tilec(command: str, folder: Path) -> tuple[int, str]:
        name, *arguments = shlex.split(command, comments=True)
        assert name == "tilec"
        done = subprocess.run(
            [sys.executable, "-P", "-m", "tilec", *arguments], cwd=folder, env=environment, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert "Traceback" not in done.stderr
        return done.returncode, done.stdout

    began = used()
    assert tilec("tilec new softmax", tmp_path)[0] == 0
    project = tmp_path / "softmax"
    commands = re.findall(r"^    (tilec .*)$", (project / "README.md").read_text(), re.MULTILINE)
    outputs = {command.split()[1]: tilec(command, project) for command in commands}
    assert list(outputs) == ["check", "run", "test", "bench", "build"]
    assert {name: status for name, (status, _) in outputs.items() if status} == {"bench": NO_GPU}
    assert outputs["check"][1].count("proven") == 4
    assert "as the reference" in outputs["run"][1]
    assert outputs["test"][1].count("right") == 4
    assert "11 built, 1 up to date" in outputs["build"][1]  # the timed one exists
    assert "no measurement: floors by published rates" in outputs["bench"][1]
    spent = used() - began
    print(f"{spent:.1f} s of CPU time")
    assert spent < MOST_SECONDS, f"{spent:.0f} s of CPU time"
