"""Each rule about claims of loops has a text that breaks it: an invariant is assumed only where its proof reaches."""

from __future__ import annotations

import pytest

from tests.ir.broken_texts import check_refused
from tilec.ir.text.parser import parse_function
from tilec.ir.text.printer import print_function
from tilec.ir.verifier import verify

GOOD = """kernel @k(%n: i32) {
  constants {}
  dims []
  strides []
  grid [1]
  %0 = constant {value = 0} : i32
  %1 = constant {value = 1} : i32
  %2 = compare %0, %0 {kind = "le"} : bool
  invariant %2 {point = "entry", number = 0}
  %3 = binary %0, %1 {kind = "add"} : i32
  %4 = compare %3, %n {kind = "ne"} : bool
  invariant %4 {point = "entry", number = 1}
  %5, %6 = for %0, %n, %1, %0, %1 {variable = "i"} : i32, i32 {
  ^(%7: i32, %8: i32, %9: i32)
    %10 = compare %8, %7 {kind = "le"} : bool
    invariant %10 {point = "head", number = 0}
    %11 = constant {value = 1} : i32
    %12 = binary %8, %11 {kind = "add"} : i32
    %13 = compare %12, %n {kind = "ne"} : bool
    invariant %13 {point = "head", number = 1}
    decreases %9 {point = "start", number = 2}
    %14 = binary %8, %9 {kind = "add"} : i32
    %15 = binary %9, %9 {kind = "sub"} : i32
    decreases %15 {point = "end", number = 2}
    %16 = binary %7, %1 {kind = "add"} : i32
    %17 = compare %14, %16 {kind = "le"} : bool
    invariant %17 {point = "end", number = 0}
    %18 = binary %14, %1 {kind = "add"} : i32
    %19 = compare %18, %n {kind = "ne"} : bool
    invariant %19 {point = "end", number = 1}
    yield %14, %15
  }
  %20 = binary %0, %n {kind = "max"} : i32
  %21 = compare %5, %20 {kind = "le"} : bool
  invariant %21 {point = "after", number = 0}
  %22 = binary %5, %1 {kind = "add"} : i32
  %23 = compare %22, %n {kind = "ne"} : bool
  invariant %23 {point = "after", number = 1}
}
"""
BROKEN = {
    "no entry": ('invariant %2 {point = "entry", number = 0}', 'invariant %2 {point = "entry", number = 7}', "0 has no entry"),
    "no end": ('invariant %17 {point = "end", number = 0}', 'invariant %17 {point = "end", number = 7}', "0 has no end"),
    "an end of another loop": ('point = "after", number = 0', 'point = "after", number = 5', "5 is of no loop before it"),
    "a start of no loop": ('invariant %2 {point = "entry", number = 0}', 'invariant %2 {point = "head", number = 0}',
                           "0 stands in no loop"),
    "another place": ('%2 {point = "entry"', '%2 {point = "middle"', "no point middle"),
    "another kind": ('%2 = compare %0, %0 {kind = "le"}', '%2 = compare %0, %0 {kind = "ge"}',
                     "0 has another condition at its entry"),
    "another initial value": ("%2 = compare %0, %0", "%2 = compare %1, %0", "0 has another condition at its entry"),
    "another lower bound": ("%2 = compare %0, %0", "%2 = compare %0, %1", "0 has another condition at its entry"),
    "another constant": ("%3 = binary %0, %1", "%3 = binary %0, %0", "1 has another condition at its entry"),
    "the values of this iteration at its end": ("%17 = compare %14, %16", "%17 = compare %8, %16",
                                                "0 has another condition at its end"),
    "the condition of the start at the end": ('invariant %17 {point = "end"', 'invariant %10 {point = "end"',
                                              "0 has another condition at its end"),
    "this iteration at its end": ("%17 = compare %14, %16", "%17 = compare %14, %7", "0 has another condition at its end"),
    "a step of another size": ('%16 = binary %7, %1 {kind = "add"}', '%16 = binary %7, %9 {kind = "add"}',
                               "0 has another condition at its end"),
    "another value of the next one": ("%18 = binary %14, %1", "%18 = binary %15, %1", "1 has another condition at its end"),
    "a value of the loop that is no argument": ("%13 = compare %12, %n", "%13 = compare %12, %12",
                                                "1 has another condition at its end"),
    "another result": ("%21 = compare %5, %20", "%21 = compare %6, %20", "0 has another condition at its after"),
    "another last iteration": ("%20 = binary %0, %n", "%20 = binary %n, %n", "0 has another condition at its after"),
    "a last iteration of a longer step": ("for %0, %n, %1, %0", "for %0, %n, %n, %0", "0 has another condition at its end"),
    "a number as the condition": ("invariant %2 {point", "invariant %0 {point", "the condition is a bool scalar"),
    "a condition as the number": ("decreases %9", "decreases %10", "the number is an i32 scalar"),
    "a number in the middle": ('decreases %9 {point = "start"', 'decreases %9 {point = "head"', "no point head"),
}  # fmt: skip


def test_the_text_is_fine_unbroken() -> None:
    function = parse_function(GOOD)
    verify(function)
    assert print_function(parse_function(print_function(function))) == print_function(function)


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_is_named(name: str) -> None:
    check_refused(GOOD, *BROKEN[name])
