"""Makes layout conversions explicit.

In: a function whose values have layouts. Out: the same with a `relayout` wherever an operand's layout is not what its
operation requires (`tilec.ir.layouts.operand_layouts`), so that lowering needs no conversions. A store requires the layout
that allows the widest vectors. Atomics on a box, and stores of permuted loads, require one in which adjacent threads have
adjacent vectors, if the tile's own makes a warp touch twice as many sectors of memory. Conversions of tiles that a loop does
not change precede the loop (`invariant_conversions`).
"""

from __future__ import annotations

from tilec.ir.core import Block, Function, Op, Value
from tilec.ir.layouts.blocked_layouts import natural, vector_length
from tilec.ir.layouts.coalescing import SECTOR, pieces
from tilec.ir.layouts.layout import Layout
from tilec.ir.layouts.operand_layouts import Layouts, operand_layouts, yielded_layouts
from tilec.ir.ops import AtomicUpdate, Broadcast, Cast, Constant, For, If, Load, Mma, Permute, Reshape, Scatter, Store
from tilec.ir.ops.staging_ops import GroupProduct, Relayout
from tilec.passes.schedule.layouts import invariant_conversions
from tilec.target.families import MemorySpace


def convert(function: Function) -> Function:
    """Insert the conversions, in place."""
    _block(function.body, function.num_warps, ())
    return invariant_conversions.hoist(function)


def _block(block: Block, warps: int, yielded: Layouts) -> None:
    """`yielded`: the layouts required of the operands of the block's `yield`."""
    ops: list[Op] = []
    for op in block.ops:
        for region in op.regions:
            _block(region, warps, yielded_layouts(op))
        required = yielded if op.opcode == "yield" else _required_layouts(op, warps)
        for index, layout in enumerate(required):
            value = op.operands[index]
            if layout is not None and value.layout is not None and value.layout != layout:
                op.operands[index] = _relayout(ops, value, layout, op)
        ops.append(op)
    block.ops = ops


def _relayout(ops: list[Op], value: Value, layout: Layout, user: Op) -> Value:
    """The value in a layout. Threads pass elements to each other in registers alone, and instructions of a family move each
    thread's elements between these and another memory space."""
    assert value.layout is not None
    registers = MemorySpace.REGISTERS
    for step in (value.layout.in_space(registers), layout.in_space(registers), layout):
        value = value if value.layout == step else _converted(ops, value, step, user)
    return value


def _converted(ops: list[Op], value: Value, layout: Layout, user: Op) -> Value:
    conversion = Relayout(operands=[value], loc=user.loc)
    conversion.define(value.tile)
    conversion.result.layout = layout
    ops.append(conversion)
    return conversion.result


def _required_layouts(op: Op, warps: int) -> Layouts:
    match op:
        case Store():
            return (None, _store_layout(op, warps))
        case Scatter():
            return _scatter_layouts(op)
        case AtomicUpdate():
            return (None, _atomic_layout(op, warps))
        case _:
            return operand_layouts(op)


def _atomic_layout(op: AtomicUpdate, warps: int) -> Layout | None:
    """The tile's own layout, or that of adjacent vectors, if its instructions touch half as many sectors or fewer."""
    layout = op.tile.layout
    if layout is None or not layout.lanes:
        return None
    return _adjacent(op.tile, layout, warps, op.vector // op.tile.tile.dtype.bytes if op.vector else 1)


def _adjacent(tile: Value, layout: Layout, warps: int, most: int) -> Layout:
    """The layout of adjacent vectors of at most `most` elements, if its accesses touch half as many sectors as those of the
    tile's own, or fewer; else that one."""
    adjacent, size = natural(tile.tile.shape, warps, most), tile.tile.dtype.bytes
    own, other = (pieces(one, size, most, SECTOR) for one in (layout, adjacent))
    return adjacent if own >= 2 * other else layout


def _store_layout(op: Store, warps: int) -> Layout | None:
    """The tile's own layout, or the natural one if that allows wider vectors (as for `mma` accumulators), or that of adjacent
    vectors for a permuted load. A small tile that a loop carried, or that follows from one, spread over all threads, stays so:
    fewer threads with wider vectors store no faster."""
    tile = op.tile
    if tile.layout is None:
        return None
    wider, max_elements = natural(tile.tile.shape, warps), op.vector // tile.tile.dtype.bytes
    is_carried = isinstance(_before_casts(tile).owner, For) or _is_carried(tile)
    if tile.layout.num_registers < wider.num_registers and is_carried:
        return tile.layout
    if vector_length(wider, max_elements) > vector_length(tile.layout, max_elements):
        return wider
    return _adjacent(tile, tile.layout, warps, max_elements) if _is_permuted_load(tile) else tile.layout


def _is_permuted_load(tile: Value) -> bool:
    """Whether a tile is loaded and permuted, and no more. Products store what they compute without another wait."""
    permuted = _before_casts(tile).owner
    return isinstance(permuted, Permute) and isinstance(_before_casts(permuted.operands[0]).owner, Load)


def _scatter_layouts(op: Scatter) -> Layouts:
    """That of the positions, if it allows wider vectors than the tile's own: the tile then passes between threads, and not the
    positions, which have more bytes."""
    layouts = {position.layout for position in op.indices}
    layout = next(iter(layouts))
    if op.tile.layout is None or layout is None or len(layouts) > 1:
        return operand_layouts(op)
    wider = op.vector // op.tile.tile.dtype.bytes
    if vector_length(layout, wider) <= vector_length(op.tile.layout, wider):
        return operand_layouts(op)
    return (None, *[layout] * (len(op.operands) - 1))


def _is_carried(value: Value) -> bool:
    """Whether a tile is the result of a loop without products, or is computed from one with scalars alone."""
    while True:
        value = _before_casts(value)
        owner = value.owner
        if isinstance(owner, For):
            return not any(isinstance(op, Mma | GroupProduct) for op in owner.regions[0].walk())
        if isinstance(owner, If):
            value = owner.regions[0].ops[-1].operands[owner.results.index(value)]
            continue
        tiles = [one for one in owner.operands if not _is_uniform(one)] if isinstance(owner, Op) and owner.elementwise else []
        if len(tiles) != 1:
            return False
        value = tiles[0]


def _is_uniform(value: Value) -> bool:
    repeats = isinstance(value.owner, Broadcast) and not value.owner.operands[0].tile.rank
    return not value.tile.rank or isinstance(value.owner, Constant) or repeats


def _before_casts(value: Value) -> Value:
    while isinstance(value.owner, Cast | Reshape):
        value = value.owner.operands[0]
    return value
