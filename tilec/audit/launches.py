"""Launches at the edges of a contract: a manifest and its tile IR go in, sizes and contents for the emulator come out.

Edges are the extents of the boxes that a kernel accesses, where blocks become partial. Tried are: the smallest launch; all
dims one past an extent with several of everything else; an odd number of loop iterations, at least five, and an even one; all
dims exactly at an extent; then one dim at a time. More iterations than pipeline stages are needed for the stage index to wrap
and the phase parity to flip. z3 finds sizes that satisfy every launch check. Contents satisfy every value check; an integer
is the lower end of its range, the upper end, or a random value with equal probability.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tilec.artifact.records import Manifest, TensorSpec
from tilec.audit import smt
from tilec.audit.contract import Contract, HostTerms
from tilec.audit.positions import tile_shape
from tilec.audit.smt import Budget, Term
from tilec.ir.core import Function, Op, Value
from tilec.ir.ops import Binary, Constant, DimValue, For, MemoryOp
from tilec.ir.types import DTYPES, TileType
from tilec.target.dtypes import numpy_dtype

Array = NDArray[Any]
BLOCKS: Final = 64
"""Maximum number of blocks of a launch."""
ELEMENTS: Final = 3 << 20
"""Maximum number of elements of all tensors of a launch together."""
SIZE_STEPS: Final = 400_000
"""z3 steps for one query about sizes."""
ODD: Final = 5
"""Minimum number of loop iterations."""
SMALL: Final = (1, 2, 3, 4, 8, 16, 32, 64, 128, 256, 512, 2048, 16384, 1 << 18)
"""Bounds on unconstrained sizes, tried in this order."""
STEPS: Final = (256, 4096, 1 << 16, 1 << 18)
"""Bounds on strides, tried in this order for each bound on sizes: a stride is about the product of the extents inside it."""


@dataclass(frozen=True, slots=True)
class Case:
    """A launch: its description, and the values of dims, strides and integer scalars by name."""

    name: str
    values: dict[str, int]


def edge_launches(
    manifest: Manifest, function: Function, contract: Contract, limit: int, reasons: list[str] | None = None
) -> list[Case]:  # fmt: skip
    """At most `limit` distinct launches within the contract, in the order of `_requests`. `reasons` gets a line for every
    requested launch that was not found."""
    smt.fresh()
    found: list[Case] = []
    for name, wanted in _requests(manifest, function, contract):
        if len(found) == limit:
            break
        refused: list[str] = []
        values = _solve(manifest, contract, wanted, refused)
        if values is None and len(wanted) > 1:
            values = _satisfiable_part(manifest, contract, wanted, refused)
        if values is not None and not _cheap(manifest, values):
            refused.append(_too_large(manifest, values))
        elif values is not None and all(values != case.values for case in found):
            found.append(Case(name, values))
        if reasons is not None:
            reasons += [f"{name}: {reason}" for reason in refused[-1:]]
    return found


def _requests(manifest: Manifest, function: Function, contract: Contract) -> Iterator[tuple[str, dict[str, int]]]:
    """Requested sizes, most revealing first: a name, and minimum values by symbol."""
    yield "smallest", {}
    edges = {symbol: cuts for symbol in function.dims if symbol not in function.strides and (cuts := _cuts(function, symbol))}
    past = {symbol: cuts[-1] + 1 for symbol, cuts in edges.items()}
    free = [symbol for symbol in function.dims if symbol not in edges and symbol not in function.strides]
    several = {symbol: 2 + index % 2 for index, symbol in enumerate(free)}
    yield "several of each, past every edge", {**past, **several}
    for count in _counts(manifest):
        longer = _iterations(function, edges, count)
        if longer:
            yield f"{count} iterations", longer
    yield "all at an edge", {symbol: cuts[-1] for symbol, cuts in edges.items()}
    if edges and free:
        yield "all past an edge", past
        yield "several of each", several
    for symbol, cuts in edges.items():
        for cut in reversed(cuts):
            yield f"{symbol} past {cut}", {symbol: cut + 1}
    for symbol, cuts in edges.items():
        yield f"{symbol} past two of {cuts[-1]}", {symbol: 2 * cuts[-1] + 1}
    for symbol in free:
        yield f"{symbol} at 3", {symbol: 3}
    for symbol, (low, _) in contract.symbols.items():
        if symbol not in function.dims:
            yield f"{symbol} past its start", {symbol: max(low, 0) + 5}


def _counts(manifest: Manifest) -> tuple[int, int]:
    """An odd and an even number of iterations: five and six, or more if needed to exceed the number of stages of every
    pipeline."""
    stages = max((int(pipeline["stages"]) for pipeline in manifest.schedule.get("pipelines", ())), default=0)
    odd = max(ODD, stages + 1 | 1)
    return odd, odd + 1


def _iterations(function: Function, edges: dict[str, list[int]], count: int) -> dict[str, int]:
    """Minimum values of the dims that bound loops, for `count` iterations of each loop. An extent that is tiled gets as many
    tiles, the last one partial if the count is even."""
    found: dict[str, int] = {}
    for op in function.body.walk():
        if isinstance(op, For):
            ends = _ends(op.upper)
            for symbol in ends or edges:  # a loop bounded by data is limited by the extents
                cut = max(ends.get(symbol, 1), edges[symbol][-1] if symbol in edges else 1)
                length = count * cut if count % 2 or cut == 1 else (count - 1) * cut + 1
                found[symbol] = max(length, found.get(symbol, 0))
    return found


def _ends(value: Value) -> dict[str, int]:
    """Dims that a loop bound is computed from, and the total divisor of each."""
    owner = value.owner
    if isinstance(owner, DimValue):
        return {owner.symbol: 1}
    if not isinstance(owner, Op) or not isinstance(value.type, TileType) or value.tile.shape:
        return {}
    factor = 1
    if isinstance(owner, Binary) and owner.kind in ("floordiv", "mul"):
        factor = max([1, *(int(one.owner.value) for one in owner.operands if isinstance(one.owner, Constant))])
    found: dict[str, int] = {}
    for operand in owner.operands:
        for symbol, divisor_before in _ends(operand).items():
            divisor = divisor_before // factor if isinstance(owner, Binary) and owner.kind == "mul" else divisor_before * factor
            found[symbol] = max(found.get(symbol, 1), divisor)
    return found


def _cuts(function: Function, symbol: str) -> list[int]:
    """Extents of boxes on axes whose size depends on the symbol, and constant divisors of it, ascending."""
    edges: set[int] = set()
    for op in function.body.walk():
        if isinstance(op, MemoryOp):
            dims = op.tensor.tensor.dims
            for dim, extent in zip(dims, tile_shape(op), strict=False):
                if symbol in dim.symbols() and not op.indexed:
                    edges.add(extent)
    pending = [*function.grid, *(requirement.condition for requirement in function.requires)]
    while pending:
        expr = pending.pop()
        pending += expr.args
        if expr.op in ("//", "%") and symbol in expr.symbols() and (divisor := expr.args[1].constant):
            edges.add(divisor)
    return sorted(edge for edge in edges if 1 < edge <= 4096)


def _satisfiable_part(
    manifest: Manifest, contract: Contract, minimums: dict[str, int], reasons: list[str]
) -> dict[str, int] | None:
    """Launch values that satisfy as many of these minimum values as possible, added in order."""
    kept: dict[str, int] = {}
    found: dict[str, int] | None = None
    for name, value in minimums.items():
        values = _solve(manifest, contract, {**kept, name: value}, reasons)
        if values is not None and _cheap(manifest, values):
            kept[name], found = value, values
    return found


def _solve(manifest: Manifest, contract: Contract, minimums: dict[str, int], reasons: list[str]) -> dict[str, int] | None:
    """Values within the contract with these minimum values, within the smallest feasible bound of `SMALL`; None if there are
    none, with the reason appended to `reasons`."""
    host = HostTerms(contract)
    facts = host.assumptions()
    facts += host.definitions.facts
    for check in manifest.value_checks:
        count: Term = smt.integer(1)
        dims = next(spec.dims for spec in manifest.tensors if spec.name == check.tensor)
        for dim in dims if check.distinct else dims[-1:] if check.distinct_in_rows else ():
            count = smt.mul(count, host.expression(dim))
        value_count = smt.sub(host.expression(check.high), host.expression(check.low))
        facts.append(value_count >= count)
        if check.ends:
            (dim,) = next(spec.dims for spec in manifest.tensors if spec.name == check.tensor)
            facts.append(smt.some([host.expression(dim) >= 2, value_count == 1]))
    facts += host.definitions.facts
    wanted: list[Term] = [host.symbol(name) >= value for name, value in minimums.items()]
    reason = f"the contract allows no sizes below {SMALL[-1]} for it"
    strides = {name for spec in manifest.tensors for expr in spec.strides or () for name in expr.symbols()}
    for bound, step in product(SMALL, STEPS if strides else STEPS[:1]):
        sizes = {name: max(bound, minimums.get(name, 0) + bound - 1) for name in contract.symbols}
        sizes |= {name: max(step, size) for name, size in sizes.items() if name in strides}
        bounded = [_bounded(host.symbol(name), size) for name, size in sizes.items()]
        result = smt.check([*facts, *wanted, *bounded], Budget(SIZE_STEPS))
        if result.verdict == "found":
            return {name: result.model.get(name, max(0, low)) for name, (low, _) in contract.symbols.items()}
        if result.verdict == "undecided":
            reason = f"sizes for it were not found: {result.reason}"
    reasons.append(reason)
    return None


def _bounded(term: Term, bound: int) -> Term:
    return smt.every([term <= bound, term >= -bound])


def _cheap(manifest: Manifest, values: dict[str, int]) -> bool:
    blocks, elements = _extent(manifest, values)
    return blocks <= BLOCKS and elements <= ELEMENTS


def _too_large(manifest: Manifest, values: dict[str, int]) -> str:
    blocks, elements = _extent(manifest, values)
    return f"its {blocks} blocks and {elements} elements exceed the emulated limits of {BLOCKS} and {ELEMENTS}"


def _extent(manifest: Manifest, values: dict[str, int]) -> tuple[int, int]:
    """Number of blocks of a launch, and of elements of all its tensors, gaps between them included."""
    blocks = prod(axis.evaluate(values) for axis in manifest.grid)
    return blocks, sum(_span(spec, values) for spec in manifest.tensors)


def _span(spec: TensorSpec, values: dict[str, int]) -> int:
    """Number of elements from the first to the last in memory."""
    shape = [dim.evaluate(values) for dim in spec.dims]
    if spec.strides is None:
        return prod(shape)
    return 1 + sum((extent - 1) * stride.evaluate(values) for extent, stride in zip(shape, spec.strides, strict=True))


def contents(manifest: Manifest, values: dict[str, int], seed: int) -> dict[str, Array] | None:
    """Arrays for a launch, or None if no contents satisfy a value check. They are a function of manifest, values and seed."""
    text = f"{manifest.kernel} {sorted(values.items())} {seed}"
    random = np.random.default_rng(int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little"))
    arrays: dict[str, Array] = {}
    for spec in manifest.tensors:
        shape = tuple(dim.evaluate(values) for dim in spec.dims)
        checks = [check for check in manifest.value_checks if check.tensor == spec.name]
        low = max((check.low.evaluate(values) for check in checks), default=None)
        high = min((check.high.evaluate(values) for check in checks), default=None)
        distinct = any(check.distinct for check in checks)
        row = shape[-1] if shape and any(check.distinct_in_rows for check in checks) and not distinct else None
        array = _filled(spec.dtype, shape, random, (low, high), int(np.prod(shape)) if distinct else row)
        if array is not None and any(check.sorted for check in checks):
            array = _in_order(array, (low, high) if any(check.ends for check in checks) else None)
        if array is None:
            return None
        arrays[spec.name] = array
    return arrays


def stored(spec: TensorSpec, array: Array, values: dict[str, int]) -> Array:
    """An array as a tensor has it in memory at the strides of a launch: flat, from the first element to the last, with zeros in
    the gaps. Without strides it is the array itself."""
    if spec.strides is None:
        return array
    flat = np.zeros(_span(spec, values), array.dtype)
    elements(spec, flat, values)[...] = array
    return flat


def elements(spec: TensorSpec, flat: Array, values: dict[str, int]) -> Array:
    """The elements of a tensor in its shape, out of what `stored` returns; a view of it."""
    if spec.strides is None:
        return flat
    shape = [dim.evaluate(values) for dim in spec.dims]
    return np.lib.stride_tricks.as_strided(flat, shape, [stride.evaluate(values) * flat.itemsize for stride in spec.strides])


def _filled(
    dtype: str, shape: Sequence[int], random: np.random.Generator, ends: tuple[int | None, int | None], distinct: int | None
) -> Array | None:  # fmt: skip
    """Random elements within the bounds; any `distinct` of them next to each other differ, if that is given."""
    kind = DTYPES[dtype]
    if kind.is_float:
        return random.normal(size=shape).astype(numpy_dtype(DTYPES[dtype]))
    low, high = kind.integer_range()
    if ends[0] is None or ends[1] is None:
        return random.integers(max(low, -1000), min(high, 1000), shape, endpoint=True).astype(numpy_dtype(DTYPES[dtype]))
    first, last = max(low, ends[0]), min(high, ends[1] - 1)
    size = int(np.prod(shape))
    if last < first or (distinct and last - first + 1 < distinct):
        return None if size else np.empty(shape, numpy_dtype(DTYPES[dtype]))
    if distinct:
        numbers = first + random.permutation(min(last - first + 1, 1 << 20))
        period = numbers.size - (numbers.size > distinct and numbers.size % distinct == 0)  # so that rows share some numbers
        numbers = numbers if distinct == size else numbers[:period]
        return np.resize(numbers, size).reshape(shape).astype(numpy_dtype(DTYPES[dtype]))
    chosen = random.integers(first, last, shape, endpoint=True)
    where = random.integers(0, 3, shape)
    return np.where(where == 0, first, np.where(where == 1, last, chosen)).astype(numpy_dtype(DTYPES[dtype]))


def _in_order(array: Array, ends: tuple[int | None, int | None] | None) -> Array | None:
    """The values in ascending order; with `ends` (first value, one past the last), the first and last elements are set to
    those."""
    ordered = np.sort(array)
    if ends is None or ends[0] is None or ends[1] is None or not ordered.size:
        return ordered
    ordered[0], ordered[-1] = ends[0], ends[1] - 1
    return ordered if ends[0] == ordered[0] else None
