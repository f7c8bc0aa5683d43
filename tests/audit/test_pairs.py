"""Tensor maps of pairs of blocks: those of the compiler are confirmed, and no mistake in PTX or manifest is."""

from __future__ import annotations

import dataclasses
import re
from functools import cache
from typing import Any

import pytest

from tests.audit.scheduled import scheduled
from tests.campaign import one_of_each
from tests.tensor_products import made, source
from tilec.artifact.manifest_reader import manifest_from_json
from tilec.artifact.records import Manifest
from tilec.audit.maps import checked
from tilec.audit.tasks import Task, arguments_task
from tilec.ir.core import Function
from tilec.ir.text.parser import parse_function
from tilec.target.targets import SM_100A

pytest.importorskip("tilec.emulator")
BY_TMA: dict[str, Any] = {"persistent": True, "store": "tma"}
PRODUCTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "stores by copies": (("bf16", 256, 192), BY_TMA),
    "all columns": (("bf16", 256, 256), BY_TMA),
    "stores by threads": (("bf16", 256, 128), {"persistent": True, "stages": 3}),
    "one tile": (("f16", 256, 64), {"consumers": 1}),
    "two products of rows": (("bf16", 512, 64), {"stages": 2}),
    "few columns": (("bf16", 256, 32), {"persistent": True}),
}
SHIPPED: dict[str, tuple[str, dict[str, Any]]] = {
    "shipped": ("matmul", {"BM": 256, "BN": 192}),
    "two runs of rows": ("matmul_silu_mul", {"BM": 256, "BN": 64}),
}


@cache
def compiled(case: str) -> tuple[Manifest, Function, str]:
    if case in PRODUCTS:
        tile, wanted = PRODUCTS[case]
        kernel = made(*tile, SM_100A, cluster=2, **wanted)
        return kernel.manifest, source(*tile), kernel.ptx
    task = artifact(*SHIPPED[case])
    return manifest_from_json(task.manifest), parse_function(task.tir), task.ptx


def artifact(name: str, wanted: dict[str, Any]) -> Task:
    """A shipped kernel by its schedule for the target, as the task of an audit."""
    return Task(*scheduled(name, wanted, SM_100A), launches=2, seeds=1)


def with_map(manifest: Manifest, number: int, **changed: Any) -> Manifest:
    maps = list(manifest.tensor_maps)
    maps[number] = dataclasses.replace(maps[number], **changed)
    return dataclasses.replace(manifest, tensor_maps=tuple(maps))


