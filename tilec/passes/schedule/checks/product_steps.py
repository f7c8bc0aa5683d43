"""Transition rules of `ring_check` for products that one thread starts into tensor memory.

- A ring that products fill (`tmem_mma`, `commit_mma`) has accumulators in tensor memory. A product goes into an acquired,
  uncommitted stage, accumulates in it after another product and only then, and adds no product twice. An accumulator is loaded
  after its commit was waited for, before its release, if and only if a product was computed. Products are complete once a
  commit after them was waited for; a stage of operands that they give back was read by some.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from tilec.ir.core import Op, Value, VerifyError
from tilec.ir.ops.signal_ops import Await
from tilec.ir.ops.staging_ops import GroupProduct
from tilec.ir.ops.tmem_ops import CommitMma, ReleaseMma, TmemLoad, TmemMma
from tilec.passes.schedule.checks.op_location import at
from tilec.passes.schedule.checks.ring_rules import Rules
from tilec.passes.schedule.checks.ring_state import Copy, Queue

Steps = Generator[Op]
"""A coroutine that yields the operation at which it blocks."""


@dataclass(eq=False, slots=True)
class ProductRules(Rules):
    """The rules; `ring_steps` calls them."""

    def accumulator(self, op: TmemMma | TmemLoad, buffer: Value, stage: Value) -> tuple[Value, Queue, int]:
        """The ring of a buffer in tensor memory, its state, and the stage that is named."""
        index = self.env.get(stage)
        if index is None or not 0 <= index < buffer.tmem.stages:
            raise VerifyError(f"{at(op)}: stage {index} of a ring of {buffer.tmem.stages}")
        return *self.of_buffer(op, buffer), index

    def multiply(self, op: TmemMma) -> None:
        """Start a product: it reads stages of its operands until a commit after it, and writes an accumulator."""
        value, ring, index = self.accumulator(op, op.accumulator, op.accumulator_stage)
        if ring.acquired == ring.committed or ring.committed % value.ring.stages != index:
            raise VerifyError(f"{at(op)} writes an accumulator that was not acquired")
        accumulate = self.env.get(op.accumulate)
        if accumulate is None or (accumulate and ring.committed not in ring.computed):
            raise VerifyError(f"{at(op)} adds to what no product computed")
        if not accumulate and ring.committed in ring.computed:
            raise VerifyError(f"{at(op)} overwrites what other products computed")
        ring.computed.add(ring.committed)
        read = self.read_by_thread(op)
        if (op.accumulator, ring.committed, *read) in ring.summed:
            raise VerifyError(f"{at(op)} adds the same product again")
        ring.summed.add((op.accumulator, ring.committed, *read))

    def read_by_thread(self, op: GroupProduct) -> list[Copy]:
        """A thread's product reads its operands in shared memory until a commit or release after it; the copies that it
        reads."""
        read = [(stage, self.contents[stage].iteration) for stage in (self.check_read(op, *one, True) for one in op.reads)]
        for copy in read:
            operands = self.of_buffer(op, copy[0][0])[1]
            operands.read_by_products = True
            operands.multiplied.add(copy)
        self.role.products.append({stage for stage, _ in read})
        return read

    def await_signal(self, op: Await) -> Steps:
        while not self.order.is_sent(op, self.role, self.env):
            yield op

    def commit_products(self, op: CommitMma) -> None:
        """The accumulator acquired last is full, and the products before have read their operands, once they are complete."""
        ring = self.queue(op, op.ring)
        if ring.acquired == ring.committed:
            raise VerifyError(f"{at(op)}: no stage was acquired")
        if ring.expected[ring.committed]:
            raise VerifyError(f"{at(op)}: copies fill its ring")
        self.expect(op, ring, ring.committed)
        ring.committed += 1
        ring.arrivals.append([])
        ring.tiles.append(self.role.tile)
        self.role.products.clear()

    def release_after_products(self, op: ReleaseMma) -> None:
        """The oldest stage is free once the products before are complete. They need not be for the simulation to go on: whoever
        acquires it waits for them."""
        ring = self.queue(op, op.ring)
        self.expect(op, ring, self.role.released[op.ring])
        if self.role.waited[op.ring] <= self.role.released[op.ring]:
            raise VerifyError(f"{at(op)}: no stage could be given back")
        if not ring.filled_by_copies:
            raise VerifyError(f"{at(op)}: threads read its ring")
        if not ring.multiplied.issuperset(ring.arrivals[self.role.released[op.ring]]):
            raise VerifyError(f"{at(op)} gives back what no product read")
        self.role.released[op.ring] += 1
        free = {(op.ring, self.env[op.stage])}
        self.role.products = [
            {stage for stage in stages if (self.of_buffer(op, stage[0])[0], stage[1]) not in free}
            for stages in self.role.products
        ]

    def load_accumulator(self, op: TmemLoad) -> None:
        value, ring, index = self.accumulator(op, op.buffer, op.stage)
        last = self.role.waited[value] - 1
        if last < self.role.released[value] or last % value.ring.stages != index:
            raise VerifyError(f"{at(op)} reads an accumulator that was given back, or not waited for")
        if last not in ring.computed:
            raise VerifyError(f"{at(op)} reads an accumulator that no product computed")
        self.role.unmet.add((op.buffer, index))
        ring.loaded.add((self.role, last))
