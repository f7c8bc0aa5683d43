"""Operations on tensor memory by rows, and signals: their text, and what the verifier refuses."""

from __future__ import annotations

import pytest

from tilec.ir.core import VerifyError
from tilec.ir.text.parser import parse_function
from tilec.ir.text.printer import print_function
from tilec.ir.verifier import verify

TEXT = """kernel @k() {
  constants {}
  dims []
  strides []
  grid [1]
  warps 8
  %0 = constant {value = 0} : i32
  %1 = constant {value = true} : bool
  %2 = ring {sync = "mbarriers", offset = 0, readers = 1, consumer_roles = 1} : ring<1>
  %3 = shared_alloc %2 {offset = 1024, alignment = 1024} : shared<bf16, [256, 64], stages 1>
  %4 = shared_alloc %2 {offset = 33792, alignment = 1024} : shared<bf16, [96, 64], stages 1>
  %5 = signals {offset = 16, arrivals = 1, parts = 2} : ring<2>
  %6 = signals {offset = 48, arrivals = 4, parts = 2} : ring<1>
  %7 = tmem_reserve {offset = 1008} : tmem_space<512>
  %8 = tmem_alloc %7, %5 {column = 0} : tmem<f32, [256, 96], stages 2>
  %9 = tmem_alloc %7, %6 {column = 384} : tmem<f32, [256, 64], stages 1>
  tmem_tile_mma %3, %0, %4, %0, %8, %0, %1 {family = "tcgen05", tile = 1}
  signal_mma %5, %0 {part = 0}
  await %5, %0, %0 {part = -1}
  %10 = tmem_load %8, %0 : f32[256, 96]
  %11 = cast %10 : bf16[256, 96]
  tmem_store %8, %0, %11
  %12 = constant {value = 0x1.0000000000000p+0} : f32[256]
  tmem_fill %9, %0, %12
  tmem_scale %9, %0, %12
  signal %6, %0 {part = -1}
  tmem_operand_mma %8, %0, %4, %0, %9, %0, %1 {family = "tcgen05", tile = 0}
  tmem_free %7
}
"""
BROKEN = [
    ("ring<2>\n  %6", "bf16[2]\n  %6", "is no ring"),
    ("offset = 16, arrivals", "offset = 12, arrivals", "aligned to 8 bytes"),
    ("arrivals = 4, parts = 2", "arrivals = 0, parts = 2", "some warp signals some part"),
    ("arrivals = 1, parts = 2", "arrivals = 1, parts = 0", "some warp signals some part"),
    ("signal_mma %5, %0", "signal_mma %2, %0", "its first operand is signals"),
    ("signal_mma %5, %0", "signal_mma %5", "1 scalars follow"),
    ("await %5, %0, %0", "await %5, %0", "2 scalars follow"),
    ("await %5, %0, %0", "await %5, %0, %1", "i32 scalars"),
    ("signal_mma %5, %0 {part = 0}", "signal_mma %5, %0 {part = 2}", "no part 2"),
    ("await %5, %0, %0 {part = -1}", "await %5, %0, %0 {part = -2}", "no part -2"),
    ('"tcgen05", tile = 1', '"mma_sync", tile = 1', "no asynchronous products"),
    ('"tcgen05", tile = 1', '"tcgen05", tile = 2', "no tile 2 of 256 rows"),
    ("%3, %0, %4, %0, %8, %0, %1", "%3, %0, %4, %0, %9, %0, %1", "the accumulator is the product's"),
    ("shared<bf16, [96, 64]", "shared<f8e4m3, [96, 64]", "matrices of 16-bit elements"),
    ("tmem<f32, [256, 96]", "tmem<i32, [256, 96]", "sums in f32"),
    ("tmem<f32, [256, 64]", "tmem<i32, [256, 64]", "rows of f32"),
    ("%3, %0, %4, %0, %8, %0, %1", "%3, %1, %4, %0, %8, %0, %1", "the stages are i32"),
    ("%3, %0, %4, %0, %8, %0, %1", "%3, %0, %4, %0, %8, %0, %0", "a truth value"),
    ("tmem_store %8, %0, %11", "tmem_store %8, %0, %10", "16-bit floats"),
    ("tmem_store %8, %0, %11", "tmem_store %8, %1, %11", "an i32 scalar"),
    ("tmem_scale %9, %0, %12", "tmem_scale %9, %0, %10", "a value of f32 for each row"),
    ("%8, %0, %4, %0, %9, %0, %1", "%8, %0, %3, %0, %9, %0, %1", "256 elements do not fit 96 columns"),
    ("%8, %0, %4, %0, %9, %0, %1", "%9, %0, %4, %0, %9, %0, %1", "does not write its own operand"),
    ("%8, %0, %4, %0, %9, %0, %1", "%9, %0, %4, %0, %8, %0, %1", "the accumulator is the product's"),
]  # fmt: skip


def test_the_text_is_read_as_it_is_printed() -> None:
    function = parse_function(TEXT)
    verify(function)
    assert print_function(function) == TEXT


@pytest.mark.parametrize(("found", "instead", "rule"), BROKEN, ids=[rule for _, _, rule in BROKEN])
def test_a_broken_rule_is_named(found: str, instead: str, rule: str) -> None:
    assert TEXT.count(found) == 1
    with pytest.raises(VerifyError, match=rule):
        verify(parse_function(TEXT.replace(found, instead)))
