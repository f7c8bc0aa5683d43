"""Barrier insertion: the only pass that decides where the threads of a block synchronize for memory accesses.

In: a function whose layout conversions use explicit scratch (`shared_conversions`). Out: the same with a `barrier` of the block
before every access that may conflict with another thread's access since the last barrier. A barrier also makes the threads'
writes to global and shared memory visible to each other (PTX ISA, `bar.sync`: "Memory Consistency Model", barriers synchronise
the participating threads morally strong), so no fence is needed.

A forward dataflow analysis whose state is the set of accesses since the last barrier. Two accesses need no barrier if the same
thread makes both: boxes at equal offsets whose layouts map element to thread alike. Offsets are equal if they are the same pure
function of the same values *in the same iteration*; across a back edge, values that depend on the loop are unknown.

Barriers may stand in branches and loops because scalars are uniform: a scalar is a launch value, or computed from tiles that
every thread has. Threads that load the same element read the same value, because no other block writes it (no race) and the
block's own threads synchronize before they write it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tilec.ir.core import Block, Effect, Function, Op, Value
from tilec.ir.facts.touches import Touch, Touches, may_conflict, touches
from tilec.ir.layouts.layout import Digit, Layout
from tilec.ir.ops import For
from tilec.ir.ops.private_ops import PrivateFill, PrivateUpdate
from tilec.ir.ops.staging_ops import StageCopy
from tilec.ir.ops.sync_ops import Barrier

State = dict[Touch, None]  # an ordered set


def insert(function: Function) -> Function:
    """Insert the barriers, in place."""
    _Walk(function).block(function.body, {})
    return function


def thread_digits(layout: Layout | None) -> tuple[tuple[Digit, ...], ...] | None:
    """The map from an element's coordinates to its thread, as canonical lane and warp digits: without digits of extent 1, and
    with contiguous digits merged. None if every thread has all elements."""
    if layout is None or not layout.lanes:
        return None
    return _joined(layout.lanes), _joined(layout.warps)


def _joined(digits: tuple[Digit, ...]) -> tuple[Digit, ...]:
    out: list[Digit] = []
    for digit in digits:
        if digit.extent == 1:
            continue
        last = out[-1] if out else None
        if last is not None and last.axis == digit.axis and (last.axis is None or last.stride * last.extent == digit.stride):
            out[-1] = last._replace(extent=last.extent * digit.extent)
        else:
            out.append(digit)
    return tuple(out)


def same_threads(earlier: Touch, later: Touch) -> bool:
    """Whether each element of two boxes at equal offsets is accessed by one thread alone, the same both times. The first thread
    that has an element stores it; every thread that has it, replicas included, loads it."""
    first, second = thread_digits(earlier.layout), thread_digits(later.layout)
    if first is None or second is None:
        return first is second and Effect.READ not in (earlier.kind, later.kind)
    replicated = any(digit.axis is None for digits in first for digit in digits)
    replicated |= any(touch.layout is not None and touch.layout.wraps(touch.shape) for touch in (earlier, later))
    return first == second and (not replicated or Effect.READ not in (earlier.kind, later.kind))


@dataclass(eq=False, slots=True)
class _Numbering:
    """Value numbering of pure operations; `varying_loops` has for each number the loops whose iterations it depends on."""

    numbers: dict[Value, int] = field(default_factory=dict[Value, int])
    keys: dict[object, int] = field(default_factory=dict[object, int])
    varying_loops: list[frozenset[For]] = field(default_factory=list[frozenset[For]])

    def number(self, function: Function) -> None:
        for parameter in function.parameters:
            self._new(parameter.value, parameter.value, frozenset())
        self._block(function.body, ())

    def of(self, values: tuple[Value, ...]) -> tuple[int, ...]:
        return tuple(self.numbers[value] for value in values)

    def _new(self, value: Value, key: object, varying_loops: frozenset[For]) -> None:
        if key not in self.keys:
            self.keys[key] = len(self.varying_loops)
            self.varying_loops.append(varying_loops)
        self.numbers[value] = self.keys[key]

    def _block(self, block: Block, loops: tuple[For, ...]) -> None:
        for op in block.ops:
            inner = (*loops, op) if isinstance(op, For) else loops
            for region in op.regions:
                for argument in region.arguments:
                    self._new(argument, argument, frozenset(inner))
                self._block(region, inner)
            pure = op.effect is Effect.NONE and not op.regions and all(value in self.numbers for value in op.operands)
            for index, result in enumerate(op.results):
                if pure:
                    operands = self.of(tuple(op.operands))
                    key = (op.opcode, str(op.attributes()), str(result.type), operands, index)
                    self._new(result, key, frozenset(loop for n in operands for loop in self.varying_loops[n]))
                else:
                    self._new(result, result, frozenset(loops))


class _Walk:
    def __init__(self, function: Function) -> None:
        self.touches = touches(function)
        self.numbering = _Numbering()
        self.numbering.number(function)

    def block(self, block: Block, state: State) -> State:
        """Insert missing barriers in a block that is entered with `state`; the state at its end."""
        ops = list(block.ops)
        for op in ops:
            touched = self.touches.get(op, Touches())
            if self._conflict(state, touched.made) or self._prologue_conflicts(op, state) or self._updates_filled(op, state):
                barrier = Barrier(loc=op.loc)
                block.ops.insert(block.ops.index(op), barrier)
                self.touches[barrier] = Touches(is_barrier=True)
                state = {}
            if isinstance(op, For):
                state = self._loop(op, state)
            elif op.regions:
                ends = [self.block(region, dict(state)) for region in op.regions]
                state = {touch: None for end in ends for touch in end}
            else:
                state = {} if touched.is_barrier else {**state, **dict.fromkeys(touched.made)}
        return state

    def _loop(self, op: For, state: State) -> State:
        # States grow monotonically except for barriers, each of which is inserted once, so this terminates.
        while True:
            end = self.block(op.regions[0], dict(state))
            joined = state | {self._in_next_iteration(touch, op): None for touch in end}
            if len(joined) == len(state):
                return state
            state = joined

    def _in_next_iteration(self, touch: Touch, loop: For) -> Touch:
        """An access as seen from the next iteration of `loop`: its offsets are unknown if they depend on the loop."""
        if touch.offsets is None or all(loop not in self.numbering.varying_loops[n] for n in self.numbering.of(touch.offsets)):
            return touch
        return replace(touch, offsets=None)

    def _conflict(self, state: State, later: tuple[Touch, ...]) -> bool:
        return any(may_conflict(a, b) and not self._same(a, b) for b in later for a in state)

    def _same(self, earlier: Touch, later: Touch) -> bool:
        if earlier.is_shared or earlier.offsets is None or later.offsets is None:
            return False
        return self.numbering.of(earlier.offsets) == self.numbering.of(later.offsets) and same_threads(earlier, later)

    def _updates_filled(self, op: Op, state: State) -> bool:
        """Whether a loop or branch updates a part that was filled before it: one barrier serves all its iterations."""
        filled = {touch: None for touch in state if isinstance(touch.op, PrivateFill)}
        if not filled or not op.regions:
            return False
        updates = [inner for region in op.regions for inner in region.walk() if isinstance(inner, PrivateUpdate)]
        return any(self._conflict(filled, self.touches[update].made) for update in updates)

    def _prologue_conflicts(self, op: Op, state: State) -> bool:
        """Whether a branch contains copies into bytes that are in use. Each prologue copy of a pipeline has a branch of its
        own, so one barrier before the first branch serves all."""
        if not op.regions or isinstance(op, For):
            return False
        copies = [inner for region in op.regions for inner in region.ops if isinstance(inner, StageCopy)]
        return any(self._conflict(state, self.touches[copy].made) for copy in copies)
