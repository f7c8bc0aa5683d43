"""Products of pairs of blocks: PTX in which the emulator finds no fault, mistakes in it that it finds, and machine code."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest

from tests.campaign import first
from tests.tensor_products import differs, emulated, made
from tilec.assemble import assemble
from tilec.assemble.sass import disassemble
from tilec.target.targets import SM_100A

ONE_TILE: dict[str, Any] = {}
PERSISTENT: dict[str, Any] = {"persistent": True, "stages": 3}
BY_TMA: dict[str, Any] = {"persistent": True, "store": "tma"}
CASES: list[Any] = [
    (("bf16", 256, 256), ONE_TILE, (300, 264, 136), (0, 1, 2)),
    (("bf16", 256, 128), BY_TMA | {"stages": 3}, (600, 136, 200), (0, 1)),
    (("bf16", 256, 128), PERSISTENT, (600, 392, 200), (0, 1, 2)),
    (("bf16", 256, 128), BY_TMA, (520, 264, 72), (0, 1, 2)),
    (("bf16", 256, 256), ONE_TILE, (1, 8, 8), (0, 1)),
    (("bf16", 256, 256), BY_TMA, (257, 1032, 320), (0, 1, 2)),
    (("f16", 256, 128), ONE_TILE, (129, 136, 64), (0, 3)),
    (("f16", 256, 64), {"consumers": 1}, (257, 72, 200), (0, 3)),
    (("bf16", 512, 64), {"stages": 2}, (700, 72, 136), (0, 2)),
    (("bf16", 256, 32), PERSISTENT, (1300, 40, 512), (0, 1, 2, 3)),
]
"""Dtype, rows and columns of a tile; schedule; rows, columns and depth of the product; seeds."""


@pytest.mark.parametrize(("tile", "wanted", "extents", "seeds"), first(2, CASES), ids=str)
def test_the_emulator_finds_nothing_and_agrees(tile: Any, wanted: Any, extents: Any, seeds: tuple[int, ...]) -> None:
    """Neither faults nor notes; every element is exact."""
    kernel = made(*tile, SM_100A, cluster=2, **wanted)
    assert "tcgen05.mma.cta_group::2" in kernel.ptx and ".reqnctapercluster 2" in kernel.ptx
    assert "cta_group::1" not in kernel.ptx
    for seed in seeds:
        report, found, expected = emulated(kernel, extents, seed)
        assert report.clean, str(report.faults[0])
        assert not report.notes
        assert not differs(found, expected)


MEET = r"barrier\.cluster\.arrive\.release; barrier\.cluster\.wait\.acquire;"
MAPA = r"mapa\.shared::cluster\.u64 (\S+), (\S+), 0;"
RANK = r"mov\.u32(\s+)(%r\d+), %cluster_ctarank;"
INIT = r"(mbarrier\.init\.shared::cta\.b64 \[%rd\d+\])"
PLANTED = {
    "commits to the leader alone": (r"mov\.b16 both, 3;", "mov.b16 both, 1;", 0, 0),
    "commits to the other block alone": (r"mov\.b16 both, 3;", "mov.b16 both, 2;", 0, 0),
    "accumulators of the leader are full": (r"mov\.b16 both, 3;", "mov.b16 both, 1;", 1, 0),
    "one arrival for operands": (f"{INIT}, 2;", r"\1, 1;", 0, 0),
    "three arrivals for operands": (f"{INIT}, 2;", r"\1, 3;", 0, 0),
    "two arrivals where products release operands": (f"{INIT}, 1;", r"\1, 2;", 0, 0),
    "arrivals of one block for accumulators": (f"{INIT}, 16;", r"\1, 8;", 0, 0),
    "expects half of the bytes": (r"(expect_tx\S+ _, \[%rd\d+\]), 24576;", r"\1, 12288;", 0, 0),
    "expects at the own barrier": (MAPA, r"mov.b64 \1, \2;", 0, -1),
    "expects at the other block": (MAPA, r"mapa.shared::cluster.u64 \1, \2, 1;", 0, -1),
    "releases accumulators of the own block": (MAPA, r"mov.b64 \1, \2;", -1, 0),
    "no barrier before the end": (MEET, "", -1, 0),
    "no barrier at the start": (MEET, "bar.sync 0;", 0, 1),
    "the other block starts products": (r"(setp\.\w+\.b32 \t?%p\d+, RANK), 0;", r"\1, 1;", 0, 0),
    "halves exchanged": (RANK, r"mov.u32\1\2, %cluster_ctarank; xor.b32 \2, \2, 1;", 0, 0),
    "the first half twice": (RANK, r"mov.u32\1\2, 0;", 0, 0),
    "a block of B's rows for both": (r"cta_group::2\.kind::f16 \[to\], a, b", "cta_group::2.kind::f16 [to], a, a", 0, 0),
    "products of one block's rows": (r"mov\.b32 code, \d+;", "mov.b32 code, 136315024;", 0, 0),
}
"""Mistakes in the PTX: a pattern, its replacement, and which matches of it are replaced, from one to another (0, 0: all)."""


def planted(ptx: str, pattern: str, new: str, first_match: int, last_match: int) -> str:
    """The text with a mistake."""
    rank = re.search(RANK, ptx)
    assert rank is not None
    found = list(re.finditer(pattern.replace("RANK", re.escape(rank[2])), ptx))
    chosen = found if first_match == last_match == 0 else found[first_match : last_match or None]
    assert chosen, pattern
    for match in reversed(chosen):
        ptx = ptx[: match.start()] + match.expand(new) + ptx[match.end() :]
    return ptx


@pytest.mark.parametrize("name", first(9, list(PLANTED)))
def test_the_emulator_finds_mistakes(name: str) -> None:
    """By a fault, or by a result that differs. Five tiles for two or three pairs of persistent blocks, which have two
    accumulators, and more iterations than stages."""
    kernel = made("bf16", 256, 128, SM_100A, cluster=2, persistent=True, stages=2)
    text = planted(kernel.ptx, *PLANTED[name])
    assert text != kernel.ptx
    for seed in (0, 1):
        report, found, expected = emulated(kernel, (1100, 8, 136), seed, text)
        if not report.clean or differs(found, expected):
            return
    pytest.fail(f"nothing was found: {name}")


def test_one_thread_of_the_leader_starts_products_of_both_blocks() -> None:
    """No loop over the threads of a warp around an instruction, no spills, and nothing in the loops that waits for all earlier
    accesses of the chip's memory."""
    kernel = made("bf16", 256, 256, SM_100A, cluster=2, persistent=True, store="tma")
    assembled = assemble(kernel.ptx, SM_100A)
    assert assembled.resources.spill_bytes == 0
    code = disassemble(assembled.cubin)
    used = Counter(re.findall(r"\b(UTCHMMA\S*|UTMALDG\S*|UTCBAR\S*|UTCATOMSWS\S*|MEMBAR\.ALL\.GPU|BRA\.U\.ANY)", code))
    assert used["UTCHMMA.2CTA"] + used["UTCHMMA.2CTA;"] == 4 and "UTCHMMA " not in code  # one for each 16 of the depth of 64
    assert not used["BRA.U.ANY"]
    assert all(".2CTA" in name for name in used if name.startswith(("UTMALDG", "UTCBAR")))
    assert used["MEMBAR.ALL.GPU"] == 3  # two barriers of the cluster, and the release of accumulators
