"""Tensor maps compared with tile IR and PTX: those of the compiler are confirmed, any other box, order or count is refuted."""

from __future__ import annotations

import dataclasses
import re
from functools import cache

import pytest

from tests import shipped
from tests.audit import samples
from tests.audit.test_emulation import SM_90
from tests.campaign import one_of_each
from tests.emulator.shipped_run import target_named
from tilec.artifact.manifest_reader import manifest_from_json
from tilec.artifact.records import Manifest, to_json
from tilec.audit.maps import checked
from tilec.codegen import to_ptx
from tilec.ir.core import Function
from tilec.ir.text.parser import parse_function
from tilec.lowering import lower
from tilec.project.read.models import Constant
from tilec.target.targets import SM_100A, SM_120A, Target

pytest.importorskip("tilec.emulator")
CASES: dict[str, tuple[str, dict[str, Constant], Target]] = {
    "edges": ("matmul_few", {"BM": 32}, SM_90),
    "sub-tiles and stores": ("matmul_silu_mul", {"BM": 128, "BN": 80}, SM_90),
    "swizzle atoms": ("flash_attention", {"BM": 128, "BN": 128}, SM_90),
    "edges, in tensor memory": ("matmul_few", {"BM": 32}, SM_100A),
    "stores, in tensor memory": ("matmul", {"BM": 128, "BN": 160}, SM_100A),
    "gate and up, in tensor memory": ("matmul_silu_mul", {"BM": 128, "BN": 64}, SM_100A),
    "attention, in tensor memory": ("flash_attention", {"BM": 256}, SM_100A),
    "edges, by warps": ("matmul_few", {"BM": 32}, SM_120A),
    "stores, by warps": ("matmul", {"BM": 128, "BN": 160}, SM_120A),
    "gate and up, by warps": ("matmul_silu_mul", {"BM": 128, "BN": 80}, SM_120A),
    "attention, by warps": ("flash_attention", {"BM": 128, "BN": 64}, SM_120A),
    "a family, in tensor memory": ("matmul_split", {"BM": 64, "S": 3}, target_named("sm_100f")),
    "a family, by warps": ("matmul_split", {"BM": 64, "S": 3}, target_named("sm_120f")),
}


@cache
def compiled(case: str) -> tuple[Manifest, Function, str]:
    name, wanted, target = CASES[case]
    text = samples.text(name, **wanted)
    lowered = lower(shipped.prepared(name, target, wanted), target)
    data = to_json(samples.manifest(name, **wanted))
    data |= {"abi": to_json(lowered.abi), "tensor_maps": to_json(lowered.tensor_maps), "entry": lowered.entry}
    return manifest_from_json(data), parse_function(text), to_ptx(lowered.mlir, target)


def with_box(manifest: Manifest, number: int, box: tuple[int, ...]) -> Manifest:
    maps = list(manifest.tensor_maps)
    maps[number] = dataclasses.replace(maps[number], box=box)
    return dataclasses.replace(manifest, tensor_maps=tuple(maps))


