"""Persistent blocks: only as many are launched as are resident on the chip at once, and each processes several tiles. The
epilogue of a tile overlaps the copies for the next one, and no block launches in between.

In: a function with a one-dimensional grid. Out: the same, with everything that depends on the block index in a loop:

    turns = (grid_extent - 1 - block_id) // launched_blocks + 1
    for turn in range(turns):
        tile = block_id + turn * launched_blocks
        the work of block number `tile`

With b blocks, block + turn * b takes each value below the grid extent exactly once, so every tile has one block for any b. No
step leaves i32. The launch contract bounds the extent by 1 .. 2^31 - 1, and the block index is below it, so `turns` is 1 to the
extent. In an iteration that runs, `turn * launched_blocks` is at most `extent - 1 - block_id`, so the tile is below the extent.
Range analysis loses this relation through the division, so these two values are marked as proven; `persistent_check` checks
their form.
"""

from __future__ import annotations

from tilec.ir.core import Block, Function, Op, Value
from tilec.ir.ops import BlockId, For, NumBlocks, Yield
from tilec.ir.ops.launch_ops import DependencyWait, GridExtent, LaunchedBlocks
from tilec.ir.types import TileType, i32
from tilec.passes.schedule.launch_overlap.dependency_wait import block_values, launch_values
from tilec.passes.schedule.pipelining.staged_products import Emitter


def problem(function: Function) -> str | None:
    """Why the kernel's blocks cannot be persistent; None if they can."""
    axes = len(function.grid)
    return None if axes == 1 else f"persistent blocks of a grid of {axes} axes; they go through one axis"


def wrap(function: Function) -> Function:
    """Insert the tile loop, in place."""
    launch_scalars = launch_values(function)
    tile_dependent: set[Value] = set()
    before_loop: list[Op] = []
    inside: list[Op] = []
    ids = [op.result for op in function.body.walk() if isinstance(op, BlockId)]
    _replace_block_queries(function.body)
    tile_dependent.update(ids)
    for op in function.body.ops:
        if isinstance(op, DependencyWait) or (
            op.results and set(op.results) <= launch_scalars and tile_dependent.isdisjoint(op.operands)
        ):
            before_loop.append(op)
        else:
            tile_dependent.update(op.results)
            inside.append(op)
    setup, head, body = Emitter(), Emitter(), Block()
    iteration = body.add_argument(TileType(i32), "turn")
    first, blocks = setup.add(BlockId(axis=0), TileType(i32)), setup.add(LaunchedBlocks(), TileType(i32))
    last = setup.binary("sub", setup.add(GridExtent(axis=0), TileType(i32)), setup.number(1))
    further_iterations = setup.binary("floordiv", setup.binary("sub", last, first), blocks)
    iterations = setup.binary("add", further_iterations, setup.number(1))
    offset = head.binary("mul", iteration, blocks)
    tile = head.binary("add", first, offset)
    tile.name = "tile"
    offset.fits = tile.fits = True
    body.ops = [*head.ops, *inside, Yield()]
    mapping = dict.fromkeys(ids, tile)
    for op in body.walk():
        op.operands = [mapping.get(value, value) for value in op.operands]
    loop = For(operands=[setup.number(0), iterations, setup.number(1)], regions=[body], variable="turn", loc=function.loc)
    waits = [op for op in before_loop if isinstance(op, DependencyWait)]
    function.body.ops = [*(op for op in before_loop if op not in waits), *setup.ops, *waits, loop]
    return function


def tile_loop(function: Function) -> For | None:
    """The loop that `wrap` inserted; None if each block processes one tile."""
    if not any(isinstance(op, LaunchedBlocks) for op in function.body.ops):
        return None
    (loop,) = [op for op in function.body.ops if isinstance(op, For)]
    return loop


def tile_values(function: Function) -> set[Value]:
    """Scalars computed from launch values, the index of the block's tile, and elements that are loaded at such positions. In a
    tile loop each role loads them by itself, for each tile."""
    loop = tile_loop(function)
    if loop is None:
        return block_values(function)
    return block_values(function, loop.regions[0], launch_values(function) | {loop.regions[0].arguments[0]})


def _replace_block_queries(block: Block) -> None:
    """Replace `num_blocks` with `grid_extent`, since the kernel means the number of tiles; drop `block_id`, which the tile
    index replaces."""
    block.ops = [_extent_of(op) if isinstance(op, NumBlocks) else op for op in block.ops if not isinstance(op, BlockId)]
    for op in block.ops:
        for region in op.regions:
            _replace_block_queries(region)


def _extent_of(op: NumBlocks) -> GridExtent:
    extent = GridExtent(axis=op.axis, results=op.results, loc=op.loc)
    extent.result.owner = extent
    return extent
