"""`tilec check --machine-code`: what the machine code of built products has, and what it reports as missing."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.campaign import first
from tests.files import ROOT
from tilec.cli import commands
from tilec.cli.machine_code import counted, missing
from tilec.target.schedule import Pipeline, Role, Schedule

pytestmark = pytest.mark.usefixtures("kept_workers")
KERNELS = ("flash_attention", "matmul", "matmul_silu_mul", "matmul_few", "matmul_silu_mul_few", "matmul_split")
"""Kernels whose operands a producer copies on sm_100 and sm_120."""
SASS = """
        /*0010*/              @P0 UTMALDG.2D [UR8], [UR6] ;
        /*0020*/                  UTCHMMA gdesc[UR4], gdesc[UR8], tmem[UR10], tmem[UR12], idesc[UR13], UP0 ;
        /*0030*/                  LDTM.x64 R4, tmem[UR4] ;
        /*0040*/                  CALL.ABS.NOINC `(__cuda_sm10x_tcgen05_guardrail_trap_unallocated_columns_being_dealloced) ;
        /*0050*/                  CALL.REL.NOINC `($__internal_0_$__cuda_sm20_rcp_rn_f32_slowpath) ;
"""
ONE_BLOCK = Schedule((Role("consumer", 8),), (Pipeline(4, "tma", "tcgen05"),))
PAIR = Schedule((Role("consumer", 8),), (Pipeline(4, "tma", "tcgen05"),), cluster=2)


def test_kept_promises_miss_nothing() -> None:
    found = counted(SASS)
    assert found == {"LDTM": 1, "UTCHMMA": 1, "UTMALDG": 1}
    assert missing(found, ONE_BLOCK, 0) == []
    assert missing({}, Schedule((Role("block", 4),), ()), 64) == [], "no products are promised"


@pytest.mark.parametrize(
    ("old", "new", "schedule", "spilled", "problem"),
    [
        ("UTCHMMA", "HMMA", ONE_BLOCK, 0, ["no UTCHMMA"]),
        ("UTMALDG", "LDGSTS", ONE_BLOCK, 0, ["no UTMALDG"]),
        ("LDTM", "LDS", ONE_BLOCK, 0, ["no LDTM"]),
        ("slowpath", "other", ONE_BLOCK, 0, ["1 calls"]),
        ("LDTM.x64", "BRA.U.ANY `(.L_x_51) ;\n/*0035*/ LDTM.x64", ONE_BLOCK, 0, ["1 loops over the threads of a warp"]),
        ("LDTM", "LDTM", ONE_BLOCK, 16, ["16 bytes of spilled registers"]),
        (
            "LDTM", "LDTM", PAIR, 0,
            ["no UTCHMMA.2CTA", "no UTMALDG.2CTA", "1 UTCHMMA of a block alone", "1 UTMALDG of a block alone"],
        ),
    ],
)  # fmt: skip
def test_each_broken_promise_is_named(old: str, new: str, schedule: Schedule, spilled: int, problem: list[str]) -> None:
    assert missing(counted(SASS.replace(old, new)), schedule, spilled) == problem


def checked(capsys: pytest.CaptureFixture[str], *arguments: str, project: Path = ROOT) -> list[dict[str, Any]]:
    """The kernels in the JSON of `check --machine-code`."""
    capsys.readouterr()
    assert commands.run(["check", *arguments, "--machine-code", "--json", "--project", str(project)]) == 0
    kernels: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["kernels"]
    return kernels


def test_what_is_not_built_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path / "store"))
    arguments = ["matmul", "-c", "E=bf16", "-c", "BM=256", "-c", "BN=256", "--arch", "sm_100"]
    (record,) = checked(capsys, *arguments)
    assert record["machine_code"] == {}
    assert commands.run(["check", *arguments, "--machine-code", "--project", str(ROOT)]) == 0
    assert "machine code: not built here" in capsys.readouterr().out


@pytest.mark.parametrize("kernel", first(1, KERNELS))
def test_products_of_sm_100_and_sm_120_keep_what_their_schedules_promise(
    kernel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One thread starts the products of sm_100a, a thread copies the operands of both, and nothing is spilled."""
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path / "store"))
    shutil.copytree(ROOT / "kernels_src", tmp_path / "kernels_src")
    shutil.copytree(ROOT / "engine" / "models", tmp_path / "engine" / "models")
    shutil.copy(ROOT / "build.toml", tmp_path)
    assert commands.run(["build", "--kernel", kernel, "--arch", "sm_100,sm_120", "--project", str(tmp_path)]) == 0
    records = checked(capsys, kernel, "--arch", "sm_100,sm_120", project=tmp_path)
    codes = [(arch, record["machine_code"][arch]) for record in records for arch in record["schedule"]]
    assert codes and all(code["missing"] == [] for _, code in codes)
    for arch, code in codes:
        opcodes = " ".join(code["instructions"])
        assert re.search(rf"\b{'UTCHMMA' if arch == 'sm_100a' else 'HMMA'}\b", opcodes) and "UTMALDG" in opcodes
