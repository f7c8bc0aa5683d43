"""Epilogue by TMA: stores accumulators to their tensor through shared memory.

In: a function with layouts, whose only `store` writes a tile as `stmatrix` stores it. Out: that store split into column parts
(`tilec.ir.ops.store_ops`). With one scratch buffer for each part:

    wait_stores          if the block has stored a tile before
    scratch_store_rows ...         all parts, into shared memory
    proxy_fence
    tensor_store ...     one for each part

With fewer buffers, half of them are written while TMA stores read the others. `barrier_insertion` inserts the barriers before
`scratch_store_rows` and `tensor_store`. The kernel ends with a wait for all stores; in a persistent block, a tile's stores
overlap the next tile's MMAs. TMA does not write out-of-bounds elements, because the tensor map covers exactly the tensor.
"""

from __future__ import annotations

from typing import Final

from tilec.atoms import stmatrix, tma
from tilec.ir.core import Access, Block, Effect, Function, Value
from tilec.ir.facts.tensor_maps import MAP_ELEMENTS, MAP_SWIZZLES, MAX_BOX
from tilec.ir.layouts.shared_plan import taken_bytes
from tilec.ir.ops import For, MemoryOp, Store
from tilec.ir.ops.staging_ops import SharedAlloc
from tilec.ir.ops.store_ops import ELEMENT_BYTES, ScratchStoreRows, TensorStore, WaitStores
from tilec.ir.ops.sync_ops import ProxyFence
from tilec.ir.types import ScratchType, TileType, i32
from tilec.passes.schedule.pipelining.staged_products import Emitter
from tilec.passes.schedule.specialization.persistent import tile_loop
from tilec.target.families import TMA
from tilec.target.schedule import STORES
from tilec.target.targets import Target

MIN_BUFFERS: Final = 2
"""Minimum scratch buffers for a tile of several parts: one is written while another is read."""
WRITES: Final = (Effect.WRITE, Effect.ATOMIC)
VECTOR: Final = 16
"""Required alignment of the tensor's base and rows in bytes."""


def problem(function: Function) -> str | None:
    """Why the result cannot be stored by TMA; None if it can. The function has layouts."""
    writes = [op for op in function.body.walk() if isinstance(op, MemoryOp) and op.effect in WRITES]
    if len(writes) != 1 or not isinstance(writes[0], Store):
        return f"it writes memory in {len(writes)} places; a single `store` of a whole tile goes through a tensor map"
    store, type_ = writes[0], writes[0].tile.tile
    name, parameter = store.target.name, function.parameter_of(store.target)
    if store not in _tile_block(function).ops:
        return "its store stands in a loop, or in a branch"
    if parameter.access is not Access.OUT or store.unsafe is not None:
        return f"`{name}` is not declared `Out`, or is written in an `unsafe` block"
    if type_.rank != 2 or type_.dtype.bytes != ELEMENT_BYTES or type_.dtype.name not in MAP_ELEMENTS:
        return f"a tile of {type_}; `stmatrix` lays down matrices of bf16 or f16"
    if store.vector < VECTOR:
        return f"`{name}`: rows or the base are known to be multiples of {store.vector} bytes, not {VECTOR}"
    if type_.shape[0] > MAX_BOX or not parts_of(type_.shape[1]):
        return f"tiles of {type_.shape[0]} x {type_.shape[1]}; a copy has up to {MAX_BOX} rows of a multiple of 16 columns"
    if not is_accumulated(store.tile, function.num_warps):
        names = " or ".join(f"`{family.name}`" for family in STORES[TMA])
        return f"its threads do not hold the tile as a product of {names} leaves it"
    if any(value.type != TileType(i32) for value in store.offsets):
        return f"`{name}`: an index is no i32"
    return None


def _divided(rows: int, columns: int, available: int) -> tuple[tuple[tuple[int, int], ...], list[int]]:
    """The parts of a tile and the sizes of their buffers: the widest parts whose buffers fit in `available` bytes, or the
    narrowest ones."""
    found: tuple[tuple[tuple[int, int], ...], list[int]] = (), []
    for widest in reversed(MAP_SWIZZLES):
        parts = parts_of(columns, widest)
        found = parts, _buffer_sizes([tma.aligned(rows * width * ELEMENT_BYTES) for _, width in parts], available)
        if sum(found[1]) <= available:
            break
    return found


