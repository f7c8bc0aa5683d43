"""Attention in tensor memory: what each role does, in which order, and that a change of the order is refused."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.campaign import first
from tests.passes.schedule_mutants import mutants
from tests.tensor_attention import made, source
from tilec.ir.core import Block, Function, Op, Value, VerifyError
from tilec.ir.ops import Constant, Exp2InParts, For, If, Unary
from tilec.ir.ops.signal_ops import Await, Signal, SignalOp, Signals
from tilec.ir.ops.sync_ops import RingOp, Roles
from tilec.ir.ops.tmem_chain_ops import TileProduct, TmemOperandMma, TmemRows, TmemScale, TmemStore, TmemTileMma
from tilec.ir.ops.tmem_ops import TmemAlloc, TmemLoad
from tilec.ir.text.parser import parse_function
from tilec.ir.text.printer import print_function
from tilec.passes.schedule.checks.verify import verify
from tilec.passes.schedule.pipelining.staging import Candidate, stage_by
from tilec.passes.schedule.simplify.canonicalize import canonicalize
from tilec.target.schedule import Pipeline, Role, Schedule
from tilec.target.targets import SM_90A, SM_100A, SM_100F, SM_103A, SM_120A, Target

SHOWN = (RingOp, SignalOp, TileProduct, TmemLoad, TmemStore, TmemRows)
REFUSED = (
    "await dropped", "await doubled", "signal dropped", "signal doubled", "signal_mma dropped", "signal_mma doubled",
    "tmem_tile_mma dropped", "tmem_operand_mma dropped", "tmem_store dropped", "release_mma dropped", "wait dropped",
    "wrong stage", "wrong parity", "wrong arrivals", "wrong parts", "signals of another part", "another tile", "swapped roles",
    "loop of other turns", "loop begins elsewhere", "counts other stages", "tmem_fill dropped",
)  # fmt: skip
"""Kinds of changes that the checks refuse all of."""
WITH_ONE_STAGE = tuple(kind for kind in REFUSED if kind not in ("wrong stage", "counts other stages"))
"""The same if all stages of the sums are stage 0."""


def prepared(columns: int) -> Function:
    return made("bf16", 256, columns, target=SM_100A).prepared


def roles(function: Function) -> dict[str, Block]:
    (op,) = (op for op in function.body.ops if isinstance(op, Roles))
    return dict(zip(op.names, op.regions, strict=True))


def shown(ops: list[Op]) -> Iterator[str]:
    """Operations on rings, signals and tensor memory in order, with their part or tile; branches in parentheses."""
    for op in ops:
        if isinstance(op, SHOWN):
            number = op.attributes().get("part", op.attributes().get("tile", ""))
            yield f"{op.opcode}{'' if number == -1 else number}"
        elif isinstance(op, If) and any(isinstance(inner, SHOWN) for inner in op.regions[0].walk()):
            yield f"({' | '.join(' '.join(shown(region.ops)) for region in op.regions)})".replace(" | )", ")")


def loop_of(block: Block) -> list[str]:
    loop = next(op for op in block.walk() if isinstance(op, For))
    return list(shown(loop.regions[0].ops))


FIRST = "await0 tmem_tile_mma0 signal_mma0"
SECOND = "await0 tmem_operand_mma0 signal_mma0"
CONSUMER = ["await", "tmem_load", "tmem_store", "(await tmem_scale | tmem_fill)", "signal"]


def other(tile: str) -> str:
    return tile.replace("0", "1")


def test_with_two_stages_of_sums_both_tiles_follow_each_other() -> None:
    found = roles(prepared(64))
    assert loop_of(found["consumer"]) == CONSUMER
    following = f"(wait {FIRST} {other(FIRST)} release_mma)"
    assert loop_of(found["multiplier"]) == ["wait", *SECOND.split(), *other(SECOND).split(), "release_mma", following]


def test_with_one_stage_of_sums_the_tiles_alternate() -> None:
    found = roles(prepared(128))
    assert loop_of(found["consumer"]) == CONSUMER
    expected = ["wait", *SECOND.split(), f"(wait {FIRST})", *other(SECOND).split(), "release_mma"]
    assert loop_of(found["multiplier"]) == [*expected, f"({other(FIRST)} release_mma)"]


@pytest.mark.parametrize(("columns", "stages"), [(32, 2), (64, 2), (128, 1)])
def test_tensor_memory_has_both_sums(columns: int, stages: int) -> None:
    function = prepared(columns)
    sums, results = (op for op in function.body.walk() if isinstance(op, TmemAlloc))
    assert (sums.result.tmem.shape, sums.result.tmem.stages) == ((256, columns), stages)
    assert (results.result.tmem.shape, results.result.tmem.stages) == ((256, 128), 1)
    assert results.column == sums.end and results.end <= 512
    signals = [(op.arrivals, op.parts, op.result.ring.stages) for op in function.body.walk() if isinstance(op, Signals)]
    assert signals == [(1, 2, stages), (4, 2, stages), (1, 2, 1)]


def test_a_thread_has_a_row() -> None:
    """So no reduction of a row passes elements between threads, and nothing goes through scratch memory."""
    function = prepared(128)
    text = print_function(function)
    assert "<128@1*1 | 32@0*1 | 4@0*32 2@0*128>" in text
    assert not re.search(r"scratch|reduce_store|reduce_combine", text)


@pytest.mark.parametrize(("target", "divided"), [(SM_100A, True), (SM_100F, True), (SM_103A, False)], ids=str)
def test_a_fourth_of_the_exponentials_of_a_matrix_has_a_polynomial(target: Target, divided: bool) -> None:
    """Those next to `tmem_store`, where the special-function unit is slow; a row's factor never."""
    function = made("bf16", 256, 64, target=target).prepared
    unary = [op for op in function.body.walk() if isinstance(op, Unary) and op.kind == "fast_exp2"]
    shapes = [(op.result.tile.shape, getattr(op, "polynomial", 0)) for op in unary]
    assert shapes == [((256, 64), 4 if divided else 0), ((256,), 0)]


