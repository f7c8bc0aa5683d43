"""Lowers layout conversions and cross-thread reductions to stores to and loads from shared memory.

In: a function with layouts and explicit conversions. Out: the same, in which no `relayout`, `reshape`, `permute` or `reduce`
reads another thread's elements, no `butterfly` another warp's, and no `take` any. Each one that did becomes

    scratch = shared_alloc       at an offset past all live allocations
    put scratch, tile            every thread stores its elements
    tile = take scratch          every thread loads the elements that it needs
    shared_free scratch

and `barrier_insertion` inserts the barriers. `reshape` and `permute` keep every element in its thread, and a `relayout` after
them moves it; a reshape goes through scratch itself only if no layout of its result keeps the elements in place. Any remaining
`relayout` only renames registers. The old values of an atomic, which one thread executes for each element, go through scratch
to the other threads that have the element.
"""

from __future__ import annotations

from tilec.ir.core import Block, Function, Op, Value
from tilec.ir.layouts.blocked_layouts import reshaped, row_major, with_axes
from tilec.ir.layouts.conversion_scratch import Steps, conversion_bytes, conversion_steps, is_shared, is_uniform
from tilec.ir.layouts.layout import Layout
from tilec.ir.layouts.shared_plan import scratch_offset, taken_bytes
from tilec.ir.ops import AtomicScatter, Butterfly, Constant, Permute, Reduce, Reshape, Take
from tilec.ir.ops.butterfly_ops import ButterflyLoad, ButterflyStore
from tilec.ir.ops.reduction_ops import ReduceCombine, ReduceStore
from tilec.ir.ops.staging_ops import (
    Relayout,
    ScratchLoad,
    ScratchStore,
    ScratchStoreOwned,
    SharedAlloc,
)
from tilec.ir.ops.sync_ops import SharedFree
from tilec.ir.ops.take_ops import TakeLoad
from tilec.ir.types import ScratchType


def make_shared(function: Function) -> Function:
    """Lower the operations, in place."""
    _insert_conversions(function.body)
    _block(function.body, taken_bytes(function), function.num_warps * 32)
    return function


def kept_layout(op: Reshape | Permute) -> Layout | None:
    """The result layout that keeps every element in its thread and register; None if there is none."""
    source, tile = op.operands[0], op.result.tile
    assert source.layout is not None
    if isinstance(op, Permute):
        return with_axes(source.layout, {old: new for new, old in enumerate(op.axes)}, tile.rank)
    return reshaped(source.layout, source.tile.shape, tile.shape)


def _insert_conversions(block: Block) -> None:
    """Insert a `relayout` after every reshape and permutation that moves elements between threads or registers."""
    ops: list[Op] = []
    for op in block.ops:
        for region in op.regions:
            _insert_conversions(region)
        ops.append(op)
        if not isinstance(op, Reshape | Permute) or op.operands[0].layout is None or op.result.layout is None:
            continue
        if isinstance(op.operands[0].owner, Constant):
            continue  # every thread can compute any element of it
        layout = kept_layout(op)
        if layout is not None and layout != op.result.layout:
            result = op.result
            op.results = [Value(result.type, result.name, op, layout)]
            ops.append(Relayout(operands=[op.result], results=[result], loc=op.loc))
            result.owner = ops[-1]
    block.ops = ops


def _block(block: Block, used_bytes: dict[Op, int], threads: int) -> None:
    ops: list[Op] = []
    for op in block.ops:
        for region in op.regions:
            _block(region, used_bytes, threads)
        if isinstance(op, AtomicScatter) and is_shared(op):
            ops += _given_to_all(op, scratch_offset(used_bytes.get(op, 0)))
            continue
        size = conversion_bytes(op, threads)
        ops += _stores_and_loads(op, size, scratch_offset(used_bytes.get(op, 0))) if size else [op]
    block.ops = ops


def _stores_and_loads(op: Op, size: int, offset: int) -> list[Op]:
    alloc = SharedAlloc(offset=offset, loc=op.loc)
    alloc.define(ScratchType(size))
    scratch, source, result = alloc.result, op.operands[0], op.result
    if isinstance(op, Reduce):
        store: Op = ReduceStore(operands=[scratch, source], kind=op.kind, axis=op.axis, loc=op.loc)
        load: Op = ReduceCombine(operands=[scratch, source], kind=op.kind, axis=op.axis, loc=op.loc)
    elif isinstance(op, Butterfly):
        store = ButterflyStore(operands=[scratch, source], loc=op.loc)
        load = ButterflyLoad(operands=[scratch], axis=op.axis, mask=op.mask, loc=op.loc)
    elif isinstance(op, Take):
        shape = source.tile.shape
        store = ScratchStore(operands=[scratch, source], steps=row_major(shape), loc=op.loc)
        load = TakeLoad(operands=[scratch, op.operands[1]], axis=op.axis, source=shape, loc=op.loc)
    else:
        before, after = _steps(op)
        store = ScratchStore(operands=[scratch, source], steps=before, loc=op.loc)
        load = ScratchLoad(operands=[scratch], steps=after, loc=op.loc)
    load.results = [result]
    result.owner = load
    return [alloc, store, load, SharedFree(operands=[scratch], loc=op.loc)]


def _given_to_all(op: AtomicScatter, offset: int) -> list[Op]:
    """An atomic whose old values go from the thread that executed it to all that have the element."""
    (result,) = op.results
    alloc = SharedAlloc(offset=offset, loc=op.loc)
    alloc.define(ScratchType(result.tile.dtype.bytes_of(result.tile.size)))
    op.results = [Value(result.type, result.name, op, result.layout)]
    steps = row_major(result.tile.shape)
    store = ScratchStoreOwned(operands=[alloc.result, op.result], steps=steps, loc=op.loc)
    load = ScratchLoad(operands=[alloc.result], steps=steps, loc=op.loc, results=[result])
    result.owner = load
    return [op, alloc, store, load, SharedFree(operands=[alloc.result], loc=op.loc)]


def _steps(op: Op) -> tuple[Steps, Steps]:
    source, result = op.operands[0], op.result
    if isinstance(op, Relayout):
        assert source.layout is not None and result.layout is not None and not is_uniform(source)
        steps = conversion_steps(source.tile, source.layout, result.layout)
        return steps, steps
    return row_major(source.tile.shape), row_major(result.tile.shape)
