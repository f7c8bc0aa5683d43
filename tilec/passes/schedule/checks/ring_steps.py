"""Transition rules of `ring_check`: what each operation does to rings, buffers and the role that executes it, or a VerifyError
that names the operation. A blocking operation yields itself until its condition is true.

- `acquire` needs the stage released; for `cp.async` groups also a barrier since. A copy fills an acquired, uncommitted stage.
  No copy into that stage is in flight, no MMA reads it, and for `cp.async` groups no thread has read it since the last barrier.
- A read (threads or products) is of a stage that was waited for and not released, and of this iteration's copy. For `cp.async`
  groups a barrier follows the wait, with a proxy fence between them for `wgmma` (PTX ISA, "Async proxy").
- What threads have read (`shared_load`, `tmem_load`), the threads of each warp have all read at a `warp_barrier`; only then may
  one of them release the stage for its warp.
- mbarrier operations name the stage and parity of the ring's next use; expected bytes equal copied bytes. A fence and a barrier
  follow the mbarriers' initialization. A freed buffer has no copy that was not waited for.
- `product_steps` has the rules of products that a thread starts into tensor memory.
- Signals between roles order what they do in tensor memory (`tmem_order`).
- Consumers that read round-robin wait for stages only between `order_wait` and `order_arrive`, for their tile's copies only.
- Scratch does not overlap a ring with copies or MMAs in flight; none are in flight when a ring is freed, or at the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tilec.atoms import tma
from tilec.ir.core import Op, Value, VerifyError
from tilec.ir.ops.signal_ops import Signal, SignalMma, Signals
from tilec.ir.ops.staging_ops import AsyncCopy, GroupProduct, SharedAlloc, SharedLoad, StageCopy, WaitMma
from tilec.ir.ops.sync_ops import (
    Acquire,
    Barrier,
    Commit,
    Drain,
    OrderArrive,
    OrderOp,
    OrderWait,
    ProxyFence,
    Release,
    Ring,
    SharedFree,
    Wait,
    WarpBarrier,
)
from tilec.ir.ops.tmem_chain_ops import TileProduct, TmemFill, TmemRows, TmemScale, TmemStore
from tilec.ir.ops.tmem_ops import CommitMma, ReleaseMma, TmemAlloc, TmemLoad, TmemMma
from tilec.ir.types import SharedType
from tilec.passes.schedule.checks.op_location import at
from tilec.passes.schedule.checks.product_steps import ProductRules, Steps
from tilec.passes.schedule.checks.ring_rules import ring_of
from tilec.passes.schedule.checks.ring_state import Queue, Stage, StageContents, evaluate, has_unread_stage
from tilec.passes.schedule.checks.tmem_order import is_signalled

_RING_OPS: Final = (
    Ring, SharedAlloc, StageCopy, Commit, Release, OrderArrive, Drain, Barrier, ProxyFence, SharedFree, SharedLoad,
    GroupProduct, WaitMma, WarpBarrier, CommitMma, ReleaseMma, TmemAlloc, TmemLoad, Signals, Signal, SignalMma, TmemStore,
    TmemRows,
)  # fmt: skip


@dataclass(eq=False, slots=True)
class Operations(ProductRules):
    """A simulation run."""

    def step(self, op: Op) -> None:
        if not isinstance(op, _RING_OPS):
            self.scratch_or_scalar(op)
            return
        match op:
            case Ring():
                self.rings[op.result] = Queue(op, [self.role])
                self.role.waited[op.result] = self.role.released[op.result] = 0
            case SharedAlloc():
                self.started[op.result] = 0
                self.freed.discard(op.result)
            case StageCopy():
                self.copy(op)
            case Commit():
                self.commit(op)
            case Release():
                self.release_next(op)
            case OrderArrive():
                self.order_arrive(op)
            case Drain():
                self.drain(op)
            case Barrier():
                self.barrier(op)
            case ProxyFence():
                for state in (*self.contents.values(), *self.rings.values()):
                    state.fenced |= not state.visible
                self.order.fence()
            case SharedFree():
                self.free(op)
            case SharedLoad():
                location = self.check_read(op, op.buffer, op.stage, False)
                if self.of_buffer(op, op.buffer)[1].by_groups:
                    self.read.add(location)
                else:  # one thread releases a stage for its whole warp
                    self.role.unmet.add(location)
            case WarpBarrier():
                self.role.unmet.clear()
            case TmemMma():
                self.multiply(op)
            case CommitMma():
                self.commit_products(op)
            case ReleaseMma():
                self.release_after_products(op)
            case TmemAlloc():
                pass
            case TmemLoad() if is_signalled(op.buffer):
                self.order.load(op, self.role, self.env)
            case TmemLoad():
                self.load_accumulator(op)
            case Signals():
                self.order.make(op)
            case Signal() | SignalMma():
                self.order.send(op, self.role, self.env)
                self.role.products.clear()  # which the signal or a release covers
            case TmemStore():
                self.order.store(op, self.role, self.env)
            case TmemFill() | TmemScale():
                self.order.change(op, self.role, self.env)
            case TileProduct():
                self.order.multiply(op, self.role, self.env)
                self.read_by_thread(op)
            case GroupProduct():
                self.role.products.append({self.check_read(op, buffer, stage, True) for buffer, stage in op.reads})
            case _:
                assert isinstance(op, WaitMma)
                while len(self.role.products) > op.pending:
                    self.read |= self.role.products.pop(0)

    def scratch_or_scalar(self, op: Op) -> None:
        """Accesses to scratch, and scalar arithmetic."""
        shared = [touch for touch in self.touches[op].made if touch.is_shared] if op in self.touches else ()
        busy = self.role.copies_in_flight().union(*self.role.products) if shared else ()
        for touch in shared:
            for buffer, _ in busy:
                first = getattr(buffer.owner, "offset", 0)
                if touch.first < first + buffer.shared.bytes and first < touch.last:
                    raise VerifyError(f"{at(op)} takes bytes of a ring that is in use")
        if op.results and op.result not in self.fixed:
            value = evaluate(op, self.env)
            if value is None:
                self.env.pop(op.result, None)
            else:
                self.env[op.result] = value

    def acquire(self, op: Acquire) -> Steps:
        ring = self.queue(op, op.ring)
        if ring.by_groups and ring.acquired != ring.committed:  # a group has all copies since the preceding commit
            raise VerifyError(f"{at(op)}: the stage before was not committed")
        depth = op.ring.ring.stages
        if ring.by_groups and ring.acquired - ring.free >= depth:  # a release takes effect at the next barrier
            raise VerifyError(f"{at(op)} takes a stage that may still be read")
        self.expect(op, ring, ring.acquired)
        while not ring.by_groups and not ring.is_free(ring.acquired - depth):
            yield op
        if not ring.by_groups:  # its readers released the stage, which they do after reading it
            index = ring.acquired % depth
            self.read -= {
                (buffer, stage) for buffer, stage in self.read if stage == index and self.of_buffer(op, buffer)[0] is op.ring
            }
        ring.acquired += 1
        ring.bytes_copied.append(0)
        ring.expected.append(op.expected)

    def copy(self, op: StageCopy) -> None:
        stage = self.contents_of(op, op.buffer, op.stage)
        if stage in self.role.copies_in_flight() or stage in self.read or any(stage in stages for stages in self.role.products):
            raise VerifyError(f"{at(op)} overwrites a stage that is in use")
        value, ring = self.of_buffer(op, op.buffer)
        acquired = range(ring.committed, ring.acquired)  # at most `stages` of them, since uncommitted stages are not free
        iteration = next((iteration for iteration in acquired if iteration % value.ring.stages == stage[1]), None)
        if iteration is None:
            raise VerifyError(f"{at(op)} goes into a stage that was not acquired")
        if op.buffer in self.freed:
            raise VerifyError(f"{at(op)}: the buffer was freed")
        if ring.by_groups != isinstance(op, AsyncCopy):
            raise VerifyError(f"{at(op)}: its ring counts other copies")
        ring.bytes_copied[iteration] += tma.copied_bytes(op.buffer.shared)
        self.contents.pop(stage, None)
        self.role.group.append((stage, self.started[op.buffer]))
        self.started[op.buffer] += 1

    def commit(self, op: Commit) -> None:
        ring = self.queue(op, op.ring)
        iteration = ring.committed
        if ring.acquired == iteration:
            raise VerifyError(f"{at(op)}: no stage was acquired")
        ring.committed += 1
        if ring.by_groups:
            self.role.groups.append((op.ring, self.role.group))
            self.role.group = []
            return
        copied, expected = ring.bytes_copied[iteration], ring.expected[iteration]
        if not expected:
            raise VerifyError(f"{at(op)}: products fill its ring")
        if copied != expected:
            raise VerifyError(f"{at(op)}: copies bring {copied} bytes where {expected} are expected")
        depth = op.ring.ring.stages
        own_copies = [
            copy for copy in self.role.group if copy[0][1] == iteration % depth and self.of_buffer(op, copy[0][0])[0] is op.ring
        ]
        self.role.group = [copy for copy in self.role.group if copy not in own_copies]
        ring.arrivals.append(own_copies)
        ring.tiles.append(self.role.tile)

    def wait(self, op: Wait) -> Steps:
        ring = self.queue(op, op.ring)
        if ring.by_groups:
            self.finish(op.pending)
            if ring.full <= self.role.waited[op.ring]:
                raise VerifyError(f"{at(op)}: the next stage may not be full yet")
        if ring.round_robin and op.ring not in self.role.has_turn:
            raise VerifyError(f"{at(op)}: the role does not have the turn, and may take a stage of rounds before for its own")
        self.expect(op, ring, self.role.waited[op.ring])
        while not ring.by_groups and ring.committed <= self.role.waited[op.ring]:
            yield op
        if not ring.by_groups:
            copies = ring.arrivals[self.role.waited[op.ring]]
            if ring.tiles[self.role.waited[op.ring]] != self.role.tile:
                raise VerifyError(f"{at(op)}: what comes was copied for another tile")
            if ring.round_robin:
                ring.consumer_roles.append(self.role)
            self.contents |= {stage: StageContents(iteration, fenced=True, visible=True) for stage, iteration in copies}
        self.role.waited[op.ring] += 1

    def order_wait(self, op: OrderWait) -> Steps:
        """Block until the preceding consumer's `order_arrive`; the next stages then belong to this role up to its own."""
        ring, role = self.reader(op), self.role
        if op.ring in role.has_turn or role.released[op.ring] != role.waited[op.ring]:
            raise VerifyError(
                f"{at(op)}: stages of the consumer's last tile were not released, or the next consumer was not notified"
            )
        iteration, parity = op.consumer + ring.op.consumer_roles * role.taken[op.ring], role.taken[op.ring] % 2
        if self.env.get(op.parity) != parity:
            raise VerifyError(f"{at(op)} names parity {self.env.get(op.parity)} where {parity} comes next")
        while ring.passed < iteration:
            yield op
        role.taken[op.ring] += 1
        role.has_turn.add(op.ring)
        role.waited[op.ring] = role.released[op.ring] = ring.passed_position

    def order_arrive(self, op: OrderArrive) -> None:
        ring, role = self.reader(op), self.role
        if op.ring not in role.has_turn or ring.passed % ring.op.consumer_roles != op.consumer:
            raise VerifyError(f"{at(op)}: the role does not have the turn")
        role.has_turn.remove(op.ring)
        ring.passed_position = role.waited[op.ring]
        ring.passed += 1

    def reader(self, op: OrderOp) -> Queue:
        ring = self.queue(op, op.ring)
        if not (ring.fenced and ring.visible):
            raise VerifyError(f"{at(op)} uses mbarriers that others do not know of yet")
        return ring

    def finish(self, pending: int) -> None:
        """Complete all groups of copies but the newest `pending`."""
        while len(self.role.groups) > pending:
            value, group = self.role.groups.pop(0)
            if value in self.rings:
                self.rings[value].full += 1
            self.contents |= {stage: StageContents(iteration) for stage, iteration in group}

    def release_next(self, op: Release) -> None:
        ring, count = self.queue(op, op.ring), self.role.waited[op.ring] - op.unreleased
        if ring.read_by_products:
            raise VerifyError(f"{at(op)}: products read the stage, and nothing says that they are complete")
        if not ring.by_groups:
            self.expect(op, ring, self.role.released[op.ring])
            if count != self.role.released[op.ring] + 1:
                raise VerifyError(f"{at(op)}: no stage, or several, could be given back")
            if count - 1 in ring.computed and (self.role, count - 1) not in ring.loaded:
                raise VerifyError(f"{at(op)} gives back an accumulator that was not loaded")
        self.release(op, count)

    def release(self, op: Op, count: int) -> None:
        """Release the first `count` uses of the ring's stages."""
        value = op.operands[0]
        self.queue(op, value)
        depth = value.ring.stages
        for use in range(self.role.released[value], count):
            if any(ring_of(buffer) is value and index == use % depth for buffer, index in self.role.unmet):
                raise VerifyError(f"{at(op)} gives back a stage that other threads of the warp may still read")
            for buffer, index in set[Stage]().union(*self.role.products):
                if self.of_buffer(op, buffer)[0] is value and index == use % depth:
                    raise VerifyError(f"{at(op)} gives back a stage that a product reads")
        self.role.released[value] = max(self.role.released[value], count)

    def drain(self, op: Drain) -> None:
        ring = self.queue(op, op.ring)
        if not ring.by_groups or ring.acquired != ring.committed:
            raise VerifyError(f"{at(op)}: only groups that were committed can be waited for")
        self.finish(0)
        self.role.waited[op.ring] = ring.committed
        self.release(op, ring.committed)

    def barrier(self, op: Barrier) -> None:
        if self.concurrent and op.scope != "role":
            raise VerifyError(f"{at(op)}: threads of other roles never come")
        self.role.unmet.clear()
        if self.concurrent:
            return
        self.read.clear()
        self.order.synchronize()
        for value, ring in self.rings.items():
            ring.free = self.role.released[value]
        for state in (*self.contents.values(), *self.rings.values()):
            state.visible = True

    def free(self, op: SharedFree) -> None:
        busy = self.role.copies_in_flight().union(*self.role.products)
        for value in op.operands:
            ring = self.rings.pop(value, None)
            if ring is not None and (ring.acquired != ring.committed or has_unread_stage(value, ring)):
                raise VerifyError(f"{at(op)}: stages of the ring were filled, or may yet be, and nobody waited for them")
            if any(buffer is value for buffer, _ in busy):
                raise VerifyError(f"{at(op)}: the buffer is in use")
            if isinstance(value.type, SharedType):
                self.free_buffer(op, value)

    def free_buffer(self, op: SharedFree, buffer: Value) -> None:
        """Mark a stage buffer as freed; VerifyError if copies into it are in flight or may follow."""
        assert isinstance(buffer.owner, SharedAlloc)
        (value,) = buffer.owner.operands
        ring = self.rings.get(value)
        if ring is not None and ring.read_by_products:
            raise VerifyError(f"{at(op)}: another role's products may still read the buffer")
        if ring is not None and not ring.by_groups and (ring.acquired != ring.committed or has_unread_stage(value, ring)):
            raise VerifyError(f"{at(op)}: copies into the buffer are under way, or may yet come")
        self.freed.add(buffer)

    def end(self, message: str) -> None:
        unread = any(has_unread_stage(value, ring) for value, ring in self.rings.items())
        if self.role.copies_in_flight() or self.role.products or unread:
            raise VerifyError(message)
        self.order.end(message.partition(":")[0])
