"""What the two blocks of a pair compute alike: a PTX function goes in, registers and instructions that do not depend on the
rank come out.

Compared are the runs of a thread and of the thread of the same number in the other block. A register is *alike* if both runs
give it equal values, one after the other; an instruction is alike if both execute it, equally often and in the same order.
Other registers are found from their sources: the rank, the number of the block, whatever is read from memory, and any
instruction that is not known here. What such a register decides, by a branch or a guard, is not alike either: every definition
between the branch and the place where its paths have met again. Nothing is claimed of how far a run gets. As for `flow`, the
emulator finds uses before the definition.

Alike are thread numbers, arguments, the number of the pair (`%ctaid.x` shifted right, because a pair has two consecutive blocks
of the first axis) and the thread that a warp elects: it depends only on the mask (PTX ISA, `elect.sync`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from tilec.audit.copies import Unclear
from tilec.audit.flow import Base, Choice, Flow, Peer, Product, registers
from tilec.audit.graph import ENDS

ALIKE: Final = frozenset(
    f"%{name}" for name in (
        "tid.x", "tid.y", "tid.z", "ntid.x", "ntid.y", "ntid.z", "nctaid.x", "nctaid.y", "nctaid.z", "ctaid.y", "ctaid.z",
        "clusterid.x", "clusterid.y", "clusterid.z", "nclusterid.x", "nclusterid.y", "nclusterid.z",
    )
)  # fmt: skip
"""Special registers that are equal in both blocks of a cluster of 2 x 1 x 1."""
COMPUTED: Final = frozenset((
    "abs", "add", "and", "bfe", "bfi", "cvt", "cvta", "div", "elect", "lop3", "mad", "max", "min", "mov", "mul", "neg", "not",
    "or", "prmt", "rem", "selp", "setp", "shf", "shl", "shr", "slct", "sub", "xor",
))  # fmt: skip
"""Instructions whose results depend on their operands alone. `.cc` leaves a carry, but nothing here reads it."""
SHIFTED: Final = frozenset({"u32", "s32", "b32"})
"""Types of a number of a block, which is not negative."""
ELSEWHERE: Final = ("call", "brx")
"""Instructions after which the function does not say what is executed next."""


class Alike:
    """The registers and instructions of a function that are alike in both blocks of a pair; `apart` are the instructions that
    one of them may execute without the other, by index. Raises Unclear if it calls another function, or branches through a
    table."""

    def __init__(self, flow: Flow, code: Any) -> None:
        self.flow, self.instructions = flow, flow.instructions
        for instruction in self.instructions:
            elsewhere = instruction.opcode == "bra" and getattr(instruction.operands[0], "name", "") not in code.labels
            if elsewhere or instruction.opcode in ELSEWHERE:
                raise Unclear(f"PTX line {instruction.line}: where `{instruction.opcode}` leads")
        everywhere = {register.index for one in self.instructions for register in _all(one.operands)}
        self._other = {index for index in everywhere if not self.flow.is_defined(index)}
        self.apart: set[int] = set()
        self._halved = {position for position, one in enumerate(self.instructions) if self._is_number_of_pair(one)}
        self._spread()
        self._names = {
            flow.name(operand) for one in self.instructions for operand in _all(one.operands) if operand.index in self._other
        }

    def executed(self, position: int) -> bool:
        """Whether both blocks execute the instruction at an index."""
        guard = self.instructions[position].guard
        return position not in self.apart and (guard is None or guard.index not in self._other)

    def base(self, base: Base | None) -> bool:
        """Whether a base has the same value in both blocks. A flow that leads to it must leave `apart` unfollowed: what one
        block defines alone is an older value in the other."""
        match base:
            case None | str():
                return True
            case Peer():
                return self.base(base.base)
            case Product():
                return all(self._reads_alike(factor) for factor in self.instructions[base.position].operands[1:3])
            case Choice():
                return False
            case (name, _):
                return name.startswith("%") and name not in self._names

    def _is_number_of_pair(self, instruction: Any) -> bool:
        """Whether an instruction divides the number of the block on the first axis by a power of 2."""
        if instruction.opcode != "shr" or len(instruction.operands) != 3 or not SHIFTED & set(instruction.modifiers):
            return False
        shifted, amount = instruction.operands[1:]
        defined = self.flow.definition(shifted.index) if hasattr(shifted, "index") else None
        if defined is not None and defined.opcode == "mov" and defined.guard is None and len(defined.operands) == 2:
            shifted = defined.operands[1]
        return getattr(shifted, "name", "") == "%ctaid.x" and 1 <= getattr(amount, "value", 0) < 32

    def _spread(self) -> None:
        """Follows what is not alike until nothing is added."""
        branches: set[int] = set()
        before = -1
        while before != len(self._other) + len(self.apart) + len(branches):
            before = len(self._other) + len(self.apart) + len(branches)
            for position, instruction in enumerate(self.instructions):
                if self._differs(position, instruction):
                    self._other |= {register.index for register in registers(instruction.operands[:1])}
                guard = instruction.guard
                decides = instruction.opcode == "bra" or instruction.opcode in ENDS
                if decides and guard is not None and guard.index in self._other and position not in branches:
                    branches.add(position)
                    self.apart |= self.flow.graph.until_paths_meet(position)

    def _differs(self, position: int, instruction: Any) -> bool:
        if not self.executed(position):
            return True
        if position in self._halved:
            return False
        argument = instruction.opcode == "ld" and "param" in instruction.modifiers
        known = argument or instruction.opcode in COMPUTED
        return not known or not all(self._reads_alike(operand) for operand in instruction.operands[1:])

    def _reads_alike(self, operand: Any) -> bool:
        special = not hasattr(operand, "index") and str(getattr(operand, "name", "")).startswith("%")
        if special:
            return operand.name in ALIKE
        return not any(register.index in self._other for register in _all((operand,)))


def _all(operands: Iterable[Any]) -> Iterator[Any]:
    """Every register in operands, those of addresses and coordinates included."""
    for operand in operands:
        if hasattr(operand, "index") and hasattr(operand, "type"):
            yield operand
        for name in ("register", "first", "second", "base"):
            if hasattr(operand, name):
                yield from _all((getattr(operand, name),))
        for name in ("items", "extra"):
            yield from _all(getattr(operand, name, ()))
