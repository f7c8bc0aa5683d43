"""Kernels compiled on first use: the artifact of `tilec build`, from the store if it is there, refused with the messages of
`tilec check`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tilec
from tests.files import copy_kernels
from tests.runtime.fake_driver import FakeDriver
from tilec.cli import commands
from tilec.diagnostics.diagnostic import CompileError
from tilec.project.build import just_in_time
from tilec.runtime import Device, LaunchError

pytestmark = pytest.mark.usefixtures("kept_workers")

KERNELS = Path(__file__).resolve().parents[2] / "kernels_src"
CONSTANTS = {"BLOCK": 1024, "E": "bf16"}
BUILD = """[build]
arch = ["sm_90"]
[[kernel]]
name = "add"
constants = { E = "bf16", BLOCK = [1024, 2048] }
schedule = { warps = 8 }
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shipped_store: Path) -> Path:
    monkeypatch.setenv("TILEC_CACHE_DIR", str(shipped_store))
    copy_kernels(tmp_path / "kernels_src", "add")
    return tmp_path


def compiled(project: Path, constants: dict[str, Any], **options: Any) -> tuple[tilec.runtime.Kernel, bytes]:
    driver = FakeDriver()
    kernel = tilec.compile(project / "kernels_src" / "add.py", constants, device=Device(driver), **options)
    return kernel, driver.images[0]


def test_it_is_what_build_makes(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a project with the schedule of its build file, and from the store without a worker."""
    kernel, _ = compiled(project, CONSTANTS)
    assert kernel.manifest.constants == CONSTANTS
    assert kernel.block == 64
    (project / "build.toml").write_text(BUILD)
    kernel, code = compiled(project, CONSTANTS, arch="sm_90")
    assert kernel.block == 256
    assert commands.run(["build", "--project", str(project)]) == 0
    built = project / "artifacts" / "build" / "sm_90a" / "add-E=bf16-BLOCK=1024.cubin"
    assert built.read_bytes() == code
    monkeypatch.setattr(just_in_time, "run_tasks", None)
    assert compiled(project, CONSTANTS)[1] == code
    assert compiled(project, CONSTANTS | {"BLOCK": 2048})[0].block == 256


def test_a_refused_kernel_is_reported_as_by_check(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = project / "kernels_src" / "add.py"
    source.write_text(source.read_text().replace(", pad=0", ""))
    with pytest.raises(CompileError) as refused:
        compiled(project, CONSTANTS)
    assert commands.run(["check", str(source), "-c", "E=bf16,BLOCK=1024", "--arch", "sm_90"]) == 1
    printed = [line for line in capsys.readouterr().err.splitlines() if "specialised" not in line]
    raised_lines = [line for line in str(refused.value).strip().splitlines() if "specialised" not in line]
    assert raised_lines == printed
    assert "error[E0301]: load from `x` may read past the end of axis 0" in raised_lines


@pytest.mark.parametrize(
    ("constants", "arch", "code"),
    [
        ({"E": "bf16"}, "sm_90", "E0804"),
        ({"E": "bf16", "BLOCK": 1024, "Z": 1}, "sm_90", "E0804"),
        ({"E": "b16", "BLOCK": 1024}, "sm_90", "E0213"),
        ({"E": "bf16", "BLOCK": 1 << 70}, "sm_90", "E0514"),
        (CONSTANTS, "sm_1", "E0603"),
    ],
)
def test_wrong_requests_are_refused(project: Path, constants: dict[str, Any], arch: str, code: str) -> None:
    with pytest.raises(CompileError, match=code) as refused:
        compiled(project, constants, arch=arch)
    assert refused.value.diagnostics[0].code == code


def test_a_kernel_of_another_architecture_or_without_a_file(project: Path) -> None:
    with pytest.raises(LaunchError, match="E0902"):
        compiled(project, CONSTANTS, arch="sm_100")
    with pytest.raises(CompileError, match=r"E0102.*kernel `len` is in no file"):
        tilec.compile(len, device=Device(FakeDriver()))
    with pytest.raises(AttributeError, match="no attribute `compyle`"):
        assert tilec.compyle
