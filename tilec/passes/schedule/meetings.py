"""The one place that decides where the threads of a block must meet: inserts `barrier` operations.

In: a function whose exchanges are taken apart. Out: the same with a `barrier` of the block in front of every operation that
touches memory which another thread may have touched since all threads last met. A barrier of the block also makes what its
threads wrote to global and shared memory visible among them (PTX ISA, `bar.sync`: "Memory Consistency Model", barriers
synchronise the participating threads morally strong), so nothing else is needed.

A forward dataflow analysis over structured control flow. The state is the set of touches since the last meeting; the arms of
an `if` start from one state and their ends are joined; a loop is walked until the state at its head is stable. Two touches
need no meeting where they are the same threads': boxes at equal offsets whose threads follow from an element's coordinates in
the same way. Offsets are equal if they are the same pure function of the same values, *in the same turn*: what depends on
a value made inside a loop is no longer known behind the loop's back edge.

Barriers may stand in branches and loops, since conditions and bounds are scalars, and a scalar is the same in all threads:
it is a launch value, or made from tiles that every thread holds; loads of one element by several threads read the same value,
because other blocks never write what a block reads (no race) and its own threads meet before they do.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tilec.ir.core import Block, Effect, Function, Op, Value
from tilec.ir.layout import Digit, Layout
from tilec.ir.ops import For
from tilec.ir.ops_staging import StageCopy
from tilec.ir.ops_sync import Barrier
from tilec.ir.touches import Touch, Touches, may_conflict, touches

State = dict[Touch, None]  # an ordered set


def meet(function: Function) -> Function:
    """Insert the barriers, in place."""
    _Walk(function).block(function.body, {})
    return function


def holders(layout: Layout | None) -> tuple[tuple[Digit, ...], ...] | None:
    """How the thread of an element follows from the element's coordinates: digits of lane and warp, those that count nothing
    left out and those that go on where the one before ends joined. None where all threads hold all elements."""
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
    """Whether an element of two boxes at equal offsets is touched by one thread alone, the same both times. A store is done
    by the first thread that holds the element, a load by each of them, those with copies included."""
    first, second = holders(earlier.layout), holders(later.layout)
    if first is None or second is None:
        return first is second and Effect.READ not in (earlier.kind, later.kind)
    replicated = any(digit.axis is None for digits in first for digit in digits)
    replicated |= any(touch.layout is not None and touch.layout.wraps(touch.shape) for touch in (earlier, later))
    return first == second and (not replicated or Effect.READ not in (earlier.kind, later.kind))


@dataclass(eq=False, slots=True)
class _Numbering:
    """Equal numbers for pure functions of equal values; on which loops' turns each depends."""

    numbers: dict[Value, int] = field(default_factory=dict[Value, int])
    keys: dict[object, int] = field(default_factory=dict[object, int])
    turns: list[frozenset[For]] = field(default_factory=list[frozenset[For]])

    def number(self, function: Function) -> None:
        for parameter in function.parameters:
            self._new(parameter.value, parameter.value, frozenset())
        self._block(function.body, ())

    def of(self, values: tuple[Value, ...]) -> tuple[int, ...]:
        return tuple(self.numbers[value] for value in values)

    def _new(self, value: Value, key: object, turns: frozenset[For]) -> None:
        if key not in self.keys:
            self.keys[key] = len(self.turns)
            self.turns.append(turns)
        self.numbers[value] = self.keys[key]

    def _block(self, block: Block, loops: tuple[For, ...]) -> None:
        for op in block.ops:
            inner = (*loops, op) if isinstance(op, For) else loops
            for region in op.regions:
                for argument in region.arguments:
                    self._new(argument, argument, frozenset(inner))
                self._block(region, inner)
            pure = op.effect is Effect.NONE and not op.regions and all(value in self.numbers for value in op.operands)
            for place, result in enumerate(op.results):
                if pure:
                    operands = self.of(tuple(op.operands))
                    key = (op.opcode, str(op.attributes()), str(result.type), operands, place)
                    self._new(result, key, frozenset(loop for n in operands for loop in self.turns[n]))
                else:
                    self._new(result, result, frozenset(loops))


class _Walk:
    def __init__(self, function: Function) -> None:
        self.touches = touches(function)
        self.numbering = _Numbering()
        self.numbering.number(function)

    def block(self, block: Block, state: State) -> State:
        """Insert what is missing in a block that is entered with `state`; the state behind it."""
        ops = list(block.ops)
        for op in ops:
            made = self.touches.get(op, Touches())
            if self._conflict(state, made.made) or self._prologue_conflicts(op, state):
                barrier = Barrier(loc=op.loc)
                block.ops.insert(block.ops.index(op), barrier)
                self.touches[barrier] = Touches(meets=True)
                state = {}
            if isinstance(op, For):
                state = self._loop(op, state)
            elif op.regions:
                ends = [self.block(region, dict(state)) for region in op.regions]
                state = {touch: None for end in ends for touch in end}
            else:
                state = {} if made.meets else {**state, **dict.fromkeys(made.made)}
        return state

    def _loop(self, op: For, state: State) -> State:
        # States only grow from round to round but for barriers, which are inserted once each, so this ends.
        while True:
            end = self.block(op.regions[0], dict(state))
            joined = state | {self._behind(touch, op): None for touch in end}
            if len(joined) == len(state):
                return state
            state = joined

    def _behind(self, touch: Touch, loop: For) -> Touch:
        """A touch as the next turn of `loop` knows it."""
        if touch.place is None or all(loop not in self.numbering.turns[n] for n in self.numbering.of(touch.place)):
            return touch
        return replace(touch, place=None)

    def _conflict(self, state: State, later: tuple[Touch, ...]) -> bool:
        return any(may_conflict(a, b) and not self._same(a, b) for b in later for a in state)

    def _same(self, earlier: Touch, later: Touch) -> bool:
        if earlier.is_shared or earlier.place is None or later.place is None:
            return False
        return self.numbering.of(earlier.place) == self.numbering.of(later.place) and same_threads(earlier, later)

    def _prologue_conflicts(self, op: Op, state: State) -> bool:
        """Whether a branch begins with copies into bytes that are in use. The first copies of a pipeline stand in one branch
        each, and one meeting before them all does."""
        if not op.regions or isinstance(op, For):
            return False
        copies = [inner for region in op.regions for inner in region.ops if isinstance(inner, StageCopy)]
        return any(self._conflict(state, self.touches[copy].made) for copy in copies)
