"""Finds the loads that can be replaced by asynchronous copies into shared memory, ahead of the iteration whose `mma` uses
them."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tilec.ir.core import Block, Effect, Function, Op, Value
from tilec.ir.ops import For, Load, Mma, Permute, Reshape
from tilec.ir.ops.staging_ops import SUB_TILE_ROWS
from tilec.passes.analysis.divisibility import divisor, expr_divisor, promised_symbols
from tilec.passes.analysis.ranges import Range
from tilec.passes.schedule.launch_overlap.dependency_wait import is_element
from tilec.target.schedule import PAIR


@dataclass(eq=False, slots=True)
class Operand:
    """A load that is copied through shared memory, and that only MMAs read, as it is or transposed. `vector`: bytes per copy.
    `halved`: each block of a pair copies half of the rows."""

    load: Load
    vector: int
    whole: bool  # a row of the tensor is a multiple of `vector` bytes
    chain: list[Op]  # operations that compute the load's offsets from the loop variable, in program order
    buffer: Value | None = None
    halved: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the box in shared memory."""
        rows, columns = _matrix(self.load)
        return (rows // PAIR if self.halved else rows), columns

    @property
    def row_axis(self) -> int:
        """The tensor axis that the rows lie on, counted from the end."""
        return _row_axis(self.load)

    @property
    def sub_tiles(self) -> int:
        """Extent on the axis `gap` axes before `row_axis`: the box's rows are `sub_tiles` runs of consecutive tensor rows."""
        return self._all_sub_tiles // PAIR if self.halved and self._all_sub_tiles > 1 else self._all_sub_tiles

    @property
    def gap(self) -> int:
        """How many axes lie between sub-tiles and rows, and one."""
        wide = _wide(self.load)
        return wide[1] - wide[0] if len(wide) > 1 else 1

    @property
    def own_part(self) -> tuple[int, int]:
        """How far apart the halves of the blocks of a pair begin, on which axis, counted from the end: whole sub-tiles, or rows
        of a single one."""
        return (self.row_axis, self.shape[0]) if self._all_sub_tiles == 1 else (self.row_axis - self.gap, self.sub_tiles)

    @property
    def has_halves(self) -> bool:
        """Whether both blocks of a pair can copy equal parts of it."""
        return self._all_sub_tiles == 1 or self._all_sub_tiles % PAIR == 0

    @property
    def _all_sub_tiles(self) -> int:
        return _matrix(self.load)[0] // self.load.result.tile.shape[self.row_axis]


def _row_axis(load: Load) -> int:
    shape, wide = load.result.tile.shape, _wide(load)
    return (wide[-1] if wide else len(shape) - 2) - len(shape)


def _wide(load: Load) -> list[int]:
    """The axes of a load's rows that have several elements."""
    return [axis for axis, extent in enumerate(load.result.tile.shape[:-1]) if extent > 1]


def _matrix(load: Load) -> tuple[int, int]:
    """Rows and columns of a load as a matrix: all axes but the last are joined into rows."""
    *rows, columns = load.result.tile.shape
    return prod(rows), columns


def users_of(block: Block) -> dict[Value, list[Op]]:
    """The operations that use each value, nested regions included; one that uses it twice stands there twice."""
    users: dict[Value, list[Op]] = {}
    for op in block.walk():
        for operand in op.operands:
            users.setdefault(operand, []).append(op)
    return users


def staged_operand(
    function: Function,
    loop: For,
    value: Value,
    users: dict[Value, list[Op]],
    facts: dict[Value, Range],
    known: dict[Load, Operand],
) -> tuple[Operand | None, bool]:
    """`value` as an operand copied in each iteration, and whether it is read transposed; None if it is not a load of this
    iteration, or cannot be copied. One copy serves both: an operand may be either way round in shared memory."""
    found = _loaded(function, value)
    if found is None or found[0] not in loop.regions[0].ops:
        return None, False
    op, transposed = found
    if op in known:
        return known[op], transposed
    chain = _offset_chain(function, loop, op)
    operand = None if chain is None else _operand(function, op, users, facts, chain)
    if operand is not None:
        known[op] = operand
    return operand, transposed


def invariant_operand(
    function: Function, value: Value, users: dict[Value, list[Op]], facts: dict[Value, Range]
) -> Operand | None:  # fmt: skip
    """`value` as a loop-invariant operand that is copied once: a load in the function's body that only MMAs use; else None."""
    found = _loaded(function, value)
    if found is None or found[0] not in function.body.ops or found[1]:
        return None
    return _operand(function, found[0], users, facts, [])


def _loaded(function: Function, value: Value) -> tuple[Load, bool] | None:
    """The load that defines `value`, of rank 2 or more, and whether `value` is its transpose; None if there is no such load."""
    transposed, op = False, value.owner
    while isinstance(op, Permute | Reshape):
        if isinstance(op, Permute):
            if op.axes != (1, 0):
                return None
            transposed = not transposed
        elif without_units(op.result) != without_units(op.operands[0]) and not _joins_rows(op):
            return None  # a reshape may only drop unit axes or join the row axes
        op = op.operands[0].owner
    if not isinstance(op, Load) or op.pad not in (None, 0.0):
        return None
    if is_written_before(function, op):
        return None  # copies would run ahead of stores that precede the load
    shape = op.result.tile.shape
    if len(shape) < 2:
        return None
    rows, columns = _matrix(op)
    return (op, transposed) if value.tile.shape == ((columns, rows) if transposed else (rows, columns)) else None


def _operand(
    function: Function,
    op: Load,
    users: dict[Value, list[Op]],
    facts: dict[Value, Range],
    chain: list[Op],
) -> Operand | None:
    vector = _copy_vector(function, op, facts)
    if vector == 0 or not _feeds_mma_only(op.result, users):
        return None
    row_bytes = expr_divisor(op.source.tensor.dims[-1], promised_symbols(function)) * op.source.tensor.dtype.bytes
    return Operand(op, vector, row_bytes % vector == 0, chain)


def is_written(function: Function, tensor: Value) -> bool:
    """Whether anything in the kernel writes the tensor."""
    return any(op.effect in (Effect.WRITE, Effect.ATOMIC) and op.operands[0] is tensor for op in function.body.walk())


def _joins_rows(op: Reshape) -> bool:
    """Whether the reshape joins a load's rows, which lie on two axes, into the rows of a matrix."""
    load, shape = op.operands[0].owner, op.result.tile.shape
    if not isinstance(load, Load) or shape != _matrix(load):
        return False
    wide = _wide(load)
    return len(wide) == 2 and load.result.tile.shape[wide[1]] % SUB_TILE_ROWS == 0


def is_written_before(function: Function, load: Load) -> bool:
    """Whether the kernel may write the load's tensor before the load, or inside the same top-level loop, whose later iterations
    load again. For a load in a deeper loop or a branch: whether it writes the tensor at all, since copies are known to be
    complete only after a top-level loop."""
    for op in function.body.ops:
        inner = list(Block(ops=[op]).walk())
        if any(one.effect in (Effect.WRITE, Effect.ATOMIC) and one.operands[0] is load.source for one in inner):
            return True
        if load in inner:
            is_top_level = load is op or (isinstance(op, For) and load in op.regions[0].ops)
            return not is_top_level and is_written(function, load.source)
    return True


def without_units(value: Value) -> list[int]:
    return [extent for extent in value.tile.shape if extent > 1]


def _feeds_mma_only(value: Value, users: dict[Value, list[Op]]) -> bool:
    # Every user is checked, because the load is removed, and any other user would need the tile in registers.
    for user in users.get(value, []):
        if isinstance(user, Permute | Reshape):
            if not _feeds_mma_only(user.result, users):
                return False
        elif not isinstance(user, Mma) or value not in user.operands[:2]:
            return False
    return True


def _offset_chain(function: Function, loop: For, load: Load) -> list[Op] | None:
    """Operations of the body that compute the load's offsets, in order: arithmetic, and loads of one element of an `In` tensor,
    such as a page of a cache. They run again for copies ahead, only of iterations that the loop has. None if the offsets
    depend on other carried values or effects."""
    body = loop.regions[0]
    inside = {result: op for op in body.ops for result in op.results}
    needed: set[Op] = set()
    pending = list(load.offsets)
    while pending:
        value = pending.pop()
        if value in body.arguments[1:]:
            return None
        op = inside.get(value)
        if op is None or op in needed:
            continue
        if op.regions or (op.effect is not Effect.NONE and not is_element(function, op)):
            return None
        needed.add(op)
        pending.extend(op.operands)
    return [op for op in body.ops if op in needed]


def _copy_vector(function: Function, load: Load, facts: dict[Value, Range]) -> int:
    """Bytes per copy: the largest of 16, 8 and 4 to which every row address of the box is aligned; 0 if there is none."""
    tensor, symbols = load.source.tensor, promised_symbols(function)
    size = tensor.dtype.bytes
    strides = tensor.strides
    if strides is not None and strides[-1].constant != 1:
        return 0
    if load.result.tile.shape[-1] * size % 16:
        return 0
    if strides is None:
        # A row-major stride is a product of extents, so the last extent divides all of them.
        steps = [expr_divisor(tensor.dims[-1], symbols)]
    else:
        steps = [expr_divisor(stride, symbols) for stride in strides[:-1]]
    steps.append(divisor(facts[load.offsets[-1]]))
    for vector in (16, 8, 4):
        if tensor.align % vector == 0 and all(step * size % vector == 0 for step in steps):
            return vector
    return 0


def without_dead(ops: list[Op]) -> list[Op]:
    """Drop the loads that copies replaced, and operations that only these loads used."""
    used: set[Value] = set()
    kept: list[Op] = []
    for op in reversed(ops):
        removable = op.results and not op.regions and op.effect in (Effect.NONE, Effect.READ, Effect.SHARED)
        if removable and not any(result in used for result in op.results):
            continue
        kept.append(op)
        used.update(op.operands)
        for region in op.regions:
            used.update(value for inner in region.walk() for value in inner.operands)
    return kept[::-1]
