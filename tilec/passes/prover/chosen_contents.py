"""Chooses what memory holds so that values which the prover does not translate are what a solution says.

In: an unknown of a solution, the number that it has there, and the tiles that a run computed. Out: numbers for elements that
the kernel is given, and for float parameters. Whether they have that effect is for a run to show. The unknown is followed
back to what was loaded, through comparisons, conversions, positions of the largest, and operations that move elements.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Final

from tilec.ir.core import Access, Value
from tilec.ir.facts.meaning import integer_cast
from tilec.ir.ops import (
    Bitcast,
    Broadcast,
    Butterfly,
    Cast,
    Compare,
    Gather,
    Load,
    Permute,
    Reduce,
    Reshape,
    Select,
    Take,
)
from tilec.passes.prover import terms
from tilec.passes.prover.float_orders import Other, condition, is_exact
from tilec.passes.prover.index_terms import IndexTerms
from tilec.passes.prover.replayed_floats import LARGEST, NAN, constant_next_to, constant_of
from tilec.passes.prover.replayed_tiles import Tile, moved, taken
from tilec.passes.prover.terms import Atom

Key = tuple[str, tuple[int, ...]]
"""An element of a tensor, or a parameter without an index."""
Contents = dict[Key, int]
CANDIDATES: Final = (0, 1, -1, *(sign * number for number in (*range(2, LARGEST + 1), 16, 64, 256) for sign in (1, -1)), NAN)
"""Floats that every dtype has."""
IN_PAIR: Final = {0: (0, 1), 1: (0, 0), 2: (1, 0), 3: (NAN, 0)}
"""Two floats of each class of a pair."""


def float_class(number: int, constants: tuple[float, ...]) -> int:
    """The class of a known float among constants."""
    if number == NAN:
        return 2 * len(constants) + 1
    return sum(2 if number > constant else int(number == constant) for constant in constants)


def pair_class(left: float, right: float) -> int:
    """The class of two floats."""
    return 3 if NAN in (left, right) else 0 if left < right else 1 if left == right else 2


def chosen(index: IndexTerms, atom: Atom, number: int, flat: int, tiles: Mapping[Value, Tile]) -> Contents:
    """Contents with which the element `flat` of the source of an unknown may have its number; empty if none are known."""
    value, pair = index.sources[atom], index.pairs_of.get(atom)
    if pair is not None:
        return _of_pair(index, pair.left, pair.right, number, flat, tiles)
    constants = index.orders.constants.get(value)
    if constants is not None:
        fitting = (one for one in CANDIDATES if float_class(one, constants) == number)
        return _set(origin(index, value, flat, tiles), next(fitting, None))
    match value.owner:
        case Compare() as op if op.operands[0].tile.dtype.is_float:
            classes = (one for one in IN_PAIR if _is_true(op.kind, one) == bool(number))
            return _of_pair(index, op.operands[0], op.operands[1], next(classes), flat, tiles)
        case Cast() as op if float(number) == number and is_exact(float(number), op.operands[0].tile.dtype):
            return _set(origin(index, op.operands[0], flat, tiles), number)
        case Bitcast() as op if value.tile.dtype.is_integer and op.operands[0].tile.dtype.is_integer:
            return _set(origin(index, op.operands[0], flat, tiles), integer_cast(number, op.operands[0].tile.dtype))
        case Reduce() as op if op.kind in ("argmax", "argmin"):
            return _of_position(index, op, number, flat, tiles)
        case _:
            return {}


def origin(index: IndexTerms, value: Value, flat: int, tiles: Mapping[Value, Tile]) -> Key | None:
    """The element of memory, or the parameter, that an element of a tile is."""
    while True:
        op = value.owner
        match op:
            case Reshape():
                value = op.operands[0]
            case Broadcast() | Permute() | Butterfly():
                source = moved(op, list(range(max(1, op.operands[0].tile.size))))[flat]
                assert source is not None
                value, flat = op.operands[0], source
            case Take():
                indices = tiles.get(op.operands[1])
                if indices is None or (at := taken(op, list(range(op.operands[0].tile.size)), indices)[flat]) is None:
                    return None
                value, flat = op.operands[0], at
            case Select():
                conditions = tiles.get(op.operands[0])
                if conditions is None or (holds := conditions[flat]) is None:
                    return None
                value = op.operands[1 if holds else 2]
            case Cast() if op.operands[0].tile.dtype.is_float and value.tile.dtype.is_float:
                value = op.operands[0]
            case Load() | Gather():
                return _element_read(index, op, flat, tiles)
            case _:
                parameter = next((one for one in index.function.parameters if one.value is value), None)
                return (parameter.name, ()) if parameter is not None and value.tile.dtype.is_float else None


def _element_read(index: IndexTerms, op: Load | Gather, flat: int, tiles: Mapping[Value, Tile]) -> Key | None:
    parameter = index.function.parameter_of(op.source)
    related = any(
        fact.tensor == parameter.name and (fact.distinct or fact.distinct_in_rows or fact.sorted)
        for fact in index.function.values
    )
    if op.unsafe is not None or parameter.access not in (Access.IN, Access.INOUT) or related:
        return None
    found, shape = list[int](), op.result.tile.shape
    for axis, operand in enumerate(op.indices):
        tile = tiles.get(operand)
        number = None if tile is None else tile[flat if op.indexed else 0]
        if number is None:
            return None
        inside = prod(shape[axis + 1 :])
        found.append(number if op.indexed else number + flat // inside % shape[axis])
    return parameter.name, tuple(found)


def _of_pair(index: IndexTerms, left: Value, right: Other, number: int, flat: int, tiles: Mapping[Value, Tile]) -> Contents:
    """Numbers for two floats of a class: each is a constant, or one of memory."""
    if not isinstance(right, Value):
        return _next_to(index, left, float(right.split()[1]), number, flat, tiles)
    first, second = constant_of(left), constant_of(right)
    if second is not None:
        return _next_to(index, left, second, number, flat, tiles)
    if first is not None:
        return _next_to(index, right, first, (2, 1, 0, 3)[number], flat, tiles)
    from_left, from_right = origin(index, left, flat, tiles), origin(index, right, flat, tiles)
    of_left, of_right = IN_PAIR[number]
    return _set(from_left, of_left) | _set(from_right, of_right) if from_left != from_right else {}


def _next_to(
    index: IndexTerms, value: Value, constant: float, number: int, flat: int, tiles: Mapping[Value, Tile]
) -> Contents:  # fmt: skip
    """A number for a float that is in a class with a constant."""
    for one in CANDIDATES:
        other = constant_next_to(constant, one, value.tile.dtype)
        if other is not None and pair_class(one, other) == number:
            return _set(origin(index, value, flat, tiles), one)
    return {}


def _of_position(index: IndexTerms, op: Reduce, number: int, flat: int, tiles: Mapping[Value, Tile]) -> Contents:
    """The largest or smallest element at a position of a row; the others are for the filling of memory to give."""
    (tile,) = op.operands
    shape = tile.tile.shape
    inner = prod(shape[op.axis + 1 :])
    key = origin(index, tile, flat // inner * shape[op.axis] * inner + number * inner + flat % inner, tiles)
    if key is None:
        return {}
    if tile.tile.dtype.is_float:
        return {key: LARGEST if op.kind == "argmax" else -LARGEST}
    low, high = tile.tile.dtype.integer_range()
    return {key: high if op.kind == "argmax" else low}


def _set(key: Key | None, number: int | None) -> Contents:
    return {} if key is None or number is None else {key: number}


def _is_true(kind: str, of_pair: int) -> bool:
    return condition(kind, 0.0, (0.0,), terms.const(of_pair)) == terms.TRUE