def parts_of(columns: int, widest: int = MAP_SWIZZLES[-1]) -> tuple[tuple[int, int], ...]:
    """First column and column count of each part: swizzle spans of at most `widest` bytes, the widest first; empty if the
    columns cannot be split this way."""
    found: list[tuple[int, int]] = []
    first = 0
    for width in (span // ELEMENT_BYTES for span in reversed(MAP_SWIZZLES) if span <= widest):
        while columns - first >= width:
            found.append((first, width))
            first += width
    return tuple(found) if first == columns else ()


def is_accumulated(tile: Value, warps: int) -> bool:
    """Whether `stmatrix` can store a matrix in its layout."""
    rows, columns = tile.tile.shape
    return tile.layout is not None and stmatrix.fits(tile.layout, rows, columns, warps)


def insert(function: Function, target: Target, consumers: int) -> Function:
    """Split the store, in place. `consumers`: consumers that process tiles round-robin, each with its own scratch."""
    block = _tile_block(function)
    (store,) = [op for op in block.ops if isinstance(op, Store)]
    tiles = tile_loop(function)
    rows, columns = store.tile.tile.shape
    # Before the tile loop, since TMA reads a tile's scratch while the next tile is computed.
    before, after = Emitter(), Emitter()
    offset = tma.aligned(taken_bytes(function)[store if tiles is None else tiles])
    available = (target.max_shared_bytes - offset) // consumers
    parts, sizes = _divided(rows, columns, available)
    for size in sizes:
        before.add(SharedAlloc(offset=offset, alignment=tma.ALIGNMENT, loc=store.loc), ScratchType(size))
        offset += size
    scratch = [op.result for op in before.ops]
    stored = _emit_stores(store, parts, scratch, reused=tiles is not None)
    after.add(WaitStores(operands=scratch, complete=True, loc=store.loc))
    index = block.ops.index(store)
    block.ops[index : index + 1] = [*(before.ops if tiles is None else []), *stored.ops, *(after.ops if tiles is None else [])]
    if tiles is not None:
        index = function.body.ops.index(tiles)
        function.body.ops[index : index + 1] = [*before.ops, tiles, *after.ops]
    return function


def _buffer_sizes(parts: list[int], available: int) -> list[int]:
    """Sizes in bytes of n scratch buffers: the largest n that fits in `available`, but at least `MIN_BUFFERS` or one for each
    part. Buffer i is for parts i, i + n, ..., whose sizes are in `parts`."""
    min_count = min(MIN_BUFFERS, len(parts))
    for count in range(len(parts), min_count - 1, -1):
        sizes = [max(parts[number::count]) for number in range(count)]
        if count == min_count or sum(sizes) <= available:
            return sizes
    raise AssertionError(parts)


def _emit_stores(store: Store, parts: tuple[tuple[int, int], ...], scratch: list[Value], *, reused: bool) -> Emitter:
    """The stores of all parts, grouped so that a group's buffers are not those of the group just stored. `reused`: the scratch
    also held an earlier tile."""
    out, count = Emitter(), len(scratch)
    group_size = count if count == len(parts) else max(1, count // MIN_BUFFERS)
    rows = store.tile.tile.shape[0]
    for first in range(0, len(parts), group_size):
        numbers = range(first, min(first + group_size, len(parts)))
        buffers = [scratch[number % count] for number in numbers]
        pending = _pending(numbers, len(parts), count, reused)
        if pending is not None:
            out.add(WaitStores(operands=buffers, pending=pending, loc=store.loc))
        for number, buffer in zip(numbers, buffers, strict=True):
            column, columns = parts[number]
            out.add(ScratchStoreRows(operands=[buffer, store.tile], column=column, columns=columns, loc=store.loc))
        out.add(ProxyFence(loc=store.loc))
        for number, buffer in zip(numbers, buffers, strict=True):
            column, columns = parts[number]
            operands = [store.target, buffer, *store.offsets]
            out.add(TensorStore(operands=operands, rows=rows, columns=columns, column=column, loc=store.loc))
    return out


def _pending(numbers: range, parts: int, scratch: int, reused: bool) -> int | None:
    """Maximum unfinished TMA stores before parts `numbers` are written; part i uses buffer i modulo `scratch`. It is the number
    of stores started after the newest one that reads one of their buffers; None if no earlier store reads them."""
    newest: list[int] = []
    for number in numbers:
        if number >= scratch:
            newest.append(number - scratch)
        elif reused:
            newest.append(max(range(number, parts, scratch)) - parts)
    return numbers[0] - 1 - max(newest) if newest else None


def _tile_block(function: Function) -> Block:
    """The block that has the operations on one tile: the tile loop's body, or the function's."""
    tiles: For | None = tile_loop(function)
    return function.body if tiles is None else tiles.regions[0]
