"""Memory access words: `load`, `store`, `gather`, `scatter`, atomics. Tile indices are converted to element offsets here."""

from __future__ import annotations

import ast
import math
from functools import partial
from typing import Final

from tilec.frontend import arithmetic, packed
from tilec.frontend.arguments import Call, Missing
from tilec.frontend.emitter import At, Term, as_float, canonical, describe, number_of, refuse_codes, usable
from tilec.frontend.vocabulary import word
from tilec.ir import ops
from tilec.ir.core import Access, Value
from tilec.ir.packed import Codes
from tilec.ir.types import DType, TileType

_READABLE: Final = (Access.IN, Access.INOUT, Access.SCRATCH, Access.PEER)
_WRITABLE: Final = (Access.OUT, Access.INOUT, Access.SCRATCH)
_BY_TILE: Final = {
    "load": "read the elements at a tile of indices with `gather`",
    "store": "write the elements at a tile of indices with `scatter`",
    "atomic_add": "update one element after the other, at a scalar index",
    "atomic_max": "update one element after the other, at a scalar index",
    "atomic_min": "update one element after the other, at a scalar index",
}
"""Hints for an index that is a tile of integers."""


@word("load")
def load(call: Call) -> Term:
    """Reads a box, or one element if no shape is given."""
    tensor_term, index, offset, shape, pad = call.bind_optional("tensor index?", "offset? shape? pad?")
    assert not isinstance(tensor_term, Missing)
    tensor, _ = call.tensor(tensor_term, _READABLE, "read")
    rank = tensor.tensor.rank
    extents = (1,) * rank if isinstance(shape, Missing) else call.dims(shape)
    if len(extents) != rank:
        raise call.at.error("E0206", f"`{tensor.name}` has {rank} axes, the shape has {len(extents)}",
                     hint="give one extent per axis; use 1 for axes you index")  # fmt: skip
    if tensor.tensor.packed is not None:
        codes = packed.load(
            call, tensor, partial(_offsets, call, tensor, index, offset), extents, isinstance(offset, Missing), pad
        )
        return Codes(call.emitter.reshape(codes.value, (), call.at), codes.dtype) if isinstance(shape, Missing) else codes
    offsets = _offsets(call, tensor, index, offset, extents)
    op = ops.Load(pad=_pad(call, pad, tensor.tensor.dtype), unsafe=call.emitter.unsafe, operands=[tensor, *offsets])
    tile = call.emitter.emit(op, call.at, TileType(tensor.tensor.dtype, extents))[0]
    return call.emitter.reshape(tile, (), call.at) if isinstance(shape, Missing) else tile


@word("store")
def store(call: Call) -> Term:
    """Writes a tile to a box."""
    tensor, tile, offsets, mask = _write(call, _WRITABLE, "written")
    op = ops.Store(mask=mask, unsafe=call.emitter.unsafe, operands=[tensor, tile, *offsets])
    call.emitter.emit(op, call.at)
    return None


@word("atomic_add", "atomic_max", "atomic_min", "atomic_and", "atomic_or", "atomic_xor")
def atomic(call: Call) -> Term:
    """Combine a tile with a box of an `Atomic` tensor, or with its elements at positions, whose old values it gives."""
    if "at" in call.keywords:
        tensor, tile, at, mask = call.bind_optional("tensor tile", "at mask?")
        return _atomic_scatter(call, tensor, at, (tile,), mask)
    tensor, tile, offsets, mask = _write(call, (Access.ATOMIC,), "updated atomically")
    op = ops.AtomicUpdate(kind=_atomic_kind(call, tensor), mask=mask, unsafe=call.emitter.unsafe,
                          operands=[tensor, tile, *offsets])  # fmt: skip
    call.emitter.emit(op, call.at)
    return None


@word("atomic_exchange")
def atomic_exchange(call: Call) -> Term:
    """Put values at positions of an `Atomic` tensor; the old ones."""
    tensor, tile, at, mask = call.bind_optional("tensor tile", "at mask?")
    return _atomic_scatter(call, tensor, at, (tile,), mask)


@word("atomic_cas")
def atomic_cas(call: Call) -> Term:
    """Put values where an `Atomic` tensor has the compared ones; the old ones."""
    tensor, compare, tile, at, mask = call.bind_optional("tensor compare tile", "at mask?")
    return _atomic_scatter(call, tensor, at, (tile, compare), mask)


