"""Runs a kernel over intervals, in the order of its operations: what its values can be each time an operation is executed.

`analysis.ranges` has one range for each value, wherever it is used. A run knows more, because it follows the execution:

- an arm of a branch is run with what its condition says, and not at all if the condition cannot be true;
- what an `invariant` states is known from there on;
- the elements of small tiles are distinguished (`element_ranges`);
- a loop of few iterations is run iteration by iteration, so that `c = c + 1` in `range(3)` adds at most 3; for other loops the
  ranges of carried values are widened until they are stable, as in `analysis.dataflow`.

Claims and the arithmetic of addresses have obligations of their own. A run assumes those of the operations that are executed
before. That is no circle: consider the first operation of an execution that breaks its obligation. All before it keep theirs,
so its operands are in the ranges of the run, and the proof of its obligation from these ranges is a contradiction.

In: a function, and the declarations that may be used. Out: for each operation that is executed in some run, the ranges of its
operands and of its result in unbounded arithmetic, joined over its executions; and the claims that are true in each of them. An
operation without an entry is not executed, unless the run took too long, so that it has no entries at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tilec.ir.core import Block, Function, Op, Value, ValueFact
from tilec.ir.facts.range_facts import Range, between, exactly, join, within
from tilec.ir.ops import Binary, Cast, For, If, Invariant
from tilec.passes.analysis.dataflow import ROUNDS, WIDEN_AFTER
from tilec.passes.analysis.declared_ranges import Bound, declared_analysis
from tilec.passes.analysis.obligations import may_wrap
from tilec.passes.analysis.ranges import RangeAnalysis, unwrapped
from tilec.passes.analysis.selected_ranges import narrowed
from tilec.passes.prover.element_ranges import ELEMENTS, Elements, Known, both, computed, each, is_numbers, whole
from tilec.passes.prover.same_values import same_values

UNROLLED: Final = 32  # loops of at most as many iterations are run one by one
PEELED: Final = 2  # first iterations of other loops that are run one by one
THRESHOLDS: Final = 5  # times that ranges are widened to constants of the kernel
TIGHTENED: Final = 2  # times that widened ranges are narrowed
STEPS: Final = 40_000  # limit on the operations of a run; one that takes more shows nothing

Ranges = dict[Value, Range]
All = dict[Value, Known]


class _TooLong(Exception):
    """The run takes more than `STEPS` operations."""


@dataclass(slots=True)
class IntervalRun:
    """One run. `is_whole`: it took not too long, so that operations without an entry are not executed. `operands` and
    `unbounded` are joined over the executions of an operation; `claimed` are claims that are true in each of their
    executions; `results` are the ranges of values."""

    operands: dict[Op, list[Range]] = field(default_factory=dict[Op, list[Range]])
    unbounded: dict[Op, Range | None] = field(default_factory=dict[Op, "Range | None"])
    claimed: dict[Op, bool] = field(default_factory=dict[Op, bool])
    results: Ranges = field(default_factory=dict[Value, Range])
    is_whole: bool = True

    def unreached(self, op: Op) -> bool:
        """Whether an operation is never executed."""
        return self.is_whole and op not in self.operands


def interval_run(
    function: Function, deciding: Iterable[Op], values: Iterable[ValueFact] = (), bounds: Iterable[Bound] = ()
) -> IntervalRun:
    """The run of a function with some of its declarations; empty if it takes too long. `deciding` are operations with an
    obligation not to wrap."""
    analysis = declared_analysis(function, values, bounds)
    runner = _Runner(analysis, frozenset(deciding), same_values(function))
    known: All = {p.value: analysis.parameter(p.value) for p in function.parameters}
    try:
        runner.block(function.body, known)
    except _TooLong:
        return IntervalRun(is_whole=False)
    return runner.found


@dataclass(slots=True)
class _Runner:
    analysis: RangeAnalysis
    deciding: frozenset[Op]
    same: Mapping[Value, Value]
    found: IntervalRun = field(default_factory=IntervalRun)
    steps: int = 0
    silent: int = 0  # more than 0 in rounds whose ranges are not yet stable

    def block(self, block: Block, known: All) -> list[Known] | None:
        """What is known of what a block yields; None if its end is not reached. `known` gains its operations."""
        for op in block.ops:
            if op.opcode == "yield":
                return [known[value] for value in op.operands]
            self.steps += 1 + (len(known) // 64 if isinstance(op, If | For) else _size(op) // 4)
            if self.steps > STEPS:
                raise _TooLong
            if not self._reached(op, known):
                return None
        return []

    def _reached(self, op: Op, known: All) -> bool:
        """Executes an operation; False if nothing after it is executed."""
        self._note_operands(op, known)
        if isinstance(op, For):
            results = self._loop(op, known)
        elif isinstance(op, If):
            results = self._branch(op, known)
        elif isinstance(op, Invariant):
            return self._claim(op, known)
        else:
            results = self._computed(op, known)
        if results is None:
            return False
        known.update(zip(op.results, results, strict=True))
        self._note_results(op.results, results)
        return True

    def _computed(self, op: Op, known: All) -> Sequence[Known]:
        if isinstance(op, Binary) and (alike := self._of_alike(op, known)) is not None:
            return [alike]
        found = computed(self.analysis, op, known)
        if not may_wrap(op):
            return found
        (result,) = found
        count = 1 if isinstance(result, Range) else len(result)
        exact = [unwrapped(op, Elements(known, op.result.tile.shape, number)) for number in range(count)]
        if not self.silent:
            now = None if None in exact else whole(tuple(one for one in exact if one is not None))
            before = self.found.unbounded.get(op, now)
            self.found.unbounded[op] = None if now is None or before is None else join(before, now)
        if op in self.deciding:
            inside = [self._fitting(op, *one) for one in zip(each(result, count), exact, strict=True)]
            return [inside[0] if isinstance(result, Range) else tuple(inside)]
        return found

    def _fitting(self, op: Op, found: Range, exact: Range | None) -> Range:
        """The range of a result that is shown not to wrap."""
        inside = within(exact, *op.result.tile.dtype.integer_range()) if exact is not None else None
        return found if inside is None else inside

    def _of_alike(self, op: Binary, known: All) -> Known | None:
        """`x & x` and `x | x` are `x`, `x ^ x` is 0."""
        left, right = (self.same.get(value, value) for value in op.operands)
        if left is not right or not op.result.tile.dtype.is_integer:
            return None
        return known[op.operands[0]] if op.kind in ("and", "or") else exactly(0) if op.kind == "xor" else None

    def _claim(self, op: Invariant, known: All) -> bool:
        condition = op.operands[0]
        if not self.silent:
            is_true = self._narrowed(condition, False, known) is None
            self.found.claimed[op] = self.found.claimed.get(op, True) and is_true
        inside = self._narrowed(condition, True, known)
        known.update(inside or {})
        return inside is not None

    def _narrowed(self, condition: Value, truth: bool, known: All) -> Ranges | None:
        """What a scalar condition says about values, also about those that they are conversions of; None if it is never
        `truth`."""
        facts = Elements(known)
        own = within(facts[condition], int(truth), int(truth))
        inside = narrowed(condition, truth, facts, {}) if own is not None else None
        if inside is None or own is None:
            return None
        inside = {**inside, condition: own}
        for value, range_ in list(inside.items()):
            while isinstance(value.owner, Cast) and self._keeps(value.owner, facts):
                value = value.owner.operands[0]
                source = within(inside.get(value, facts[value]), range_.low, range_.high)
                if source is None:
                    return None
                inside[value] = source
        return inside

    def _keeps(self, op: Cast, known: Elements) -> bool:
        """Whether a conversion of integers gives the same number."""
        source, target = op.operands[0].tile.dtype, op.result.tile.dtype
        if not source.is_integer or not target.is_integer or op.result.tile.rank:
            return False
        return within(known[op.operands[0]], *target.integer_range()) == known[op.operands[0]]

    def _branch(self, op: If, known: All) -> list[Known] | None:
        joined: list[Known] | None = None
        for region, truth in zip(op.regions, (True, False), strict=True):
            inside = self._narrowed(op.operands[0], truth, known)
            arm = self.block(region, {**known, **inside}) if inside is not None else None
            if arm is not None:
                joined = _either(joined, arm)
        return joined

    # Loops

    def _loop(self, op: For, known: All) -> list[Known] | None:
        """Runs the first iterations one after the other, and the others, if there are any, together. The loop may end before
        each iteration whose variable may be as large as its bound."""
        lower, upper, step = (whole(known[value]) for value in (op.lower, op.upper, op.step))
        trips = max(0, -(-(upper.high - lower.low) // step.low)) if step.low >= 1 else UNROLLED + 1
        heads: list[Known] | None = [known[value] for value in op.initial]
        ended: list[Known] | None = None
        for count in range(trips if trips <= UNROLLED else PEELED):
            if lower.high + count * step.high >= upper.low:
                ended = _either(ended, heads)
            first, last = lower.low + count * step.low, min(lower.high + count * step.high, upper.high - 1)
            if first > last:
                return ended
            heads = self._body(op, known, exactly(first) if first == last else Range(first, last), heads)
            if heads is None:
                return ended
        if trips > UNROLLED:
            heads = self._stable(op, known, heads)
        return _either(ended, heads)

    def _stable(self, op: For, known: All, entry: list[Known]) -> list[Known]:
        """Widens the ranges at the head of a loop until an iteration does not leave them."""
        variable = self.analysis.induction(op, *(whole(known[v]) for v in (op.lower, op.upper, op.step)))
        self.silent += 1
        heads = entry
        for count in range(ROUNDS):
            after = _either(heads, self._body(op, known, variable, heads))
            if after == heads:
                break
            if count >= WIDEN_AFTER:
                is_last = count >= WIDEN_AFTER + THRESHOLDS
                after = [self._widened(*one, is_last) for one in zip(op.results, heads, after, strict=True)]
            heads = after
        else:
            heads = list[Known](self.analysis.top(value) for value in op.results)
        heads = self._tightened(op, known, variable, entry, heads)
        self.silent -= 1
        self._body(op, known, variable, heads)
        return heads

    def _widened(self, value: Value, before: Known, after: Known, is_last: bool) -> Known:
        """To 0 or the next constant of the kernel; at last to the end of the dtype."""
        if not isinstance(after, Range):
            pairs = zip(each(before, len(after)), after, strict=True)
            return tuple(self._widened_range(value, a, b, is_last) for a, b in pairs)
        return self._widened_range(value, whole(before), after, is_last)

    def _widened_range(self, value: Value, before: Range, after: Range, is_last: bool) -> Range:
        top = self.analysis.top(value)
        numbers = (top.low, top.high) if is_last else (0, top.low, top.high, *self.analysis.constants())
        low = before.low if after.low >= before.low else max(m for m in numbers if m <= after.low)
        high = before.high if after.high <= before.high else min(m for m in numbers if m >= after.high)
        return between(min(0, low) if low < before.low and low >= 0 else low, high, after.modulus, after.rest)

    def _tightened(self, op: For, known: All, variable: Range, entry: list[Known], heads: list[Known]) -> list[Known]:
        """Narrower ranges at the head, if they are the ones before the loop and the ones after an iteration from them."""
        for _ in range(TIGHTENED):
            fewer = _either(entry, self._body(op, known, variable, heads))
            if fewer == heads or _either(fewer, self._body(op, known, variable, fewer)) != fewer:
                break
            heads = fewer
        return heads

    def _body(self, op: For, known: All, variable: Range, heads: Sequence[Known]) -> list[Known] | None:
        arguments = op.regions[0].arguments
        self._note_results(arguments, [variable, *heads])
        return self.block(op.regions[0], {**known, **dict(zip(arguments, [variable, *heads], strict=True))})

    # Notes

    def _note_operands(self, op: Op, known: All) -> None:
        if self.silent:
            return
        now = [whole(known.get(value, _UNKNOWN)) for value in op.operands]
        before = self.found.operands.get(op)
        self.found.operands[op] = now if before is None else [join(a, b) for a, b in zip(before, now, strict=True)]

    def _note_results(self, values: Sequence[Value], results: Sequence[Known]) -> None:
        if self.silent:
            return
        for value, known in zip(values, results, strict=True):
            if is_numbers(value):
                before = self.found.results.get(value)
                self.found.results[value] = whole(known) if before is None else join(before, whole(known))


_UNKNOWN: Final = Range(-(2**70), 2**70)
"""Of operands that are no tiles."""


def _size(op: Op) -> int:
    """The number of elements of a result that are distinguished."""
    sizes = [value.tile.size for value in op.results if is_numbers(value)]
    return max((size for size in sizes if size <= ELEMENTS), default=0)


def _either(left: list[Known] | None, right: list[Known] | None) -> list[Known]:
    """What is true at the end of either way, of which at least one is possible."""
    if left is None or right is None:
        found = right if left is None else left
        assert found is not None
        return found
    return [both(a, b) for a, b in zip(left, right, strict=True)]
