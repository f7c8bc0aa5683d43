"""Audits of bundles: the report, its reproducibility, and the exit status."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.audit import samples
from tests.bundle import samples as bundles
from tilec.artifact.bundle_format import canonical
from tilec.artifact.records import Obligation
from tilec.audit.contract import disagreements
from tilec.audit.cubins import ASSEMBLERS, Assembler
from tilec.audit.findings import CONFIRMED, REFUTED, UNKNOWN, Finding
from tilec.audit.matching import match
from tilec.audit.report import seal
from tilec.audit.run import audit
from tilec.audit.work import Options
from tilec.cli import commands
from tilec.diagnostics.diagnostic import CompileError, Diagnostic
from tilec.ir.text.parser import parse_function
from tilec.runtime import open_bundle

pytestmark = pytest.mark.usefixtures("kept_workers")

PROOFS = Options(launches=0)
NAMES = ("add", "rms_norm", "kv_update")


def write(path: Path, tirs: Mapping[str, str], **options: Any) -> Path:
    bundle_path = path / "tiny-1b-sm_90a.bundle"
    bundle_path.write_bytes(samples.bundle(tirs, **options))
    return bundle_path


def report_on(path: Path, options: Options = PROOFS) -> dict[str, Any]:
    with open_bundle(path) as bundle:
        return audit(bundle, options)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path, {name: samples.text(name) for name in NAMES})


def test_a_sound_bundle_is_confirmed_and_the_report_is_the_same_twice(path: Path, tmp_path: Path) -> None:
    first = report_on(path)
    again = tmp_path / "elsewhere" / path.name
    again.parent.mkdir()
    again.write_bytes(path.read_bytes())
    second = report_on(again, Options(launches=0, jobs=2))
    assert seal(first) == seal(second)
    assert canonical({**first, "run": 0}) == canonical({**second, "run": 0})
    assert str(tmp_path) not in canonical(first).decode()
    assert first["summary"]["status"] == 0
    assert first["summary"]["obligations"]["confirmed"] == sum(len(one["obligations"]) for one in first["artifacts"]) > 20
    assert first["summary"]["share_confirmed"] == 1.0


def test_the_command_prints_a_table_and_writes_the_report(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    file = tmp_path / "report.json"
    assert (
        commands.run(["audit", str(path), "--launches", "0", "--no-rebuild", "-k", "add", "-j", "1", "--json", str(file)]) == 0
    )
    out = capsys.readouterr().out
    assert "1 artifacts: 12 confirmed" in out
    data = file.read_bytes()
    assert canonical(json.loads(data)) == data
    assert f"report sha256 {seal(json.loads(data))}" in out


@pytest.mark.parametrize(
    ("arguments", "status", "expected_text"),
    [
        (["-k", "nothing"], 2, "has no kernel `nothing`"),
        (["--time-limit", "nan"], 2, "nan is not a number"),
        (["--time-limit", "inf"], 2, "inf is not in the range"),
        (["--time-limit", "-1"], 2, "-1.0 is not in the range"),
        (["--launches", "0", "--no-rebuild", "--json", "/nonexistent/r.json"], 2, "cannot be written"),
    ],
)
def test_wrong_usage(
    path: Path, arguments: list[str], status: int, expected_text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert commands.run(["audit", str(path), "-j", "1", *arguments]) == status
    assert expected_text in capsys.readouterr().err


def test_tile_ir_that_is_not_safe_is_refuted_whatever_its_manifest_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    """The proof record is that of the right kernel; the texts, with their digests, are of another."""
    text = samples.text("add")
    right = samples.manifest("add")
    broken = text.replace("mask = true", "mask = false")
    bundle_path = write(tmp_path, {"add": broken}, proven=False)
    with open_bundle(bundle_path) as bundle:
        assert bundle.kernels[0].manifest.obligations == ()
    report = report_on(bundle_path)
    assert report["summary"]["missing"]["refuted"] >= 1
    assert report["summary"]["status"] == 1
    assert commands.run(["audit", str(bundle_path), "--launches", "0", "-j", "1"]) == 1
    assert "not in the manifest: bounds of store to `out`: refuted" in capsys.readouterr().out
    assert len(right.obligations) - 1 == len(report["artifacts"][0]["missing"])  # no obligation for a masked end


def test_a_digest_that_differs_is_found(tmp_path: Path) -> None:
    text = samples.text("add")
    digests = samples.manifest("add").digests
    bundle_path = write(tmp_path, {"add": text}, change={"digests": {**digests, "tir": digests["ptx"]}})
    report = report_on(bundle_path)
    assert report["artifacts"][0]["digests_differ"] == []  # a text with that digest exists, but it is not tile IR
    assert report["summary"]["contract"]["refuted"] == 1
    assert report["summary"]["status"] == 1


def test_a_missing_text_is_reported(tmp_path: Path) -> None:
    text = samples.text("add")
    digests = {**samples.manifest("add").digests}
    del digests["ptx"]
    data = samples.bundle({"add": text})
    bundle_path = tmp_path / "a.bundle"
    bundle_path.write_bytes(data)
    with open_bundle(bundle_path) as bundle:
        kernel = bundle.kernels[0]
        kernel.manifest.digests.pop("ptx")
        bundle.texts = lambda: {digests["tir"]: text.encode()}  # type: ignore[method-assign]
        report = audit(bundle, PROOFS)
    assert report["artifacts"][0]["digests_differ"] == ["the bundle lacks its ptx"]
    assert report["summary"]["status"] == 1


@pytest.mark.parametrize(
    ("change", "expected_text"),
    [
        ({"grid": [["+", ["//", ["+", "N", 2047], 2048], 1]]}, "the grid differs from the tile IR's"),
        ({"no_alias": []}, "may overlap in memory"),
        ({"constants": {"E": "bf16", "BLOCK": 1024}}, "the constants differ"),
        ({"constants": {"E": "bf16", "BLOCK": 2048.0}}, "the constants differ"),
    ],
)
def test_a_manifest_that_describes_another_kernel_is_refuted(
    tmp_path: Path, change: dict[str, Any], expected_text: str
) -> None:
    report = report_on(write(tmp_path, {"add": samples.text("add")}, change=change))
    assert report["summary"]["status"] == 1
    assert any(expected_text in one["reason"] for one in report["artifacts"][0]["contract"])


@pytest.mark.parametrize(
    ("recorded", "own", "alike"),
    [
        (1, 1, True), (1, 1.0, False), (1, True, False), (0, False, False), (1.0, True, False), (0.0, -0.0, False),
        (-0.0, -0.0, True), (math.nan, float("nan"), True), (0.1, math.nextafter(0.1, 1), False),
        ("1", 1, False),
    ],
)  # fmt: skip
def test_constants_are_compared_by_type_and_bits(recorded: Any, own: Any, alike: bool) -> None:
    manifest, function = samples.manifest("add"), parse_function(samples.text("add"))
    manifest = replace(manifest, constants={"E": recorded})
    function.constants = {"E": own}
    found = [line for line in disagreements(manifest, function) if line.startswith("the constants")]
    assert bool(found) is not alike


def test_a_missing_launch_check_is_not_assumed(tmp_path: Path) -> None:
    """The tile IR still has `requires`; a check that no launcher enforces proves nothing."""
    text = samples.text("flash_attention")
    report = report_on(write(tmp_path, {"flash_attention": text}, change={"launch_checks": []}))
    found = {(one["property"], one["subject"]): one["verdict"] for one in report["artifacts"][0]["obligations"]}
    assert found["bounds", "load from `k_cache`"] == REFUTED


def test_no_time_is_unknown_and_says_so(path: Path) -> None:
    report = report_on(path, Options(time_limit=0.0, launches=0))
    assert report["summary"]["status"] == 3
    reasons = {
        one["reason"] for artifact in report["artifacts"] for one in artifact["obligations"] if one["verdict"] == UNKNOWN
    }
    assert reasons == {"stopped by --time-limit after 0 s"}


def assembled(ptx: str, arch: str) -> bytes:
    """Stands in for an assembler: returns the CUBIN of one sample for any PTX."""
    return bundles.cubin("add")


def refused(ptx: str, arch: str) -> bytes:
    """Stands in for one that refuses all PTX."""
    raise CompileError(Diagnostic("E0602", "the assembler refused the PTX"))


def not_installed(ptx: str, arch: str) -> bytes:
    """Stands in for one with a missing program."""
    raise CompileError(Diagnostic("E0601", "`nvidia-cuda-nvcc` is not installed"))


def cubins(path: Path, assembler: Assembler | None) -> tuple[dict[str, int], set[str], int]:
    with open_bundle(path) as bundle:
        report = audit(bundle, PROOFS, assembler=assembler)
    reasons = {one["cubin"]["reason"] for one in report["artifacts"]} - {""}
    return report["summary"]["cubins"], reasons, report["summary"]["status"]


def test_cubins_are_compared_with_the_output_for_the_ptx(path: Path) -> None:
    other = dict.fromkeys(ASSEMBLERS, "13 sha256:aa")
    unknown = {
        "the PTX assembles to another CUBIN, but it was made with an unknown version of nvidia-nvjitlink; installed is 13"
    }
    assert cubins(path, Assembler(assembled, other)) == ({"not checked": 2, "same": 1}, unknown, 3)
    reason_another = {"the PTX assembles to another CUBIN"}
    assert cubins(path, Assembler(assembled)) == ({"another": 2, "same": 1}, reason_another, 1)
    expected_text = {"the assembler refuses the PTX: the assembler refused the PTX"}
    assert cubins(path, Assembler(refused)) == ({"another": 3}, expected_text, 1)


def test_cubins_that_nothing_can_assemble_are_not_checked_and_the_status_says_so(path: Path) -> None:
    missing = Assembler(missing="`nvidia-nvjitlink` is not installed")
    assert cubins(path, missing) == ({"not checked": 3}, {"`nvidia-nvjitlink` is not installed"}, 3)
    found = cubins(path, Assembler(not_installed))
    assert found == ({"not checked": 3}, {"`nvidia-cuda-nvcc` is not installed"}, 3)
    assert cubins(path, None) == ({"skipped": 3}, set(), 0)


def test_matching_by_name_and_order() -> None:
    listed = [Obligation("wrap", "`+`", f"k.py:{n}:1", "set") for n in (1, 2)] + [Obligation("wrap", "`!`", "k.py:3:1", "set")]
    derived = [
        Finding("wrap", "`+`", CONFIRMED),
        Finding("wrap", "`+`", REFUTED, "wrong", {"N": 1}),
        Finding("bounds", "load from `x`", CONFIRMED),
        Finding("divisor", "divisor of `//`", REFUTED),
    ]
    checked, missing = match(listed, derived)
    assert [one.verdict for one in checked] == [CONFIRMED, REFUTED, UNKNOWN]
    assert [(one.property, one.verdict) for one in missing] == [("bounds", CONFIRMED)]
    more, _ = match(listed[:1] * 3, derived[:1])
    assert {one.verdict for one in more} == {UNKNOWN}
