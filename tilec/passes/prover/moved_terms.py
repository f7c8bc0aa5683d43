"""Translates elements that come from elsewhere: from memory, from other positions of a tile, from sums over it.

In: operations that read, take, sort, reduce and scan, and positions in their results. Out: polynomials over elements of tensors
and positions; a sort takes an element from an unknown position, and a prefix sum is an unknown of its row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tilec.ir.core import Access, Op, Value
from tilec.ir.ops import For, Gather, Load, Reduce, Select, Sort, Take
from tilec.passes.prover import terms
from tilec.passes.prover.loop_terms import LoopTerms
from tilec.passes.prover.source_positions import Positions
from tilec.passes.prover.terms import Formula, Kind, Poly

ONE_OF: Final = 64
"""Limit on the elements of a reduction of which all but one are known to be 0."""
EXACT_SUM: Final = 8
"""Limit on the elements of a scan whose additions are translated one by one."""


@dataclass(slots=True)
class MovedTerms(LoopTerms):
    """A translation that knows where elements come from."""

    def _taken_from(self, op: Take, positions: Positions) -> Positions:
        """Positions in the operand; an index has an obligation to be one."""
        return (*positions[: op.axis], self.element(op.operands[1], positions), *positions[op.axis + 1 :])

    def _sorted_from(self, op: Sort, positions: Positions) -> Positions:
        """Positions in the operands: along the axis an unknown one, the same for all tiles of the sort."""
        loops = [self.iteration(frame.op) for frame in self.structure.frames[op] if isinstance(frame.op, For)]
        blocks = [self.block(axis) for axis in range(len(self.grid))]
        others = (*positions[: op.axis], *positions[op.axis + 1 :])
        label = f"{terms.ORDER}{self.structure.position[op]}"
        index = (*blocks, *loops, *others, positions[op.axis])
        order = self.atoms.loaded(label, index, (0, op.results[0].tile.shape[op.axis] - 1))
        return (*positions[: op.axis], terms.of(order), *positions[op.axis + 1 :])

    def _reduced(self, op: Reduce, positions: Positions) -> Poly | None:
        """The only element along an axis, or the only one that a selection does not replace by 0: a sum with zeros is exact."""
        operand, (before, after) = op.operands[0], (positions[: op.axis], positions[op.axis :])
        extent, selection = operand.tile.shape[op.axis], operand.owner
        if op.kind.startswith("arg") or extent > ONE_OF:
            return terms.ZERO if extent == 1 else None
        if extent == 1:
            return self.element(operand, (*before, terms.ZERO, *after))
        if not isinstance(selection, Select) or op.kind == "min":
            return None
        chosen: list[tuple[Value, Positions]] = []
        for at in range(extent):
            positions = (*before, terms.const(at), *after)
            condition = self.condition(selection.operands[0], positions)
            if condition not in (terms.TRUE, terms.FALSE):
                return None
            value = selection.operands[1 if condition == terms.TRUE else 2]
            if self.ranges[value].constant != 0:
                chosen.append((value, positions))
        if len(chosen) != 1 or (op.kind == "max" and self.ranges[chosen[0][0]].low < 0):
            return None
        return self.element(*chosen[0])

    def _prefix_sum(self, value: Value, positions: Positions) -> Poly | None:
        """The sum of the elements of a tile before one, and that one if it is included, if they are so few or small that no
        sum of some of them wraps. A few elements that depend on no data are left to the exact additions."""
        found = self.prefix_sums.sums.get(value)
        if found is None:
            return None
        tile, extent = found.tile, found.tile.tile.shape[found.axis]
        (least, largest), known = tile.tile.dtype.integer_range(), self.ranges[tile]
        if known.low * extent < least or known.high * extent > largest:
            return None
        assert isinstance(tile.owner, Op)
        own, before = self.element(tile, positions), positions[found.axis]
        if extent <= EXACT_SUM and not any(a.kind in (Kind.LOADED, Kind.OPAQUE) for a in terms.closure([Formula("eq", own)])):
            return None
        loops = [self.iteration(frame.op) for frame in self.structure.frames[tile.owner] if isinstance(frame.op, For)]
        blocks = [self.block(axis) for axis in range(len(self.grid))]
        others = (*positions[: found.axis], *positions[found.axis + 1 :])
        before = terms.const(extent - 1) - before if found.reverse else before
        index = (*blocks, *loops, *others, before, terms.const(known.low), terms.const(known.high), own)
        bounds = min(0, known.low * (extent - 1)), max(0, known.high * (extent - 1))
        sum_before = self.atoms.loaded(f"{terms.SUMS}{found.number}", index, bounds)
        return terms.of(sum_before) + own if found.own else terms.of(sum_before)

    def _read(self, op: Load | Gather, positions: Positions) -> Poly | None:
        """An element of an In tensor is a function of its index, and so is the result of a first read. Other tensors may change
        during the launch, and an `unsafe` load may read outside the tensor, where contents are unknown."""
        parameter = self.function.parameter_of(op.source)
        if op.unsafe is not None or (parameter.access is not Access.IN and op not in self.first_reads):
            return None
        if isinstance(op, Load):
            index = tuple(self.scalar(o) + p for o, p in zip(op.offsets, positions, strict=True))
        else:
            index = tuple(self.element(i, positions) for i in op.indices)
        bounds = op.result.tile.dtype.integer_range()
        element = terms.of(self.atoms.loaded(parameter.name, index, bounds))
        if op.pad is None:
            return element
        dims = [self.expression(dim) for dim in op.source.tensor.dims]
        inside = [f for i, dim in zip(index, dims, strict=True) for f in (terms.ge(i), terms.lt(i, dim))]
        return self.choose(terms.conjunction(inside), element, terms.const(int(op.pad)))
