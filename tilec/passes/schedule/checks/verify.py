"""The verifier of scheduled functions: only instruction-by-instruction lowering remains, and the target can run the result.

In: the output of `tilec.passes.schedule.prepare`, or its text parsed back, and a target. Out: nothing, or a VerifyError that
names the operation. It first runs the structural verifier (`tilec.ir.verifier`), then checks:

- the target has the instruction families, warps, registers and shared memory that are used;
- live allocations of shared memory do not overlap, and have the alignment that their readers need;
- every operand has its operation's layout; only `put`, `take` and similar operations move elements between threads, and each
  `take` reads a matching `put`;
- all threads that a barrier counts reach it; roles share memory only through rings, whose release count equals the number of
  reading warps; TMA copies are issued by one thread, from tensors that a tensor map can describe;
- persistent blocks process every tile once (`persistent_check`), barriers prevent races (`barrier_check`), rings are correct
  (`ring_check`), and so are TMA stores (`store_check`).
"""

from __future__ import annotations

from itertools import combinations
from typing import Final

from tilec.atoms import tma, wgmma
from tilec.ir import verifier
from tilec.ir.core import Access, Block, Function, Op, Value, VerifyError
from tilec.ir.facts.touches import Touch, may_conflict, touches
from tilec.ir.layouts.exchange import exchange_bytes, is_uniform, renamed
from tilec.ir.layouts.layout import Layout
from tilec.ir.layouts.operand_layouts import operand_layouts, yielded_layouts
from tilec.ir.layouts.shared_plan import interval, live_shared, shared_bytes
from tilec.ir.ops import Permute, Reshape, Yield
from tilec.ir.ops.staging_ops import GroupProduct, Put, ReducePut, ReduceTake, Relayout, SharedAlloc, Take, TensorCopy
from tilec.ir.ops.store_ops import PutRows, TensorStore, WaitStores
from tilec.ir.ops.sync_ops import Acquire, Barrier, Release, Ring, RingOp, Roles, TurnOp, Wait
from tilec.ir.types import TileType
from tilec.passes.schedule.checks import barrier_check, persistent_check, ring_check, store_check
from tilec.passes.schedule.layouts import tensor_stores
from tilec.passes.schedule.layouts.shared_conversions import kept_layout
from tilec.target.schedule import MOST_WARPS
from tilec.target.targets import Target

GROUP_ALIGNMENT: Final = 1024
MOST_ROLES: Final = 15
"""A block has 16 hardware barriers, one of which synchronizes all its threads (PTX ISA, `barrier`)."""


def verify(function: Function, target: Target) -> None:
    """Raise VerifyError at the first broken rule."""
    verifier.verify(function)
    if not 1 <= function.num_warps <= MOST_WARPS:
        raise VerifyError(f"{function.name}: a block of {function.num_warps} warps")
    _check_shared(function, target)
    _Walk(function, target).block(function.body, function.num_warps, False, ())
    persistent_check.check(function)
    barrier_check.check(function)
    ring_check.check(function)
    store_check.check(function)


def _check_shared(function: Function, target: Target) -> None:
    size = shared_bytes(function)
    if size > target.max_shared_bytes:
        raise VerifyError(f"{function.name}: {size} bytes of shared memory; {target} has {target.max_shared_bytes}")
    for op, live in live_shared(function).items():
        if isinstance(op, SharedAlloc | Ring):
            first, last = interval(op)
            for other in live:
                begin, end = interval(other)
                if other is not op and first < end and begin < last:
                    raise VerifyError(f"{_at(op)} takes bytes of the {other.opcode} before it")


