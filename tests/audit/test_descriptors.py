"""Layouts of descriptors of products: derived from the forms that the compiler writes, and from no others."""

from __future__ import annotations

from typing import Any

import pytest

from tests import shipped
from tests.audit.scheduled import scheduled
from tests.campaign import chosen
from tilec.audit.descriptors import swizzles
from tilec.audit.flow import Flow
from tilec.target.targets import SM_90A, SM_100A

emulator: Any = pytest.importorskip("tilec.emulator")
HEAD = """.version 8.8
.target sm_90a
.address_size 64
.visible .entry k()
{ .reg .b64 %d<9>; .reg .b32 %r<9>; .reg .f32 %f<32>;
"""
SMALL = "cvt.u64.u32 %d0, %r0; and.b64 %d1, %d0, 16320;"
WIDE = 2 << 61 | 1 << 32
"""128 bytes, in the layout field of a descriptor, and a stride."""
ACCUMULATORS = ", ".join(f"%f{number}" for number in range(32))
PRODUCT = f"wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {{{ACCUMULATORS}}}, %d7, %d7, 1, 1, 1, 0, 0;"


def layouts(body: str) -> set[int | None]:
    """The bytes of swizzles that a function's product reads with."""
    function = emulator.parse(f"{HEAD}{SMALL}\n{body}\n{PRODUCT}\nret;\n}}\n").functions["k"]
    return {size for _, size in swizzles(Flow(function))}


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (f"or.b64 %d7, %d1, {WIDE};", 128),
        (f"or.b64 %d2, %d1, {WIDE}; add.s64 %d7, %d2, %d1;", 128),
        (f"or.b64 %d2, %d1, {WIDE}; add.s64 %d3, %d1, %d2; add.s64 %d7, %d3, 64;", 128),
        (f"or.b64 %d2, %d1, {WIDE}; add.s64 %d7, %d2, %d2;", None),  # twice the layout
        (f"or.b64 %d2, %d1, {WIDE}; add.s64 %d7, %d2, %d4;", None),  # of an unknown number
        (f"or.b64 %d2, %d1, {WIDE}; add.s64 %d7, %d2, {1 << 61};", None),
        (f"or.b64 %d2, %d1, {WIDE}; sub.s64 %d7, %d2, %d1;", None),
        (f"or.b64 %d2, %d1, {WIDE | 1 << 60}; add.s64 %d7, %d2, %d1;", None),  # a sum could reach the field
        (f"or.b64 %d2, %d4, {WIDE}; add.s64 %d7, %d2, %d1;", None),
        ("add.s64 %d7, %d1, %d1;", None),  # no layout at all
        ("mov.b64 %d7, %d4;", None),
    ],
)
def test_a_layout_is_derived_of_one_number_and_small_ones(body: str, found: int | None) -> None:
    assert layouts(body) == {found}


SHIPPED = [
    (target, {"BM": constants["BM"], "BN": constants["BN"]})
    for target in (SM_90A, SM_100A)
    for entry in shipped.all_entries()
    if entry.name == "matmul" and target in entry.targets
    for constants in entry.specialisations()
    if constants["E"] == "bf16"
]


@pytest.mark.parametrize(("target", "constants"), chosen(SHIPPED, lambda case: case == (SM_90A, {"BM": 128, "BN": 192})))
def test_every_shipped_product_has_a_layout(target: Any, constants: dict[str, int]) -> None:
    _, ptx, _ = scheduled("matmul", constants, target)
    (function,) = emulator.parse(ptx).functions.values()
    assert {size for _, size in swizzles(Flow(function))} == {128}
