"""The position of each operation of a kernel: the loops and branches around it, and its index in program order."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilec.ir.core import Block, Function, Op, Value
from tilec.ir.ops import For, If


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """A loop body (`arm` 0 of a `for`) or an arm of an `if` (0: condition true, 1: false)."""

    op: For | If
    arm: int


@dataclass(slots=True)
class Structure:
    """Frames around every operation, outermost first; its index in program order; the loop of each loop body."""

    frames: dict[Op, tuple[Frame, ...]] = field(default_factory=dict[Op, "tuple[Frame, ...]"])
    position: dict[Op, int] = field(default_factory=dict[Op, int])
    loops: dict[Block, For] = field(default_factory=dict[Block, For])

    def around(self, value: Value) -> list[For] | None:
        """The loops whose bodies contain the definition of a value, outermost first; None for a parameter."""
        owner = value.owner
        if isinstance(owner, Block):
            loop = self.loops.get(owner)
            return None if loop is None else [*self._loops(loop), loop]
        return None if owner is None else self._loops(owner)

    def _loops(self, op: Op) -> list[For]:
        return [frame.op for frame in self.frames[op] if isinstance(frame.op, For)]

    def branches_before(self, other: Op, op: Op) -> tuple[Frame, ...] | None:
        """The branches in which `other` is executed before `op`, besides those around both; None if it comes later, or is in a
        loop that `op` is not in."""
        enclosing, frames, shared = self.frames[other], self.frames[op], 0
        for mine, its in zip(enclosing, frames, strict=False):
            if mine.op is not its.op or mine.arm != its.arm:
                break
            shared += 1
        inner = enclosing[shared:]
        is_later = self.position[other] >= self.position[op]
        return None if is_later or any(isinstance(frame.op, For) for frame in inner) else inner

    def inside(self, op: Op, loop: For) -> bool:
        """True if `op` lies in the body of `loop`."""
        return any(frame.op is loop for frame in self.frames[op])


def structure(function: Function) -> Structure:
    """The structure of a kernel."""
    found = Structure()
    _walk(function.body, (), found)
    return found


def _walk(block: Block, frames: tuple[Frame, ...], found: Structure) -> None:
    for op in block.ops:
        found.frames[op] = frames
        found.position[op] = len(found.position)
        if isinstance(op, For):
            found.loops[op.regions[0]] = op
        for arm, region in enumerate(op.regions):
            assert isinstance(op, For | If), op.opcode
            _walk(region, (*frames, Frame(op, arm)), found)
