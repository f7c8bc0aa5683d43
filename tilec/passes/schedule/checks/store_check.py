"""Checks TMA stores through shared memory, independently of `tensor_stores`.

In: a prepared function. Out: nothing, or a VerifyError that names the operation. Along all paths, for each role separately:

- Scratch that a TMA store reads was written, followed by a proxy fence of every thread, followed by a barrier.
- Scratch is not overwritten while a store may still read it: a wait names it, and leaves at most as many stores unfinished as
  were started after that one. `barrier_check` checks the barrier after the wait, which counts there as a read of that scratch.
- All stores are complete before their scratch is freed and before the role ends.
- The stored parts cover all columns of a tile exactly once, each from the scratch that it was written to.

A forward dataflow analysis with a state for each scratch buffer. A join keeps the worse of both states. It terminates because
ages only decrease between passes over a loop.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from tilec.ir.core import Block, Function, Op, Value, VerifyError
from tilec.ir.ops import For
from tilec.ir.ops.store_ops import ScratchStoreRows, TensorStore, WaitStores
from tilec.ir.ops.sync_ops import Barrier, ProxyFence, Roles, SharedFree
from tilec.passes.schedule.checks.op_location import at

WRITTEN: Final = 1
FENCED: Final = 2
VISIBLE: Final = 3
"""Progress of a scratch buffer's contents towards visibility to the async proxy; 0: nothing was written."""
MAX_AGE: Final = 64
"""Cap on a store's age; a wait with fewer pending stores covers every store of this age or older."""


@dataclass(slots=True)
class _State:
    """`visibility`: visibility of each scratch buffer's contents. `ages`: the number of stores started after the newest one
    that may still read the buffer. `incomplete`: some store may be incomplete."""

    visibility: dict[Value, int] = field(default_factory=dict[Value, int])
    ages: dict[Value, int] = field(default_factory=dict[Value, int])
    incomplete: bool = False

    def copy(self) -> _State:
        return _State(dict(self.visibility), dict(self.ages), self.incomplete)

    def join(self, other: _State) -> _State:
        """The state that is true on either path."""
        visibility = {value: min(level, other.visibility.get(value, 0)) for value, level in self.visibility.items()}
        ages = self.ages | {value: min(age, self.ages.get(value, age)) for value, age in other.ages.items()}
        return _State(visibility, ages, self.incomplete or other.incomplete)


def check(function: Function) -> None:
    """Raise VerifyError if a store may read scratch before it is visible or after it is overwritten. Kernels without TMA stores
    pass."""
    stores = [op for op in function.body.walk() if isinstance(op, TensorStore)]
    if not stores and not any(isinstance(op, ScratchStoreRows | WaitStores) for op in function.body.walk()):
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
            for state_after in others:
                first = first.join(state_after)
            return first
        case ScratchStoreRows():
            if op.operands[0] in state.ages:
                raise VerifyError(f"{at(op)}: a copy may still read what lies there")
            state.visibility[op.operands[0]] = WRITTEN
        case ProxyFence():
            state.visibility = {value: max(level, FENCED) for value, level in state.visibility.items()}
        case Barrier():
            state.visibility = {value: VISIBLE if level >= FENCED else level for value, level in state.visibility.items()}
        case TensorStore():
            _start(op, state)
        case WaitStores():
            finished = {value for value in op.operands if state.ages.get(value, op.pending) >= op.pending}
            state.ages = {value: age for value, age in state.ages.items() if value not in finished}
            state.incomplete &= not (op.complete and op.pending == 0)
        case SharedFree() if state.incomplete and any(value in state.visibility for value in op.operands):
            raise VerifyError(f"{at(op)}: copies that read it may be under way")
        case _:
            pass
    return state


def _start(op: TensorStore, state: _State) -> None:
    if state.visibility.get(op.scratch, 0) < VISIBLE:
        raise VerifyError(f"{at(op)}: not all threads have put, fenced and met")
    state.ages = {value: min(age + 1, MAX_AGE) for value, age in state.ages.items()}
    state.ages[op.scratch] = 0
    state.incomplete = True


def _loop(op: For, state: _State) -> _State:
    """The fixpoint for zero or more iterations."""
    while True:
        end = state.join(_block(op.regions[0], state.copy()))
        if end == state:
            return state
        state = end


def _end(state: _State, subject: str) -> None:
    if state.incomplete or state.ages:
        raise VerifyError(f"{subject} ends while copies to a tensor are under way")


def _check_parts(function: Function) -> None:
    """Check that each store's part matches the scratch contents, and that the parts cover every tile."""
    written: dict[Value, ScratchStoreRows] = {}
    stored: dict[Value, list[tuple[int, int]]] = {}
    for op in function.body.walk():
        if isinstance(op, ScratchStoreRows):
            written[op.operands[0]] = op
            stored.setdefault(op.tile, [])
        elif isinstance(op, TensorStore):
            source = written.get(op.scratch)
            stored_part = op.column, op.columns, op.rows, op.target.tensor.dtype
            if (
                source is None
                or (source.column, source.columns, source.tile.tile.shape[0], source.tile.tile.dtype) != stored_part
            ):
                raise VerifyError(f"{at(op)} stores another part than was put there")
            stored[source.tile].append((op.column, op.columns))
    for tile, parts in stored.items():
        next_column = 0
        for column, columns in sorted(parts):
            if column != next_column:
                raise VerifyError(f"columns of {tile.type} are stored twice, or never")
            next_column += columns
        if next_column != tile.tile.shape[1]:
            raise VerifyError(f"columns of {tile.type} are stored twice, or never")
