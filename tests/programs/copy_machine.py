"""Runs tile IR, unprepared or prepared, with symbolic tiles: records which boxes of which tensors each stored tile is a product
of, whichever role copied them and however early.

In: a function, launch values, the number of resident blocks. Out: for each stored position, the products summed there, in
order; or a `Wrong`: roles that deadlock, a stage that is overwritten while it is read, or read before its copies have arrived,
copies that nobody waited for. Scalars are integers of the dtype's width (`tests.soundness.arithmetic`). mbarriers have phases:
a wait tests a parity and nothing else (PTX ISA, `mbarrier.try_wait.parity`), so the wrong phase can satisfy it. Shares no code
with `tilec.passes.schedule.checks.ring_check`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from tests.soundness.arithmetic import evaluate, wrapped
from tilec.atoms import tma
from tilec.ir import ops
from tilec.ir.core import Block, Function, Op, Value
from tilec.ir.ops.launch_ops import GridExtent, LaunchedBlocks
from tilec.ir.ops.staging_ops import (
    AsyncCopy,
    GroupMma,
    ScratchLoad,
    ScratchStore,
    SharedAlloc,
    SharedLoad,
    TensorCopy,
    WaitMma,
)
from tilec.ir.ops.store_ops import ScratchStoreRows, TensorStore
from tilec.ir.ops.sync_ops import Acquire, Commit, Drain, OrderArrive, OrderWait, Release, Ring, Roles, Wait

POISON = "what nobody copied"
MAX_STEPS = 60_000
Steps = Generator[None]
Stores = dict[tuple[int, ...], tuple[Any, ...]]


class Wrong(Exception):
    """An error of a run."""


@dataclass(eq=False)
class Barriers:
    """A ring of mbarriers: completed phases of each stage, full and empty, and of each role's ping-pong barrier."""

    op: Ring
    full: Counter[int] = field(default_factory=Counter[int])
    empty: Counter[int] = field(default_factory=Counter[int])
    arrived: Counter[int] = field(default_factory=Counter[int])
    pingpong_phases: Counter[int] = field(default_factory=Counter[int])
    expected: dict[int, int] = field(default_factory=dict[int, int])
    copies_in_flight: dict[int, list[tuple[Value, Any]]] = field(default_factory=dict[int, "list[tuple[Value, Any]]"])
    acquired: int = 0
    waited: int = 0


@dataclass(eq=False)
class Role:
    """Warps that run together, with their products and copy groups in flight."""

    warps: int
    products: list[list[tuple[Value, int]]] = field(default_factory=list[list[tuple[Value, int]]])
    group: list[tuple[Value, int, Any]] = field(default_factory=list[tuple[Value, int, Any]])
    groups: list[list[tuple[Value, int, Any]]] = field(default_factory=list[list[tuple[Value, int, Any]]])


