"""The oracle of kernels of several ranks finds each kind of fault between ranks, and none in right kernels."""

from __future__ import annotations

from typing import Final

import pytest

from tests.rank_soundness.launches import run_ranks
from tests.rank_soundness.meets import Block, Entry, Meets
from tests.rank_soundness.shipped import SHIPPED, text_of
from tests.rank_soundness.verdict import RankKernel, examine, generate, overlapping
from tilec.ir.core import Function
from tilec.ir.ops import Meet
from tilec.ir.text.parser import parse_function
from tilec.passes.prover.aliasing import no_alias_pairs

GOOD: Final = """kernel @total(%x_0: peer tensor<f32, [2], align 16>, %x_1: peer tensor<f32, [2], align 16>, \
%out: out tensor<f32, [2], align 16>, %signals_0: signal tensor<u32, [2, 2, 2], align 16>, \
%signals_1: signal tensor<u32, [2, 2, 2], align 16>, %others_0: signal tensor<u32, [2, 2, 2], align 16>, \
%others_1: signal tensor<u32, [2, 2, 2], align 16>, %rank: i32) {
  constants {}
  dims []
  strides []
  grid [2]
  %0 = block_id {axis = 0} : i32
  %1 = constant {value = 0} : i32
  %2 = constant {value = 1} : i32
  %3 = compare %rank, %1 {kind = "eq"} : bool
  meet %signals_0, %signals_1, %rank
  %5 = load %x_0, %0 {pad = none, unsafe = none, vector = 0, whole = false} : f32[1]
  %6 = load %x_1, %0 {pad = none, unsafe = none, vector = 0, whole = false} : f32[1]
  store %out, %6, %0 {mask = false, unsafe = none, vector = 0, whole = false, streamed = false}
}
"""
MEET: Final = "  meet %signals_0, %signals_1, %rank\n"
READ: Final = "  %6 = load %x_1, %0 {pad = none, unsafe = none, vector = 0, whole = false} : f32[1]\n"
STORE: Final = "  store %out, %6, %0"
FAULTS: Final = {
    "no meet": (MEET, "", {"order", "stale"}),
    "a meet after the reads": (MEET + GOOD.partition(MEET)[2].partition(READ)[0] + READ,
                               GOOD.partition(MEET)[2].partition(READ)[0] + READ + MEET, {"order", "stale"}),
    "a branch by rank": (MEET, "  if %3 {\n  " + MEET + "    yield\n  } {\n    yield\n  }\n", {"deadlock", "order", "stale"}),
    "signals in another order": (MEET, "  meet %signals_1, %signals_0, %rank\n", {"signal"}),
    "signals of two parameters": (MEET, "  meet %signals_0, %others_1, %rank\n", {"deadlock"}),
    "a constant as the number": (MEET, "  meet %signals_0, %signals_1, %2\n", {"signal", "deadlock"}),
    "the block as the number": (MEET, "  meet %signals_0, %signals_1, %0\n", {"signal"}),
    "a write to a part": (STORE, "  store %x_0, %6, %0", {"ranks"}),
}  # fmt: skip
"""By mistake: a part of the text, what replaces it, and kinds of which some launch shows each."""


def kinds(function: Function, seeds: range = range(8)) -> set[str]:
    sizes = [{"rank": rank} for rank in range(2)]
    return {fault.kind for seed in seeds for fault in run_ranks(function, sizes, seed)}


def test_a_right_kernel_has_no_fault() -> None:
    assert kinds(parse_function(GOOD)) == set()


@pytest.mark.parametrize("name", FAULTS)
def test_each_kind_of_fault_is_found(name: str) -> None:
    old, new, expected = FAULTS[name]
    assert GOOD.count(old) == 1
    assert kinds(parse_function(GOOD.replace(old, new))) >= expected


def test_a_meet_in_a_loop_by_rank_deadlocks() -> None:
    loop = '  for %1, %rank, %2 {variable = "i"} {\n  ^(%4: i32)\n  ' + MEET + "    yield\n  }\n"
    assert "deadlock" in kinds(parse_function(GOOD.replace(MEET, loop)))
    twice = loop.replace("%rank, %2 {", "%2, %2 {")
    assert kinds(parse_function(GOOD.replace(MEET, twice))) == set()


def test_a_part_of_the_own_rank_is_not_stale_before_the_meet() -> None:
    """The contract forbids it all the same."""
    read = READ.replace("%6", "%7").replace("%x_1", "%x_0")
    guarded = f"  if %3 {{\n  {read}    yield\n  }} {{\n    yield\n  }}\n"
    assert kinds(parse_function(GOOD.replace(MEET, guarded + MEET))) == {"order"}


def test_a_block_passes_only_what_is_counted() -> None:
    """Of two ranks the second meets twice; what a block knows grows with each meet that it passes."""
    meet = Meet()
    signals = (("signals", 0), ("signals", 1))
    blocks = [Block(0, 0, [Entry(meet, 0, signals)]), Block(1, 0, [Entry(meet, 1, signals)] * 2)]
    faults = Meets(blocks, {"signals": 2**32 - 1}).run(0)
    assert [(fault.kind, fault.rank) for fault in faults] == [("deadlock", 1)]
    assert blocks[0].known == [frozenset({0}), frozenset({0, 1})] and blocks[1].known == [frozenset({1}), frozenset({0, 1})]


@pytest.mark.parametrize("missing", [("out", "x_0"), ("signals_0", "x_1")])
def test_a_contract_that_lets_what_is_written_overlap_is_found(missing: tuple[str, str]) -> None:
    function = parse_function(GOOD)
    pairs = no_alias_pairs(function)
    assert overlapping(function, pairs) is None
    fewer = tuple(pair for pair in pairs if set(pair) != set(missing))
    assert len(fewer) == len(pairs) - 1 and overlapping(function, fewer) is not None


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_kernels_are_right(name: str) -> None:
    verdict = examine(RankKernel(text_of(name), name))
    assert verdict.kind == "accepted" and verdict.launches >= 3, verdict


def test_a_number_means_the_same_kernel() -> None:
    assert generate(12) == generate(12) != generate(13)
