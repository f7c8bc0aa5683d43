"""What memory may hold before a launch that is run as an example, as the kernel's `values` declare it.

A `Filling` gives every element of every tensor a number, without a table of them: one number for all, or a mixture of a few.
Floats are -1, 0, 1 and NaN.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from typing import Final

from tilec.ir.core import Function, Op, Parameter, Value, ValueFact
from tilec.ir.ops import Constant, For, If, MemoryOp, ReadOp
from tilec.passes.prover.replayed_floats import LARGEST, NAN

CHECKED: Final = 4096
"""Tensors of more elements whose elements are declared to be related are not filled."""
UNIFORM: Final = ((0, 0), (1, 1), (2, 2), (3, 3), (1, 0), (0, 1))
"""Which number the first tensor holds, and the others."""
MIXED: Final = 8
"""How many mixtures are tried last."""
NAMED: Final = 24
"""How many numbers from the text of a kernel are tried."""


@dataclass(frozen=True, slots=True)
class Filling:
    """What tensors hold in one launch of these sizes: number `choice` of `UNIFORM`, one of the `named` numbers of the kernel,
    or a mixture."""

    function: Function
    sizes: Mapping[str, int]
    choice: int
    named: tuple[int, ...] = ()
    _tables: dict[str, list[int]] = field(default_factory=dict[str, "list[int]"])

    @property
    def is_uniform(self) -> bool:
        """Whether all elements of a tensor that is declared to be neither distinct nor to have ends are one number."""
        return self.choice < len(UNIFORM) + len(self.named)

    def possible(self, dims: Mapping[str, tuple[int, ...]]) -> bool:
        """Whether the tensors of these extents can hold what is declared, as far as a filling is known that shows it."""
        declared = {fact.tensor for fact in self.function.values}
        return all(
            self.element(self.function.parameter(name), (0,) * len(dims[name]), dims[name]) is not None for name in declared
        )

    def element(self, parameter: Parameter, at: tuple[int, ...], dims: tuple[int, ...]) -> int | None:
        """The element of a tensor; None if no number is known that agrees with all that is declared."""
        flat = 0
        for one, extent in zip(at, dims, strict=True):
            flat = flat * extent + one
        facts = [fact for fact in self.function.values if fact.tensor == parameter.name]
        if not facts:
            return self._free(parameter, flat)
        try:
            ranges = [(fact.low.evaluate(self.sizes), fact.high.evaluate(self.sizes) - 1) for fact in facts]
        except (KeyError, ZeroDivisionError):
            return None
        ends = [*ranges, parameter.value.tensor.dtype.integer_range()]
        low, high = max(first for first, _ in ends), min(last for _, last in ends)
        if any(fact.flags for fact in facts):
            if parameter.name not in self._tables:
                self._tables[parameter.name] = self._related(facts, ranges, low, high, dims)
            table = self._tables[parameter.name]
            return table[flat] if table else None
        numbers = (low, min(low + 1, high), high, (low + high) // 2)
        return None if high < low else self._pick(parameter, numbers, (low, high), flat)

    def _free(self, parameter: Parameter, flat: int) -> int:
        dtype = parameter.value.tensor.dtype
        if dtype.is_float:
            return self._pick(parameter, (0, 1, -1, NAN), (-LARGEST, LARGEST), flat)
        low, high = dtype.integer_range()
        numbers = (0, min(1, high), -1 if low < 0 else min(2, high), min(2, high))
        return self._pick(parameter, numbers, (low, high), flat)

    def _pick(self, parameter: Parameter, numbers: tuple[int, ...], ends: tuple[int, int], flat: int) -> int:
        """One of the four numbers, or of the named ones between the ends."""
        position = next(i for i, one in enumerate(self.function.parameters) if one is parameter)
        if self.choice < len(UNIFORM):
            first = next(i for i, one in enumerate(self.function.parameters) if one.access is not None)
            return numbers[UNIFORM[self.choice][position > first]]
        if self.is_uniform:
            return max(ends[0], min(ends[1], self.named[self.choice - len(UNIFORM)]))
        # A multiplicative hash, so that neighbours and mixtures differ without a table.
        mixed = (flat + 1) * 2654435761 + (position + 1) * 40503 + self.choice * 69069
        inside = [number for number in self.named if ends[0] <= number <= ends[1]]
        several = (numbers[:2], numbers, (*numbers, *inside), inside or numbers)[self.choice % 4]
        return several[((mixed ^ mixed >> 13) * 2246822519 >> 16) % len(several)]

    def _related(
        self, facts: list[ValueFact], ranges: list[tuple[int, int]], low: int, high: int, dims: tuple[int, ...]
    ) -> list[int]:
        """Numbers for all elements of a tensor; none if none are known that agree with what is declared: numbers that rise or
        fall by 1, in all or in each row, or one number up to some element, and another from there."""
        count, row = prod(dims), dims[-1]
        if count > CHECKED:
            return []
        line = range(count)
        tables = [[low + at % row for at in line], [high - at % row for at in line]] if row < count else []
        tables += [[low + at for at in line], [high - count + 1 + at for at in line], [high - at for at in line]]
        tables += [[low + (at + 1) % count for at in line], [low + at if at < count - 1 else high for at in line]]
        tables += [[low if at < first else high for at in line] for first in (count, 0, 1, count - 1, count // 2)]
        fitting = [
            numbers
            for numbers in tables
            if low <= min(numbers)
            and max(numbers) <= high
            and all(_holds(fact, range_, numbers, row) for fact, range_ in zip(facts, ranges, strict=True))
        ]
        return fitting[self.choice % len(fitting)] if fitting else []


def _holds(fact: ValueFact, range_: tuple[int, int], numbers: list[int], row: int) -> bool:
    if fact.ends and (numbers[0], numbers[-1]) != range_:
        return False
    if fact.sorted and any(after < before for before, after in pairwise(numbers)):
        return False
    if fact.distinct_in_rows and any(len(set(numbers[at : at + row])) < row for at in range(0, len(numbers), row)):
        return False
    return not fact.distinct or len(set(numbers)) == len(numbers)


def fillings(function: Function, sizes: Mapping[str, int]) -> Iterator[Filling]:
    """Contents to try at some sizes, the plainest first."""
    named = _named(function)
    for choice in range(len(UNIFORM) + len(named) + MIXED):
        yield Filling(function, sizes, choice, named)


def _named(function: Function) -> tuple[int, ...]:
    """The constants of a kernel and their neighbours, the smallest first."""
    constants = [op.value for op in function.body.walk() if isinstance(op, Constant)]
    numbers = {int(c) + off for c in constants if abs(c) < 1 << 31 and c == int(c) for off in (-1, 0, 1)}
    return tuple(sorted(numbers - {0, 1, -1}, key=lambda number: (abs(number), number))[:NAMED])


def deciding_tensors(function: Function, also: Iterable[Value] = ()) -> set[str]:
    """The tensors that decide which elements are accessed: conditions, bounds and indices are computed from what they hold; or
    the values `also`."""
    pending: list[Value] = [*also]
    for op in function.body.walk():
        if isinstance(op, MemoryOp):
            pending += op.indices
        elif isinstance(op, For | If):
            pending += op.operands
    found, seen = set[str](), set[Value]()
    while pending:
        value = pending.pop()
        owner = value.owner
        if value in seen or owner is None:
            continue
        seen.add(value)
        if isinstance(owner, Op):
            if isinstance(owner, ReadOp):
                found.add(function.parameter_of(owner.tensor).name)
            pending += [*owner.operands, *(one for region in owner.regions for one in region.ops[-1].operands)]
        else:
            pending += owner.ops[-1].operands if owner.ops else []
    return found
