"""The README is true: its first kernel is proven, its refused kernel is refused with the message shown, its test command is the
one of the gate, and its engine generates text without a GPU."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ci.docs.architecture import architecture
from tests.ops.fake_torch import FakeTorch
from tests.runtime.fake_driver import FakeDriver
from tilec.diagnostics.diagnostic import CompileError, render_all
from tilec.frontend import load_kernel
from tilec.passes.prover import prove
from tilec.runtime import Device

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
ENGINE = (ROOT / "docs/engine.md").read_text(encoding="utf-8")


def fenced(marker: str, text: str = README) -> str:
    found = re.search(rf"<!-- {marker} -->\n```\w+\n(.*?)```", text, re.DOTALL)
    assert found is not None, marker
    return found.group(1)


def test_first_kernel_is_proven(tmp_path: Path) -> None:
    path = tmp_path / "add.py"
    path.write_text(fenced("first kernel"), encoding="utf-8")
    proofs = prove(load_kernel(path, {"E": "bf16", "BLOCK": 1024}))
    assert {obligation.property for obligation in proofs.obligations} >= {"bounds", "race", "coverage"}


def test_refusal_is_shown_verbatim(tmp_path: Path) -> None:
    path = tmp_path / "write_cache.py"
    text = fenced("refused kernel")
    path.write_text(text, encoding="utf-8")
    with pytest.raises(CompileError) as refused:
        prove(load_kernel(path, {"H": 1024}, root=tmp_path))
    assert render_all(refused.value.diagnostics, {"write_cache.py": text}) + "\n" == fenced("refusal")


def test_right_twin_is_proven(tmp_path: Path) -> None:
    path = tmp_path / "write_cache.py"
    text, hint = fenced("refused kernel"), "values(slots, 0, SLOTS, distinct=True)"
    assert hint in fenced("refusal")
    path.write_text(text.replace("values(slots, 0, SLOTS)", hint), encoding="utf-8")
    prove(load_kernel(path, {"H": 1024}))


@pytest.mark.campaign
def test_its_python_passes_pyright(tmp_path: Path) -> None:
    """Every block, in strict mode, including the kernel that the prover refuses, because its types are right. Except code that
    needs torch, which is not a dependency: `test_its_launch_runs`."""
    blocks = re.findall(r"^```python[^\n]*\n(.*?)^```", f"{README}\n{ENGINE}", re.DOTALL | re.MULTILINE)
    blocks.remove(fenced("launch"))
    assert len(blocks) >= 3
    for number, block in enumerate(blocks):
        (tmp_path / f"block_{number}.py").write_text(block, encoding="utf-8")
    settings = {"typeCheckingMode": "strict", "pythonVersion": "3.11", "extraPaths": [str(ROOT)]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--project", str(tmp_path)]
    found = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert found.returncode == 0, found.stdout + found.stderr


def test_its_launch_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a driver that records, and a stub of PyTorch for `tilec.ops`; the kernels are compiled on demand."""
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path / "store"))
    driver = FakeDriver()
    device = Device(driver)
    torch = FakeTorch(device)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.delitem(sys.modules, "tilec.ops.torch_op", raising=False)
    monkeypatch.setattr(importlib.import_module("tilec.ops.torch_op"), "current_device", lambda: device)
    names: dict[str, Any] = {}
    exec(compile(fenced("launch"), "README.md", "exec"), names)
    assert [launch.grid for launch in driver.launches] == [(8, 1, 1)]
    assert (names["total"].shape, names["total"].dtype) == ((16384,), "bfloat16")
    monkeypatch.delitem(sys.modules, "tilec.ops.torch_op")


def test_commands_are_one_line_each() -> None:
    for marker in ("build command", "test command"):
        assert fenced(marker).count("\n") == 1


def test_commands_for_machines_without_a_gpu_work(tmp_path: Path) -> None:
    answers: list[str] = []
    for line in fenced("no GPU", ENGINE).replace("/tmp/tiny", str(tmp_path / "tiny")).splitlines():
        python, *arguments = shlex.split(line)
        assert python == "python"
        found = subprocess.run([sys.executable, *arguments], capture_output=True, check=False, timeout=600, cwd=ROOT)
        assert (found.returncode, found.stderr) == (0, b"")
        answers.append(found.stdout.decode())
    assert answers[0] == ""
    assert len(answers[1].strip()) > 10


def test_pictures_exist() -> None:
    for target in re.findall(r"!\[[^]]*\]\(([^)]+)\)", README):
        assert (ROOT / target).is_file(), target


def test_the_readme_is_short_enough_to_be_read() -> None:
    assert README.count("\n") <= 150


def test_folder_table_names_real_folders() -> None:
    """That of the page on architecture, to which CONTRIBUTING points; every folder of the repository is in it."""
    table = architecture(ROOT).partition("## Folders")[2].partition("\n## ")[0]
    names = re.findall(r"^\| \[?`([a-z_/]+)`", table, re.MULTILINE)
    assert len(names) > 20
    for name in names:
        assert (ROOT / name).is_dir(), name
    packages = {f"tilec/{path.parent.name}" for path in (ROOT / "tilec").glob("*/__init__.py")}
    assert packages <= set(names)
    assert all(re.fullmatch(r"\|[^|]+\| .+ \|", line) for line in table.splitlines() if line.startswith("| ["))