@dataclass(eq=False)
class Machine:
    """One block. `stages` are the contents of a buffer's stages."""

    function: Function
    sizes: dict[str, int]
    block: tuple[int, ...]
    resident_blocks: int
    stores: Stores = field(default_factory=Stores)
    values: dict[Value, Any] = field(default_factory=dict[Value, Any])
    stages: dict[tuple[Value, int], Any] = field(default_factory=dict[tuple[Value, int], Any])
    rings: dict[Value, Barriers] = field(default_factory=dict[Value, Barriers])
    role: Role = field(default_factory=lambda: Role(0))
    roles: list[Role] = field(default_factory=list[Role])
    steps: int = 0

    def run(self) -> Stores:
        """Everything that the block stores."""
        for parameter in self.function.parameters:
            if parameter.access is None:
                self.values[parameter.value] = self.sizes[parameter.name]
        self.roles = [self.role]
        for _ in self.run_block(self.function.body):
            raise Wrong("the block waits for ever")
        if any(ring.acquired != ring.waited for ring in self.rings.values()):
            raise Wrong("copies that nobody waited for")
        return self.stores

    def run_block(self, block: Block) -> Steps:
        for op in block.ops:
            self.steps += 1
            if self.steps > MAX_STEPS:
                raise Wrong("too many steps")
            match op:
                case ops.For():
                    yield from self.loop(op)
                case ops.If():
                    region = op.regions[0 if self.values[op.operands[0]] else 1]
                    yield from self.run_block(region)
                    yielded = region.ops[-1].operands
                    self.values.update(zip(op.results, [self.values[value] for value in yielded], strict=True))
                case Roles():
                    self.run_roles(op)
                case Acquire() | Wait() | OrderWait() if op.ring in self.rings:
                    yield from self.mbarrier(op)
                case _:
                    self.step(op)

    def loop(self, op: ops.For) -> Steps:
        lower, upper, step = (self.values[value] for value in op.operands[:3])
        carried = [self.values[value] for value in op.initial]
        body = op.regions[0]
        for iteration in range(lower, upper, step):
            self.values.update(zip(body.arguments, [iteration, *carried], strict=True))
            yield from self.run_block(body)
            carried = [self.values[value] for value in body.ops[-1].operands]
        self.values.update(zip(op.results, carried, strict=True))

    def run_roles(self, op: Roles) -> None:
        """Runs each role until it blocks; if all are blocked and nothing changes, they are deadlocked."""
        outer_role = self.role
        roles = [Role(warps) for warps in op.warps]
        self.roles = roles
        active = {part: self.run_block(region) for part, region in zip(roles, op.regions, strict=True)}
        while active:
            progressed = False
            for part, steps in list(active.items()):
                self.role, steps_before = part, self.steps
                try:
                    next(steps)
                except StopIteration:
                    del active[part]
                    progressed = True
                progressed |= self.steps != steps_before
            if not progressed:
                raise Wrong("roles wait for ever")
        self.role, self.roles = outer_role, [outer_role]

    def mbarrier(self, op: Acquire | Wait | OrderWait) -> Steps:
        ring = self.rings[op.ring]
        if isinstance(op, OrderWait):
            parity = self.values[op.parity] ^ (0 if op.consumer else 1)
            while ring.pingpong_phases[op.consumer] % 2 == parity:
                yield
            return
        stage, parity = self.values[op.stage], self.values[op.parity]
        if not 0 <= stage < op.ring.ring.stages:
            raise Wrong(f"stage {stage}")
        phases = ring.full if isinstance(op, Wait) else ring.empty
        while phases[stage] % 2 == (parity if isinstance(op, Wait) else parity ^ 1):
            yield
        if isinstance(op, Wait):
            ring.waited += 1
        elif stage in ring.expected:
            raise Wrong("a stage is acquired before its copies complete")
        else:
            ring.acquired += 1
            ring.expected[stage], ring.copies_in_flight[stage] = op.expected, []

    def step(self, op: Op) -> None:
        v = self.values
        match op:
            case ops.BlockId():
                v[op.result] = self.block[op.axis]
            case ops.NumBlocks() | GridExtent():
                v[op.result] = self.function.grid[op.axis].evaluate(self.sizes)
            case LaunchedBlocks():
                v[op.result] = self.resident_blocks
            case ops.DimValue():
                v[op.result] = self.sizes[op.symbol]
            case ops.Load():
                v[op.result] = self.box(op.source, op.offsets)
            case ops.Store():
                self.store(op.offsets, v[op.tile])
            case ops.Mma():
                v[op.result] = self.summed(*(v[value] for value in op.operands))
            case Ring():
                if op.sync == "mbarriers":
                    self.rings[op.result] = Barriers(op)
            case SharedAlloc():
                pass
            case AsyncCopy() | TensorCopy():
                self.copy(op)
            case Commit():
                if op.ring not in self.rings:
                    self.role.groups.append(self.role.group)
                    self.role.group = []
            case Wait() | Drain():
                self.finish(op.pending if isinstance(op, Wait) else 0)
            case Release() if op.ring in self.rings:
                self.release(self.rings[op.ring], v[op.stage])
            case OrderArrive():
                self.rings[op.ring].pingpong_phases[(op.consumer + 1) % self.rings[op.ring].op.consumer_roles] += 1
            case SharedLoad():
                v[op.result] = self.read(op.buffer, v[op.stage])
            case GroupMma():
                left, left_stage, right, right_stage, total = op.operands
                boxes = self.read(left, v[left_stage]), self.read(right, v[right_stage])
                v[op.result] = self.summed(*boxes, v[total])
                self.role.products.append([(left, v[left_stage]), (right, v[right_stage])])
            case WaitMma():
                del self.role.products[: max(0, len(self.role.products) - op.pending)]
                v[op.result] = v[op.operands[0]]
            case ScratchStore() | ScratchStoreRows():
                v[op.operands[0]] = v[op.operands[1]]
            case ScratchLoad():
                v[op.result] = v[op.operands[0]]
            case TensorStore():
                self.store(op.offsets, v[op.scratch])
            case _:
                self.compute(op)

    def compute(self, op: Op) -> None:
        """Computes scalars by the semantics table; an operation that only moves or converts a tile keeps its name."""
        if not op.results:
            return
        tile = op.result.type
        if any(isinstance(self.values.get(value), tuple) for value in op.operands):
            (self.values[op.result],) = [self.values[value] for value in op.operands if isinstance(self.values[value], tuple)]
        elif isinstance(op, ops.Constant) and op.result.tile.rank:
            self.values[op.result] = ()
        elif op.results and not op.result.tile.rank:
            operands = [[self.values[value]] for value in op.operands]
            self.values[op.result] = wrapped(int(evaluate(op, operands)[0]), op.result.tile.dtype)
        else:
            raise NotImplementedError(f"{op.opcode} of {tile}")

    def box(self, tensor: Value, offsets: list[Value]) -> tuple[Any, ...]:
        return (self.function.parameter_of(tensor).name, *(self.values[value] for value in offsets))

    def summed(self, left: Any, right: Any, total: Any) -> tuple[Any, ...]:
        """Adds a product; the K slices of one product count as one."""
        return total if total and total[-1] == (left, right) else (*total, (left, right))

    def store(self, offsets: list[Value], tile: Any) -> None:
        position = tuple(self.values[value] for value in offsets)
        if self.stores.get(position, tile) != tile:
            raise Wrong(f"{position} is stored twice")
        self.stores[position] = tile

    def read(self, buffer: Value, stage: int) -> Any:
        found = self.stages.get((buffer, stage), POISON)
        if found == POISON:
            raise Wrong("a stage is read before its copies are there")
        return found

    def copy(self, op: AsyncCopy | TensorCopy) -> None:
        stage, box = self.values[op.stage], self.box(op.source, op.offsets)
        if any((op.buffer, stage) in reads for role in self.roles for reads in role.products):
            raise Wrong("a stage is overwritten while a product reads it")
        self.stages[op.buffer, stage] = POISON
        if isinstance(op, AsyncCopy):
            self.role.group.append((op.buffer, stage, box))
            return
        assert isinstance(op.buffer.owner, SharedAlloc)
        ring = self.rings[op.buffer.owner.operands[0]]
        if stage not in ring.expected:
            raise Wrong("a copy into a stage that was not acquired")
        ring.copies_in_flight[stage].append((op.buffer, box))
        if sum(tma.copied_bytes(buffer.shared) for buffer, _ in ring.copies_in_flight[stage]) == ring.expected[stage]:
            for buffer, box_copied in ring.copies_in_flight.pop(stage):
                self.stages[buffer, stage] = box_copied
            del ring.expected[stage]
            ring.full[stage] += 1

    def finish(self, pending: int) -> None:
        while len(self.role.groups) > pending:
            for buffer, stage, box in self.role.groups.pop(0):
                self.stages[buffer, stage] = box

    def release(self, ring: Barriers, stage: int) -> None:
        ring.arrived[stage] += self.role.warps or ring.op.readers
        if ring.arrived[stage] == ring.op.readers:
            ring.arrived[stage] = 0
            ring.empty[stage] += 1


def stored(function: Function, sizes: dict[str, int], resident_blocks: int = 0) -> Stores:
    """What all blocks store; if they are persistent, `resident_blocks` of them are resident."""
    extents = [extent.evaluate(sizes) for extent in function.grid]
    stores: Stores = {}
    persistent = any(isinstance(op, LaunchedBlocks) for op in function.body.walk())
    blocks = [(number,) for number in range(resident_blocks)] if persistent else product(*map(range, extents))
    for block in blocks:
        for position, tile in Machine(function, sizes, tuple(block), resident_blocks).run().items():
            if position in stores:
                raise Wrong(f"{position} is stored by two blocks")
            stores[position] = tile
    return stores