@pytest.mark.parametrize("case", one_of_each(list(CASES), lambda case: CASES[case][2].name))
def test_maps_of_the_compiler_are_confirmed_and_no_other_box_is(case: str) -> None:
    manifest, function, ptx = compiled(case)
    assert len(manifest.tensor_maps) > 2
    assert checked(manifest, function, ptx) == {"status": "confirmed", "reason": ""}
    for number, spec in enumerate(manifest.tensor_maps):
        for axis, extent in enumerate(spec.box):
            for other in {extent + 1, max(1, extent // 2), 2 * extent, extent - 8} - {extent}:
                box = (*spec.box[:axis], other, *spec.box[axis + 1 :])
                assert checked(with_box(manifest, number, box), function, ptx)["status"] == "refuted", (number, box)


def test_maps_in_another_order_are_refuted() -> None:
    manifest, function, ptx = compiled("edges")
    maps = manifest.tensor_maps
    for left in range(len(maps)):
        for right in range(left):
            swapped = list(maps)
            swapped[left], swapped[right] = maps[right], maps[left]
            if swapped == list(maps) or {maps[left].box, maps[right].box} == {maps[left].box}:
                continue
            slots = [slot for slot in manifest.abi if slot.kind != "tensor_map"]
            slots += [dataclasses.replace(manifest.abi[-1], name=spec.tensor) for spec in swapped]
            other = dataclasses.replace(manifest, tensor_maps=tuple(swapped), abi=tuple(slots))
            assert checked(other, function, ptx)["status"] == "refuted", (left, right)


def edited(ptx: str, pattern: str, replacement: str) -> str:
    found = re.sub(pattern, replacement, ptx, count=1)
    assert found != ptx
    return found


@pytest.mark.parametrize(
    ("case", "pattern", "replacement", "reason"),
    [
        ("edges, in tensor memory", r"(expect_tx\S+ _, \[%rd\d+\], )12288", r"\g<1>12304", "12288 bytes are copied where"),
        ("edges, by warps", r"(expect_tx\S+ _, \[%rd\d+\], )12288", r"\g<1>12304", "12288 bytes are copied where"),
        ("edges, in tensor memory", r"(selp\.b32 \t%r\d+, )2048, 0", r"\g<1>2064, 0", "bytes are counted for what is left out"),
        ("edges, by warps", r"(selp\.b32 \t%r\d+, )2048, 0", r"\g<1>2064, 0", "bytes are counted for what is left out"),
        ("edges, in tensor memory", r"(setp\.lt\.s32 \t%p\d+, %r\d+, )49;", r"\g<1>51;", "where 50 rows may be left"),
        ("edges, by warps", r"(setp\.lt\.s32 \t%p\d+, %r\d+, )49;", r"\g<1>51;", "where 50 rows may be left"),
        ("attention, in tensor memory", r"(mov\.b32 \t%r\d+, )64;", r"\g<1>32;", "by the tile IR"),
        ("attention, in tensor memory", r"\{(%r\d+, %r\d+, %r\d+)\}", r"{\1, %r1}", "a copy of rank 4"),
    ],
)
def test_ptx_of_other_targets_that_uses_them_otherwise_is_refuted(
    case: str, pattern: str, replacement: str, reason: str
) -> None:
    manifest, function, ptx = compiled(case)
    found = checked(manifest, function, edited(ptx, pattern, replacement))
    assert found["status"] == "refuted"
    assert reason in found["reason"]


@pytest.mark.parametrize("field", [0, 1, 3, 4, 6], ids=lambda field: f"layout {field}")
def test_products_in_tensor_memory_that_read_another_swizzle_are_refuted(field: int) -> None:
    """The three bits of a descriptor's layout: none, 128 bytes in atoms of 32, a value that is reserved, 64 and 32 bytes."""
    manifest, function, ptx = compiled("edges, in tensor memory")
    (constant,) = {int(number) for number in re.findall(r"or\.b64 \t%rd\d+, %rd\d+, (\d{19});", ptx)}
    assert constant >> 61 & 7 == 2
    other = ptx.replace(str(constant), str(constant & ~(7 << 61) | field << 61))
    found = checked(manifest, function, other)
    assert found["status"] == "refuted" and "products read rows of" in found["reason"]


@pytest.mark.parametrize(
    ("pattern", "replacement", "reason"),
    [
        (r"(expect_tx\S+ _, \[%rd\d+\], )12288", r"\g<1>12304", "12288 bytes are copied where 12304"),
        (r"(selp\.b32 \t%r\d+, )2048, 0", r"\g<1>2064, 0", "bytes are counted for what is left out"),
        (r"(setp\.lt\.s32 \t%p\d+, %r\d+, )49;", r"\g<1>51;", "a box [48, 64] of `b` where 50 rows may be left"),
        (r"(or\.b64 \t%rd\d+, %rd\d+, )46116862\d+", r"\g<1>9223372105592864776", "products read rows of"),
        (r"tensor\.2d(\S+ \[%rd\d+\], \[%rd\d+, \{)(%r\d+), (%r\d+)\}", r"tensor.3d\1\2, \3, \3}", "a copy of rank 3"),
    ],
)
def test_ptx_that_uses_them_otherwise_is_refuted(pattern: str, replacement: str, reason: str) -> None:
    manifest, function, ptx = compiled("edges")
    found = checked(manifest, function, edited(ptx, pattern, replacement))
    assert found["status"] == "refuted"
    assert reason in found["reason"]


@pytest.mark.parametrize(
    ("pattern", "replacement", "status", "reason"),
    [
        (r"(mbarrier\.arrive\.expect_tx[^;]*;)", r"\1 \1", "unknown", "which copies the bytes are expected for"),
        (r"(cp\.async\.bulk\.tensor\.2d\.shared::cluster[^;]*;)", r"\1 \1", "unknown", "whether a box is copied twice"),
        (r"@%p\d+ (mbarrier\.complete_tx[^;]*;)", r"\1 \1", "unknown", "which copies bytes are counted in place of"),
        (r"@%p\d+ (mbarrier\.complete_tx[^;]*;)", r"@%p1 \1", "unknown", "where it is executed"),
        (r"@(%p\d+ mbarrier\.complete_tx)", r"@!\1", "refuted", "bytes are counted for what is left out"),
        (r"(setp\.lt\.s32 \t)(%p\d+)(, %r\d+, 49;)", r"\1%p1|\2\3", "unknown", ""),
    ],
)
def test_bytes_that_are_counted_otherwise_are_not_confirmed(pattern: str, replacement: str, status: str, reason: str) -> None:
    manifest, function, ptx = compiled("edges")
    found = checked(manifest, function, edited(ptx, pattern, replacement))
    assert found["status"] == status and reason in found["reason"], found


def test_bytes_for_a_full_box_are_refuted() -> None:
    """They are counted whatever the rows are."""
    manifest, function, ptx = compiled("edges")
    open_guard = edited(ptx, r"@%p\d+ (mbarrier\.complete_tx)", r"\1")
    assert checked(manifest, function, open_guard)["status"] == "confirmed"
    found = checked(manifest, function, edited(open_guard, r"(selp\.b32 \t%r\d+, 2048, )0", r"\g<1>16"))
    assert found["status"] == "refuted" and "[64, 64], and 16 bytes are counted" in found["reason"]


def test_what_the_text_does_not_say_is_unknown() -> None:
    manifest, function, ptx = compiled("edges")
    hidden = edited(ptx, r"(expect_tx\S+ _, \[%rd\d+\], )12288", r"\g<1>%r1")
    assert checked(manifest, function, hidden)["status"] == "unknown"
    assert checked(manifest, function, ptx.replace("cp.async.bulk.tensor", "cp.async.bulk.frob"))["status"] != "confirmed"
    assert checked(manifest, function, ptx.replace(manifest.entry, "other"))["status"] == "refuted"
