"""Operations of pairs of blocks: each rule of their verifiers has a text that breaks it, and the text form keeps them."""

from __future__ import annotations

import pytest

from tests.ir.broken_texts import check_refused
from tilec.ir.core import OPS, VerifyError
from tilec.ir.ops import pair_ops
from tilec.ir.text.parser import parse_function
from tilec.ir.text.printer import print_function
from tilec.ir.verifier import verify

GOOD = """kernel @k(%n: i32, %e: f32) {
  constants {}
  dims []
  strides []
  grid [1]
  warps 4
  cluster 2
  %0 = constant {value = 0} : i32
  %1 = compare %0, %n {kind = "lt"} : bool
  %2 = cluster_rank : i32
  %3 = pair_ring {sync = "mbarriers", offset = 0, readers = 1, consumer_roles = 1, producers = 2} : ring<2>
  %4 = shared_alloc %3 {offset = 1024, alignment = 1024} : shared<bf16, [128, 64], stages 2>
  %5 = shared_alloc %3 {offset = 33792, alignment = 1024} : shared<bf16, [48, 64], stages 2>
  %6 = shared_alloc %3 {offset = 66560, alignment = 1024} : shared<i16, [128, 64], stages 2>
  %7 = shared_alloc %3 {offset = 99328, alignment = 1024} : shared<bf16, [48, 32], stages 2>
  %8 = pair_ring {sync = "mbarriers", offset = 512, readers = 8, consumer_roles = 1, producers = 1} : ring<2>
  %9 = tmem_reserve {offset = 1008} : tmem_space<256>
  %10 = tmem_alloc %9, %8 {column = 0} : tmem<f32, [128, 96], stages 2>
  pair_mma %4, %0, %5, %0, %10, %n, %1 {family = "tcgen05"}
  tmem_free %9
}
"""
MMA = "pair_mma %4, %0, %5, %0, %10, %n, %1"
ALONE = "the blocks form no pairs"
BROKEN = [
    ("  cluster 2\n", "", ALONE),
    ("  cluster 2\n", "  cluster 4\n", "clusters of 4 blocks; a pair has 2"),
    ("cluster_rank : i32", "cluster_rank : f32", "the result is an i32 scalar"),
    ("cluster_rank : i32", "cluster_rank %0 : i32", "1 operands instead of 0"),
    ("producers = 2", "producers = 3", "a stage is filled by one block, or by both, not by 3"),
    ("producers = 1", "producers = 0", "a stage is filled by one block, or by both, not by 0"),
    (
        "consumer_roles = 1, producers = 2",
        "consumer_roles = 2, producers = 2",
        "blocks of a pair signal each other by mbarriers",
    ),
    ("readers = 8", "readers = 0", "warps read a ring of mbarriers, and of no other kind"),
    (MMA, "pair_mma %6, %0, %5, %0, %10, %n, %1", "`tcgen05` has no products of i16 and bf16"),
    (MMA, "pair_mma %6, %0, %6, %0, %10, %n, %1", "`tcgen05` has no products of i16 and i16"),
    (MMA, "pair_mma %4, %0, %7, %0, %10, %n, %1", "matrices of one depth"),
    (MMA, "pair_mma %4, %0, %4, %0, %10, %n, %1", "the accumulator is the product's"),
    (MMA, "pair_mma %5, %0, %5, %0, %10, %n, %1", "the accumulator is the product's"),
    (MMA, "tmem_mma %4, %0, %5, %0, %10, %n, %1", "the accumulator is the product's"),
    (MMA, "pair_mma %4, %0, %5, %0, %10, %n, %0", "whether to accumulate is a truth value"),
]


def test_the_text_is_fine_and_kept() -> None:
    function = parse_function(GOOD)
    verify(function)
    assert print_function(function) == GOOD
    made = {op for op in OPS.values() if op.__module__ == pair_ops.__name__}
    assert made <= {type(op) for op in function.body.walk()}


@pytest.mark.parametrize(("old", "new", "rule"), BROKEN)
def test_each_rule_is_checked(old: str, new: str, rule: str) -> None:
    check_refused(GOOD, old, new, rule)


@pytest.mark.parametrize(
    "line", [line for line in GOOD.splitlines() if any(name in line for name in ("cluster_rank", "pair_ring", "pair_mma"))]
)
def test_blocks_without_a_pair_have_none_of_them(line: str) -> None:
    """Each of the operations alone is refused, too."""
    others = [one for one in GOOD.splitlines() if "cluster 2" not in one]
    function = parse_function("\n".join(others) + "\n")
    opcode = next(name for name in ("cluster_rank", "pair_ring", "pair_mma") if name in line)
    op = next(op for op in function.body.walk() if op.opcode == opcode)
    with pytest.raises(VerifyError, match=ALONE):
        op.verify_in(function)
