"""The work of a launch, derived from the kernel's scheduled tile IR.

In: a function after all scheduling passes, its schedule, and the values of a launch. Out: `Work`: for every role and every tile
that a block processes, what is asked of each unit inside loops and around them, and the boxes of tensors that are moved.

Of persistent blocks, the outermost loop is that over tiles; the innermost loops are the pipelines. A condition inside an
innermost loop counts by the share of iterations in which it holds. Bounds of a loop that vary with a loop around it, other than
that over tiles, are taken in its first iteration.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from tilec.cost_model.demand import Demand, demand, free
from tilec.cost_model.scalars import Array, Launch, Scalars
from tilec.ir.core import Block, Function, Op, Value
from tilec.ir.layouts.shared_plan import shared_bytes
from tilec.ir.ops import For, If, Load, Store
from tilec.ir.ops.staging_ops import StageCopy
from tilec.ir.ops.store_ops import TensorStore
from tilec.ir.ops.sync_ops import Roles
from tilec.ir.ops.tmem_ops import TmemAlloc
from tilec.target.schedule import Schedule

ONCE: Final = np.ones((1, 1))
RESERVED_SHARED: Final = 1024
"""Bytes of shared memory that the system takes for each block (CUDA programming guide, "Shared memory" of capability 9.0)."""


MOST_BLOCKS: Final = 1 << 20
"""Blocks of a launch that are counted one by one."""
MOST_TRIPS: Final = 1 << 20
"""Iterations of a loop whose conditions are evaluated one by one."""


class UnknownWork(Exception):
    """The work depends on more than the launch values, or is too large to count; the message says why."""


@dataclass(frozen=True, slots=True)
class Box:
    """A box of a tensor that a role reads or writes in each tile. `key`: its offsets in the first iteration, so that equal keys
    are the same data; `bytes`: of all iterations, without those outside the tensor."""

    tensor: str
    written: bool
    key: Array
    bytes: Array


@dataclass(slots=True)
class RoleWork:
    """What a role asks of the units. `inside`: in loops, `around`: outside of them, each by unit as (blocks, turns); `trips`:
    iterations of its pipelines; `copied`: bytes that it reads from tensors."""

    name: str
    warps: int
    inside: dict[str, Array] = field(default_factory=dict[str, Array])
    around: dict[str, Array] = field(default_factory=dict[str, Array])
    trips: Array = field(default_factory=lambda: np.zeros((1, 1)))
    copied: Array = field(default_factory=lambda: np.zeros((1, 1)))
    boxes: list[Box] = field(default_factory=list[Box])

    def add(self, asked: Demand, count: Array, *, inside: bool) -> None:
        """Count a demand."""
        part = self.inside if inside else self.around
        for unit, amount in asked.items():
            part[unit] = part.get(unit, 0.0) + amount * count


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a launch: `roles`, each with arrays of (blocks, turns), where `tiles` has which turns a block runs.
    `shared_bytes` and `warps` are those of a block. `accumulators`: stages of accumulators in tensor memory, 0 if they are in
    registers."""

    kernel: str
    roles: tuple[RoleWork, ...]
    tiles: Array
    grid_blocks: int
    launched: int
    warps: int
    shared_bytes: int
    schedule: Schedule
    accumulators: int = 0

    @property
    def reserved_bytes(self) -> int:
        """Shared memory that a block takes of its multiprocessor."""
        return self.shared_bytes + RESERVED_SHARED

    def total(self, unit: str) -> float:
        """What the whole launch asks of a unit."""
        parts = [part[unit] for role in self.roles for part in (role.inside, role.around) if unit in part]
        return float(sum(np.broadcast_to(one, self.tiles.shape)[self.tiles].sum() for one in parts))

    def boxes(self) -> Iterator[Box]:
        """The boxes that all roles move."""
        for role in self.roles:
            yield from role.boxes


