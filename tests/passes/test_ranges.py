"""Ranges and divisibility: arithmetic is sound at its corners, loops reach a fixpoint, joins keep only facts of both sides."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from tests.passes.builder import Access, Kernel, sym
from tilec.frontend import load_kernel
from tilec.ir import ops
from tilec.ir.core import Block, Value
from tilec.ir.ops.staging_ops import ScratchLoad
from tilec.ir.types import MAX_DIM, TileType, i32
from tilec.passes.analysis.ranges import Range, arithmetic, between, expr_range, join, value_ranges
from tilec.passes.prover import prove
from tilec.passes.schedule import prepare
from tilec.target.targets import SM_90A, SM_100A, SM_120A, Target

SMALL = [Range(0, 3), Range(-4, 2), Range(2, 10, 4, 2), between(5, 5), Range(1, 7, 3, 1), Range(-6, -2, 2, 0)]


def members(fact: Range) -> list[int]:
    fits = (lambda v: v == fact.rest) if fact.modulus == 0 else (lambda v: (v - fact.rest) % fact.modulus == 0)
    return [v for v in range(fact.low, fact.high + 1) if fits(v)]


@pytest.mark.parametrize("kind", ["add", "sub", "mul", "floordiv", "mod", "min", "max", "and", "shl", "shr"])
def test_arithmetic_holds_for_every_pair_of_members(kind: str):
    python = {
        "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "floordiv": lambda a, b: a // b,
        "mod": lambda a, b: a % b, "min": min, "max": max, "and": lambda a, b: a & b,
        "shl": lambda a, b: a << b if b >= 0 else 0, "shr": lambda a, b: a >> b if b >= 0 else a >> 64,
    }[kind]  # fmt: skip
    for left, right in product(SMALL, SMALL):
        fact = arithmetic(kind, left, right, bits=64)
        if fact is None:
            continue
        for a, b in product(members(left), members(right)):
            if kind in ("floordiv", "mod") and b <= 0:
                continue
            value = python(a, b)
            assert fact.low <= value <= fact.high, (kind, left, right, a, b)
            assert value in members(fact), (kind, left, right, a, b, fact)


def test_a_join_keeps_what_both_sides_imply():
    for left, right in product(SMALL, SMALL):
        fact = join(left, right)
        assert set(members(left)) | set(members(right)) <= set(members(fact))


def test_a_loop_variable_keeps_the_divisibility_of_its_step():
    k = Kernel("N")
    with k.loop(0, "N", 64) as i:
        k.mul(i, 1)
    fact = value_ranges(k.function)[i]
    assert (fact.low, fact.high, fact.modulus, fact.rest) == (0, MAX_DIM - 1, 64, 0)


def carried(k: Kernel, step: int) -> Value:
    op = ops.For(operands=[k.c(0), k.dim("N"), k.c(1), k.c(4)], variable="i", regions=[Block()])
    op.regions[0].add_argument(TileType(i32), "i")
    value = op.regions[0].add_argument(TileType(i32), "c")
    k.emit_region(op)
    outer, k.block = k.block, op.regions[0]
    k.emit_yield(k.add(value, step))
    k.block = outer
    op.define(TileType(i32))
    return op.results[0]


def test_a_carried_value_is_widened_and_keeps_its_divisibility():
    k = Kernel("N")
    k.tensor("x", Access.IN, "N")
    result = carried(k, 2)
    fact = value_ranges(k.function)[result]
    assert fact.low <= 4 and fact.high >= 2**31 - 2
    assert (fact.modulus, fact.rest % 2) == (2, 0)


def test_host_expressions_have_ranges():
    fact = expr_range(sym("N"), {"N": Range(1, 9)})
    assert (fact.low, fact.high) == (1, 9)


GATHER = """\
import tilec as tl

class N(tl.Dim): \'\'\'elements\'\'\'

@tl.kernel
def groups(x: tl.In[tl.i32, N], out: tl.Out[tl.i32, N]):
    tl.grid(tl.cdiv(N, 512))
    first, _ = tl.topk(tl.load(x, tl.bid(0), shape=128, pad=0), 8, 0)
    at = (first & 4088)[:, None, None] + (tl.arange(8) * 4096)[None, :, None] + tl.arange(8)[None, None, :]
    tl.store(out, tl.bid(0), tl.gather(x, at.reshape((512,)), pad=0), mask=True)
"""


@pytest.mark.parametrize("target", [SM_90A, SM_100A, SM_120A], ids=lambda target: target.name)
def test_a_tile_keeps_its_range_through_shared_memory(target: Target, tmp_path: Path) -> None:
    """So that what is computed from it is known not to wrap."""
    (tmp_path / "groups.py").write_text(GATHER, encoding="utf-8")
    function = load_kernel(tmp_path / "groups.py", {}, root=tmp_path)
    prove(function)
    prepared = prepare(function, target)
    ranges = value_ranges(prepared)
    found = [ranges[op.result] for op in prepared.body.walk() if isinstance(op, ScratchLoad)]
    assert found and {(one.low, one.high) for one in found} <= {(0, 4088), (0, 4095), (0, 8190), (0, 32760), (0, 32767)}