def _atomic_scatter(
    call: Call, tensor_term: Term | Missing, at: Term | Missing, given: tuple[Term | Missing, ...], mask: Term | Missing
) -> Term:
    """An atomic for each position of the tiles `at`, broadcast against each other and `given`; of scalars, a scalar."""
    assert not isinstance(tensor_term, Missing) and not isinstance(at, Missing)
    tensor, _ = call.tensor(tensor_term, (Access.ATOMIC,), "updated atomically")
    kind = _atomic_kind(call, tensor)
    terms = [term for term in given if not isinstance(term, Missing)]
    shape: tuple[int, ...] = ()
    for term in terms:
        if isinstance(term, Value):
            shape = arithmetic.common_shape(shape, _as_dtype(call, tensor, term).tile.shape, call.at)
    indices = _indices(call, tensor, at, shape)
    shape = indices[0].tile.shape
    if not shape:
        indices = [call.emitter.reshape(index, (1,), call.at) for index in indices]
    tiles = [_values_at(call, tensor, term, shape or (1,)) for term in terms]
    op = ops.AtomicScatter(kind=kind, mask=call.flag(mask, "mask"), unsafe=call.emitter.unsafe,
                           operands=[tensor, tiles[0], *indices, *tiles[1:]])  # fmt: skip
    old = call.emitter.emit(op, call.at, tiles[0].tile)[0]
    return old if shape else call.emitter.reshape(old, (), call.at)


def _atomic_kind(call: Call, tensor: Value) -> str:
    """The kind of a word's atomics, which the tensor's dtype has; E0201."""
    dtype = tensor.tensor.dtype
    kind = next(kind for kind in ops.ATOMICS["i32"] if ops.atomic_word(kind) == call.word)
    if kind not in ops.ATOMICS.get(dtype.name, ()):
        having = [name for name, kinds in ops.ATOMICS.items() if kind in kinds]
        hint = f"use {', '.join(having[:-1])} or {having[-1]}"
        raise call.location(0).error("E0201", f"`{call.word}` of {dtype} does not exist", hint=hint)
    return kind


def _values_at(call: Call, tensor: Value, term: Term, shape: tuple[int, ...]) -> Value:
    """Values for the positions of a tile of `shape`, with the tensor's dtype."""
    if isinstance(term, Value):
        return call.emitter.broadcast(_as_dtype(call, tensor, term), shape, call.at)
    return call.emitter.constant(number_of(term, call.at), TileType(tensor.tensor.dtype, shape), call.at)


def _write(call: Call, allowed: tuple[Access, ...], verb: str) -> tuple[Value, Value, list[Value], bool]:
    tensor_term, index, tile_term, offset, mask = call.bind_optional("tensor index? tile?", "offset? mask?")
    assert not isinstance(tensor_term, Missing)
    tensor, _ = call.tensor(tensor_term, allowed, verb)
    if isinstance(tile_term, Missing) and not isinstance(offset, Missing):
        # `store(out, tile, offset=...)`: the second argument is the tile.
        index, tile_term = tile_term, index
    if isinstance(tile_term, Missing):
        raise call.at.error("E0113", f"`{call.word}` needs a tile to write", hint=f"write `{call.word}(tensor, index, tile)`")
    if tensor.tensor.packed is not None:
        codes = packed.store_tile(call, tensor, tile_term)
        given = partial(_offsets, call, tensor, index, offset)
        return tensor, *packed.stored_bytes(call, tensor, codes, given, isinstance(offset, Missing)), call.flag(mask, "mask")
    refuse_codes(tile_term, call.at)
    tile = _tile_for(call, tensor, tile_term)
    return tensor, tile, _offsets(call, tensor, index, offset, tile.tile.shape), call.flag(mask, "mask")


def _tile_for(call: Call, tensor: Value, term: Term) -> Value:
    """The tile to write, with the tensor's dtype and rank; a scalar writes one element; E0201, E0206."""
    dtype, rank = tensor.tensor.dtype, tensor.tensor.rank
    ones = (1,) * rank
    if not isinstance(term, Value):
        return call.emitter.constant(number_of(term, call.at), TileType(dtype, ones), call.at)
    value = _as_dtype(call, tensor, term)
    if not value.tile.shape:
        return call.emitter.reshape(value, ones, call.at)
    if value.tile.rank != rank:
        raise call.at.error("E0206", f"`{tensor.name}` has {rank} axes, the tile has {value.tile.rank}",
                     hint="insert axes of extent 1 with `[None, :]`, or `reshape`")  # fmt: skip
    return value


def _as_dtype(call: Call, tensor: Value, term: Value) -> Value:
    dtype = tensor.tensor.dtype
    value = call.emitter.value(term, call.at)
    if value.tile.dtype == dtype:
        return value
    if call.emitter.host(value) is not None and (dtype.is_float or (dtype.kind == "i" and dtype.bits >= 32)):
        return call.emitter.cast(value, dtype, call.at)
    raise call.at.error("E0201", f"`{tensor.name}` holds {dtype}, the tile is {value.tile.dtype}",
                 label=f"{value.tile.dtype} written to {dtype}", hint=f"convert it with `.astype({dtype})`")  # fmt: skip


