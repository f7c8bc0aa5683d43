"""The verifier of scheduled functions: only instruction-by-instruction lowering remains, and the target can run the result.

In: the output of `tilec.passes.schedule.prepare`, or its text parsed back, and a target. Out: nothing, or a VerifyError that
names the operation. It first runs the structural verifier (`tilec.ir.verifier`), then checks:

- the target has the instruction families, warps, registers and shared memory that are used;
- every tile is in registers, or where a family of the target has its accumulators;
- live allocations of shared memory do not overlap, and have the alignment that their readers need;
- every operand has its operation's layout; only `scratch_store`, `scratch_load` and similar operations move elements between
  threads, and each `scratch_load` reads what a matching `scratch_store` wrote;
- all threads that a barrier counts reach it; roles share memory only through rings, whose release count equals the number of
  reading warps; TMA copies are issued by one thread, from tensors that a tensor map can describe;
- persistent blocks process every tile once (`persistent_check`), a block's own parts of atomic tensors reach these once
  (`private_check`), barriers prevent races (`barrier_check`), rings are correct
  (`ring_check`), and so are TMA stores (`store_check`), the use of tensor memory (`tmem_check`), and that of a
  maximum which is not replaced each time it grows (`kept_maximum_check`).
"""

from __future__ import annotations

from itertools import combinations
from typing import Final

from tilec.atoms import tma
from tilec.atoms.products import atom_of
from tilec.ir import verifier
from tilec.ir.core import Access, Block, Function, Op, Value, VerifyError
from tilec.ir.facts.touches import Touch, may_conflict, touches
from tilec.ir.layouts.conversion_scratch import conversion_bytes, is_chosen, is_shared, is_uniform, moves_space, renamed
from tilec.ir.layouts.layout import Layout
from tilec.ir.layouts.operand_layouts import operand_layouts, yielded_layouts
from tilec.ir.layouts.shared_plan import Allocation, interval, live_shared, shared_bytes
from tilec.ir.ops import AtomicScatter, Exp2InParts, Load, Permute, Print, Reshape, Yield
from tilec.ir.ops.butterfly_ops import ButterflyLoad, ButterflyStore
from tilec.ir.ops.pair_ops import PairRing
from tilec.ir.ops.reduction_ops import ReduceCombine, ReduceStore
from tilec.ir.ops.signal_ops import OWN, Await, SignalMma, SignalOp
from tilec.ir.ops.staging_ops import (
    GroupProduct,
    Relayout,
    ScratchLoad,
    ScratchStore,
    ScratchStoreOwned,
    SharedAlloc,
    TensorCopy,
)
from tilec.ir.ops.store_ops import ScratchStoreRows, TensorStore, WaitStores
from tilec.ir.ops.sync_ops import Acquire, Barrier, OrderOp, Release, Ring, RingOp, Roles, Wait
from tilec.ir.ops.take_ops import TakeLoad
from tilec.ir.ops.tmem_ops import CommitMma, ReleaseMma, ThreadProduct, TmemAccess
from tilec.ir.types import TileType
from tilec.passes.schedule.checks import (
    barrier_check,
    kept_maximum_check,
    pair_check,
    persistent_check,
    private_check,
    product_wait_check,
    ring_check,
    store_check,
    tmem_check,
)
from tilec.passes.schedule.checks.op_location import at
from tilec.passes.schedule.layouts import tensor_stores
from tilec.passes.schedule.layouts.shared_conversions import kept_layout
from tilec.target.families import FAMILIES, TMA, MemorySpace
from tilec.target.schedule import MOST_WARPS, PAIR, REGISTERS, STORES
from tilec.target.targets import Target

MAX_ROLES: Final = 15
"""A block has 16 hardware barriers, one of which synchronizes all its threads (PTX ISA, `barrier`)."""


def verify(function: Function, target: Target) -> None:
    """Raise VerifyError at the first broken rule."""
    verifier.verify(function)
    if not 1 <= function.num_warps <= MOST_WARPS:
        raise VerifyError(f"{function.name}: a block of {function.num_warps} warps")
    _check_shared(function, target)
    _Walk(function, target).block(function.body, function.num_warps, False, ())
    tmem_check.check(function, target)
    pair_check.check(function)
    persistent_check.check(function)
    private_check.check(function)
    barrier_check.check(function)
    ring_check.check(function)
    product_wait_check.check(function)
    store_check.check(function)
    kept_maximum_check.check(function)


