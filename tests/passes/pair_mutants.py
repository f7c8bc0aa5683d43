"""Mistakes in schedules of pairs of blocks, in addition to those of `schedule_mutants` and `tmem_mutants`.

In: the text of a prepared function whose blocks form pairs. Out: named changes, each of one operation or value.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.passes.schedule_edits import Change, block_of, computed, constant, drop, move, set_attribute
from tests.passes.schedule_mutants import Mutant
from tilec.ir.core import Block, Function, Op, Value
from tilec.ir.ops import Binary, Compare, Constant, For, If, Yield
from tilec.ir.ops.pair_ops import ClusterRank, PairMma, PairRing
from tilec.ir.ops.staging_ops import TensorCopy
from tilec.ir.ops.sync_ops import Barrier, Ring, RingOp, Roles
from tilec.ir.ops.tmem_ops import TmemLoad, TmemMma
from tilec.ir.text.parser import parse_function
from tilec.ir.text.printer import print_function
from tilec.ir.types import TileType, boolean, i32


def mutants(text: str) -> Iterator[Mutant]:
    """Yields each distinct mutant."""
    seen = {text}
    for number, op in enumerate(parse_function(text).body.walk()):
        for kind, detail, change in _changes(op):
            function = parse_function(text)
            change(function, list(function.body.walk())[number])
            changed = print_function(function)
            if changed not in seen:
                seen.add(changed)
                yield Mutant(kind, f"{op.opcode} {number}{f', {detail}' if detail else ''}", changed)


def _changes(op: Op) -> Iterator[tuple[str, str, Change]]:
    match op:
        case PairRing():
            yield "counts one block", "producers", lambda f, o: set_attribute(o, "producers", 3 - o.producers)
            yield "counts one block", "half of the readers", lambda f, o: set_attribute(o, "readers", -(-o.readers // 2))
            yield "counts one block", "twice the readers", lambda f, o: set_attribute(o, "readers", 2 * o.readers)
            yield "ring of one block", "", _ring_of_one_block
        case PairMma():
            yield "product of one block", "", _product_of_one_block
        case Barrier() if op.scope == "cluster":
            yield "barrier of one block", "", lambda f, o: set_attribute(o, "scope", "block")
            yield "barrier dropped", "", drop
            for step in (-4, -1, 1):
                yield "barrier elsewhere", f"by {step}", lambda f, o, n=step: _move(f, o, n)
        case Roles():
            for number, alone in enumerate(op.alone):
                if alone:
                    yield "all threads of the role", str(number), lambda f, o, n=number: _all_threads(o, n)
        case Binary() if op.kind == "mul" and isinstance(op.operands[0].owner, ClusterRank):
            for name, factor in (("twice as far", 2), ("half as far", 0.5), ("both the first", 0), ("backwards", -1)):
                yield "other rows", name, lambda f, o, n=factor: _scaled(f, o, n)
            yield "halves exchanged", "", _exchanged
        case TensorCopy():
            yield "rank on another axis", "", _other_axis
            yield "rank in an offset twice", "", lambda f, o: _add_rank(f, o, len(o.operands) + o.row_axis)
        case For():
            for operand in (0, 1):
                yield "rank in control", f"operand {operand}", lambda f, o, n=operand: _add_rank(f, o, n)
        case _:
            pass
    if isinstance(op, RingOp | TensorCopy | PairMma | TmemLoad):
        for operand, value in enumerate(op.operands):
            if value.type == TileType(i32):
                yield "rank in an operand", f"operand {operand}", lambda f, o, n=operand: _add_rank(f, o, n)
            elif value.type == TileType(boolean):
                yield "rank in an operand", f"operand {operand}", lambda f, o, n=operand: _is_leader(f, o, n)
        if not op.results:
            yield "in the leader alone", "", _in_the_leader


def _move(function: Function, op: Op, step: int) -> None:
    try:
        move(function, op, step)
    except IndexError:
        move(function, op, 0)


def _replace(function: Function, op: Op, other: Op) -> None:
    block = block_of(function, op)
    block.ops[block.ops.index(op)] = other
    for value in other.results:
        value.owner = other


def _ring_of_one_block(function: Function, op: PairRing) -> None:
    _replace(function, op, Ring(sync=op.sync, offset=op.offset, readers=op.readers, results=op.results))


def _product_of_one_block(function: Function, op: PairMma) -> None:
    _replace(function, op, TmemMma(operands=op.operands, family=op.family))


def _all_threads(op: Roles, number: int) -> None:
    op.alone = tuple(alone and operand != number for operand, alone in enumerate(op.alone))


def _scaled(function: Function, op: Binary, factor: float) -> None:
    size = op.operands[1].owner
    assert isinstance(size, Constant)
    op.operands[1] = constant(function, op, int(size.value * factor))


def _exchanged(function: Function, op: Binary) -> None:
    op.operands[0] = computed(function, op, "sub", op.operands[0], 1)


def _other_axis(function: Function, op: TensorCopy) -> None:
    op.operands[3:] = op.operands[:2:-1]


def _rank(function: Function) -> Value:
    return next(op.result for op in function.body.ops if isinstance(op, ClusterRank))


def _before(function: Function, op: Op, made: Op, type_: TileType) -> Value:
    made.define(type_)
    block = block_of(function, op)
    block.ops.insert(block.ops.index(op), made)
    return made.result


def _add_rank(function: Function, op: Op, operand: int) -> None:
    added = Binary(kind="add", operands=[op.operands[operand], _rank(function)])
    op.operands[operand] = _before(function, op, added, TileType(i32))


def _is_leader(function: Function, op: Op, operand: int) -> None:
    test = Compare(kind="eq", operands=[_rank(function), constant(function, op, 0)])
    op.operands[operand] = _before(function, op, test, TileType(boolean))


def _in_the_leader(function: Function, op: Op) -> None:
    """The operation, which has no results, in a branch that the leader takes."""
    test = Compare(kind="eq", operands=[_rank(function), constant(function, op, 0)])
    condition = _before(function, op, test, TileType(boolean))
    _replace(function, op, If(operands=[condition], regions=[Block(ops=[op, Yield()]), Block(ops=[Yield()])]))
