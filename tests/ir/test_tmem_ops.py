"""Operations on tensor memory: each rule of their verifiers has a text that breaks it, and the text form keeps them."""

from __future__ import annotations

import pytest

from tests.ir.broken_texts import check_refused
from tilec.ir.ops.tmem_ops import TmemAlloc, TmemMma, TmemReserve, allocated_columns
from tilec.ir.text.parser import parse_function
from tilec.ir.text.printer import print_function
from tilec.ir.text.tokens import ParseError
from tilec.ir.types import TmemType, f32
from tilec.ir.verifier import verify

GOOD = """kernel @k(%n: i32, %e: f32) {
  constants {}
  dims []
  strides []
  grid [1]
  warps 4
  %0 = constant {value = 0} : i32
  %1 = compare %0, %n {kind = "lt"} : bool
  %2 = ring {sync = "mbarriers", offset = 0, readers = 1, consumer_roles = 1} : ring<2>
  %3 = shared_alloc %2 {offset = 1024, alignment = 1024} : shared<bf16, [128, 64], stages 2>
  %4 = shared_alloc %2 {offset = 33792, alignment = 1024} : shared<bf16, [96, 64], stages 2>
  %5 = shared_alloc %2 {offset = 66560, alignment = 1024} : shared<i16, [128, 64], stages 2>
  %6 = ring {sync = "mbarriers", offset = 512, readers = 4, consumer_roles = 1} : ring<2>
  %7 = tmem_reserve {offset = 1008} : tmem_space<256>
  %8 = tmem_alloc %7, %6 {column = 16} : tmem<f32, [128, 96], stages 2>
  tmem_mma %3, %0, %4, %0, %8, %n, %1 {family = "tcgen05"}
  release_mma %2, %0
  commit_mma %6, %0
  %9 = tmem_load %8, %0 : f32[128, 96] <2@1*1 2@0*8 12@1*8 2@0*16 | 4@1*2 8@0*1 | 4@0*32>
  tmem_free %7
}
"""
RESERVE, ALLOC = "tmem_reserve {offset = 1008} : tmem_space<256>", "{column = 16} : tmem<f32, [128, 96], stages 2>"
MMA, LOAD = "tmem_mma %3, %0, %4, %0, %8, %n, %1", "tmem_load %8, %0 : f32[128, 96]"
BROKEN = [
    ("tmem_space<256>", "tmem_space<192>", "an allocation has a power of two of columns, 32 to 512"),
    ("tmem_space<256>", "tmem_space<16>", "an allocation has a power of two of columns, 32 to 512"),
    ("tmem_space<256>", "tmem_space<1024>", "an allocation has a power of two of columns, 32 to 512"),
    ("tmem_space<256>", "tmem_space<-256>", "an allocation has a power of two of columns, 32 to 512"),
    ("tmem_space<256>", "ring<2>", "ring<2> is no space in tensor memory"),
    ("offset = 1008", "offset = 1006", "the address is aligned to 4 bytes"),
    ("offset = 1008", "offset = -4", "the address is aligned to 4 bytes"),
    ("tmem_alloc %7, %6", "tmem_alloc %6, %7", "operand 0 is ring<2>"),
    ("tmem_alloc %7, %6", "tmem_alloc %7", "1 operands instead of 2"),
    (ALLOC, ALLOC.replace("128, 96", "96, 96"), "96 rows do not fill the lanes"),
    (ALLOC, ALLOC.replace("128, 96", "32, 96"), "32 rows do not fill the lanes"),
    (ALLOC, ALLOC.replace("128, 96", "128, 0"), "is no ring of accumulators"),
    (ALLOC, ALLOC.replace("f32", "f16"), "is no ring of accumulators"),
    (ALLOC, ALLOC.replace("stages 2", "stages 1"), "its ring has as many stages"),
    (ALLOC, ALLOC.replace("column = 16", "column = 80"), "the columns lie in the space"),
    (ALLOC, ALLOC.replace("column = 16", "column = -1"), "the columns lie in the space"),
    (ALLOC, ALLOC.replace("128, 96", "256, 96"), "the columns lie in the space"),
    (ALLOC, "{column = 16} : f32[128, 96]", "f32[128, 96] is no buffer in tensor memory"),
    (MMA, "tmem_mma %3, %0, %4, %0, %8, %n", "6 operands instead of 7"),
    (MMA, "tmem_mma %5, %0, %4, %0, %8, %n, %1", "`tcgen05` has no products of i16 and bf16"),
    (MMA, "tmem_mma %5, %0, %5, %0, %8, %n, %1", "`tcgen05` has no products of i16 and i16"),
    (MMA, "tmem_mma %4, %0, %3, %0, %8, %n, %1", "the accumulator is the product's"),
    (MMA, "tmem_mma %3, %0, %3, %0, %8, %n, %1", "the accumulator is the product's"),
    (MMA, "tmem_mma %3, %e, %4, %0, %8, %n, %1", "the stages are i32 scalars"),
    (MMA, "tmem_mma %3, %0, %4, %0, %8, %1, %1", "the stages are i32 scalars"),
    (MMA, "tmem_mma %3, %0, %4, %0, %8, %n, %0", "whether to accumulate is a truth value"),
    (MMA, "tmem_mma %3, %0, %4, %0, %3, %n, %1", "operand 4 is shared<bf16"),
    ('"tcgen05"', '"tcgen06"', "tcgen06"),
    ("release_mma %2, %0", "release_mma %2", "stage and parity are operands if the ring has mbarriers"),
    ("release_mma %2, %0", "release_mma %2, %e", "stage and parity are i32 scalars"),
    ("commit_mma %6, %0", "commit_mma %6, %0, %0", "stage and parity are operands if the ring has mbarriers"),
    ("commit_mma %6, %0", "commit_mma %8, %0", "operand 0 is tmem<f32"),
    (LOAD, "tmem_load %8, %e : f32[128, 96]", "the stage is an i32 scalar"),
    (LOAD, "tmem_load %8, %0 : f32[128, 64]", "the result is the matrix"),
    (LOAD, "tmem_load %3, %0 : f32[128, 96]", "operand 0 is shared<bf16"),
    ("tmem_free %7", "tmem_free %8", "operand 0 is tmem<f32"),
    ("tmem_free %7", "tmem_free", "0 operands instead of 1"),
]


