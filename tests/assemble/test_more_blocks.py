"""Registers for more blocks: when ptxas is asked for them, whose code is taken, and what the manifest then says."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tilec.artifact.records import Resources
from tilec.assemble import assemble, more_blocks
from tilec.link import link
from tilec.pipeline import STAGES, Request, Work
from tilec.target.schedule import Overrides
from tilec.target.targets import SM_90A

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ROOT / "ci" / "bench" / "kernels" / "plain"
PTX = ".visible .entry k()\n.reqntid {threads}{more}\n{{\nret;\n}}\n"


@cache
def work_of(kernel: str, constants: tuple[tuple[str, Any], ...], warps: int | None = None) -> Work:
    """A kernel of users' texts through all stages, by default without a schedule."""
    path = (KERNELS / f"{kernel}.py").relative_to(ROOT).as_posix()
    wanted = () if warps is None else (Overrides(warps=warps),)
    work = Work(Request(kernel, path, str(ROOT), dict(constants), {}, {}, dict.fromkeys(("tir",), ""), wanted), SM_90A)
    for stage in STAGES:
        work.products |= stage.run(work)
        work.digests[stage.name] = ""
    return work


def linked(work: Work) -> dict[str, Any]:
    link(work)
    manifest: dict[str, Any] = json.loads(work.products["json"])
    return manifest


SINKHORN = (("N", 512), ("ROWS", 8))


@pytest.mark.parametrize(
    ("threads", "registers", "most", "wanted"),
    [
        (256, 133, 8, [2]),  # 136 x 256: one block has 34,816 of 65,536 registers
        (256, 128, 8, [3]),  # two blocks have all of them
        (256, 133, 1, []),  # nothing else has room
        (128, 128, 16, [5]),
        (64, 183, 32, [7, 6]),  # five, and a quarter of five is more than one
        (64, 183, 6, [6]),
        (32, 31, 32, []),  # more blocks than the hardware has
        (1024, 64, 2, [2]),  # one
    ],
)
def test_a_quarter_more_blocks_are_asked_for_or_else_one(threads: int, registers: int, most: int, wanted: list[int]) -> None:
    ptx = PTX.format(threads=threads, more="")
    assert more_blocks.wanted(ptx, Resources(registers, 0, 0, 0, 0), most) == wanted
    for blocks in wanted:
        assert f".reqntid {threads}\n.minnctapersm {blocks}\n" in more_blocks.asking(ptx, blocks)


def test_code_that_spills_and_code_that_was_asked_for_blocks_stay() -> None:
    ptx = PTX.format(threads=256, more="")
    assert more_blocks.wanted(ptx, Resources(133, 8, 8, 0, 0), 8) == []
    assert more_blocks.wanted(PTX.format(threads=256, more="\n.minnctapersm 1"), Resources(133, 0, 0, 0, 0), 8) == []


def test_a_kernel_without_a_schedule_gets_them_and_its_manifest_says_so() -> None:
    work = work_of("sinkhorn", SINKHORN)
    assert json.loads(work.products["schedule"])["most_blocks"] == 6
    manifest = linked(work)
    assert manifest["schedule"]["blocks"] == 2 and "most_blocks" not in manifest["schedule"]
    assert manifest["resources"]["registers"] <= 128 and manifest["resources"]["spill_bytes"] == 0
    asked = more_blocks.asking(work.products["ptx"].decode(), 2)
    assert assemble(asked, SM_90A).cubin == work.products["cubin"], "the same bytes as by `blocks = 2`"


def test_a_kernel_with_a_schedule_keeps_its_registers() -> None:
    work, free = work_of("sinkhorn", SINKHORN, 8), work_of("sinkhorn", SINKHORN)
    assert work.products["ptx"] == free.products["ptx"]
    manifest = linked(work)
    assert manifest["schedule"]["blocks"] is None and manifest["resources"]["registers"] > 128
    assert assemble(work.products["ptx"].decode(), SM_90A).cubin == work.products["cubin"]


def test_code_that_the_assembler_refuses_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    ptx = work_of("sinkhorn", SINKHORN).products["ptx"].decode()

    def refused(text: str, blocks: int) -> str:
        return text.replace("ret;", f"retire {blocks};")

    monkeypatch.setattr(more_blocks, "asking", refused)
    found = assemble(ptx, SM_90A, 6)
    assert found.blocks is None and found.resources.registers > 128


def test_one_block_more_is_taken_where_a_quarter_would_spill() -> None:
    work = work_of("triangular_solve", (("BLOCK", 64),))
    ptx, most = work.products["ptx"].decode(), json.loads(work.products["schedule"])["most_blocks"]
    quarter, one = more_blocks.wanted(ptx, assemble(ptx, SM_90A).resources, most)
    assert quarter > one and assemble(more_blocks.asking(ptx, quarter), SM_90A).resources.spill_bytes > 0
    manifest = linked(work)
    assert manifest["schedule"]["blocks"] == one and manifest["resources"]["spill_bytes"] == 0


def test_code_that_would_spill_keeps_its_registers() -> None:
    work = work_of("csr_dense", (("BLOCK", 32),))
    ptx, most = work.products["ptx"].decode(), json.loads(work.products["schedule"])["most_blocks"]
    found = assemble(ptx, SM_90A)
    wanted = more_blocks.wanted(ptx, found.resources, most)
    assert wanted and all(assemble(more_blocks.asking(ptx, more), SM_90A).resources.spill_bytes for more in wanted)
    assert linked(work)["schedule"]["blocks"] is None and work.products["cubin"] == found.cubin
