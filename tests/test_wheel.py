"""The wheel: every file of the packages and of the shipped project, the engine under a single name of ours, the same bytes from
every folder; and an install of it works and builds without a checkout."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from email import message_from_bytes
from pathlib import Path

import pytest

import tilec
from engine.tools.tiny import write_tiny_model
from tests.files import ROOT, tracked
from tilec.cli.commands import run

BUILD = "import sys; from setuptools import build_meta; print(build_meta.build_wheel(sys.argv[1]))"


FOLDERS = ("tilec", "engine", "kernels_src")
FILES = ("build.toml", "pyproject.toml", "README.md", "LICENSE", "ci/wheel.py")
"""The sources of a wheel."""


def build(folder: Path, umask: int, epoch: str) -> Path:
    """The wheel built from a copy of the tracked files."""
    for name in (*tracked(*FOLDERS), *FILES):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, target)
        target.chmod(0o666 & ~umask)
    command = [sys.executable, "-P", "-c", BUILD, str(folder / "dist")]
    settings = ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "PYTHONPYCACHEPREFIX")
    environment = {name: value for name, value in os.environ.items() if name not in settings}
    environment["SOURCE_DATE_EPOCH"] = epoch
    done = subprocess.run(command, cwd=folder, env=environment, umask=umask, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "dist" / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("one"), 0o022, "1700000000")


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The wheel as installed, in a folder on the module search path."""
    folder = tmp_path_factory.mktemp("installed")
    zipfile.ZipFile(wheel).extractall(folder)
    yield folder
    shutil.rmtree(folder)


def test_it_has_every_file(wheel: Path) -> None:
    found = [name for name in zipfile.ZipFile(wheel).namelist() if not name.startswith("tilec-")]
    modules = [
        name.replace("engine/", "tilec_engine/") if name.startswith("engine/") else name for name in tracked("tilec", "engine")
    ]
    shipped = [name for name in tracked("kernels_src", "engine/models", "build.toml") if name.endswith((".toml", ".step"))]
    shipped += [name for name in tracked("kernels_src") if name.endswith((".py", ".json"))]
    assert sorted(found) == sorted([*modules, *(f"tilec/shipped/{name}" for name in shipped)])
    assert len(modules) > 450 and len(shipped) > 20
    for name in ("tilec/py.typed", "tilec_engine/py.typed", "tilec/ir/SEMANTICS.md", "tilec/diagnostics/explain/E0302.md"):
        assert name in found


def test_it_says_what_it_is(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    info = f"tilec-{tilec.__version__}.dist-info"
    metadata = message_from_bytes(archive.read(f"{info}/METADATA"))
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert (metadata["Name"], metadata["Version"]) == ("tilec", asked["version"])
    assert set(metadata.get_all("Provides-Extra") or []) == set(asked["optional-dependencies"])
    assert metadata.get_all("Classifier") == asked["classifiers"]
    assert archive.read(f"{info}/top_level.txt").split() == [b"tilec_engine", b"tilec"]


@pytest.mark.campaign
def test_it_is_the_same_from_every_folder(wheel: Path, tmp_path: Path) -> None:
    assert build(tmp_path, 0o002, "0").read_bytes() == wheel.read_bytes()


def test_the_engine_has_one_name(wheel: Path) -> None:
    """No module of it imports `engine`, and it differs from the checkout's only in that name."""
    archive = zipfile.ZipFile(wheel)
    for name in tracked("engine"):
        if name.endswith(".py"):
            text = archive.read(name.replace("engine/", "tilec_engine/", 1)).decode()
            assert text.replace("tilec_engine", "engine") == (ROOT / name).read_text(encoding="utf-8")
            imports = [node.module or "" for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
            assert not [module for module in imports if module.partition(".")[0] == "engine"]


def start(installed: Path, cwd: Path, *words: str) -> str:
    """The output of a Python that searches `installed` before any other folder, and no checkout."""
    environment = os.environ | {"PYTHONPATH": str(installed)}
    done = subprocess.run([sys.executable, "-P", *words], cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_engine_answers(installed: Path, tmp_path: Path) -> None:
    """On the tile interpreter, with the kernels of the wheel; template processes and steps are found too."""
    write_tiny_model(tmp_path / "tiny")
    options = ["--backend", "interpreter", "--model", str(tmp_path / "tiny"), "--prompt", "Why?", "--max-new-tokens", "2"]
    assert start(installed, tmp_path, "-m", "tilec_engine", *options).strip()


@pytest.mark.campaign
def test_the_shipped_kernels_build_in_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    project = tmp_path / "kernels"
    assert "tilec build" in start(installed, tmp_path, "-m", "tilec", "new", "kernels", "--shipped")
    for name in ("build.toml", "kernels_src/add.py", "engine/models/qwen3/qwen3.step"):
        assert (project / name).read_bytes() == (ROOT / name).read_bytes()
    plan = start(installed, project, "-m", "tilec", "build", "--arch", "sm_90", "--kernel", "add", "--json")
    assert '"failed"' not in plan
    assert len(list((project / "artifacts" / "build" / "sm_90a").glob("add-*.cubin"))) > 1


def test_what_is_there_is_not_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "build.toml").write_text("mine")
    assert run(["new", str(tmp_path / "mine"), "--shipped"]) == 2
    assert run(["new", str(tmp_path / "other"), "--shipped", "--name", "x"]) == 2
    assert "leave one out" in capsys.readouterr().err
    assert [path.name for path in tmp_path.rglob("*")] == ["mine", "build.toml"]


def test_a_team_s_image_has_what_it_is_built_from() -> None:
    lines = (ROOT / "ci/team/compose.yaml").read_text(encoding="utf-8").splitlines()
    copied = [words[2:-1] for line in lines if (words := line.split())[:1] == ["COPY"]]
    assert {name for names in copied for name in names} >= {*FOLDERS, *FILES, "requirements.lock"}