def test_the_text_form_keeps_every_operation() -> None:
    function = parse_function(GOOD)
    verify(function)
    assert print_function(function) == GOOD
    reserve, alloc, mma = (
        next(op for op in function.body.walk() if isinstance(op, kind)) for kind in (TmemReserve, TmemAlloc, TmemMma)
    )
    assert (reserve.bytes, alloc.column, alloc.end, alloc.ring.ring.stages) == (4, 16, 208, 2)
    assert alloc.result.type == TmemType(f32, (128, 96), 2)
    assert mma.accumulator is alloc.result and mma.accumulate.name == "" and len(mma.reads) == 2


@pytest.mark.parametrize(("good", "bad", "rule"), BROKEN, ids=[f"{case[2]}, {case[1]}" for case in BROKEN])
def test_a_broken_rule_is_named(good: str, bad: str, rule: str) -> None:
    check_refused(GOOD, good, bad, rule)


@pytest.mark.parametrize("text", ["tmem_space<>", "tmem_space<256", "tmem_spaces<256>"])
def test_text_that_is_no_space_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        parse_function(GOOD.replace("tmem_space<256>", text))


@pytest.mark.parametrize("text", ["tmem<f32, [128], stages 2>", "tmem<f32, [128, 96]>", "tmem<[128, 96], stages 2>"])
def test_text_that_is_no_buffer_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        parse_function(GOOD.replace("tmem<f32, [128, 96], stages 2>", text))


def test_columns_are_allocated_by_powers_of_two() -> None:
    assert [allocated_columns(needed) for needed in (1, 32, 33, 64, 96, 257, 512)] == [32, 32, 64, 64, 128, 512, 512]


def test_a_matrix_of_more_lanes_than_there_are_has_several_tiles_side_by_side() -> None:
    assert [TmemType(f32, (rows, 64), 2).columns for rows in (64, 128, 256, 512)] == [128, 128, 256, 512]
