"""State of a simulation run of `ring_check`, and what all of its transition rules ask: rings, stages, and whether a stage may
be read. `ring_steps` has the rules, `product_steps` those of products that a thread starts."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilec.ir.core import Op, Value, VerifyError
from tilec.ir.facts.touches import Touches
from tilec.ir.ops.staging_ops import SharedAlloc
from tilec.ir.ops.sync_ops import RingOp
from tilec.ir.ops.tmem_ops import TmemAlloc
from tilec.passes.schedule.checks.op_location import at
from tilec.passes.schedule.checks.ring_state import Queue, Role, Stage, StageContents
from tilec.passes.schedule.checks.tmem_order import TmemOrder


@dataclass(eq=False, slots=True)
class Rules:
    """The state of a simulation run."""

    touches: dict[Op, Touches]
    env: dict[Value, int] = field(default_factory=dict[Value, int])
    contents: dict[Stage, StageContents] = field(default_factory=dict[Stage, StageContents])
    started: dict[Value, int] = field(default_factory=dict[Value, int])  # number of copies into each buffer so far
    rings: dict[Value, Queue] = field(default_factory=dict[Value, Queue])
    read: set[Stage] = field(default_factory=set[Stage])  # since the last barrier of the block
    role: Role = field(default_factory=Role)
    concurrent: bool = False  # several roles run concurrently
    freed: set[Value] = field(default_factory=set[Value])  # buffers
    fixed: set[Value] = field(default_factory=set[Value])  # loop bounds chosen from the iteration count
    order: TmemOrder = field(default_factory=TmemOrder)

    def contents_of(self, op: Op, buffer: Value, stage: Value) -> Stage:
        index = self.env.get(stage)
        if index is None or not 0 <= index < buffer.shared.stages:
            raise VerifyError(f"{at(op)}: stage {index} of a ring of {buffer.shared.stages}")
        return buffer, index

    def queue(self, op: Op, ring: Value) -> Queue:
        if ring not in self.rings:
            raise VerifyError(f"{at(op)}: its ring was freed")
        return self.rings[ring]

    def of_buffer(self, op: Op, buffer: Value) -> tuple[Value, Queue]:
        """The ring whose stages a buffer has, and its state."""
        ring = ring_of(buffer)
        return ring, self.queue(op, ring)

    def expect(self, op: RingOp, ring: Queue, iteration: int) -> None:
        problem = None if ring.by_groups else ring.problem(op, iteration, self.env)
        if problem is not None:
            raise VerifyError(f"{at(op)} {problem}")

    def check_read(self, op: Op, buffer: Value, stage: Value, product: bool) -> Stage:
        location = self.contents_of(op, buffer, stage)
        value, ring = self.of_buffer(op, buffer)
        contents = self.contents.get(location)
        last = self.role.waited[value] - 1
        if contents is None or contents.iteration != (self.role.iteration if ring.by_groups else last):
            raise VerifyError(f"{at(op)} reads a stage before its copy is there")
        sequence = last - (last - location[1]) % value.ring.stages
        if sequence < self.role.released[value]:
            raise VerifyError(f"{at(op)} reads a stage that was given back, or not waited for")
        if not contents.visible:
            raise VerifyError(f"{at(op)} reads what other threads copied before all have met")
        if product and not contents.fenced:
            raise VerifyError(f"{at(op)} reads a stage that its proxy may not see yet")
        return location


def ring_of(buffer: Value) -> Value:
    """The ring whose stages a buffer has."""
    assert isinstance(buffer.owner, SharedAlloc | TmemAlloc)
    return buffer.owner.ring if isinstance(buffer.owner, TmemAlloc) else buffer.owner.operands[0]
