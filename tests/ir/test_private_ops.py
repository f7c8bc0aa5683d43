"""Operations on a block's part of an atomic tensor: each rule of their verifiers has a text that breaks it."""

from __future__ import annotations

import pytest

from tests.ir.broken_texts import check_refused
from tilec.ir.core import OPS
from tilec.ir.ops import private_ops
from tilec.ir.text.parser import parse_function
from tilec.ir.text.printer import print_function
from tilec.ir.verifier import verify

GOOD = """kernel @k(%t: atomic tensor<i32, [V, 3], align 16>, %u: atomic tensor<f32, [8], align 16>) {
  constants {}
  dims [V]
  strides []
  grid [1]
  warps 1
  requires V <= 5
  %0 = iota : i32[4]
  %1 = constant {value = 0x1.0000000000000p+0} : f32[4]
  %2 = shared_alloc {offset = 0, alignment = 128} : scratch<192>
  private_fill %2, %t {kind = "max", shape = [5, 3]}
  private_update %2, %t, %0, %0, %0 {kind = "max", shape = [5, 3], mask = true}
  private_flush %t, %2 {kind = "max", shape = [5, 3]}
  %3 = shared_alloc {offset = 256, alignment = 128} : scratch<160>
  private_fill %3, %u {kind = "add", shape = [8]}
  private_update %3, %u, %1, %0 {kind = "add", shape = [8], mask = true}
  private_flush %u, %3 {kind = "add", shape = [8]}
}
"""
FILL, UPDATE, FLUSH = "private_fill %2, %t", "private_update %2, %t, %0, %0, %0", "private_flush %t, %2"
SIZE_RULE = "the part has a place for each element"
BROKEN = [
    ("scratch<192>", "scratch<176>", SIZE_RULE),
    ("scratch<160>", "scratch<144>", SIZE_RULE),
    (f'{FILL} {{kind = "max", shape = [5, 3]}}', f'{FILL} {{kind = "max", shape = [5, 4]}}', "the extents are the tensor's"),
    (f'{FILL} {{kind = "max", shape = [5, 3]}}', f'{FILL} {{kind = "max", shape = [15]}}', "for each axis of the tensor"),
    (f'{FILL} {{kind = "max", shape = [5, 3]}}', f'{FILL} {{kind = "max", shape = [0, 3]}}', "an extent for each axis"),
    (f'{FILL} {{kind = "max"', f'{FILL} {{kind = "exch"', "no parts of exch of i32"),
    (f'{FLUSH} {{kind = "max"', f'{FLUSH} {{kind = "cas"', "no parts of cas of i32"),
    ('private_fill %3, %u {kind = "add"', 'private_fill %3, %u {kind = "max"', "no parts of max of f32"),
    (FILL, "private_fill %t, %2", "private_fill: operand 0 is"),
    (FLUSH, "private_flush %2, %t", "private_flush: operand 0 is"),
    (FILL, "private_fill %2", "1 operands instead of 2"),
    (UPDATE, "private_update %2, %t, %1, %0, %0", "tile and tensor share a dtype"),
    (UPDATE, "private_update %2, %t, %0, %0", "one index tile per tensor axis"),
    (UPDATE, "private_update %2, %t, %0, %0, %1", "indices have the tile's shape"),
]  # fmt: skip


def test_the_text_is_fine_unbroken() -> None:
    function = parse_function(GOOD)
    verify(function)
    assert print_function(function) == GOOD
    own = {op for op in OPS.values() if op.__module__ == private_ops.__name__}
    assert own < {type(op) for op in function.body.walk()}


@pytest.mark.parametrize(("good", "bad", "rule"), BROKEN, ids=[f"{case[2]} {number}" for number, case in enumerate(BROKEN)])
def test_a_broken_rule_is_named(good: str, bad: str, rule: str) -> None:
    check_refused(GOOD, good, bad, rule)