@pytest.mark.parametrize("case", one_of_each([*PRODUCTS, *SHIPPED], lambda case: case in PRODUCTS))
def test_pairs_of_the_compiler_are_confirmed_and_no_other_box_is(case: str) -> None:
    manifest, function, ptx = compiled(case)
    assert "tcgen05.mma.cta_group::2" in ptx
    assert checked(manifest, function, ptx) == {"status": "confirmed", "reason": ""}
    for number, spec in enumerate(manifest.tensor_maps):
        for axis, extent in enumerate(spec.box):
            for other in {extent + 1, max(1, extent // 2), 2 * extent, 8 * extent, extent - 8} - {extent}:
                box = (*spec.box[:axis], other, *spec.box[axis + 1 :])
                assert checked(with_map(manifest, number, box=box), function, ptx)["status"] == "refuted", (number, box)
        if spec.tensor != "out":
            found = checked(with_map(manifest, number, swizzle=64), function, ptx)
            assert found["status"] == "refuted" and "products read rows of" in found["reason"]


def test_a_box_that_is_larger_than_the_tile_says_so() -> None:
    manifest, function, ptx = compiled("stores by copies")
    found = checked(with_map(manifest, 2, box=(224, 64)), function, ptx)
    assert found["reason"].endswith("a box [224, 64] of `b` is larger than its tile of [192, 64]")


def test_an_artifact_that_is_built_is_judged() -> None:
    """Its manifest as JSON, and one whose schedule and cluster are those of a single block."""
    task = artifact(*SHIPPED["shipped"])
    assert arguments_task(task) == {"status": "confirmed", "reason": ""}
    alone = task.manifest | {"cluster": 1, "schedule": task.manifest["schedule"] | {"cluster": 1}}
    found = arguments_task(dataclasses.replace(task, manifest=alone))
    assert found["status"] == "refuted" and "the manifest launches those of 1" in found["reason"]


@pytest.mark.parametrize("cluster", [1, 4])
def test_other_clusters_in_the_manifest_are_refuted(cluster: int) -> None:
    manifest, function, ptx = compiled("stores by copies")
    found = checked(dataclasses.replace(manifest, cluster=cluster), function, ptx)
    assert found["status"] == "refuted" and "the PTX states clusters of 2 x 1 x 1 blocks" in found["reason"]


def test_a_single_block_that_is_launched_as_a_pair_is_refuted() -> None:
    manifest, function, ptx = compiled("stores by copies")
    alone = re.sub(r"\.explicitcluster\n\.reqnctapercluster 2, 1, 1\n", "", ptx)
    found = checked(manifest, function, alone)
    assert found["status"] == "refuted" and "the PTX states none" in found["reason"]
    block = made("bf16", 128, 64, SM_100A, store="tma")
    function = source("bf16", 128, 64)
    assert checked(block.manifest, function, block.ptx)["status"] == "confirmed"
    assert checked(dataclasses.replace(block.manifest, cluster=2), function, block.ptx)["status"] == "refuted"


EXPECTED = r"(expect_tx\S+ _, \[%rd\d+\], )28672;"
RANK = r"mov\.u32 \t(%r\d+), %cluster_ctarank;"
OWN_A = r"shl\.b32 \t(%r\d+), RANK, 7;"
OWN_B = r"mul\.lo\.s32 \t(%r\d+), RANK, 96;"
LOADED_ROWS = r"or\.b32 \t(%r\d+), (%r\d+), FIRST;"
MAPA = r"mapa\.shared::cluster\.u64 (%rd\d+), (%rd\d+), 0;"
COPY = r"(cp\.async\.bulk\.tensor\.2d\.shared::cluster[^;]*;)"
PAIR = r"shr\.u32 \t(%r\d+), (%r\d+), 1;"
EXCHANGED_A = r"{ .reg .b32 own; shl.b32 own, RANK, 7; sub.s32 \1, 128, own; }"
EXCHANGED_B = r"{ .reg .b32 own; mul.lo.s32 own, RANK, 96; sub.s32 \1, 96, own; }"
REFUTED = {
    "more bytes are expected": ([(EXPECTED, r"\g<1>28688;", 0)], "both blocks copy 57344 bytes"),
    "more bytes are expected once": ([(EXPECTED, r"\g<1>28688;", 1)], "both blocks copy 57344 bytes"),
    "the bytes of a block alone are expected": ([(EXPECTED, r"\g<1>14336;", 0)], "both blocks copy 57344 bytes"),
    "rows of a quarter": ([(OWN_A, r"shl.b32 \t\1, RANK, 6;", 0)], "each block of a pair copies [128, 64] of"),
    "rows of B that overlap": ([(OWN_B, r"mul.lo.s32 \t\1, RANK, 95;", 0)], "each block of a pair copies [96, 64] of `b`"),
    "rows of B after the tile": ([(OWN_B, r"mul.lo.s32 \t\1, RANK, 192;", 0)], "each block of a pair copies [96, 64] of `b`"),
    "the first half twice": ([(RANK, r"mov.u32 \t\1, 0;", 0)], "each block of a pair copies [128, 64] of"),
    "the second half twice": ([(RANK, r"mov.u32 \t\1, 1;", 0)], "each block of a pair copies [128, 64] of"),
    "halves of B exchanged": ([(OWN_B, EXCHANGED_B, 0)], "`b`: each block of a pair copies the other's half"),
    "all halves exchanged": (
        [(RANK, r"{ .reg .b32 own; mov.u32 own, %cluster_ctarank; xor.b32 \1, own, 1; }", 0)], "copies the other's half",
    ),
    "halves of A exchanged, and not those of the result": (
        [(LOADED_ROWS, r"{ .reg .b32 own; sub.s32 own, 128, FIRST; or.b32 \1, \2, own; }", -1)],
        "`a`: each block of a pair has the other's half, and not at",
    ),
    "halves of the result exchanged, and not those of A": (
        [(LOADED_ROWS, r"{ .reg .b32 own; sub.s32 own, 128, FIRST; or.b32 \1, \2, own; }", 1)],
        "`out`: each block of a pair has the other's half, and not at",
    ),
    "no copy by a map": (
        [(r"mov\.b64 \t(%rd\d+), matmul_param_8;", r"mov.b64 \t\1, matmul_param_7;", 0)], "no copy of the PTX",
    ),
}  # fmt: skip
"""Edits of the PTX, each a pattern, its replacement, and which match of it is replaced (0: all); and the reason that is found.
RANK and FIRST are the registers of the rank, and of the first row of a block."""
OPEN = {
    "halves of A and of the result exchanged": ([(OWN_A, EXCHANGED_A, 0)], "whether a block of a pair stores the other's rows"),
    "rows of the next tile, where a sum is an `or`": ([(OWN_A, r"shl.b32 \t\1, RANK, 8;", 0)], "differ by a constant"),
    "the rank is changed later": ([(RANK, r"mov.u32 \t\1, %cluster_ctarank; xor.b32 \1, \1, 1;", 0)], "differ by a constant"),
    "bytes at the own mbarrier": ([(MAPA, r"mov.b64 \1, \2;", 0)], "the leader's mbarrier"),
    "bytes at the other block": ([(MAPA, r"mapa.shared::cluster.u64 \1, \2, 1;", 0)], "the leader's mbarrier"),
    "bytes at each other's mbarrier": ([(MAPA, r"mapa.shared::cluster.u64 \1, \2, RANK;", 0)], "the leader's mbarrier"),
    "the leader alone copies": (
        [(COPY, r"{ .reg .pred own; setp.eq.u32 own, RANK, 0; @own \1 }", 1)],
        "which block of a pair executes it",
    ),
    "the leader alone expects": (
        [(r"(mbarrier\.arrive\.expect_tx[^;]*;)", r"{ .reg .pred own; setp.eq.u32 own, RANK, 0; @own \1 }", 0)],
        "which block of a pair executes it",
    ),
    "each block has tiles of its own": ([(PAIR, r"shr.u32 \t\1, \2, 0;", 0)], "which block of a pair executes it"),
    "tiles by the number of the block": ([(PAIR, r"mov.u32 \t\1, %ctaid.x;", 0)], "which block of a pair executes it"),
    "tiles that are read from memory": (
        [(PAIR, r"ld.shared.b32 \t\1, [dynamic_shared];", 0)], "which block of a pair executes it",
    ),
    "copies of a single block": ([(r"(complete_tx::bytes)\.cta_group::2", r"\1", 0)], "without `.cta_group::2`"),
    "products of a single block": (
        [(r"tcgen05\.mma\.cta_group::2", "tcgen05.mma.cta_group::1", 0)], "in a product of this kind",
    ),
    "products of other columns": (
        [(r"mov\.b32 code, 271582352;", "mov.b32 code, 271058064;", 0)], "which columns of a product",
    ),
    "the rank counts tiles": ([(r"add\.s32 \t(%r\d+), \1, 1;(?=\n\tsetp)", r"add.s32 \t\1, \1, RANK;", 0)], ""),
}  # fmt: skip
"""Edits after which the audit does not know whether the PTX is right."""


def edited(ptx: str, edits: list[tuple[str, str, int]]) -> str:
    rank = re.search(RANK, ptx)
    assert rank is not None
    first = re.search(OWN_A.replace("RANK", rank[1]), ptx)
    assert first is not None

    def named(text: str) -> str:
        return text.replace("RANK", rank[1]).replace("FIRST", first[1])

    for pattern, replacement, which in edits:
        found = list(re.finditer(named(pattern), ptx))
        chosen = found if not which else [found[which - 1 if which > 0 else which]]
        assert chosen, pattern
        for match in reversed(chosen):
            ptx = ptx[: match.start()] + match.expand(named(replacement)) + ptx[match.end() :]
    return ptx


@pytest.mark.parametrize("name", REFUTED)
def test_mistakes_are_refuted(name: str) -> None:
    manifest, function, ptx = compiled("stores by copies")
    edits, reason = REFUTED[name]
    found = checked(manifest, function, edited(ptx, edits))
    assert found["status"] == "refuted", found
    assert reason in found["reason"], found


@pytest.mark.parametrize("name", OPEN)
def test_what_the_text_does_not_say_is_unknown_and_what_it_says_is_still_refuted(name: str) -> None:
    manifest, function, ptx = compiled("stores by copies")
    edits, reason = OPEN[name]
    text = edited(ptx, edits)
    found = checked(manifest, function, text)
    assert found["status"] == "unknown" and reason in found["reason"], found
    alone = dataclasses.replace(manifest, cluster=1)
    for wrong in (with_map(manifest, 1, swizzle=64), with_map(manifest, 2, box=(512, 64)), alone):
        assert checked(wrong, function, text)["status"] == "refuted"


EXPECT = r"(mbarrier\.arrive\.expect_tx\S+ _, \[(%rd\d+)\], 28672;)"
COUNT = r"(mbarrier\.arrive\.expect_tx\S+ _, \[%rd\d+\], )28672;"
BOX_OF_A = r"(cp\.async\.bulk\.tensor\.2d\.shared::cluster[^;]*\[(%rd\d+), \{(%r\d+), (%r\d+)\}\], \[(%rd\d+)\];)"
BYTES_MORE = "mbarrier.expect_tx.relaxed.cluster.shared::cluster.b64"
ALIASED = rf"{{ .reg .b64 same; and.b64 same, \2, -1; {BYTES_MORE} [same], 16; }}"
PREFETCH = r"cp.async.bulk.prefetch.tensor.2d.L2.global.tile [\2, {\3, \4}]; \1"
OTHER_BYTES = r"\1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%rd109], [%rd17], 16, [\5];"
IN_UPPER_HALF = r"{ .reg .b32 low, high; mov.b64 {low, high}, 28672; \1high; }"
FLUSHED = r"{ .reg .b32 count, zero; mov.b32 count, 28672; mov.b32 zero, 0; add.ftz.f32 count, count, zero; \1count; }"
TWICE = r"{ .reg .b32 at; .reg .pred more; mov.b32 at, 0; A: \1 add.u32 at, at, 1; setp.lt.u32 more, at, 2; @more bra A; }"
SOMETIMES = r"{ .reg .pred some; setp.eq.u32 some, %r287, 0; @some \1 }"
LAYOUT = r"{ .reg .b64 other; mov.b64 other, 9223348796690432000; or.b64 \1, \2, other; }"
UNCOUNTED: dict[str, tuple[str, str, str]] = {
    "expected twice": (EXPECT, rf"\1 {BYTES_MORE} [\2], 28672;", "which copies the bytes are expected for"),
    "expected at an address in another form": (EXPECT, rf"\1 {ALIASED}", "which copies the bytes are expected for"),
    "a copy that is repeated": (BOX_OF_A, TWICE, "which copies the bytes are expected for"),
    "a copy of some iterations": (BOX_OF_A, SOMETIMES, "which copies the bytes are expected for"),
    "bytes of another copy": (BOX_OF_A, OTHER_BYTES, "bytes that no tensor map copies"),
    "a prefetch": (BOX_OF_A, PREFETCH, "a copy with `.prefetch`"),
    "a sum in memory": (
        r"cp\.async(\.bulk\.tensor\.2d\.global\.shared::cta)\.tile", r"cp.reduce.async\1.add.tile", "a copy with `.reduce`",
    ),
    "columns of pictures": (r"(tensor\.2d\.shared::cluster\.global)\.tile", r"\1.im2col", "a copy with `.im2col`"),
    "the upper half of a number": (COUNT, IN_UPPER_HALF, "how many bytes are expected"),
    "a number that is flushed to zero": (COUNT, FLUSHED, "how many bytes are expected"),
    "a layout from a register": (r"or\.b64 \t(%rd\d+), (%rd\d+), 4611756662049538048;", LAYOUT, "which layout a product reads"),
}  # fmt: skip
"""Edits of one place: bytes, or elements, that are not those of the copies that the text shows."""


@pytest.mark.parametrize("name", UNCOUNTED)
def test_what_is_copied_or_counted_otherwise_is_not_confirmed(name: str) -> None:
    manifest, function, ptx = compiled("stores by copies")
    pattern, replacement, reason = UNCOUNTED[name]
    found = checked(manifest, function, edited(ptx, [(pattern, replacement, 1)]))
    assert found["status"] != "confirmed" and reason in found["reason"], found


@pytest.mark.parametrize("name", ["the rank is changed later", "products of other columns", "products of a single block"])
def test_bytes_are_compared_where_coordinates_are_unknown(name: str) -> None:
    manifest, function, ptx = compiled("stores by copies")
    found = checked(manifest, function, edited(ptx, [*OPEN[name][0], (EXPECTED, r"\g<1>28688;", 0)]))
    assert found["status"] == "refuted" and "both blocks copy 57344 bytes" in found["reason"]


def test_the_rank_of_a_run_of_rows_is_compared() -> None:
    """Gate in the block of rank 0 and up in that of rank 1, by a coordinate that is the rank itself."""
    manifest, function, ptx = compiled("two runs of rows")
    rank = re.search(RANK, ptx)
    assert rank is not None
    exchanged = ptx.replace(rank[0], f"{{ .reg .b32 own; mov.u32 own, %cluster_ctarank; xor.b32 {rank[1]}, own, 1; }}")
    assert checked(manifest, function, exchanged)["status"] == "refuted"
    same = re.sub(rf"(\{{%r\d+, %r\d+, ){rank[1]}\}}", r"\g<1>0}", ptx)
    assert same != ptx
    assert checked(manifest, function, same)["status"] == "refuted"
