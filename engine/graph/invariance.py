"""Batch invariance: a row of a step has the same sums, in the same order, whatever the number of rows.

In: graphs of one step for several numbers of rows. GraphError names the first operation that could add in another order. The
steps must have the same launches of the same kernels on the same buffers with the same scalars and the same constants, but for
those constants that divide the outputs of a kernel into tiles (`TILES`): each output is then the same sum, of the same runs of
the depth, made by a block of another size. Blocks that share items, each of which one of them makes whole, may be of any number
(`SHARES`). And they must have the same extents, but for one axis of a tensor that counts the
rows, and for room (`CAPACITIES`). So nothing that shapes a reduction, such as a step of the depth, a number of parts of it or
the tokens of a chunk of a cache, can follow from the number of rows.

It trusts that a kernel adds the terms of an output in an order that its constants determine and its tiles of outputs do not.
Tests compare bits, on the interpreter and on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final

from engine.graph.integers import GraphError
from tilec.step.graph import Constant, Op, StepGraph

TILES: Final[Mapping[str, frozenset[str]]] = {
    **{
        f"{kernel}{form}": frozenset({"BM"} if form else {"BM", "BN"})
        for kernel in ("matmul_few", "matmul_split", "matmul_silu_mul_few")
        for form in ("", "_fp8", "_int4")
    },
    "quantise_rows": frozenset({"ROWS"}),
    "paged_decode_attention": frozenset({"ROWS"}), "paged_decode_attention_c8": frozenset({"ROWS"}),
    "matmul": frozenset({"BM", "BN", "GROUP"}),
    "matmul_silu_mul": frozenset({"BM", "BN", "GROUP"}),
    "matmul_fp8": frozenset({"BM", "BN", "PART", "AHEAD", "LATE", "GROUP"}),
    "matmul_silu_mul_fp8": frozenset({"BM", "BN", "PART", "AHEAD", "LATE", "GROUP"}),
}  # fmt: skip
"""Constants that divide the outputs of a kernel, and in `GROUP` order its tiles, and shape no sum; `ROWS` of a block,
each of which is quantised alone, or among which the row of an item of attention is found."""

_DECODES: Final = ("paged_decode_attention", "paged_decode_attention_wide", "paged_decode_attention_c8")
_ITEMS: Final = {"partial": 0, "maxima": 0, "sums": 0}
_CHOICES: Final = {"order": 0, "ranks": 0, "counts": 1, "begins": 1}
_SORTED: Final = {"a": 0, "a_scales": 1, "tiles": 0, "out": 0}

CAPACITIES: Final[Mapping[str, Mapping[str, int]]] = {
    **dict.fromkeys((*_DECODES, "paged_merge", "paged_merge_wide"), _ITEMS),
    "experts_sort": _CHOICES, "experts_tiles": {"counts": 1, "starts": 1, "tiles": 0},
    "experts_gather": {**_CHOICES, "starts": 1, "tiles": 0, "out": 0}, "experts_combine": {"y": 0},
    "experts_sum": {"y": 0},
    "quantise_rows": {"x": 0, "codes": 0, "scales": 1},
    **{
        f"{kernel}{form}": _SORTED
        for kernel in ("experts_matmul", "experts_matmul_few", "experts_matmul_silu_mul", "experts_matmul_silu_mul_few")
        for form in ("", "_fp8", "_int4")
    },
}  # fmt: skip
"""Tensors with an axis whose extent is room: for items of attention, for chunks of the choices of experts, whose counts are
integers, and for rows in the order of experts, each of which is quantised alone. Other tensors say how many there are, and
whose."""

POSITIONS: Final[Mapping[str, frozenset[str]]] = {
    "paged_flash_attention": frozenset({"past"}), "paged_gather": frozenset({"filled"}),
    "paged_gather_c8": frozenset({"filled"}),
}  # fmt: skip
"""Scalars that say where the tokens of a chunk are in their sequence."""

SHARES: Final[Mapping[str, frozenset[str]]] = dict.fromkeys(_DECODES, frozenset({"blocks"}))
"""Scalars that say how many blocks share the items of a launch, of which each block makes whole ones."""


def verify_invariance(graphs: Iterable[StepGraph], constants: Callable[[Op], Mapping[str, Constant]]) -> None:
    """Check steps of different numbers of rows against the first of them. `constants` are all constants of the kernel that an
    operation launches, the tuned ones included."""
    first, *others = graphs
    for other in others:
        _compare(first, other, constants)


def _compare(first: StepGraph, other: StepGraph, constants: Callable[[Op], Mapping[str, Constant]]) -> None:
    if len(first.ops) != len(other.ops):
        raise _refused(first, other, "", f"has {len(first.ops)} launches, or {len(other.ops)}")
    for one, two in zip(first.ops, other.ops, strict=True):
        if (one.name, one.kernel) != (two.name, two.kernel):
            raise _refused(first, other, one.name, f"launches `{one.kernel}`, or `{two.kernel}` as `{two.name}`")
        shaping, its = (
            {**_shaping(op, constants(op), TILES), **_shaping(op, op.scalars, {**POSITIONS, **SHARES})} for op in (one, two)
        )
        if shaping != its:
            name = min(name for name in shaping.keys() | its.keys() if shaping.get(name) != its.get(name))
            what = f"has `{name}` = {shaping.get(name)}, or {its.get(name)}, and `{one.kernel}` may add in another order"
            raise _refused(first, other, one.name, what)
        for parameter in one.tensors.keys() | two.tensors.keys():
            _compare_views(first, other, one, two, parameter)


def _compare_views(first: StepGraph, other: StepGraph, one: Op, two: Op, parameter: str) -> None:
    view, its = one.tensors.get(parameter), two.tensors.get(parameter)
    if view is None or its is None or (view.buffer, view.offset, len(view.shape)) != (its.buffer, its.offset, len(its.shape)):
        raise _refused(first, other, one.name, f"has another `{parameter}`")
    differing = [axis for axis, (extent, another) in enumerate(zip(view.shape, its.shape, strict=True)) if extent != another]
    if differing == [CAPACITIES.get(one.kernel, {}).get(parameter)]:
        return
    for number, axis in enumerate(differing):
        extent, another = view.shape[axis], its.shape[axis]
        if number or not any((extent, another) == (first.tokens + more, other.tokens + more) for more in (0, 1)):
            what = f"has extent {extent}, or {another}, on axis {axis} of `{parameter}`, which does not count rows"
            raise _refused(first, other, one.name, what)


def _shaping(op: Op, values: Mapping[str, Constant], others: Mapping[str, frozenset[str]]) -> dict[str, Constant]:
    """The values that could shape a sum: all but some of the kernel's."""
    return {name: value for name, value in values.items() if name not in others.get(op.kernel, ())}


def _refused(first: StepGraph, other: StepGraph, op: str, what: str) -> GraphError:
    where = f"steps `{first.name}` of {first.tokens} and {other.tokens} tokens"
    return GraphError(f"operation `{op}` {what}" if op else f"it {what}", where=where)


def with_tiles(graph: StepGraph, rows: int) -> StepGraph:
    """The step with the same tiles of `rows` rows of products whatever its number of rows, for a machine whose products add in
    an order that follows from a tile's shape, as NumPy's do."""
    ops = [replace(op, constants={**op.constants, "BM": rows}) if "BM" in TILES.get(op.kernel, ()) else op for op in graph.ops]
    return replace(graph, ops=ops)