def work_of(function: Function, schedule: Schedule, values: Mapping[str, int | float], at_once: int) -> Work:
    """The work of a launch with these dims and scalars. `at_once`: how many blocks run at once if they are persistent.
    UnknownWork if a loop depends on data, or for too many blocks."""
    env = {name: int(value) for name, value in values.items()}
    grid = tuple(axis.evaluate(env) for axis in function.grid)
    blocks = math.prod(grid)
    if not 0 < blocks <= MOST_BLOCKS:
        raise UnknownWork(f"a launch of {blocks} blocks is not counted; the most is {MOST_BLOCKS}")
    cluster = function.cluster
    launched = cluster * (min(blocks, at_once // cluster) if schedule.persistent else blocks)
    scalars = Scalars(Launch(values, grid, launched, cluster), _arguments(function, values))
    walker = _Walker(function, env, launched, persistent=schedule.persistent)
    walker.walk(function.body.ops, scalars, ONCE, inside=False)
    shape = np.broadcast_shapes((launched, 1), *(role.trips.shape for role in walker.roles))
    tiles = np.broadcast_to(walker.tiles, shape) if walker.tiles is not None else np.ones(shape, dtype=bool)
    used = shared_bytes(function)
    stages = max((op.result.tmem.stages for op in function.body.ops if isinstance(op, TmemAlloc)), default=0)
    return Work(function.name, tuple(walker.roles), tiles, cluster * blocks, launched, schedule.warps, used, schedule, stages)


def _arguments(function: Function, values: Mapping[str, int | float]) -> dict[Value, Array | None]:
    found: dict[Value, Array | None] = {}
    for parameter in function.parameters:
        given = values.get(parameter.name)
        found[parameter.value] = None if given is None else np.array([[given]])
    return found


class _Walker:
    """Walks the operations of a function and counts. `tiles`: which turns the blocks run; None without a loop over tiles."""

    def __init__(self, function: Function, env: Mapping[str, int], launched: int, *, persistent: bool) -> None:
        self.env, self.launched, self.persistent = env, launched, persistent
        self.names = {parameter.value: parameter.name for parameter in function.parameters}
        self.free = free(function.body.walk())
        self.roles = [RoleWork("block", function.num_warps)]
        self.role = self.roles[0]
        self.tiles: Array | None = None
        self.in_tile = False

    def walk(self, ops: Sequence[Op], scalars: Scalars, count: Array, *, inside: bool) -> None:
        """Count operations that run `count` times in each tile."""
        for op in ops:
            match op:
                case Roles():
                    self._roles(op, scalars, count)
                case For() if self.persistent and not self.in_tile:
                    self._tile_loop(op, scalars, count)
                case For():
                    self._loop(op, scalars, count)
                case If():
                    self._branch(op, scalars, count, inside=inside)
                case _:
                    self.role.add(demand(op, self.role.warps, self.free), count, inside=inside)
                    self._box(op, scalars, count)

    def _roles(self, op: Roles, scalars: Scalars, count: Array) -> None:
        common = self.roles[0]
        self.roles = [RoleWork(name, warps) for name, warps in zip(op.names, op.warps, strict=True)]
        self.roles[0].around, self.roles[0].boxes = common.around, common.boxes
        for role, region in zip(self.roles, op.regions, strict=True):
            self.role = role
            self.walk(region.ops, scalars, count, inside=False)
        self.role = self.roles[0]

    def _loop(self, op: For, scalars: Scalars, count: Array) -> None:
        lower, upper, step = self._range(op, scalars)
        trips = np.maximum(0, -((lower - upper) // step))
        if (most := int(trips.max(initial=0))) > MOST_TRIPS:
            raise UnknownWork(f"the loop over `{op.variable}` has {most} iterations; the most is {MOST_TRIPS}")
        (body,) = op.regions
        known = self._carried(body) | {body.arguments[0]: lower}
        within = scalars.inside(known)
        is_pipeline = not _has_pipeline(body)
        if is_pipeline:
            self.role.trips = self.role.trips + trips * count
        for one in body.ops:
            if isinstance(one, If) and is_pipeline:
                share = self._share(one, op, scalars, trips, step)
                self.walk(one.regions[0].ops, within, count * trips * share, inside=True)
                self.walk(one.regions[1].ops, within, count * trips * (1 - share), inside=True)
            else:
                self.walk([one], within, count * trips, inside=True)

    @staticmethod
    def _range(op: For, scalars: Scalars) -> tuple[Array, Array, Array]:
        lower, upper, step = (scalars.get(one) for one in (op.lower, op.upper, op.step))
        if lower is None or upper is None or step is None:
            raise UnknownWork(f"the range of the loop over `{op.variable}` depends on data")
        return lower, upper, step

    def _tile_loop(self, op: For, scalars: Scalars, count: Array) -> None:
        """A persistent block's loop over its tiles, the outermost one: the columns of all arrays are the values of its
        variable."""
        lower, upper, step = self._range(op, scalars)
        (body,) = op.regions
        turns = np.arange(int(upper.max(initial=1)))[None, :]
        runs = (turns >= lower) & (turns < upper) & ((turns - lower) % step == 0)
        within = scalars.inside(self._carried(body) | {body.arguments[0]: turns})
        self.in_tile = True
        self.walk(body.ops, within, count * runs, inside=False)
        self.in_tile = False
        self.tiles = np.broadcast_to(turns < upper, (self.launched, turns.size))

    @staticmethod
    def _carried(body: Block) -> dict[Value, Array | None]:
        return dict.fromkeys(body.arguments)

    def _branch(self, op: If, scalars: Scalars, count: Array, *, inside: bool) -> None:
        condition = scalars.get(op.operands[0])
        share = np.array([[1.0]]) if condition is None else condition.astype(float)
        self.walk(op.regions[0].ops, scalars, count * share, inside=inside)
        self.walk(op.regions[1].ops, scalars, count * (1 - share), inside=inside)

    def _share(self, op: If, loop: For, scalars: Scalars, trips: Array, step: Array) -> Array:
        """In which share of a loop's iterations a condition holds; all, if that depends on what the loop carries."""
        lower = scalars.get(loop.lower)
        assert lower is not None
        own = set(loop.regions[0].walk())
        leaves = _leaves(op.operands[0], own, loop.regions[0].arguments[0])
        arrays = [scalars.get(one) for one in leaves]
        if any(one is None for one in arrays):
            return ONCE
        columns = np.broadcast_arrays(lower, trips, step, *[one for one in arrays if one is not None])
        rows, where = np.unique(np.stack([one.ravel() for one in columns], axis=1), axis=0, return_inverse=True)
        number = np.arange(int(rows[:, 1].max(initial=0)))[None, :]
        known: dict[Value, Array | None] = {one: rows[:, 3 + index, None] for index, one in enumerate(leaves)}
        known |= self._carried(loop.regions[0]) | {loop.regions[0].arguments[0]: rows[:, :1] + number * rows[:, 2:3]}
        holds = Scalars(scalars.launch, known).get(op.operands[0])
        if holds is None:
            return ONCE
        counted = (np.broadcast_to(holds, (len(rows), number.size)) & (number < rows[:, 1:2])).sum(axis=1)
        return (counted / np.maximum(1, rows[:, 1]))[where].reshape(columns[0].shape)

    def _box(self, op: Op, scalars: Scalars, count: Array) -> None:
        match op:
            case StageCopy():
                shape = [1] * len(op.offsets)
                shape[-1], shape[op.row_axis] = op.buffer.shared.shape[1], op.buffer.shared.shape[0] // op.sub_tiles
                if op.sub_tiles > 1:
                    shape[op.sub_axis] = op.sub_tiles
                self._moved(op.source, op.offsets, shape, scalars, count, written=False)
            case Load():
                self._moved(op.source, op.indices, list(op.tile.tile.shape), scalars, count, written=False)
            case Store():
                self._moved(op.target, op.indices, list(op.tile.tile.shape), scalars, count, written=True)
            case TensorStore():
                self._moved(op.target, op.offsets, [op.rows, op.columns], scalars, count, written=True, column=op.column)
            case _:
                pass

    def _moved(
        self, tensor: Value, offsets: Sequence[Value], shape: Sequence[int], scalars: Scalars, count: Array, *,
        written: bool, column: int = 0,
    ) -> None:  # fmt: skip
        type_, size = tensor.tensor, ONCE
        indices: list[Array] = []
        for axis, (offset, extent, dim) in enumerate(zip(offsets, shape, type_.dims, strict=True)):
            index = scalars.get(offset)
            index = np.zeros((1, 1)) if index is None else index + (column if axis == len(shape) - 1 else 0)
            size = size * np.clip(dim.evaluate(self.env) - index, 0, extent)
            indices.append(index)
        moved = size * type_.dtype.bytes * count
        moved = np.broadcast_to(moved, np.broadcast_shapes(moved.shape, (self.launched, 1)))
        key = np.stack(np.broadcast_arrays(*indices, moved)[:-1], axis=-1).astype(np.int64)
        self.role.boxes.append(Box(self.names.get(tensor, tensor.name), written, key, moved))
        if not written:
            self.role.copied = self.role.copied + moved


def _has_pipeline(body: Block) -> bool:
    """Whether a loop's body has a loop of its own."""
    return any(isinstance(op, For) for op in body.walk())


def _leaves(value: Value, own: set[Op], variable: Value) -> list[Value]:
    """The values from outside a loop that a value inside depends on, and those that it carries, without its variable."""
    found: dict[Value, None] = {}
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one.owner, Op) and one.owner in own:
            waiting += one.owner.operands
        elif one is not variable:
            found[one] = None
    return list(found)
