"""Bytes that a step moves, counted from its StepGraph: what a perfect machine would read and write once each.

A launch reads and writes every view that its kernel is given, whole, except where its kernel picks rows: one row of the
embedding table per token, one of the rope table per position, one slot of the cache per token, and of the cache at attention
only the slots that are filled. `WRITTEN` and `UPDATED` repeat what kernels declare with `Out` and `InOut`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from engine.graph.step import ITEM_BYTES, Buffer, Kind, Op, StepGraph, View

WRITTEN: Final[Mapping[str, frozenset[str]]] = {
    kernel: frozenset(parameters.split())
    for kernel, parameters in {
        "add_rms_norm": "out", "advance": "ids slots lengths", "argmax_reduce": "out",
        "decode_attention": "partial maxima sums", "decode_merge": "out", "embedding": "out", "flash_attention": "out",
        "gather_row": "out", "matmul": "out", "matvec": "out", "matvec_add": "", "matvec_argmax": "maxima indices",
        "matvec_silu_mul": "out",
        "qk_norm_rope_kv": "q k_cache v_cache", "rms_norm": "out", "sample_token": "token", "silu_mul_rows": "out",
        "topk_blocks": "best indices",
    }.items()
}  # fmt: skip
"""Parameters of each kernel that it writes and does not read. Of the caches it writes single slots, and leaves the others."""

UPDATED: Final[Mapping[str, frozenset[str]]] = {
    "add_rms_norm": frozenset({"residual"}), "advance": frozenset({"positions"}), "matvec_add": frozenset({"residual"}),
}  # fmt: skip
"""Parameters of each kernel that it reads and writes."""

FILLED: Final = ""
"""Stands for the filled slots where an index parameter would."""

PICKED: Final[Mapping[tuple[str, str], tuple[str, int]]] = {
    ("decode_attention", "k_cache"): (FILLED, 2),
    ("decode_attention", "v_cache"): (FILLED, 2),
    ("embedding", "table"): ("ids", 1),
    ("flash_attention", "k_cache"): (FILLED, 2),
    ("flash_attention", "v_cache"): (FILLED, 2),
    ("gather_row", "x"): ("index", 1),
    ("qk_norm_rope_kv", "k_cache"): ("slots", 2),
    ("qk_norm_rope_kv", "table"): ("positions", 1),
    ("qk_norm_rope_kv", "v_cache"): ("slots", 2),
    ("sample_token", "uniforms"): ("place", 0),
}
"""Parameters of which a kernel touches some rows: the parameter whose elements choose them, and how many axes a row has."""

STREAMED: Final = frozenset({Kind.WEIGHT, Kind.TABLE, Kind.CACHE})
"""Buffers that no step finds in a GPU's own caches: together they are far larger. Activations are far smaller."""


@dataclass(frozen=True, slots=True)
class Moved:
    """Bytes of one buffer that a launch reads and writes."""

    buffer: Buffer
    read: int
    written: int


def moves(graph: StepGraph, op: Op, filled: int) -> Iterator[Moved]:
    """What a launch moves, parameter by parameter. `filled` is how many slots of the cache are filled once the step's own
    tokens are in it. ValueError for a kernel that `WRITTEN` does not name, or where the cache has fewer slots."""
    if op.kernel not in WRITTEN:
        raise ValueError(f"operation `{op.name}`: it is not known what `{op.kernel}` writes")
    for parameter, view in op.tensors.items():
        buffer = graph.buffers[view.buffer]
        size = _elements(op, parameter, view, filled) * ITEM_BYTES[buffer.dtype]
        updated = parameter in UPDATED.get(op.kernel, ())
        written = updated or parameter in WRITTEN[op.kernel]
        yield Moved(buffer, size if updated or not written else 0, size if written else 0)


def _elements(op: Op, parameter: str, view: View, filled: int) -> int:
    """Elements of a view that a launch touches."""
    picked = PICKED.get((op.kernel, parameter))
    if picked is None:
        return view.elements
    index, axes = picked
    rows = filled if index == FILLED else op.tensors[index].elements
    available = view.shape[-axes - 1]
    if rows > available:
        raise ValueError(f"operation `{op.name}`: {rows} rows of `{parameter}`, which has {available}")
    return rows * (view.elements // available)


def traffic(graph: StepGraph, op: Op, filled: int) -> int:
    """Bytes that a launch reads and writes; see `moves`."""
    return sum(moved.read + moved.written for moved in moves(graph, op, filled))


def streamed(graph: StepGraph, filled: int) -> tuple[int, int]:
    """Bytes of weights, tables and caches that a whole step reads, and that it writes: what memory must deliver however well
    the kernels use the GPU's own caches. The floor of a step's time is their sum over the bandwidth."""
    every = [moved for op in graph.ops for moved in moves(graph, op, filled) if moved.buffer.kind in STREAMED]
    return sum(moved.read for moved in every), sum(moved.written for moved in every)