def test_only_exponentials_of_attention_in_tensor_memory_are_divided() -> None:
    for kernel in (made("bf16", 128, 64, target=SM_90A), made("bf16", 128, 64, target=SM_120A)):
        assert not any(isinstance(op, Exp2InParts) for op in kernel.prepared.body.walk())


def test_the_text_is_read_as_it_is_printed() -> None:
    text = print_function(prepared(128))
    again = parse_function(text)
    verify(again, SM_100A)
    assert print_function(again) == text


@pytest.mark.parametrize(("columns", "kinds"), first(1, [(64, REFUSED), (128, WITH_ONE_STAGE)]), ids=["64", "128"])
def test_changes_of_the_order_are_refused(columns: int, kinds: tuple[str, ...]) -> None:
    """At least one change of each kind."""
    found = list(mutants(print_function(prepared(columns)), every=40, kinds=kinds))
    assert {mutant.kind for mutant in found} == set(kinds)
    for mutant in found:
        with pytest.raises(VerifyError):
            verify(parse_function(mutant.text), SM_100A)


def move_before(block: Block, op: Op, other: Op) -> None:
    block.ops.remove(op)
    block.ops.insert(block.ops.index(other), op)


@pytest.mark.parametrize(
    ("role", "kind", "before", "message"),
    [
        ("consumer", Signal, TmemStore, "tmem_operand_mma.*: tmem_store may still write that tile"),
        ("consumer", Signal, TmemScale, "tmem_operand_mma.*: tmem_fill may still write that tile"),
        ("consumer", TmemLoad, Await, "tmem_load.* takes sums from a tile that has nothing"),
        ("consumer", TmemStore, Await, "tmem_tile_mma.*: tmem_store may still write that tile"),
        ("multiplier", TmemTileMma, Await, "tmem_tile_mma.*: tmem_operand_mma may still read that tile"),
        ("multiplier", TmemOperandMma, Await, "tmem_operand_mma.* takes operand A from a tile that has"),
    ],
)
def test_the_hazard_is_named(role: str, kind: type[Op], before: type[Op], message: str) -> None:
    """The first operation of a kind in the loop of a role comes before the first one of another kind."""
    function = parse_function(print_function(prepared(64)))
    (loop,) = (op for op in roles(function)[role].walk() if isinstance(op, For))
    op = next(op for op in loop.regions[0].walk() if isinstance(op, kind))
    blocks = [loop.regions[0], *(region for inner in loop.regions[0].walk() for region in inner.regions)]
    block = next(block for block in blocks if op in block.ops)
    found = (one for one in block.ops if any(isinstance(inner, before) for inner in Block(ops=[one]).walk()))
    other = next(found)
    if isinstance(op, TmemTileMma) and isinstance(op.accumulate.owner, Op):
        move_before(block, op.accumulate.owner, other)
    if isinstance(op, TmemStore):  # it stores what is computed before
        op.operands[2] = tile_like(block, other, op.matrix)
    move_before(block, op, other)
    with pytest.raises(VerifyError, match=message):
        verify(function, SM_100A)


def tile_like(block: Block, before: Op, tile: Value) -> Value:
    """A constant of a tile's type and layout, made before an operation."""
    constant = Constant(value=0.0)
    constant.define(tile.type)
    constant.result.layout = tile.layout
    block.ops.insert(block.ops.index(before), constant)
    return constant.result


def chains(element: str, rows: int, columns: int, warps: int) -> list[str]:
    """Families with asynchronous products that compute the chain of the kernel."""
    function = source(element, rows, columns)
    canonicalize(function)
    function.num_warps = warps
    found: list[str] = []

    def decide(candidate: Candidate) -> Pipeline:
        found.extend(chain.family.name for chain in candidate.chains if chain.family.runs_ahead)
        return Pipeline(1, "load", "mma_sync")

    stage_by(function, decide, Schedule((Role("all", warps),)))
    return found


@pytest.mark.parametrize(("rows", "columns", "warps", "expected"), [
    (256, 128, 8, ["tcgen05"]),
    (256, 64, 8, ["tcgen05"]),
    (128, 64, 4, ["tcgen05"]),
    (64, 64, 4, ["wgmma"]),
    (128, 32, 8, ["wgmma"]),
    (256, 256, 8, []),
    (256, 64, 4, []),
])  # fmt: skip
def test_a_chain_has_a_row_for_each_thread(rows: int, columns: int, warps: int, expected: list[str]) -> None:
    assert chains("bf16", rows, columns, warps) == expected
