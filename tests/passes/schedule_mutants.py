"""Schedules with one change each. In: the text of a prepared function whose roles share a ring. Out: named changes of it.

Each mutant changes one operation that orders threads, or one of its operands: it is dropped, doubled, moved past a neighbour,
or given another stage, parity, count, scope or role. A change that leaves the text unchanged is skipped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from typing import NamedTuple

from tests.passes import signal_mutants, tmem_mutants
from tests.passes.schedule_edits import (
    Change,
    computed,
    constant,
    double,
    drop,
    inline_first,
    move,
    set_attribute,
    set_condition,
    set_constant,
    set_operand,
)
from tilec.ir.core import Op
from tilec.ir.ops import Binary, Constant, For, If
from tilec.ir.ops.signal_ops import SignalOp, Signals
from tilec.ir.ops.staging_ops import GroupMma, SharedAlloc, TensorCopy, WaitMma
from tilec.ir.ops.store_ops import ScratchStoreRows, TensorStore, WaitStores
from tilec.ir.ops.sync_ops import (
    Acquire,
    Barrier,
    Commit,
    OrderArrive,
    OrderOp,
    OrderWait,
    ProxyFence,
    Release,
    Ring,
    RingOp,
    Roles,
    SharedFree,
    Wait,
    WarpBarrier,
)
from tilec.ir.ops.tmem_ops import CommitMma, ReleaseMma, TmemAlloc, TmemFree, TmemLoad, TmemMma, TmemReserve
from tilec.ir.text.parser import parse_function
from tilec.ir.text.printer import print_function
from tilec.ir.types import TileType, i32

ORDERING = (
    Acquire, Commit, Wait, Release, TensorCopy, ProxyFence, Barrier, SharedFree, OrderWait, OrderArrive, ScratchStoreRows,
    TensorStore, WaitStores, WarpBarrier, TmemMma, CommitMma, ReleaseMma, TmemFree,
)  # fmt: skip
MOVABLE = (*ORDERING, GroupMma, WaitMma, TmemReserve, TmemAlloc)


class Mutant(NamedTuple):
    """`kind` names the class of change, `what` the changed operation and operand."""

    kind: str
    what: str
    text: str


def mutants(text: str, every: int = 1, kinds: Collection[str] | None = None) -> Iterator[Mutant]:
    """Yields each distinct mutant of the operations from the ring's creation on. With `every` = n, yields about one in n of
    each kind; with `kinds`, only those kinds."""
    seen = {text}
    ops = list(parse_function(text).body.walk())
    first = next(number for number, op in enumerate(ops) if isinstance(op, Ring))
    tiles = [op for op in ops if isinstance(op, For) and op.variable == "turn"]
    in_tensor_memory = any(isinstance(op, TmemReserve) for op in ops)
    by_signals = any(isinstance(op, Signals) for op in ops)

    def changes(op: Op) -> Iterator[tuple[str, str, Change]]:
        yield from _changes(op)
        if in_tensor_memory:
            yield from signal_mutants.changes(op) if by_signals else tmem_mutants.changes(op)

    planted = [(number, *change) for number, op in enumerate(ops) if number >= first for change in changes(op)]
    to_skip: Counter[str] = Counter()
    for number, kind, detail, change in planted:
        op = ops[number]
        kind = "another tile" if kind == "counts other stages" and _computes_tile(op, tiles) else kind
        if kinds is not None and kind not in kinds:
            continue
        if to_skip[kind]:
            to_skip[kind] -= 1
            continue
        function = parse_function(text)
        chosen = list(function.body.walk())[number]
        try:
            change(function, chosen)
            changed = print_function(function)
        except (IndexError, KeyError, StopIteration):
            continue  # the index is out of range, or the named op is missing
        if changed not in seen:
            seen.add(changed)
            to_skip[kind] = every - 1
            yield Mutant(kind, f"{op.opcode} {number}{f', {detail}' if detail else ''}", changed)


def _changes(op: Op) -> Iterator[tuple[str, str, Change]]:
    if isinstance(op, ORDERING):
        yield f"{op.opcode} dropped", "", drop
        yield f"{op.opcode} doubled", "", double
    if isinstance(op, MOVABLE):
        for step in (-2, -1, 1, 2):
            yield f"{op.opcode} moved", f"by {step}", lambda f, o, step=step: move(f, o, step)
    if isinstance(op, RingOp | TensorCopy | GroupMma | TmemMma | TmemLoad):
        for index, value in enumerate(op.operands):
            if value.type == TileType(i32) and (index < 4 or isinstance(op, TensorCopy | TmemMma)):
                yield from _changes_of_number(op, index)
    yield from _changes_of_kind(op)


def _changes_of_number(op: Op, operand: int) -> Iterator[tuple[str, str, Change]]:
    """Replaces a stage, a parity or a coordinate."""
    parity = (isinstance(op, Acquire | Wait) and operand == 2) or isinstance(op, OrderWait)
    kind = "parity" if parity else "coordinate" if isinstance(op, TensorCopy) and operand > 2 else "stage"
    owner = op.operands[operand].owner
    for number in (0, 1):
        if isinstance(owner, Constant) and owner.value == number:
            continue
        yield (
            f"wrong {kind}",
            f"operand {operand} is {number}",
            lambda f, o, n=number: set_operand(f, o, operand, lambda f, v: constant(f, o, n)),
        )
    yield (
        f"wrong {kind}",
        f"operand {operand} one more",
        lambda f, o: set_operand(f, o, operand, lambda f, v: computed(f, o, "add", v, 1)),
    )
    if parity:
        yield "wrong parity", "turned", lambda f, o: set_operand(f, o, operand, lambda f, v: computed(f, o, "sub", v, 1))


def _changes_of_kind(op: Op) -> Iterator[tuple[str, str, Change]]:
    match op:
        case Acquire():
            for factor in (-2, 2, -op.expected // 2, op.expected):
                yield "wrong bytes", f"{factor} more", lambda f, o, n=factor: set_attribute(o, "expected", op.expected + n)
        case Ring():
            for readers in (1, op.readers - 1, op.readers + 1, op.readers * 2, op.readers * 32):
                yield "wrong readers", str(readers), lambda f, o, n=readers: set_attribute(o, "readers", n)
            for consumers in (op.consumer_roles - 1, op.consumer_roles + 1):
                yield (
                    "wrong readers",
                    f"{consumers} consumer_roles",
                    lambda f, o, n=consumers: set_attribute(o, "consumer_roles", n),
                )
            for offset in (1024, 1032, 4):
                yield "wrong place", f"ring at {offset}", lambda f, o, n=offset: set_attribute(o, "offset", n)
        case OrderOp():
            yield (
                "another's turn",
                f"consumer {1 - op.consumer}",
                lambda f, o, n=1 - op.consumer: set_attribute(o, "consumer", n),
            )
        case Release():
            for iterations in (0, 1, 2):
                yield (
                    "released too early or late",
                    f"unreleased {iterations}",
                    lambda f, o, n=iterations: set_attribute(o, "unreleased", n),
                )
        case WaitMma():
            for pending in (0, 1, 2):
                yield "waits for other products", f"pending {pending}", lambda f, o, n=pending: set_attribute(o, "pending", n)
        case Barrier():
            for scope in ("block", "role", "cluster"):
                yield "barrier of other threads", scope, lambda f, o, s=scope: set_attribute(o, "scope", s)
        case SharedAlloc():
            for offset in (0, op.offset - 1024, op.offset + 128, op.offset - op.bytes):
                yield "wrong place", f"offset {offset}", lambda f, o, n=offset: set_attribute(o, "offset", n)
        case Roles():
            yield "swapped roles", "regions", lambda f, o: set_attribute(o, "regions", o.regions[::-1])
            yield "swapped roles", "who is alone", lambda f, o: set_attribute(o, "alone", op.alone[::-1])
            for alone in ((False,) * len(op.alone), (True,) * len(op.alone)):
                yield "swapped roles", f"alone {alone}", lambda f, o, a=alone: set_attribute(o, "alone", a)
            yield "swapped roles", "warps", lambda f, o: set_attribute(o, "warps", op.warps[::-1])
            less = (op.warps[0] - 4, *op.warps[1:-1], op.warps[-1] + 4)
            yield "roles of other warps", str(less), lambda f, o: set_attribute(o, "warps", less)
        case TensorCopy():
            yield (
                "copies elsewhere",
                "coordinates swapped",
                lambda f, o: set_attribute(o, "operands", [*o.operands[:3], *o.operands[:2:-1]]),
            )
            if op.sub_tiles == 1:
                kind = "brings rows outside" if op.unfilled else f"leaves out rows of {op.source.name}"
                yield kind, "", lambda f, o: set_attribute(o, "unfilled", not op.unfilled)
        case WaitStores():
            more = op.pending + 1
            yield "waits for fewer stores", f"pending {more}", lambda f, o: set_attribute(o, "pending", more)
            if op.complete:
                yield "waits for fewer stores", "until they have read", lambda f, o: set_attribute(o, "complete", False)
            for index in range(len(op.operands)):
                yield (
                    "waits for fewer stores",
                    f"not of operand {index}",
                    lambda f, o, p=index: set_attribute(o, "operands", [*o.operands[:p], *o.operands[p + 1 :]]),
                )
        case ScratchStoreRows() | TensorStore():
            for column in (op.column - op.columns, op.column + op.columns):
                yield "stores other columns", str(column), lambda f, o, n=column: set_attribute(o, "column", n)
            if isinstance(op, TensorStore):
                yield "stores other columns", "fewer rows", lambda f, o: set_attribute(o, "rows", op.rows - 8)
                yield (
                    "stores elsewhere",
                    "coordinates swapped",
                    lambda f, o: set_attribute(o, "operands", [*o.operands[:2], *o.operands[:1:-1]]),
                )
        case For() if any(isinstance(inner, RingOp | SignalOp) for inner in op.regions[0].walk()):
            for index in (0, 3, 4, 5):
                yield "loop begins elsewhere", f"operand {index} is 0", lambda f, o, p=index: set_constant(f, o, p, 0)
                yield "loop begins elsewhere", f"operand {index} is 1", lambda f, o, p=index: set_constant(f, o, p, 1)
                yield (
                    "loop begins elsewhere",
                    f"operand {index}",
                    lambda f, o, p=index: set_operand(
                        f, o, p if o.operands[p].type == TileType(i32) else 99, lambda f, v: computed(f, o, "add", v, 1)
                    ),
                )
            yield "loop of other turns", "one more", lambda f, o: set_operand(f, o, 1, lambda f, v: computed(f, o, "add", v, 1))
            yield (
                "loop of other turns",
                "one less",
                lambda f, o: set_operand(f, o, 1, lambda f, v: computed(f, o, "sub", v, -1)),
            )
            yield (
                "loop of other turns",
                "every other",
                lambda f, o: set_operand(f, o, 2, lambda f, v: computed(f, o, "add", v, 1)),
            )
            for step in (1, 2):
                yield "loop of other turns", f"by {step}", lambda f, o, n=step: set_constant(f, o, 2, n)
        case If() if any(isinstance(inner, TensorCopy) for inner in op.regions[0].ops):
            for step in (-1, 1):
                yield "under another condition", f"that {step} away", lambda f, o, n=step: set_condition(f, o, n)
            yield "under another condition", "always", inline_first
        case If() if any(isinstance(inner, Release | SignalOp) for inner in op.regions[0].walk()):
            yield "released too early or late", "where not", lambda f, o: set_attribute(o, "regions", o.regions[::-1])
            yield "released too early or late", "always", inline_first
        case _:
            yield from _changes_of_ring_index(op)


def _changes_of_ring_index(op: Op) -> Iterator[tuple[str, str, Change]]:
    """Changes the arithmetic that computes ring indices."""
    if isinstance(op, Constant) and op.result.type == TileType(i32) and isinstance(op.value, int) and 0 <= op.value < 16:
        for more in (-1, 1):
            yield (
                "counts other stages",
                f"{op.value + more} for {op.value}",
                lambda f, o, n=op.value + more: set_attribute(o, "value", n),
            )
    if isinstance(op, Binary) and op.kind in ("add", "sub") and op.result.type == TileType(i32):
        other = "sub" if op.kind == "add" else "add"
        yield "counts other stages", f"{other} for {op.kind}", lambda f, o: set_attribute(o, "kind", other)


def _computes_tile(op: Op, tiles: list[For]) -> bool:
    """Whether an operation is directly in the loop over a block's tiles, where no ring stage is computed."""
    return any(op in loop.regions[0].ops for loop in tiles)