def _check_shared(function: Function, target: Target) -> None:
    size = shared_bytes(function)
    if size > target.max_shared_bytes:
        raise VerifyError(f"{function.name}: {size} bytes of shared memory; {target} has {target.max_shared_bytes}")
    for op, live in live_shared(function).items():
        if isinstance(op, Allocation):
            first, last = interval(op)
            for other in live:
                begin, end = interval(other)
                if other is not op and first < end and begin < last:
                    raise VerifyError(f"{at(op)} takes bytes of the {other.opcode} before it")


_LOADS: Final[dict[type[Op], type[Op]]] = {
    ScratchStore: ScratchLoad, ScratchStoreOwned: ScratchLoad, ReduceStore: ReduceCombine, ButterflyStore: ButterflyLoad,
}  # fmt: skip
"""Stores into scratch, each with the operation that loads what it stored."""


class _Walk:
    def __init__(self, function: Function, target: Target) -> None:
        self.function, self.target = function, target
        self.touches = touches(function)
        self.stores: dict[Value, Op] = {}  # the last store into each scratch buffer
        self.live = live_shared(function)
        self.issues = False  # whether the role at hand starts products
        self.spaces = {MemorySpace.REGISTERS, *(family.accumulators for family in FAMILIES if target.has(family))}

    def block(self, block: Block, warps: int, alone: bool, yielded: tuple[Layout | None, ...]) -> None:
        """`alone`: one thread executes the block."""
        for op in block.ops:
            required = yielded if isinstance(op, Yield) else operand_layouts(op)
            for value, layout in zip(op.operands, required, strict=False):
                if layout is not None and value.layout is not None and value.layout != layout:
                    raise VerifyError(f"{at(op)}: an operand is held as {value.layout} and taken as {layout}")
            self.op(op, warps)
            self.check_executing_threads(op, alone)
            inner_warps = op.warps if isinstance(op, Roles) else (warps,) * len(op.regions)
            single_threads = op.alone if isinstance(op, Roles) else (alone,) * len(op.regions)
            for region, count, single_thread in zip(op.regions, inner_warps, single_threads, strict=True):
                if isinstance(op, Roles):
                    self.issues = any(isinstance(inner, GroupProduct) for inner in region.walk())
                self.block(region, count, single_thread, yielded_layouts(op))

    def check_executing_threads(self, op: Op, alone: bool) -> None:
        """Check that an operation for one thread is executed by one, and an operation for all threads by all. One thread also
        waits for stages if it starts the products that read them."""
        has_threads = isinstance(op, TensorCopy | OrderOp | ThreadProduct | SignalOp | TmemAccess)
        has_threads |= isinstance(op, RingOp) and len(op.operands) > 1
        is_for_one = isinstance(op, Acquire | TensorCopy | CommitMma | ReleaseMma | ThreadProduct | SignalMma)
        is_for_one |= alone and self.issues and isinstance(op, Wait)
        is_for_one |= isinstance(op, Await) and op.part != OWN
        if has_threads and alone != is_for_one:
            raise VerifyError(f"{at(op)} is for {'all threads of a role' if alone else 'one thread of a role'}")
        if alone and (
            isinstance(op, Print | ScratchStoreRows | TensorStore | WaitStores)
            or op.is_barrier
            or any(isinstance(v.type, TileType) and not _one_thread_holds(op, v) for v in op.results)
            or isinstance(op, Roles)
            or (isinstance(op, GroupProduct) and not isinstance(op, ThreadProduct))
        ):
            raise VerifyError(f"{at(op)}: one thread of the role is here alone")

    def op(self, op: Op, warps: int) -> None:
        if not isinstance(op, ScratchStore) and any(
            isinstance(value.owner, AtomicScatter) and is_shared(value.owner) for value in op.operands
        ):
            raise VerifyError(f"{at(op)} uses old values of an atomic in threads that did not execute it")
        if conversion_bytes(op, warps * 32):
            raise VerifyError(f"{at(op)} passes elements between threads by itself")
        for layout in (value.layout for value in op.results if value.layout is not None):
            if layout.space not in self.spaces:
                raise VerifyError(f"{at(op)}: no family of {self.target} has accumulators in {layout.space.value} memory")
        match op:
            case Relayout():
                if not _stays_in_threads(op.operands[0], op.result.layout):
                    raise VerifyError(f"{at(op)} renames no registers")
            case Reshape() | Permute():
                self.check_kept(op)
            case Exp2InParts() if not self.target.computes_pairs:
                raise VerifyError(f"{at(op)}: {self.target} does not compute on pairs of floats")
            case ScratchStore() | ReduceStore() | ButterflyStore():
                owner = op.operands[1].owner
                if isinstance(owner, AtomicScatter) and is_shared(owner) and not isinstance(op, ScratchStoreOwned):
                    raise VerifyError(f"{at(op)} stores old values that one thread has from all")
                self.stores[op.operands[0]] = op
            case TakeLoad():
                self.check_take(op)
            case ScratchLoad() | ReduceCombine() | ButterflyLoad():
                self.check_load(op)
            case GroupProduct() if not isinstance(op, ThreadProduct):
                self.check_product(op, warps)
            case TensorCopy():
                self.check_tensor_copy(op)
            case ScratchStoreRows() | TensorStore():
                self.check_tensor_store(op, warps)
            case Barrier():
                all_here = warps == self.function.num_warps
                if op.scope == "cluster":
                    all_here = all_here and self.function.cluster > 1 and op in self.function.body.ops
                if (op.scope == "role") == all_here:
                    raise VerifyError(f"{at(op)}: threads of the {op.scope} that are not all here")
            case Roles():
                self.roles(op)
            case _:
                pass

    def check_kept(self, op: Reshape | Permute) -> None:
        source, result = op.operands[0], op.result
        if source.layout is None or result.layout is None or is_uniform(source):
            return
        if kept_layout(op) != result.layout:
            raise VerifyError(f"{at(op)} moves elements to other threads or registers")

    def check_load(self, op: ScratchLoad | ReduceCombine | ButterflyLoad) -> None:
        source = self.stores.get(op.operands[0])
        if source is None or _LOADS[type(source)] is not type(op):
            raise VerifyError(f"{at(op)} loads what was not stored there")
        if isinstance(op, ReduceCombine):
            if source.operands[1] is not op.operands[1] or source.attributes() != op.attributes():
                raise VerifyError(f"{at(op)} takes another reduction than was put there")
            return
        stored, result = source.operands[1], op.result
        if isinstance(op, ButterflyLoad):
            alike = (stored.type, stored.layout) == (result.type, result.layout)
        else:
            alike = (stored.tile.size, stored.tile.dtype) == (result.tile.size, result.tile.dtype)
        if not alike:
            raise VerifyError(f"{at(op)} takes another tile than was put there")

    def check_take(self, op: TakeLoad) -> None:
        source = self.stores.get(op.operands[0])
        if not isinstance(source, ScratchStore):
            raise VerifyError(f"{at(op)} loads what was not stored there")
        stored = source.operands[1].tile
        if (stored.shape, stored.dtype, source.steps) != (op.source, op.result.tile.dtype, op.steps):
            raise VerifyError(f"{at(op)} takes another tile than was put there")

    def check_product(self, op: GroupProduct, warps: int) -> None:
        family, atom = atom_of(op.family)
        if not self.target.has(family) or not family.issuers(warps):
            raise VerifyError(f"{at(op)}: {self.target} has no products of groups of {warps} warps")
        for buffer, _ in op.reads:
            alloc = buffer.owner
            if not isinstance(alloc, SharedAlloc) or alloc.alignment % family.stage_alignment:
                raise VerifyError(f"{at(op)}: its matrices begin at multiples of {family.stage_alignment} bytes")
            if buffer.shared.width * buffer.shared.dtype.bytes != family.row_bytes:
                raise VerifyError(f"{at(op)}: its matrices lie in rows of {family.row_bytes} bytes")
        rows, columns = op.result.tile.shape
        dtypes = [buffer.shared.dtype for buffer, _ in op.reads]
        if not self.target.multiplies(family, dtypes) or not all(family.has_columns(columns, dtype) for dtype in dtypes):
            raise VerifyError(f"{at(op)}: no instruction has {columns} columns of {' and '.join(map(str, dtypes))}")
        if op.result.layout != atom.accumulator(rows, columns, warps):
            raise VerifyError(f"{at(op)}: {op.result.layout} is no accumulator of {warps} warps")

    def check_tensor_copy(self, op: TensorCopy) -> None:
        problem = tma.problem(op.source.tensor, op.buffer.shared, op.sub_tiles)
        alloc = op.buffer.owner
        if problem is None and (not isinstance(alloc, SharedAlloc) or alloc.alignment % tma.ALIGNMENT):
            problem = f"its stages begin at multiples of {tma.ALIGNMENT} bytes"
        if problem is None and self.function.parameter_of(op.source).access is not Access.IN:
            problem = "its tensor is written"
        if problem is not None:
            raise VerifyError(f"{at(op)}: {problem}")

    def check_tensor_store(self, op: ScratchStoreRows | TensorStore, warps: int) -> None:
        alloc = (op.operands[0] if isinstance(op, ScratchStoreRows) else op.scratch).owner
        has_maps = any(self.target.has(family) for family in STORES[TMA])
        if not has_maps or not isinstance(alloc, SharedAlloc) or alloc.alignment % tma.ALIGNMENT:
            raise VerifyError(f"{at(op)}: on {self.target}, from scratch that begins at no multiple of {tma.ALIGNMENT} bytes")
        if isinstance(op, ScratchStoreRows) and not tensor_stores.is_accumulated(op.tile, warps):
            raise VerifyError(f"{at(op)}: {op.tile.layout} is no accumulator of {warps} warps")
        if isinstance(op, TensorStore) and self.function.parameter_of(op.target).access is not Access.OUT:
            raise VerifyError(f"{at(op)}: its tensor is read too")

    def readers(self, op: Roles) -> None:
        """Check that an mbarrier ring's arrival count equals the warps that read it: of all roles together, or of each consumer
        if consumers read round-robin."""
        rings = dict.fromkeys(
            inner.ring
            for inner in (inner for region in op.regions for inner in region.walk())
            if isinstance(inner, RingOp) and len(inner.operands) > 1
        )
        for ring in rings:
            alloc = ring.owner
            assert isinstance(alloc, Ring)
            reader_warps = [
                count
                for count, region in zip(op.warps, op.regions, strict=True)
                if any(
                    isinstance(inner, Wait | Release | ReleaseMma | OrderOp) and inner.ring is ring for inner in region.walk()
                )
            ]
            indices = [
                {inner.consumer for inner in region.walk() if isinstance(inner, OrderOp) and inner.ring is ring}
                for region in op.regions
            ]
            if alloc.consumer_roles > 1 and sorted(map(sorted, filter(None, indices))) != [
                [index] for index in range(alloc.consumer_roles)
            ]:
                raise VerifyError(f"{at(alloc)}: {alloc.consumer_roles} roles take turns, each with its own index")
            if alloc.consumer_roles > 1 and len(reader_warps) != alloc.consumer_roles:
                raise VerifyError(f"{at(alloc)}: {alloc.consumer_roles} roles take turns, and {len(reader_warps)} read it")
            blocks = PAIR if isinstance(alloc, PairRing) and alloc.producers == 1 else 1  # the leader alone reads operands
            for warps in reader_warps if alloc.consumer_roles > 1 else [blocks * sum(reader_warps)]:
                if alloc.readers != warps:
                    raise VerifyError(f"{at(alloc)}: a stage is free after {alloc.readers} warps, and {warps} read it")

    def roles(self, op: Roles) -> None:
        if op not in self.function.body.ops:
            raise VerifyError(f"{at(op)}: roles stand in no loop and no branch")
        if len(op.regions) > MAX_ROLES:
            raise VerifyError(f"{at(op)}: a block has barriers for {MAX_ROLES} roles")
        self.readers(op)
        registers = sum(32 * warps * registers for warps, registers in zip(op.warps, op.registers, strict=True))
        if any(op.registers) and (not self.target.reallocates_registers or registers > REGISTERS):
            raise VerifyError(f"{at(op)}: {registers} registers; a multiprocessor has {REGISTERS}")
        touches_of_roles = [
            [touch for inner in region.walk() if inner in self.touches for touch in self.touches[inner].made]
            for region in op.regions
        ]
        for touched, other_touched in combinations(touches_of_roles, 2):
            for touch in touched:
                for other_touch in other_touched:
                    if (
                        may_conflict(touch, other_touch)
                        and self.is_live(touch, other_touch)
                        and self.is_live(other_touch, touch)
                    ):
                        raise VerifyError(f"{at(op)}: nothing orders {at(touch.op)} and {at(other_touch.op)} of two roles")

    def is_live(self, touch: Touch, other: Touch) -> bool:
        """Whether the allocation that `touch` accesses is live at `other`. After its `shared_free` its bytes may be reused;
        `ring_check` checks that the free comes after all copies into it."""
        memory = touch.memory.owner if touch.memory is not None and touch.is_shared else None
        return memory is None or memory in self.live[other.op]


def _one_thread_holds(op: Op, value: Value) -> bool:
    """Whether one thread alone has the whole of a value: a scalar, one element that it loads, or what is elsewhere."""
    return not value.tile.rank or _is_elsewhere(value) or (isinstance(op, Load | Reshape) and value.tile.size == 1)


def _is_elsewhere(value: Value) -> bool:
    """Whether a tile is in no registers, so that one thread can name it."""
    return value.layout is not None and value.layout.space is not MemorySpace.REGISTERS


def _stays_in_threads(value: Value, layout: Layout | None) -> bool:
    """Whether every thread can make its elements of a tile in a layout from its own registers."""
    if layout is None or value.layout is None:
        return False
    is_kept = is_uniform(value) or moves_space(value.layout, layout) or renamed(value.layout, layout) is not None
    return is_kept or is_chosen(value, layout)
