"""Notes on narrow accesses: what keeps a thread from moving 16 bytes at once, and what changes that.

A suggestion is made only if it works: a `requires` is tried on the divisors that `layout` derives, and all causes of an access
are named together. An access that nothing but its first column keeps narrow has no note if the lanes of a warp access adjacent
memory anyway: the windows of a convolution begin at every column.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Final

from tilec.ir.core import Function, Value
from tilec.ir.expr import Expr
from tilec.ir.facts.range_facts import Range, within
from tilec.ir.layouts.blocked_layouts import interleaved, natural, vector_length
from tilec.ir.layouts.coalescing import LINE, instructions, pieces
from tilec.ir.ops import AtomicScatter, AtomicUpdate, Load, Store
from tilec.ir.ops.memory import adds_vectors
from tilec.passes.analysis.divisibility import divisor, expr_divisor
from tilec.passes.schedule.layouts.alignments import Alignments
from tilec.target.schedule import VECTOR

WIDEST: Final = 16
"""Bytes of a thread's widest access."""


@dataclass(frozen=True, slots=True)
class Narrow:
    """The text of a note and its suggestion; `by_rows`: multiples that a `requires` states are all that it takes."""

    text: str
    hint: str
    by_rows: bool = False


def narrow_access(op: Load | Store, function: Function, warps: int) -> Narrow | None:
    """Why a thread moves less than 16 bytes at once, if it could move more; None if it could not, or the tile is small."""
    value = op.result if isinstance(op, Load) else op.tile
    tensor, layout, size = op.operands[0], value.layout, value.tile.dtype.bytes
    if layout is None or not value.tile.rank or value.tile.size * size < WIDEST * 32 * warps:
        return None
    verb = "read" if isinstance(op, Load) else "written"
    most, multiple = op.vector // size, WIDEST // size
    width = vector_length(layout, most) * size
    usual = natural(value.tile.shape, function.num_warps)
    narrowed = any(layout == interleaved(usual, number) for number in (1, 2, 4))
    possible_width, extent = vector_length(usual if narrowed else layout, multiple) * size, value.tile.shape[-1]
    fixes = _Fixes(op, Alignments(function), possible_width)
    if width < possible_width:
        lines = pieces(layout, size, most, LINE)
        if fixes.of_columns_alone and lines <= 2 * instructions(layout, most):
            return None
        text = f"`{tensor.name}` is {verb} {width} bytes at a time: its rows or offsets are known to be multiples of no more"
        hint = " and ".join(fixes.texts) or f"make them multiples of {possible_width // size} elements"
        return Narrow(text, hint, by_rows=fixes.of_rows_alone)
    if possible_width < WIDEST and extent % multiple:
        text = f"`{tensor.name}` is {verb} {possible_width} bytes at a time: {extent} elements are no multiple of {multiple}"
        others = _Fixes(op, fixes.alignments, WIDEST).texts
        return Narrow(text, " and ".join([f"choose an extent that is a multiple of {multiple}", *others]))
    return None


def narrow_sum(op: AtomicUpdate | AtomicScatter, function: Function) -> Narrow | None:
    """A sum of 16-bit floats in memory that is a loop of compare-and-swap for each element, because neighbors are not known to
    be pairs."""
    value, tensor = op.tile, op.tensor
    if not adds_vectors(op) or value.tile.dtype.bits != 16 or not value.tile.rank or value.layout is None:
        return None
    if op.vector and vector_length(value.layout, op.vector // 2) > 1 and (op.whole or not op.mask):
        return None
    text = f"`{tensor.name}` is updated 2 bytes at a time, each in a loop of compare-and-swap: the chip adds pairs alone"
    fixes = _Fixes(op, Alignments(function), 4).texts if isinstance(op, AtomicUpdate) else []
    if isinstance(op, AtomicUpdate) and not fixes and value.tile.shape[-1] % 2:
        fixes = ["choose an even extent"]
    others = "let the positions of the last axis count up from even numbers along the tile's last axis, in rows of even length"
    return Narrow(text, f"{' and '.join(fixes) or others}, or add to f32")


def aligned_rows(op: Load | Store, alignments: Alignments) -> dict[str, int]:
    """What launch values must be multiples of, by name, so that all rows of an access begin at multiples of 16 bytes; empty if
    they do, if no values make them so, or if its first column is at no such multiple."""
    fixes = _Fixes(op, alignments, WIDEST)
    return fixes.promise if fixes.of_rows_alone else {}


class _Fixes:
    """What must change so that an access is aligned to `wanted` bytes."""

    def __init__(self, op: Load | Store | AtomicUpdate, alignments: Alignments, wanted: int) -> None:
        self.op, self.alignments, self.wanted = op, alignments, wanted
        self.tensor: Value = op.operands[0]
        self.multiple = wanted // self.tensor.tensor.dtype.bytes
        self.texts: list[str] = []
        self.promise: dict[str, int] = {}
        if self.tensor.tensor.align % min(wanted, VECTOR):
            self.texts.append(f"align `{self.tensor.name}` to {wanted} bytes")
        rows = self._rows()
        self.of_rows_alone = bool(self.promise) and not self.texts
        self.texts += [rows] if rows else []
        columns = self._columns()
        self.of_columns_alone = columns is not None and not self.texts
        self.of_rows_alone &= columns is None
        self.texts += [columns] if columns else []

    def _columns(self) -> str | None:
        first = self.op.offsets[-1]
        known = divisor(self.alignments.facts[first])
        return None if known % self.multiple == 0 else f"begin at columns that are multiples of {self.multiple} elements"

    def _rows(self) -> str | None:
        """What makes rows, or boxes of them, begin at multiples; None if they do."""
        if self._aligned(self.alignments.symbols):
            return None
        symbols = sorted({name for expr in self._strides() for name in expr.symbols()})
        for names in (chosen for count in range(len(symbols)) for chosen in combinations(symbols, count + 1)):
            for multiple in (1 << power for power in range(1, self.multiple.bit_length())):
                if self._aligned(self._promised(names, multiple)):
                    self.promise = dict.fromkeys(names, multiple)
                    clauses = " and ".join(f"{name} % {multiple} == 0" for name in names)
                    return f"state `requires({clauses})` where it is so"
        return f"make rows of `{self.tensor.name}` a multiple of {self.multiple} elements apart"

    def _strides(self) -> list[Expr]:
        """The strides between rows, or the extents that they are made of."""
        type_ = self.tensor.tensor
        return list(type_.strides[:-1] if type_.strides is not None else type_.dims[1:])

    def _promised(self, names: tuple[str, ...], multiple: int) -> dict[str, Range]:
        """The symbols if a `requires` says that those of `names` are multiples."""
        known = dict(self.alignments.symbols)
        for name in names:
            known[name] = (
                within(known[name]._replace(modulus=multiple, rest=0), known[name].low, known[name].high) or known[name]
            )
        return known

    def _aligned(self, symbols: dict[str, Range]) -> bool:
        """Whether the rows of the box begin at multiples, if symbols have these ranges."""
        type_, shape, facts = self.tensor.tensor, self.op.tile.tile.shape, self.alignments.facts
        running = expr_divisor(type_.dims[-1], symbols) or 1
        for axis in range(type_.rank - 2, -1, -1):
            stride = running if type_.strides is None else expr_divisor(type_.strides[axis], symbols)
            step = divisor(facts[self.op.offsets[axis]]) if shape[axis] == 1 else 1
            if stride * step % self.multiple:
                return False
            running *= expr_divisor(type_.dims[axis], symbols) or 1
        return True
