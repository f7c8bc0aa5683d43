"""Tiles of products go to their tensor through shared memory, by copies that one thread starts through a map of the tensor.

In: a function with layouts, whose one `store` takes what groups of four warps have accumulated. Out: that store taken apart
(`tilec.ir.ops_stores`), a part of the tile's columns after the other. With as many pieces of scratch as the tile has parts:

    wait_stores          where the block has stored a tile before
    put_rows ...         all parts
    proxy_fence
    tensor_store ...     one for each

With fewer, half of them are written while copies read the others. `meetings` lets the threads meet in front of what is put and
of what is stored. A block waits for the last stores in the end; where it takes several tiles, those of a tile run while the
next is multiplied. Elements outside of the tensor are not written: a map is of the whole tensor and of nothing beside it.
"""

from __future__ import annotations

from typing import Final

from tilec.atoms import tma, wgmma
from tilec.ir.core import Access, Block, Effect, Function, Value
from tilec.ir.layout import Digit, Layout
from tilec.ir.ops import For, MemoryOp, Store
from tilec.ir.ops_staging import SharedAlloc
from tilec.ir.ops_stores import ELEMENT_BYTES, PutRows, TensorStore, WaitStores
from tilec.ir.ops_sync import ProxyFence
from tilec.ir.shared_plan import taken_bytes
from tilec.ir.tensor_maps import MAP_ELEMENTS, MAP_SWIZZLES, MAX_BOX
from tilec.ir.types import ScratchType, TileType, i32
from tilec.passes.schedule.persistent import tile_loop
from tilec.passes.schedule.staged_products import Emitter
from tilec.target import Target

LEAST: Final = 2
"""Pieces of scratch for a tile of several parts: one is written while another is read."""
WRITES: Final = (Effect.WRITE, Effect.ATOMIC)
VECTOR: Final = 16
"""Bytes that the tensor's base and rows are multiples of."""


def problem(function: Function) -> str | None:
    """Why the results cannot go through a tensor map; None where they can. The function has layouts."""
    writes = [op for op in function.body.walk() if isinstance(op, MemoryOp) and op.effect in WRITES]
    if len(writes) != 1 or not isinstance(writes[0], Store):
        return f"it writes memory in {len(writes)} places; a single `store` of a whole tile goes through a tensor map"
    store, type_ = writes[0], writes[0].tile.tile
    name, parameter = store.target.name, function.parameter_of(store.target)
    if store not in _home(function).ops:
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
        return "its threads do not hold the tile as a product of `wgmma` leaves it"
    if any(value.type != TileType(i32) for value in store.offsets):
        return f"`{name}`: an index is no i32"
    return None


def parts_of(columns: int) -> tuple[tuple[int, int], ...]:
    """First column and number of columns of each part: the widest rows that a map has, narrower ones behind them; nothing
    where rows cannot be cut so."""
    found: list[tuple[int, int]] = []
    first = 0
    for width in (span // ELEMENT_BYTES for span in reversed(MAP_SWIZZLES)):
        while columns - first >= width:
            found.append((first, width))
            first += width
    return tuple(found) if first == columns else ()


def is_accumulated(tile: Value, warps: int) -> bool:
    """Whether threads hold a matrix as the accumulator of a product of warpgroups."""
    rows, columns = tile.tile.shape
    if tile.layout is None or warps % 4 or rows % (wgmma.GROUP_M * (warps // 4)):
        return False
    return _plain(tile.layout) == _plain(wgmma.group_accumulator(rows, columns, warps))


def _plain(layout: Layout) -> tuple[tuple[Digit, ...], ...]:
    digits = layout.registers, layout.lanes, layout.warps
    return tuple(tuple(digit for digit in group if digit.extent > 1) for group in digits)


def insert(function: Function, target: Target, takers: int) -> Function:
    """Take the store apart, in place; `takers` are roles that store tiles in turns, from scratch of their own each."""
    home = _home(function)
    (store,) = [op for op in home.ops if isinstance(op, Store)]
    tiles = tile_loop(function)
    rows, columns = store.tile.tile.shape
    parts = parts_of(columns)
    # In front of the loop over tiles, since what a tile stores is read while the next is made.
    before, after = Emitter(), Emitter()
    offset = _aligned(taken_bytes(function)[store if tiles is None else tiles])
    room = (target.max_shared_bytes - offset) // takers
    for size in _pieces([_aligned(rows * width * ELEMENT_BYTES) for _, width in parts], room):
        before.add(SharedAlloc(offset=offset, alignment=tma.ALIGNMENT, loc=store.loc), ScratchType(size))
        offset += size
    scratch = [op.result for op in before.ops]
    stored = _stored(store, parts, scratch, again=tiles is not None)
    after.add(WaitStores(operands=scratch, complete=True, loc=store.loc))
    place = home.ops.index(store)
    home.ops[place : place + 1] = [*(before.ops if tiles is None else []), *stored.ops, *(after.ops if tiles is None else [])]
    if tiles is not None:
        place = function.body.ops.index(tiles)
        function.body.ops[place : place + 1] = [*before.ops, tiles, *after.ops]
    return function


def _pieces(parts: list[int], room: int) -> list[int]:
    """Bytes of the pieces of scratch for parts of so many bytes: as many as have room, each for every so many-th part."""
    least = min(LEAST, len(parts))
    for count in range(len(parts), least - 1, -1):
        pieces = [max(parts[number::count]) for number in range(count)]
        if count == least or sum(pieces) <= room:
            return pieces
    raise AssertionError(parts)


def _stored(store: Store, parts: tuple[tuple[int, int], ...], scratch: list[Value], *, again: bool) -> Emitter:
    """The parts, so many at once as have scratch that no copy needs to have left just before; `again`: another tile was
    stored from there."""
    out, count = Emitter(), len(scratch)
    each = count if count == len(parts) else max(1, count // LEAST)
    rows = store.tile.tile.shape[0]
    for first in range(0, len(parts), each):
        numbers = range(first, min(first + each, len(parts)))
        used = [scratch[number % count] for number in numbers]
        pending = _pending(numbers, len(parts), count, again)
        if pending is not None:
            out.add(WaitStores(operands=used, pending=pending, loc=store.loc))
        for number, place in zip(numbers, used, strict=True):
            column, columns = parts[number]
            out.add(PutRows(operands=[place, store.tile], column=column, columns=columns, loc=store.loc))
        out.add(ProxyFence(loc=store.loc))
        for number, place in zip(numbers, used, strict=True):
            column, columns = parts[number]
            operands = [store.target, place, *store.offsets]
            out.add(TensorStore(operands=operands, rows=rows, columns=columns, column=column, loc=store.loc))
    return out


def _pending(numbers: range, parts: int, scratch: int, again: bool) -> int | None:
    """How many stores may be unfinished when these parts are put, each in the scratch of its number modulo theirs: those behind
    the newest that reads one of their places. None where nothing was stored from there."""
    newest: list[int] = []
    for number in numbers:
        if number >= scratch:
            newest.append(number - scratch)
        elif again:
            newest.append(max(range(number, parts, scratch)) - parts)
    return numbers[0] - 1 - max(newest) if newest else None


def _home(function: Function) -> Block:
    """Where what a block does with a tile stands."""
    tiles: For | None = tile_loop(function)
    return function.body if tiles is None else tiles.regions[0]


def _aligned(offset: int) -> int:
    return -(-offset // tma.ALIGNMENT) * tma.ALIGNMENT
