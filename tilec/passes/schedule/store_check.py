"""Checks what goes to a tensor through shared memory: a second opinion on `tensor_stores`.

In: a prepared function. Out: nothing, or a VerifyError that names the operation. Along all paths, each role by itself:

- What a copy reads was put there, every thread has fenced its proxy since, and all have met behind the fence.
- Nothing is put in scratch that a copy may still read: a wait named it, and left no more copies unfinished than were started
  behind that one. That the threads meet behind the wait is for `meeting_check`, to which a wait reads what it names.
- Scratch is not freed, and no role ends, before the copies are complete.
- The parts of a tile that are stored are all of its columns, each once, from where they were put.

A forward dataflow analysis. The state is kept for each piece of scratch; where paths join, the worse of both counts, so it
ends: ages only fall from round to round of a loop.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from tilec.ir.core import Block, Function, Op, Value, VerifyError
from tilec.ir.ops import For
from tilec.ir.ops_stores import PutRows, TensorStore, WaitStores
from tilec.ir.ops_sync import Barrier, ProxyFence, Roles, SharedFree

PUT: Final = 1
FENCED: Final = 2
MET: Final = 3
"""How far what was put into scratch is on its way to be seen by a copy; 0: nothing was put there."""
MOST: Final = 64
"""Copies that are told apart; more count as so many, which a wait for fewer lets go as well."""


@dataclass(slots=True)
class _State:
    """For scratch: how far what lies there is; copies that were started behind the newest one that may still read it. Whether
    copies may be incomplete."""

    seen: dict[Value, int] = field(default_factory=dict[Value, int])
    ages: dict[Value, int] = field(default_factory=dict[Value, int])
    incomplete: bool = False

    def copy(self) -> _State:
        return _State(dict(self.seen), dict(self.ages), self.incomplete)

    def join(self, other: _State) -> _State:
        """What holds whichever of both paths was taken."""
        seen = {value: min(level, other.seen.get(value, 0)) for value, level in self.seen.items()}
        ages = self.ages | {value: min(age, self.ages.get(value, age)) for value, age in other.ages.items()}
        return _State(seen, ages, self.incomplete or other.incomplete)


def check(function: Function) -> None:
    """Raise VerifyError where a copy may read what is not there yet, or no longer. Kernels without such stores pass."""
    stores = [op for op in function.body.walk() if isinstance(op, TensorStore)]
    if not stores and not any(isinstance(op, PutRows | WaitStores) for op in function.body.walk()):
        return
    _check_parts(function)
    _end(_block(function.body, _State()), function.name)


def _block(block: Block, state: _State) -> _State:
    for op in block.ops:
        state = _op(op, state)
    return state


def _op(op: Op, state: _State) -> _State:
    match op:
        case For():
            return _loop(op, state)
        case Roles():
            for region in op.regions:
                _end(_block(region, state.copy()), f"a role of {at(op)}")
        case _ if op.regions:
            first, *others = [_block(region, state.copy()) for region in op.regions]
            for end in others:
                first = first.join(end)
            return first
        case PutRows():
            if op.operands[0] in state.ages:
                raise VerifyError(f"{at(op)}: a copy may still read what lies there")
            state.seen[op.operands[0]] = PUT
        case ProxyFence():
            state.seen = {value: max(level, FENCED) for value, level in state.seen.items()}
        case Barrier():
            state.seen = {value: MET if level >= FENCED else level for value, level in state.seen.items()}
        case TensorStore():
            _start(op, state)
        case WaitStores():
            gone = {value for value in op.operands if state.ages.get(value, op.pending) >= op.pending}
            state.ages = {value: age for value, age in state.ages.items() if value not in gone}
            state.incomplete &= not (op.complete and op.pending == 0)
        case SharedFree() if state.incomplete and any(value in state.seen for value in op.operands):
            raise VerifyError(f"{at(op)}: copies that read it may be under way")
        case _:
            pass
    return state


def _start(op: TensorStore, state: _State) -> None:
    if state.seen.get(op.scratch, 0) < MET:
        raise VerifyError(f"{at(op)}: not all threads have put, fenced and met")
    state.ages = {value: min(age + 1, MOST) for value, age in state.ages.items()}
    state.ages[op.scratch] = 0
    state.incomplete = True


def _loop(op: For, state: _State) -> _State:
    """It may turn never, or any number of times."""
    while True:
        end = state.join(_block(op.regions[0], state.copy()))
        if end == state:
            return state
        state = end


def _end(state: _State, what: str) -> None:
    if state.incomplete or state.ages:
        raise VerifyError(f"{what} ends while copies to a tensor are under way")


def _check_parts(function: Function) -> None:
    """What is stored is what was put there, and all of a tile."""
    put: dict[Value, PutRows] = {}
    stored: dict[Value, list[tuple[int, int]]] = {}
    for op in function.body.walk():
        if isinstance(op, PutRows):
            put[op.operands[0]] = op
            stored.setdefault(op.tile, [])
        elif isinstance(op, TensorStore):
            made = put.get(op.scratch)
            where = op.column, op.columns, op.rows, op.target.tensor.dtype
            if made is None or (made.column, made.columns, made.tile.tile.shape[0], made.tile.tile.dtype) != where:
                raise VerifyError(f"{at(op)} stores another part than was put there")
            stored[made.tile].append((op.column, op.columns))
    for tile, parts in stored.items():
        reached = 0
        for column, columns in sorted(parts):
            if column != reached:
                raise VerifyError(f"columns of {tile.type} are stored twice, or never")
            reached += columns
        if reached != tile.tile.shape[1]:
            raise VerifyError(f"columns of {tile.type} are stored twice, or never")


def at(op: Op) -> str:
    return f"{op.opcode}{f' at {op.loc}' if op.loc else ''}"
