"""Symbolic values of the registers of a PTX function: a function goes in, values as expressions come out.

A value is a base plus a constant, or a choice between two values by a predicate. A base is a symbol, a register with an
unresolved definition, or a choice. A register with several definitions is identified with the last definition in the basic
block that uses it, so equal bases have equal values. A register with a single definition has that value at every use; the
emulator finds uses before the definition.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

MOVES: Final = ("mov", "cvta")
DEPTH: Final = 64
"""Maximum number of definitions followed."""


@dataclass(frozen=True, slots=True)
class Sum:
    """`base` plus `constant`; without a base it is a number. A base is the name of a symbol, a register with the index of its
    definition, or a choice."""

    base: str | tuple[str, int] | Choice | None
    constant: int


@dataclass(frozen=True, slots=True)
class Choice:
    """`on_true` if the predicate (a register index) is true, otherwise `on_false`."""

    predicate: int
    on_true: SymbolicValue
    on_false: SymbolicValue


SymbolicValue = Sum | Choice


class Flow:
    """The definitions in one function of the emulator's parser."""

    def __init__(self, function: Any) -> None:
        self.instructions: list[Any] = function.instructions
        self._definitions: dict[int, list[int]] = {}
        starts = {0, *function.labels.values()}
        for position, instruction in enumerate(self.instructions):
            if instruction.opcode in ("bra", "ret", "exit", "brx"):
                starts.add(position + 1)
            for register in _registers(instruction.operands[:1]):
                self._definitions.setdefault(register.index, []).append(position)
        self._starts = sorted(starts)

    def symbolic(self, operand: Any, position: int, depth: int = 0) -> SymbolicValue:
        """The value of an operand of the instruction at index `position`."""
        if hasattr(operand, "value"):
            return Sum(None, int(operand.value))
        if not hasattr(operand, "type"):
            name = getattr(operand, "name", "")
            return Sum(name, operand.offset) if hasattr(operand, "offset") and name else Sum((str(operand), position), 0)
        known = self._definitions.get(operand.index, [])
        last = self._last(known, position)
        at = known[0] if len(known) == 1 else last
        return self._defined_value(operand, at, depth + 1) if at >= 0 and depth < DEPTH else Sum((operand.name, last), 0)

    def predicate(self, index: int) -> Any | None:
        """The instruction that defines a predicate, if it has exactly one definition."""
        known = self._definitions.get(index, [])
        return self.instructions[known[0]] if len(known) == 1 else None

    def _last(self, known: list[int], position: int) -> int:
        """The last definition before `position` in its basic block; if there is none, -1 minus the index of the block's
        start."""
        start = self._starts[bisect_right(self._starts, position) - 1]
        return max((definition for definition in known if start <= definition < position), default=-1 - start)

    def _defined_value(self, register: Any, at: int, depth: int) -> SymbolicValue:
        instruction = self.instructions[at]
        itself = Sum((register.name, at), 0)
        if instruction.guard is not None:
            return itself
        sources = instruction.operands[1:]
        if instruction.opcode in MOVES and len(sources) == 1 and not hasattr(sources[0], "items"):
            return self.symbolic(sources[0], at, depth)
        if instruction.opcode == "selp":
            return Choice(sources[2].index, self.symbolic(sources[0], at, depth), self.symbolic(sources[1], at, depth))
        if instruction.opcode in ("add", "sub", "or") and len(sources) == 2:
            left, right = (summed(self.symbolic(source, at, depth)) for source in sources)
            if instruction.opcode == "add" and left.base is None:
                left, right = right, left
            if right.base is None:
                if instruction.opcode == "or" and not self._low_zeros(sources[0], right.constant, at):
                    return itself
                return Sum(left.base, left.constant + (-right.constant if instruction.opcode == "sub" else right.constant))
        return itself

    def _low_zeros(self, operand: Any, constant: int, position: int) -> bool:
        """Whether a register's low bits are zero at every bit of `constant`, because of a left shift or a multiplication."""
        known = self._definitions.get(getattr(operand, "index", -1), [])
        if len(known) != 1 or constant < 0:
            return False
        instruction = self.instructions[known[0]]
        factor = self.symbolic(instruction.operands[-1], position)
        if instruction.guard is not None or not isinstance(factor, Sum) or factor.base is not None or factor.constant < 1:
            return False
        if instruction.opcode == "shl":
            return constant < 1 << factor.constant
        return instruction.opcode == "mul" and constant < (factor.constant & -factor.constant)


def _registers(operands: Iterable[Any]) -> Iterator[Any]:
    """The registers in operands, including those in vectors and pairs."""
    for operand in operands:
        if hasattr(operand, "index") and hasattr(operand, "type"):
            yield operand
        elif hasattr(operand, "first"):
            yield from _registers((operand.first, operand.second))
        elif hasattr(operand, "items"):
            yield from _registers(operand.items)


def summed(symbolic: SymbolicValue) -> Sum:
    """A value as a sum; a choice becomes the base."""
    return symbolic if isinstance(symbolic, Sum) else Sum(symbolic, 0)
