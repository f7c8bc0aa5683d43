"""The rules of `meet` and of what ranks share: texts that break one are rejected."""

from __future__ import annotations

import pytest

from tilec.ir.core import VerifyError
from tilec.ir.text.parser import parse_function
from tilec.ir.text.printer import print_function
from tilec.ir.verifier import verify

GOOD = """kernel @total(%x_0: peer tensor<f32, [64], align 16>, %x_1: peer tensor<f32, [64], align 16>, \
%out: out tensor<f32, [64], align 16>, %signals_0: signal tensor<u32, [4, 2, 2], align 16>, \
%signals_1: signal tensor<u32, [4, 2, 2], align 16>, %rank: i32) {
  constants {}
  dims []
  strides []
  grid [4]
  requires rank >= 0
  requires rank < 2
  %0 = block_id {axis = 0} : i32
  %1 = constant {value = 0} : i32
  %2 = constant {value = 1} : i32
  %3 = constant {value = true} : bool
  meet %signals_0, %signals_1, %rank
  for %1, %2, %2 {variable = "i"} {
  ^(%4: i32)
    %5 = load %x_0, %0 {pad = none, unsafe = none, vector = 0, whole = false} : f32[16]
    %6 = load %x_1, %0 {pad = none, unsafe = none, vector = 0, whole = false} : f32[16]
    %7 = binary %5, %6 {kind = "add"} : f32[16]
    store %out, %7, %0 {mask = false, unsafe = none, vector = 0, whole = false, streamed = false}
    yield
  }
}
"""
MEET = "  meet %signals_0, %signals_1, %rank\n"
LOAD = "    %5 = load %x_0, %0 {pad = none, unsafe = none, vector = 0, whole = false} : f32[16]\n"
BETWEEN = GOOD[GOOD.index("%signals_1: signal") : GOOD.index(MEET) + len(MEET)]
"""From where the signals of rank 1 are declared to where they are used."""
FACTS, IN_ORDER = "  requires rank < 2\n", "the signals are those of all ranks, in their order"
BROKEN = {
    "one rank": (MEET, "  meet %signals_0, %rank\n", "operand 1 is i32"),
    "a rank twice": (MEET, MEET.replace("%signals_1", "%signals_0"), IN_ORDER),
    "signals in another order": (MEET, "  meet %signals_1, %signals_0, %rank\n", IN_ORDER),
    "signals of two parameters": (BETWEEN, BETWEEN.replace("%signals_1", "%other_1"), IN_ORDER),
    "values that a launch cannot check": (FACTS, FACTS + "  values %signals_0 0 .. 4\n", "a values fact names signals_0"),
    "a computed number": (MEET, MEET.replace("%rank", "%0"), "the number of the rank is a parameter"),
    "no number": (MEET, MEET.replace(", %rank", ", %3"), "the number of the rank is an i32 scalar"),
    "peers as signals": (MEET, MEET.replace("%signals_1", "%x_1"), "signals are u32"),
    "one count": ("tensor<u32, [4, 2, 2], align 16>, %rank", "tensor<u32, [4, 1, 2], align 16>, %rank", "signals are u32"),
    "signals to write": ("%signals_1: signal", "%signals_1: inout", "its tensors are signals"),
    "twice": (MEET, MEET * 2, "a kernel meets once"),
    "in a loop": (LOAD, MEET.replace("  meet", "    meet") + LOAD, "a kernel meets once, outside of loops and branches"),
    "too many blocks": ("grid [4]", "grid [5]", "the grid has 5 blocks, and the signals are for 4"),
    "two axes": ("grid [4]", "grid [4, 1]", "one axis, of a constant number of blocks"),
    "a write of a peer": ("store %out, %7", "store %x_0, %7", "no right to x_0"),
    "a read of signals": ("load %x_1, %0 {", "load %signals_1, %0, %0, %0 {", "no right to signals_1|share a dtype"),
}  # fmt: skip
"""A part of the text, what replaces it, and the rule that is then broken."""


def test_the_text_is_fine_unbroken_and_is_read_back() -> None:
    function = parse_function(GOOD)
    verify(function)
    assert print_function(function).strip() == GOOD.strip()


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_is_named(name: str) -> None:
    old, new, rule = BROKEN[name]
    assert GOOD.count(old) >= 1
    with pytest.raises(VerifyError, match=rule):
        verify(parse_function(GOOD.replace(old, new, 1)))


def test_a_pass_that_moves_a_read_before_the_meet_is_caught() -> None:
    """Without a schedule the prover says so to the author; with one, a pass did it."""
    early = GOOD.replace(MEET, "").replace("  }\n}", "  }\n" + MEET + "}")
    function = parse_function(early)
    verify(function)
    function.num_warps = 1
    with pytest.raises(VerifyError, match="reads x_0 before ranks have met"):
        verify(function)
