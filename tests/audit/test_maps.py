"""Tensor maps compared with tile IR and PTX: those of the compiler are confirmed, any other box, order or count is refuted."""

from __future__ import annotations

import dataclasses
import re
from functools import cache

import pytest

from tests import shipped
from tests.audit import samples
from tests.audit.test_emulation import SM_90
from tests.campaign import first
from tilec.artifact.manifest_reader import manifest_from_json
from tilec.artifact.records import Manifest, to_json
from tilec.audit.maps import checked
from tilec.codegen import to_ptx
from tilec.ir.core import Function
from tilec.ir.text.parser import parse_function
from tilec.lowering import lower

pytest.importorskip("tilec.emulator")
CASES = {
    "edges": ("matmul_few", {"BM": 32}),
    "sub-tiles and stores": ("matmul_silu_mul", {"BM": 128, "BN": 80}),
    "swizzle atoms": ("flash_attention", {"BM": 128}),
}


@cache
def compiled(case: str) -> tuple[Manifest, Function, str]:
    name, wanted = CASES[case]
    text = samples.text(name, **wanted)
    lowered = lower(shipped.prepared(name, SM_90, wanted), SM_90)
    data = to_json(samples.manifest(name, **wanted))
    data |= {"abi": to_json(lowered.abi), "tensor_maps": to_json(lowered.tensor_maps), "entry": lowered.entry}
    return manifest_from_json(data), parse_function(text), to_ptx(lowered.mlir, SM_90)


def with_box(manifest: Manifest, number: int, box: tuple[int, ...]) -> Manifest:
    maps = list(manifest.tensor_maps)
    maps[number] = dataclasses.replace(maps[number], box=box)
    return dataclasses.replace(manifest, tensor_maps=tuple(maps))


@pytest.mark.parametrize("case", first(1, list(CASES)))
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


def test_what_the_text_does_not_say_is_unknown() -> None:
    manifest, function, ptx = compiled("edges")
    hidden = edited(ptx, r"(expect_tx\S+ _, \[%rd\d+\], )12288", r"\g<1>%r1")
    assert checked(manifest, function, hidden)["status"] == "unknown"
    assert checked(manifest, function, ptx.replace("cp.async.bulk.tensor", "cp.async.bulk.frob"))["status"] != "confirmed"
    assert checked(manifest, function, ptx.replace(manifest.entry, "other"))["status"] == "refuted"
