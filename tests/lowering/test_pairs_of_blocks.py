"""Products of pairs of blocks: PTX in which the emulator finds no fault, mistakes in it that it finds, and machine code."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests import shipped
from tests.campaign import first
from tests.programs.machines import manifest
from tests.tensor_products import differs, emulated, made
from tilec.assemble import assemble
from tilec.assemble.sass import disassemble
from tilec.codegen import to_ptx
from tilec.emulator import emulate
from tilec.frontend import load_kernel
from tilec.interpreter import run
from tilec.lowering import lower
from tilec.passes.prover import positive_divisions
from tilec.passes.schedule import choose, prepare
from tilec.target.schedule import Overrides
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


@pytest.mark.parametrize(("tile", "wanted", "extents", "seeds"), first(1, CASES), ids=str)
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


@pytest.mark.parametrize("stages", [2, 5])
def test_two_blocks_do_not_fit_a_multiprocessor(stages: int) -> None:
    """It has 228 KB, 1 KB of which the system takes for each block."""
    single, pair = (made("bf16", 256, 32, SM_100A, cluster=cluster, stages=stages).lowered for cluster in (1, 2))
    assert 2 * (pair.dynamic_shared_bytes + 1024) > 228 * 1024 >= pair.dynamic_shared_bytes + 1024
    assert stages > 2 or 2 * (single.dynamic_shared_bytes + 1024) < 228 * 1024


@pytest.mark.parametrize("seed", [0, 1])
def test_each_block_copies_whole_runs_of_rows(seed: int) -> None:
    """The right operand of `matmul_silu_mul` has two runs of rows, gate and up: one for each block. Results are those of the
    interpreter but for the order of sums and the approximation of `sigmoid`."""
    constants = {"E": "f16", "BM": 256, "BN": 64, "BK": 64, "GROUP": 8}
    path = shipped.ROOT / "kernels_src" / "matmul_silu_mul.py"
    function, written = (load_kernel(path, constants, root=shipped.ROOT) for _ in range(2))
    schedule = choose(function, SM_100A, Overrides(copy="tma", persistent=True, cluster=2))
    positive = frozenset(op.operands[1] for op in positive_divisions(function))
    lowered = lower(prepare(function, SM_100A, schedule, positive=positive), SM_100A)
    described = replace(manifest(written, lowered, SM_100A), schedule=schedule.to_json(), cluster=2)
    m, i, k = 300, 72, 136
    random = np.random.default_rng(seed)
    arrays: dict[str, Any] = {
        "a": random.integers(-1, 2, (m, k)).astype(np.float16),
        "b": (random.integers(-2, 3, (2, i, k)) / 8).astype(np.float16),
        "out": np.zeros((m, i), np.float16),
    }
    flat = {name: array.reshape(-1).view(np.uint16) for name, array in arrays.items()}
    report = emulate(to_ptx(lowered.mlir, SM_100A), described, flat, {"M": m, "I": i, "K": k}, seed=seed)
    assert report.clean, str(report.faults[0])
    assert not report.notes
    run(written, arrays, {})
    found = report.tensors["out"].view(np.float16).reshape(m, i).astype(np.float64)
    np.testing.assert_allclose(found, arrays["out"].astype(np.float64), rtol=2**-9, atol=2**-12)
