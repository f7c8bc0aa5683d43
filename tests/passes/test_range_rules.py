"""Every range rule of every operation contains the results that the semantics table gives for members of the operands' ranges.

The oracle is the enumerator's arithmetic (`tests.soundness.arithmetic`): plain integers that share no code with the rules.
Every operation of the registry is covered, either by cases of its rule, or because it has no rule and its result may be any
number of its dtype. A new rule without a case fails here.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import pytest

from tests import campaign
from tests.passes.builder import Kernel
from tests.passes.range_cases import INTEGERS, WHOLE, edge_numbers, facts, inside, members
from tests.soundness.arithmetic import evaluate, wrapped
from tilec.ir import ops
from tilec.ir.core import OPS, Op, Value
from tilec.ir.facts.range_facts import Range, between, join, of_dtype, within
from tilec.ir.ops import launch_ops, pair_ops, staging_ops, store_ops, sync_ops
from tilec.ir.types import DType, TileType, bf16, boolean, f16, f32, i8, i32, u8
from tilec.passes.analysis.divisibility import _ProvenRanges  # pyright: ignore[reportPrivateUsage]
from tilec.passes.analysis.obligations import may_wrap
from tilec.passes.analysis.ranges import RangeAnalysis, unwrapped

MODULES = (ops, launch_ops, pair_ops, staging_ops, store_ops, sync_ops)
EXTENT = 3
INTEGER_UNARY = [kind for kind in ops.UNARY_KINDS if kind not in ops.FLOAT_UNARY]
INTEGER_BINARY = [kind for kind in ops.BINARY_KINDS if kind not in ("div", "pow", "fast_pow")]
BY_OTHERS = {"block_id", "num_blocks", "dim", "launched_blocks", "grid_extent", "cluster_rank", "for", "if", "select"}
"""Operations whose values come from a launch or control flow; see `tests/passes/test_ranges_of_control.py`."""


def with_operands(op: Op, result: TileType, *operands: TileType) -> Op:
    op.operands = [Value(type_) for type_ in operands]
    op.define(result)
    op.verify()
    return op


def cases(opcode: str) -> Iterator[Op]:
    """Every kind and dtype of an operation that has integer results and a rule."""
    for dtype in WHOLE:
        tile, matrix = TileType(dtype, (EXTENT,)), TileType(dtype, (1, EXTENT))
        kinds = INTEGER_BINARY if dtype.is_integer else ("and", "or", "xor", "min", "max")
        match opcode:
            case "binary":
                yield from (with_operands(ops.Binary(kind=kind), tile, tile, tile) for kind in kinds)
            case "binary_in_range" if dtype.is_integer:
                yield from (
                    with_operands(ops.BinaryInRange(kind=kind), tile, tile, tile) for kind in ("floordiv", "mod", "shl", "shr")
                )
            case "unary":
                signs = INTEGER_UNARY if dtype.is_integer else ["not"]
                yield from (with_operands(ops.Unary(kind=kind), tile, tile) for kind in signs)
            case "cast":
                yield from (with_operands(ops.Cast(), tile, TileType(source, (EXTENT,))) for source in (*WHOLE, f32))
            case "bitcast" if dtype != boolean:
                alike = [source for source in (*INTEGERS, f32, f16, bf16) if source.bits == dtype.bits]
                yield from (with_operands(ops.Bitcast(), tile, TileType(source, (EXTENT,))) for source in alike)
            case "compare":
                truth = TileType(boolean, (EXTENT,))
                yield from (with_operands(ops.Compare(kind=kind), truth, tile, tile) for kind in ops.COMPARE_KINDS)
            case "reduce":
                for kind in ops.REDUCE_KINDS:
                    result = TileType(i32 if kind.startswith("arg") else dtype)
                    if dtype.is_integer or kind != "sum":
                        yield with_operands(ops.Reduce(kind=kind, axis=0), result, tile)
            case "reshape":
                yield with_operands(ops.Reshape(), matrix, tile)
            case "permute":
                yield with_operands(ops.Permute(axes=(1, 0)), TileType(dtype, (EXTENT, 1)), matrix)
            case "butterfly":
                four = TileType(dtype, (EXTENT + 1,))
                yield from (with_operands(ops.Butterfly(axis=0, mask=mask), four, four) for mask in (1, 2, 3))
            case "take":
                yield with_operands(ops.Take(axis=0), tile, TileType(dtype, (EXTENT + 1,)), TileType(i32, (EXTENT,)))
            case "broadcast":
                yield with_operands(ops.Broadcast(), TileType(dtype, (EXTENT, EXTENT)), matrix)
            case "iota":
                yield from [with_operands(ops.Iota(), TileType(i32, (EXTENT,)))] if dtype == i32 else []
            case "constant":
                for number in edge_numbers(dtype):
                    yield with_operands(ops.Constant(value=bool(number) if dtype == boolean else number), tile)
            case _:
                pass


WITH_RULES = [opcode for opcode, kind in OPS.items() if kind.result_range is not Op.result_range]


@pytest.mark.parametrize("opcode", [name for name in WITH_RULES if name not in BY_OTHERS])
def test_every_rule_has_cases(opcode: str) -> None:
    assert MODULES and any(True for _ in cases(opcode)), f"`{opcode}` has a range rule and no case here"


def test_an_operation_without_a_rule_may_give_any_number() -> None:
    """For example a load: its range is the interval of its dtype, unless the analysis knows the operation."""
    known = {*WITH_RULES, *BY_OTHERS, "load", "gather", "scratch_load", "take_load", "butterfly_load"}
    analysis = RangeAnalysis(Kernel(1).function, {})
    without = [kind for opcode, kind in OPS.items() if opcode not in known and kind.num_results == 1 and kind.makes_tiles]
    assert without
    for kind in without:
        op = kind.__new__(kind)
        op.operands, op.results, op.regions = [], [], []
        op.define(TileType(i32, (EXTENT,)))
        assert analysis.transfer(op, []) == [of_dtype(i32)], kind.opcode


def exact(op: Op, operands: Sequence[Sequence[float]]) -> list[int]:
    """Elements of the result before wrapping."""
    return [int(value) for value in evaluate(op, [list(tile) for tile in operands])]


def check_contained(op: Op, ranges: list[Range], tiles: Sequence[Sequence[float]]) -> None:
    """Checks all rules of an operation, for facts about its operands and members of them."""
    dtype = op.result.tile.dtype
    kernel = Kernel(1).function
    (wrapping,) = RangeAnalysis(kernel, {}).transfer(op, ranges)
    op.result.fits = may_wrap(op)
    (fitting,) = _ProvenRanges(kernel, {}).transfer(op, ranges)
    of_integers = unwrapped(op, dict(zip(op.operands, ranges, strict=True))) if may_wrap(op) else None
    for value in exact(op, tiles):
        kept = wrapped(value, dtype)
        assert inside(wrapping, kept), (op, ranges, tiles, kept, wrapping)
        low, high = dtype.integer_range()
        assert not low <= value <= high or inside(fitting, kept), (op, ranges, tiles, kept, fitting)
        assert of_integers is None or inside(of_integers, value), (op, ranges, tiles, value, of_integers)


def check_random_facts(op: Op, r: random.Random, count: int) -> None:
    ranges = [
        facts(v.tile.dtype, r, count) if not v.tile.dtype.is_float else [of_dtype(v.tile.dtype)] * count for v in op.operands
    ]
    for index in range(count if op.operands else 1):
        these = [each[index] for each in ranges]
        numbers = [members(fact, r) for fact in these]
        for _ in range(8 if op.operands else 1):
            tiles: list[list[float]] = [
                [r.choice(some) for _ in range(v.tile.size)] for v, some in zip(op.operands, numbers, strict=True)
            ]
            if any(v.tile.dtype.is_float for v in op.operands):
                tiles = [[r.choice((0.5, -3.0, 2.0**15, float("nan"), float("-inf")))] * EXTENT]
            check_contained(op, these, tiles)


@pytest.mark.parametrize("opcode", [name for name in WITH_RULES if name not in BY_OTHERS])
def test_members_stay_members(opcode: str) -> None:
    """At the edges of every dtype."""
    for op in cases(opcode):
        if opcode == "binary_in_range":
            continue  # its operands are restricted: see below
        r = random.Random(f"{opcode} {op.attributes()} {[v.type for v in op.operands]} {op.result.type}")
        check_random_facts(op, r, 20)


@pytest.mark.parametrize(
    ("opcode", "seed"), campaign.first(1, [(name, seed) for name in ("unary", "binary", "cast", "reduce") for seed in range(4)])
)
def test_many_members_stay_members(opcode: str, seed: int) -> None:
    for op in cases(opcode):
        check_random_facts(
            op, random.Random(f"{seed} {opcode} {op.attributes()} {[v.type for v in op.operands]} {op.result.type}"), 400
        )


def test_marked_divisions_and_shifts_have_the_rules_of_others() -> None:
    assert ops.BinaryInRange.result_range is ops.Binary.result_range


def one(value: int) -> Range:
    return Range(value, value, 0, value)


@pytest.mark.parametrize(("kind", "dtype"), campaign.in_turn(INTEGER_BINARY, (i8, u8), 1))
def test_constants_of_eight_bits(kind: str, dtype: DType) -> None:
    """Each edge with each number: a rule for two constants gives the one value of the table."""
    op = with_operands(ops.Binary(kind=kind), TileType(dtype, (1,)), *[TileType(dtype, (1,))] * 2)
    low, high = dtype.integer_range()
    for a in edge_numbers(dtype)[::3]:
        for b in range(low, high + 1, 3):
            check_contained(op, [one(a), one(b)], [[a], [b]])


@pytest.mark.parametrize(
    ("kind", "dtype"), campaign.first(1, [(kind, dtype) for kind in ("shl", *INTEGER_BINARY) for dtype in (u8, i8)])
)
def test_all_constants_of_eight_bits(kind: str, dtype: DType) -> None:
    op = with_operands(ops.Binary(kind=kind), TileType(dtype, (1,)), *[TileType(dtype, (1,))] * 2)
    low, high = dtype.integer_range()
    for a in range(low, high + 1):
        for b in range(low, high + 1):
            check_contained(op, [one(a), one(b)], [[a], [b]])


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("amount", [8, 9, 16, 17, 32, 33, 40, 64, 65])
def test_a_shift_by_the_width_or_more_leaves_nothing(dtype: DType, amount: int) -> None:
    """`n << 33` of an extent, u8 `<< 9`, i16 `<< 17`, u32 `<< 40`: over unbounded integers the results would be large
    numbers."""
    if not dtype.bits <= amount <= dtype.integer_range()[1]:
        return
    op = with_operands(ops.Binary(kind="shl"), TileType(dtype), TileType(dtype), TileType(dtype))
    ranges = [Range(1, 100), one(amount)]
    assert op.result_range(ranges) == one(0)
    assert unwrapped(op, dict(zip(op.operands, ranges, strict=True))) == one(0)


def test_a_contradiction_is_no_number() -> None:
    for low, high, modulus, rest in ((5, 4, 1, 0), (1, 3, 8, 0), (5, 5, 2, 0), (0, 3, 0, 7)):
        with pytest.raises(ValueError, match="no integer"):
            between(low, high, modulus, rest)
    assert within(Range(0, 100), 200, 300) is None
    assert within(Range(0, 100, 8, 0), 1, 7) is None
    assert within(Range(0, 100, 8, 0), 1, 8) == Range(1, 8, 8, 0)
    assert within(Range(0, 100, 8, 0), 8, 8) == one(8)


def test_a_result_that_cannot_fit_is_not_assumed_to_fit() -> None:
    """If `fits` is required of a result outside its dtype, the operation never runs, and nothing is concluded from it."""
    op = with_operands(ops.Binary(kind="add"), TileType(i32), TileType(i32), TileType(i32))
    op.result.fits = True
    (found,) = _ProvenRanges(Kernel(1).function, {}).transfer(op, [Range(2**31 - 4, 2**31 - 1), Range(8, 9)])
    assert (found.low, found.high) == i32.integer_range()


def test_a_join_contains_both_ranges_and_within_contains_the_values_inside() -> None:
    r = random.Random(5)
    for dtype in INTEGERS:
        for a, b in zip(facts(dtype, r, 150), facts(dtype, r, 150), strict=True):
            both = join(a, b)
            assert all(inside(both, value) for fact in (a, b) for value in members(fact, r))
            cut = within(a, b.low, b.high)
            kept = [value for value in members(a, r) if b.low <= value <= b.high]
            assert cut is not None or not kept
            assert cut is None or all(inside(cut, value) for value in kept)
            assert cut is None or any(inside(a, value) for value in members(cut, r))
