"""Symbolic values of the registers of a PTX function: a function goes in, values as expressions come out.

A value is a base plus a constant, or a choice between two values by a predicate. A base is a symbol, a register with an
unresolved definition, a product, an address in another block, or a choice. Special registers of known value are numbers. A
register is identified with its only definition, if every path to the use passes it (`graph`), and otherwise with the last
definition in the basic block that uses it. So equal bases have equal values. The only definition would not be enough: before
it, an iteration of a loop has the value of the iteration before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any, Final

from tilec.audit.graph import Graph

MOVES: Final = ("mov", "cvta")
DEPTH: Final = 64
"""Maximum number of definitions followed."""


@dataclass(frozen=True, slots=True)
class Sum:
    """`base` plus `constant`; without a base it is a number."""

    base: Base | None
    constant: int


@dataclass(frozen=True, slots=True)
class Choice:
    """`on_true` if the predicate (a register index) is true, otherwise `on_false`."""

    predicate: int
    on_true: SymbolicValue
    on_false: SymbolicValue


@dataclass(frozen=True, slots=True)
class Product:
    """The product of the two factors of the `mad` at index `position`."""

    position: int


@dataclass(frozen=True, slots=True)
class Peer:
    """The address in the block of this rank that has the place of `base` in this block (PTX ISA, `mapa`)."""

    rank: int
    base: Base | None


SymbolicValue = Sum | Choice
Base = str | tuple[str, int] | Product | Peer | Choice
"""The name of a symbol, a register with the index of its definition, or what stands above."""
_NUMBERS: Final = {
    "and": int.__and__, "or": int.__or__, "xor": int.__xor__, "shl": int.__lshift__, "mul": int.__mul__,
}  # fmt: skip
WHOLE: Final = frozenset({"b32", "s32", "u32", "b64", "s64", "u64"})
_LIMIT: Final = 2**31
"""Numbers from 0 up to this one are the same in each of these types."""


class Flow:
    """The definitions in one function of the emulator's parser; `special` has the numbers of special registers, `unfollowed`
    the indices of definitions that are not resolved."""

    def __init__(
        self, function: Any, special: Mapping[str, int] | None = None, unfollowed: Set[int] = frozenset()
    ) -> None:  # fmt: skip
        self.instructions: list[Any] = function.instructions
        self._special, self._unfollowed = special or {}, unfollowed
        self._definitions: dict[int, list[int]] = {}
        self.graph = Graph(function)
        declared = Counter(register.name for register in function.registers)
        self._hidden = {name for name, times in declared.items() if times > 1}
        for position, instruction in enumerate(self.instructions):
            for register in registers(instruction.operands[:1]):
                self._definitions.setdefault(register.index, []).append(position)

    def symbolic(self, operand: Any, position: int, depth: int = 0) -> SymbolicValue:
        """The value of an operand of the instruction at index `position`."""
        if hasattr(operand, "value") and not operand.is_float:
            return Sum(None, int(operand.value))
        if not hasattr(operand, "type"):
            name = getattr(operand, "name", "")
            if name in self._special:
                return Sum(None, self._special[name])
            return Sum(name, operand.offset) if hasattr(operand, "offset") and name else Sum((str(operand), position), 0)
        known = self._definitions.get(operand.index, [])
        last = self._last(known, position)
        at = known[0] if len(known) == 1 and self.graph.passed_before(known[0], position) else last
        return self._defined_value(operand, at, depth + 1) if at >= 0 and depth < DEPTH else Sum((self.name(operand), last), 0)

    def name(self, register: Any) -> str:
        """The name of a register in a base, unlike that of every other: an inner scope may declare a name again."""
        return f"{register.name}#{register.index}" if register.name in self._hidden else register.name

    def is_defined(self, index: int) -> bool:
        """Whether an instruction defines a register."""
        return index in self._definitions

    def definition(self, index: int) -> Any | None:
        """The instruction that defines a register, if it has exactly one definition."""
        known = self._definitions.get(index, [])
        return self.instructions[known[0]] if len(known) == 1 else None

    def _last(self, known: list[int], position: int) -> int:
        """The last definition before `position` in its basic block; if there is none, -1 minus the index of the block's start.
        A block that does not define the register and is entered from one other alone, such as one that waits for a barrier by
        repeating itself, begins with the value with which that one ends."""
        graph, passed = self.graph, set[int]()
        block = graph.block_of(position)
        while True:
            start = graph.starts[block]
            found = max((definition for definition in known if start <= definition < position), default=-1 - start)
            before = graph.entered_from(block)
            end = graph.starts[block + 1] if block < graph.end else start
            if found >= 0 or before is None or before in passed or any(start <= definition < end for definition in known):
                return found
            passed.add(block)
            block, position = before, graph.starts[before + 1]

    def _defined_value(self, register: Any, at: int, depth: int) -> SymbolicValue:
        instruction = self.instructions[at]
        itself = Sum((self.name(register), at), 0)
        alone = getattr(instruction.operands[0], "index", None) == register.index
        if instruction.guard is not None or at in self._unfollowed or not alone:
            return itself
        sources = instruction.operands[1:]
        if instruction.opcode in MOVES and len(sources) == 1 and not hasattr(sources[0], "items"):
            return self.symbolic(sources[0], at, depth)
        if instruction.opcode == "selp":
            chosen = self._definitions.get(getattr(sources[2], "index", -1), [])
            if len(chosen) != 1 or not self.graph.passed_before(chosen[0], at):
                return itself
            return Choice(sources[2].index, self.symbolic(sources[0], at, depth), self.symbolic(sources[1], at, depth))
        whole = bool(WHOLE & set(instruction.modifiers)) and not {"sat", "hi", "wide"} & set(instruction.modifiers)
        if instruction.opcode == "mapa" and len(sources) == 2:
            address, rank = (summed(self.symbolic(source, at, depth)) for source in sources)
            return Sum(Peer(rank.constant, address.base), address.constant) if rank.base is None else itself
        if instruction.opcode == "mad" and whole and len(sources) == 3:
            return self._product(sources, at, depth) or itself
        if instruction.opcode in ("add", "sub", *_NUMBERS) and whole and len(sources) == 2:
            left, right = (summed(self.symbolic(source, at, depth)) for source in sources)
            if (number := _number(instruction, left, right)) is not None:
                return Sum(None, number)
            if instruction.opcode not in ("add", "sub", "or"):
                return itself
            if instruction.opcode != "sub" and left.base is None:
                left, right, sources = right, left, sources[::-1]
            if right.base is None:
                if instruction.opcode == "or" and not self._low_zeros(sources[0], right.constant, at):
                    return itself
                return Sum(left.base, left.constant + (-right.constant if instruction.opcode == "sub" else right.constant))
        return itself

    def _product(self, sources: tuple[Any, ...], at: int, depth: int) -> Sum | None:
        """The value of a `mad` whose product or addend is a number."""
        left, right, addend = (summed(self.symbolic(source, at, depth)) for source in sources)
        if left.base is right.base is None and 0 <= left.constant * right.constant < _LIMIT:
            return Sum(addend.base, addend.constant + left.constant * right.constant)
        return Sum(Product(at), addend.constant) if addend.base is None else None

    def _low_zeros(self, operand: Any, constant: int, position: int) -> bool:
        """Whether a register's low bits are zero at every bit of `constant`, because of a left shift or a multiplication."""
        known = self._definitions.get(getattr(operand, "index", -1), [])
        if len(known) != 1 or constant < 0 or not self.graph.passed_before(known[0], position):
            return False
        instruction = self.instructions[known[0]]
        factor = self.symbolic(instruction.operands[-1], known[0])
        if instruction.guard is not None or not isinstance(factor, Sum) or factor.base is not None or factor.constant < 1:
            return False
        if instruction.opcode == "shl":
            return constant < 1 << min(factor.constant, 64)
        return (
            instruction.opcode == "mul"
            and bool(WHOLE & set(instruction.modifiers))
            and "hi" not in instruction.modifiers
            and constant < (factor.constant & -factor.constant)
        )


def _number(instruction: Any, left: Sum, right: Sum) -> int | None:
    """The result for two numbers, if no type of 32 or 64 bits wraps it; None for `add` and `sub`."""
    compute = _NUMBERS.get(instruction.opcode)
    if compute is None or left.base is not None or right.base is not None:
        return None
    small = 0 <= left.constant < _LIMIT and 0 <= right.constant < (32 if instruction.opcode == "shl" else _LIMIT)
    number = compute(left.constant, right.constant) if small else -1
    return number if 0 <= number < _LIMIT else None


def registers(operands: Iterable[Any]) -> Iterator[Any]:
    """The registers in operands, including those in vectors and pairs."""
    for operand in operands:
        if hasattr(operand, "index") and hasattr(operand, "type"):
            yield operand
        elif hasattr(operand, "first"):
            yield from registers((operand.first, operand.second))
        elif hasattr(operand, "items"):
            yield from registers(operand.items)


def summed(symbolic: SymbolicValue) -> Sum:
    """A value as a sum; a choice becomes the base."""
    return symbolic if isinstance(symbolic, Sum) else Sum(symbolic, 0)