class _Walk:
    def __init__(self, function: Function, target: Target) -> None:
        self.function, self.target = function, target
        self.touches = touches(function)
        self.put: dict[Value, Op] = {}  # the last store into each scratch buffer
        self.live = live_shared(function)

    def block(self, block: Block, warps: int, alone: bool, yielded: tuple[Layout | None, ...]) -> None:
        """`alone`: one thread executes the block."""
        for op in block.ops:
            wanted = yielded if isinstance(op, Yield) else operand_layouts(op)
            for value, layout in zip(op.operands, wanted, strict=False):
                if layout is not None and value.layout is not None and value.layout != layout:
                    raise VerifyError(f"{_at(op)}: an operand is held as {value.layout} and taken as {layout}")
            self.op(op, warps)
            self.by_threads(op, alone)
            inner = op.warps if isinstance(op, Roles) else (warps,) * len(op.regions)
            by_one = op.alone if isinstance(op, Roles) else (alone,) * len(op.regions)
            for region, count, one in zip(op.regions, inner, by_one, strict=True):
                self.block(region, count, one, yielded_layouts(op))

    def by_threads(self, op: Op, alone: bool) -> None:
        """Check that an operation for one thread is executed by one, and an operation for all threads by all."""
        signals = (isinstance(op, RingOp) and len(op.operands) > 1) or isinstance(op, TensorCopy | TurnOp)
        if signals and alone != isinstance(op, Acquire | TensorCopy):
            raise VerifyError(f"{_at(op)} is for {'all threads of a role' if alone else 'one thread of a role'}")
        if alone and (
            isinstance(op, PutRows | TensorStore | WaitStores)
            or op.meets
            or any(isinstance(v.type, TileType) and v.type.rank for v in op.results)
            or isinstance(op, Roles)
        ):
            raise VerifyError(f"{_at(op)}: one thread of the role is here alone")

    def op(self, op: Op, warps: int) -> None:
        if exchange_bytes(op, warps * 32):
            raise VerifyError(f"{_at(op)} passes elements between threads by itself")
        match op:
            case Relayout():
                value, layout = op.operands[0], op.result.layout
                if layout is None or value.layout is None or not (is_uniform(value) or renamed(value.layout, layout)):
                    raise VerifyError(f"{_at(op)} renames no registers")
            case Reshape() | Permute():
                self.kept(op)
            case Put() | ReducePut():
                self.put[op.operands[0]] = op
            case Take() | ReduceTake():
                self.taken(op)
            case GroupProduct():
                self.group(op, warps)
            case TensorCopy():
                self.tensor_copy(op)
            case PutRows() | TensorStore():
                self.stored(op, warps)
            case Barrier():
                if op.scope == "cluster" or (op.scope == "role") != (warps != self.function.num_warps):
                    raise VerifyError(f"{_at(op)}: threads of the {op.scope} that are not all here")
            case Roles():
                self.roles(op)
            case _:
                pass

    def kept(self, op: Reshape | Permute) -> None:
        source, result = op.operands[0], op.result
        if source.layout is None or result.layout is None or is_uniform(source):
            return
        if kept_layout(op) != result.layout:
            raise VerifyError(f"{_at(op)} moves elements to other threads or registers")

    def taken(self, op: Take | ReduceTake) -> None:
        put = self.put.get(op.operands[0])
        if put is None or isinstance(op, Take) != isinstance(put, Put):
            raise VerifyError(f"{_at(op)} takes what was not put there")
        if isinstance(op, ReduceTake):
            if put.operands[1] is not op.operands[1] or put.attributes() != op.attributes():
                raise VerifyError(f"{_at(op)} takes another reduction than was put there")
        elif put.operands[1].tile.size != op.result.tile.size or put.operands[1].tile.dtype != op.result.tile.dtype:
            raise VerifyError(f"{_at(op)} takes another tile than was put there")

    def group(self, op: GroupProduct, warps: int) -> None:
        if "wgmma" not in self.target.families or warps % 4:
            raise VerifyError(f"{_at(op)}: {self.target} has no products of groups of {warps} warps")
        for buffer, _ in op.reads:
            made = buffer.owner
            if not isinstance(made, SharedAlloc) or made.alignment % GROUP_ALIGNMENT:
                raise VerifyError(f"{_at(op)}: its matrices begin at multiples of {GROUP_ALIGNMENT} bytes")
            if buffer.shared.width * buffer.shared.dtype.bytes != wgmma.GROUP_ROW_BYTES:
                raise VerifyError(f"{_at(op)}: its matrices lie in rows of {wgmma.GROUP_ROW_BYTES} bytes")
        rows, columns = op.result.tile.shape
        if op.result.layout != wgmma.group_accumulator(rows, columns, warps):
            raise VerifyError(f"{_at(op)}: {op.result.layout} is no accumulator of {warps} warps")

    def tensor_copy(self, op: TensorCopy) -> None:
        found = tma.problem(op.source.tensor, op.buffer.shared, op.slabs)
        made = op.buffer.owner
        if found is None and (not isinstance(made, SharedAlloc) or made.alignment % tma.ALIGNMENT):
            found = f"its stages begin at multiples of {tma.ALIGNMENT} bytes"
        if found is None and self.function.parameter_of(op.source).access is not Access.IN:
            found = "its tensor is written"
        if found is not None:
            raise VerifyError(f"{_at(op)}: {found}")

    def stored(self, op: PutRows | TensorStore, warps: int) -> None:
        made = (op.operands[0] if isinstance(op, PutRows) else op.scratch).owner
        if "wgmma" not in self.target.families or not isinstance(made, SharedAlloc) or made.alignment % tma.ALIGNMENT:
            raise VerifyError(f"{_at(op)}: on {self.target}, from scratch that begins at no multiple of {tma.ALIGNMENT} bytes")
        if isinstance(op, PutRows) and not tensor_stores.is_accumulated(op.tile, warps):
            raise VerifyError(f"{_at(op)}: {op.tile.layout} is no accumulator of {warps} warps")
        if isinstance(op, TensorStore) and self.function.parameter_of(op.target).access is not Access.OUT:
            raise VerifyError(f"{_at(op)}: its tensor is read too")

    def readers(self, op: Roles) -> None:
        """Check that an mbarrier ring's arrival count equals the warps that read it: of all roles together, or of each consumer
        if consumers read round-robin."""
        rings = dict.fromkeys(
            one.ring
            for one in (inner for region in op.regions for inner in region.walk())
            if isinstance(one, RingOp) and len(one.operands) > 1
        )
        for ring in rings:
            made = ring.owner
            assert isinstance(made, Ring)
            reading = [
                count
                for count, region in zip(op.warps, op.regions, strict=True)
                if any(isinstance(one, Wait | Release | TurnOp) and one.ring is ring for one in region.walk())
            ]
            places = [
                {one.place for one in region.walk() if isinstance(one, TurnOp) and one.ring is ring} for region in op.regions
            ]
            if made.takers > 1 and sorted(map(sorted, filter(None, places))) != [[place] for place in range(made.takers)]:
                raise VerifyError(f"{_at(made)}: {made.takers} roles take turns, each at its place")
            if made.takers > 1 and len(reading) != made.takers:
                raise VerifyError(f"{_at(made)}: {made.takers} roles take turns, and {len(reading)} read it")
            for warps in reading if made.takers > 1 else [sum(reading)]:
                if made.readers != warps:
                    raise VerifyError(f"{_at(made)}: a stage is free after {made.readers} warps, and {warps} read it")

    def roles(self, op: Roles) -> None:
        if op not in self.function.body.ops:
            raise VerifyError(f"{_at(op)}: roles stand in no loop and no branch")
        if len(op.regions) > MOST_ROLES:
            raise VerifyError(f"{_at(op)}: a block has barriers for {MOST_ROLES} roles")
        self.readers(op)
        given = sum(32 * warps * registers for warps, registers in zip(op.warps, op.registers, strict=True))
        if any(op.registers) and ("setmaxnreg" not in self.target.families or given > wgmma.REGISTERS_OF_BLOCKS):
            raise VerifyError(f"{_at(op)}: {given} registers; a multiprocessor has {wgmma.REGISTERS_OF_BLOCKS}")
        made = [
            [touch for inner in region.walk() if inner in self.touches for touch in self.touches[inner].made]
            for region in op.regions
        ]
        for one, other in combinations(made, 2):
            for touch in one:
                for met in other:
                    if may_conflict(touch, met) and self.is_there(touch, met) and self.is_there(met, touch):
                        raise VerifyError(f"{_at(op)}: nothing orders {_at(touch.op)} and {_at(met.op)} of two roles")

    def is_there(self, touch: Touch, other: Touch) -> bool:
        """Whether the allocation that `touch` accesses is live at `other`. After its `shared_free` its bytes may be reused;
        `ring_check` checks that the free comes after all copies into it."""
        memory = touch.memory.owner if touch.memory is not None and touch.is_shared else None
        return memory is None or memory in self.live[other.op]


def _at(op: Op) -> str:
    return f"{op.opcode}{f' at {op.loc}' if op.loc else ''}"