def _offsets(call: Call, tensor: Value, index: Term | Missing, offset: Term | Missing, extents: tuple[int, ...]) -> list[Value]:
    """Element offsets of a box, from a tile index or an explicit offset; E0113, E0206."""
    in_tiles = isinstance(offset, Missing)
    given = index if in_tiles else offset
    if isinstance(given, Missing) or (not in_tiles and not isinstance(index, Missing)):
        raise call.at.error("E0113", f"`{call.word}` takes either an index or `offset=`",
                     hint="an index counts tiles, an offset elements")  # fmt: skip
    items = given if isinstance(given, tuple) else (given,)
    what = "an index" if in_tiles else "an offset"
    if len(items) != len(extents):
        raise call.at.error("E0206", f"`{tensor.name}` has {len(extents)} axes, {len(items)} given",
                     hint=f"give {what} per axis")  # fmt: skip
    offsets: list[Value] = []
    for item, extent, at in zip(items, extents, _locations(call, len(items)), strict=True):
        term = usable(item)
        arithmetic.check_integer_scalar(term, at, what, instead=_BY_TILE.get(call.word, ""))
        if in_tiles and extent != 1:
            term = arithmetic.binary(call.emitter, "mul", term, extent, at)
        offsets.append(arithmetic.integer_scalar(call.emitter, term, at, what))
    return offsets


def _locations(call: Call, count: int) -> list[At]:
    """Location of each item of the index or offset of an access."""
    given = [keyword.value for keyword in call.node.keywords if keyword.arg in ("index", "offset", "indices", "at")]
    node = (given or call.node.args[1:2] or [call.node])[0]
    if isinstance(node, ast.Tuple) and len(node.elts) == count:
        return [call.scope.at(element) for element in node.elts]
    return [call.scope.at(node)] * count


def _pad(call: Call, pad: Term | Missing, dtype: DType) -> float | None:
    if isinstance(pad, Missing) or pad is None:
        return None
    number = number_of(pad, call.at)
    if dtype.is_integer:
        low, high = dtype.integer_range()
        if (isinstance(number, float) and not number.is_integer()) or not low <= number <= high or abs(number) > 1 << 53:
            raise call.at.error("E0205", f"`pad={number}` does not fit {dtype}", hint="pad with a small integer")
    padding = canonical(as_float(number, call.at))
    if dtype.is_float and math.isfinite(padding) and abs(padding) > dtype.largest:
        hint = f"the largest finite {dtype} is {dtype.largest}"
        raise call.at.error("E0205", f"`pad={number}` does not fit {dtype}", hint=hint)
    return padding


@word("gather")
def gather(call: Call) -> Term:
    """Reads one element per position of the index tiles."""
    tensor_term, indices, pad = call.bind_optional("tensor indices", "pad?")
    assert not isinstance(tensor_term, Missing) and not isinstance(indices, Missing)
    tensor, _ = call.tensor(tensor_term, _READABLE, "read")
    _no_packed(call, tensor, "load it, convert it and `take` from the tile")
    tiles = _indices(call, tensor, indices, ())
    op = ops.Gather(pad=_pad(call, pad, tensor.tensor.dtype), unsafe=call.emitter.unsafe, operands=[tensor, *tiles])
    return call.emitter.emit(op, call.at, TileType(tensor.tensor.dtype, tiles[0].tile.shape))[0]


@word("scatter")
def scatter(call: Call) -> Term:
    """Writes one element per position of the index tiles."""
    tensor_term, indices, tile, mask = call.bind_optional("tensor indices tile", "mask?")
    assert not isinstance(tensor_term, Missing) and not isinstance(indices, Missing) and not isinstance(tile, Missing)
    tensor, _ = call.tensor(tensor_term, _WRITABLE, "written")
    _no_packed(call, tensor, "`store` tiles of whole bytes")
    shape: tuple[int, ...] = ()
    if isinstance(tile, Value):
        shape = _as_dtype(call, tensor, tile).tile.shape
    tiles = _indices(call, tensor, indices, shape)
    value = _values_at(call, tensor, tile, tiles[0].tile.shape)
    op = ops.Scatter(mask=call.flag(mask, "mask"), unsafe=call.emitter.unsafe, operands=[tensor, value, *tiles])
    call.emitter.emit(op, call.at)
    return None


def _no_packed(call: Call, tensor: Value, hint: str) -> None:
    """E0201 for a word that takes elements one by one, of a tensor that has two in a byte."""
    dtype = tensor.tensor.packed
    if dtype is not None:
        raise call.location(0).error("E0201", f"`{call.word}` of {dtype} does not exist: two elements share a byte", hint=hint)


def _indices(call: Call, tensor: Value, indices: Term, shape: tuple[int, ...]) -> list[Value]:
    """One integer tile per tensor axis, broadcast against each other and `shape`; E0204, E0206."""
    items = indices if isinstance(indices, tuple) else (indices,)
    rank = tensor.tensor.rank
    if len(items) != rank:
        raise call.at.error(
            "E0206", f"`{tensor.name}` has {rank} axes, {len(items)} indices given", hint="give one index per axis"
        )
    tiles: list[Value] = []
    locations = _locations(call, rank)
    for item, at in zip(items, locations, strict=True):
        tile = call.emitter.value(usable(item), at)
        if not tile.tile.dtype.is_integer:
            raise at.error("E0204", f"an index is an integer, found {describe(tile)}", hint="convert it with `.astype(i32)`")
        shape = arithmetic.common_shape(shape, tile.tile.shape, at)
        tiles.append(tile)
    return [call.emitter.broadcast(tile, shape, at) for tile, at in zip(tiles, locations, strict=True)]
