"""Blocks that take tile after tile: fewer run than the grid has, as many as the chip holds at once, and each does the work of
several. What one does between two tiles then hides behind its copies for the next, and no block has to come and go.

In: a function of a grid of one axis. Out: the same, in which all that follows from the block's place stands in a loop:

    turns = (grid_extent - 1 - block_id) // launched_blocks + 1
    for turn in range(turns):
        tile = block_id + turn * launched_blocks
        what the block of number `tile` does

With b blocks the pairs (block, turn) are the numbers block + turn * b below the grid's extent, each once: every tile has one
block, however many run. No step leaves i32: the extent is from 1 to 2^31 - 1 by the launch contract, and the block's place is
below it, so `turns` is from 1 to the extent; of a turn that runs, `turn * launched_blocks` is at most `extent - 1 - block_id`,
and the tile is below the extent. Ranges do not tell quotients apart, so these two are noted as proven here; `tile_check` holds
that they have this form.
"""

from __future__ import annotations

from tilec.ir.core import Block, Function, Op, Value
from tilec.ir.ops import BlockId, For, NumBlocks, Yield
from tilec.ir.ops_launch import GridExtent, LaunchedBlocks, WaitPrior
from tilec.ir.types import TileType, i32
from tilec.passes.schedule.staged_products import Emitter
from tilec.passes.schedule.wait_prior import launch_values


def problem(function: Function) -> str | None:
    """Why the kernel's blocks cannot take tile after tile; None where they can."""
    axes = len(function.grid)
    return None if axes == 1 else f"persistent blocks of a grid of {axes} axes; they go through one axis"


def wrap(function: Function) -> Function:
    """Put the loop around, in place."""
    early = launch_values(function)
    of_tile: set[Value] = set()
    front: list[Op] = []
    inside: list[Op] = []
    ids = [op.result for op in function.body.walk() if isinstance(op, BlockId)]
    _rename(function.body)
    of_tile.update(ids)
    for op in function.body.ops:
        if isinstance(op, WaitPrior) or (op.results and set(op.results) <= early and of_tile.isdisjoint(op.operands)):
            front.append(op)
        else:
            of_tile.update(op.results)
            inside.append(op)
    setup, head, body = Emitter(), Emitter(), Block()
    turn = body.add_argument(TileType(i32), "turn")
    first, blocks = setup.add(BlockId(axis=0), TileType(i32)), setup.add(LaunchedBlocks(), TileType(i32))
    last = setup.binary("sub", setup.add(GridExtent(axis=0), TileType(i32)), setup.number(1))
    others = setup.binary("floordiv", setup.binary("sub", last, first), blocks)
    turns = setup.binary("add", others, setup.number(1))
    before = head.binary("mul", turn, blocks)
    tile = head.binary("add", first, before)
    tile.name = "tile"
    before.fits = tile.fits = True
    body.ops = [*head.ops, *inside, Yield()]
    names = dict.fromkeys(ids, tile)
    for op in body.walk():
        op.operands = [names.get(value, value) for value in op.operands]
    loop = For(operands=[setup.number(0), turns, setup.number(1)], regions=[body], variable="turn", loc=function.loc)
    waits = [op for op in front if isinstance(op, WaitPrior)]
    function.body.ops = [*(op for op in front if op not in waits), *setup.ops, *waits, loop]
    return function


def tile_loop(function: Function) -> For | None:
    """The loop that `wrap` put around; None where blocks take one tile."""
    if not any(isinstance(op, LaunchedBlocks) for op in function.body.ops):
        return None
    (loop,) = [op for op in function.body.ops if isinstance(op, For)]
    return loop


def tile_values(function: Function) -> set[Value]:
    """Scalars that follow from launch values and the block's tile alone."""
    known, loop = launch_values(function), tile_loop(function)
    return known if loop is None else launch_values(function, loop.regions[0], known | {loop.regions[0].arguments[0]})


def _rename(block: Block) -> None:
    """What the text calls the number of blocks is that of tiles; which tile it is, is told elsewhere."""
    block.ops = [_extent_of(op) if isinstance(op, NumBlocks) else op for op in block.ops if not isinstance(op, BlockId)]
    for op in block.ops:
        for region in op.regions:
            _rename(region)


def _extent_of(op: NumBlocks) -> GridExtent:
    extent = GridExtent(axis=op.axis, results=op.results, loc=op.loc)
    extent.result.owner = extent
    return extent
