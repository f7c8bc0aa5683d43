"""Translates integer and bool values of a kernel into polynomials and formulas.

Arithmetic is translated as arithmetic on unbounded integers: every operation that an index, a loop bound or a branch depends
on has its own obligation not to wrap, so the translation is exact for accepted kernels. An element of a tile is translated
at symbolic positions, one polynomial per axis, which makes index tiles as exact as scalars. A value that cannot be expressed
becomes an opaque atom with its range from the dataflow analysis.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilec.ir.core import Block, Op, Value
from tilec.ir.ops import (
    Binary,
    BlockId,
    Broadcast,
    Butterfly,
    Cast,
    Compare,
    Constant,
    DimValue,
    For,
    Gather,
    If,
    Invariant,
    Iota,
    Load,
    NumBlocks,
    Permute,
    Reduce,
    Reshape,
    Select,
    Sort,
    Take,
    Unary,
)
from tilec.passes.analysis.declared_ranges import declared_ranges
from tilec.passes.analysis.ranges import symbol_ranges, value_ranges
from tilec.passes.analysis.relevance import deciding_ops
from tilec.passes.prover import terms
from tilec.passes.prover.bit_terms import BIT_KINDS, bit_term
from tilec.passes.prover.declared_bits import by_declared
from tilec.passes.prover.float_bounds import converted_floats
from tilec.passes.prover.float_orders import compared, condition, float_orders, pair_of
from tilec.passes.prover.host_terms import compare, positive_symbols
from tilec.passes.prover.moved_terms import MovedTerms
from tilec.passes.prover.same_values import same_values
from tilec.passes.prover.source_positions import Positions, partner_positions, source_positions
from tilec.passes.prover.structure import structure
from tilec.passes.prover.terms import Formula, Poly

IN_ORDER = 100  # with more deciding operations than this, scalars are translated in program order
_COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


@dataclass(slots=True)
class IndexTerms(MovedTerms):
    """The translation of one kernel; values are translated on demand and cached."""

    def __post_init__(self) -> None:
        self.ranges = {**value_ranges(self.function), **converted_floats(self.function)}
        self.symbols = symbol_ranges(self.function)
        self.positive = positive_symbols(self.function)
        self.structure = structure(self.function)
        self.prefix_sums.find(self.function)
        self.deciding = deciding_ops(self.function, self.stored)
        self._with_obligation = frozenset(self.deciding)
        self._same = {  # a value that is shown to be exact stays it; one that stands for it would be unknown
            value: first
            for value, first in same_values(self.function).items()
            if value.owner not in self._with_obligation or first.owner in self._with_obligation
        }
        self.orders = float_orders(self.function, self._same)
        self._divisions = tuple(op for op in self.deciding if isinstance(op, Binary) and _divides(op))
        self._claims = tuple(op for op in self.function.body.walk() if isinstance(op, Invariant))
        self.grid = tuple(self.expression(extent) for extent in self.function.grid)
        self._names = {parameter.value: parameter.name for parameter in self.function.parameters}
        if len(self.deciding) > IN_ORDER:
            self._translate_in_order()

    def _translate_in_order(self) -> None:
        """Translate scalars in program order, so that operands are already translated: otherwise the recursion for the last of
        thousands of dependent values would be as deep."""
        for op in self.deciding:
            for value in op.results:
                if not value.tile.rank and value.tile.dtype.is_integer:
                    self.scalar(value)

    # Values

    def element(self, value: Value, positions: Positions) -> Poly:
        """The element of an integer tile at `positions`."""
        value = self._same.get(value, value)
        key = (value, positions)
        found = self._elements.get(key)
        if found is None:
            found = self._elements[key] = self._translate(value, positions)
        return found

    def condition(self, value: Value, positions: Positions = ()) -> Formula:
        """The element of a bool tile, as a formula."""
        value = self._same.get(value, value)
        key = (value, positions)
        found = self._conditions.get(key)
        if found is None:
            found = self._conditions[key] = self._translate_condition(value, positions)
        return found

    def _translate(self, value: Value, positions: Positions) -> Poly:
        if value.tile.dtype.kind == "b":
            return self.choose(self.condition(value, positions), terms.ONE, terms.ZERO)
        owner = value.owner
        if value in self._names:
            return self.symbol(self._names[value])
        if isinstance(owner, Block):
            return self._argument(value, owner, positions)
        assert owner is not None
        known = self.ranges[value].constant
        if known is not None and not isinstance(owner, Load | Gather):
            return terms.const(known)
        found = self._prefix_sum(value, positions)
        found = self._operation(owner, value, positions) if found is None else found
        return self.opaque(value, positions) if found is None else found

    def _operation(self, op: Op, value: Value, positions: Positions) -> Poly | None:
        match op:
            case Constant():
                return terms.const(int(op.value))
            case Iota():
                return positions[0]
            case BlockId():
                return self.block(op.axis)
            case NumBlocks():
                return self.grid[op.axis] if op.axis < len(self.grid) else terms.ONE
            case DimValue():
                return self.symbol(op.symbol)
            case Broadcast() | Permute() | Reshape():
                return self.element(op.operands[0], source_positions(self.atoms, op, positions))
            case Butterfly():
                partner = partner_positions(self.atoms, op, positions)
                return self.element(op.operands[0], partner) if partner else None
            case Take():
                return self.element(op.operands[0], self._taken_from(op, positions))
            case Sort():
                return self.element(op.operands[op.results.index(value)], self._sorted_from(op, positions))
            case Binary() | Unary():
                operands = [self.element(v, positions) for v in op.operands]
                return self._exact(op, operands) or self._by_declared(op, operands, positions)
            case Select():
                on_true, on_false = (self.element(v, positions) for v in op.operands[1:])
                return self.choose(self.condition(op.operands[0], positions), on_true, on_false)
            case Cast() if not op.operands[0].tile.dtype.is_float:
                return self._exact(op, [self.element(op.operands[0], positions)])
            case Reduce():
                return self._reduced(op, positions)
            case Load() | Gather():
                return self._read(op, positions)
            case If():
                index = op.results.index(value)
                arms = [self.element(region.ops[-1].operands[index], positions) for region in op.regions]
                return self.choose(self.condition(op.operands[0]), *arms)
            case For():
                return self._after_loop(op, op.results.index(value), positions)
            case _:
                return None

    def _exact(self, op: Binary | Unary | Cast, operands: list[Poly]) -> Poly | None:
        """The result over unbounded integers, if it is exact. Operations that decide addresses have an obligation for that; for
        others intervals must show it (an index in an `unsafe` block may wrap)."""
        found = operands[0] if isinstance(op, Cast) else self.unbounded(op, operands)
        if found is None or op in self._with_obligation:
            return found
        if isinstance(op, Binary) and op.kind in ("floordiv", "mod") and terms.interval(operands[1])[0] < 1:
            return None
        (low, high), (least, greatest) = op.result.tile.dtype.integer_range(), terms.interval(found)
        return found if low <= least and greatest <= high else None

    def unbounded(self, op: Binary | Unary, operands: list[Poly]) -> Poly | None:
        """The result of an operation on unbounded integers; None if it is no polynomial or derived atom."""
        match op.kind:
            case "neg":
                return -operands[0]
            case "abs":
                return self.atoms.maximum(operands[0], -operands[0])
            case "not":
                low, high = op.result.tile.dtype.integer_range()
                return terms.const(low + high) - operands[0]  # -1 - x if signed, the largest number - x if unsigned
            case "and" | "or" | "xor" | "shl" | "shr":
                ranges = [self.ranges[value] for value in op.operands]
                return bit_term(self.atoms, op.kind, op.result.tile.dtype.bits, operands, ranges)
            case _ if len(operands) == 2:
                return self.arithmetic(op.kind, operands[0], operands[1])
            case _:
                return None

    def _by_declared(self, op: Binary | Unary, operands: list[Poly], positions: Positions) -> Poly | None:
        if not isinstance(op, Binary) or op.kind not in BIT_KINDS:
            return None
        if self._declared is None:
            self._declared = declared_ranges(self.function) or self.ranges
        ranges, declared = ([known[value] for value in op.operands] for known in (self.ranges, self._declared))
        return by_declared(self.atoms, op, operands, ranges, declared, self.opaque(op.result, positions))

    def _translate_condition(self, value: Value, positions: Positions) -> Formula:
        owner = value.owner
        match owner:
            case Constant():
                return terms.TRUE if owner.value else terms.FALSE
            case Compare() if not owner.operands[0].tile.dtype.is_float:
                left, right = (self.element(v, positions) for v in owner.operands)
                return compare(_COMPARE[owner.kind], left, right)
            case Compare() if (of_class := self._by_class(owner, positions)) is not None:
                return of_class
            case Unary() if owner.kind == "not":
                return terms.negate(self.condition(owner.operands[0], positions))
            case Binary() if owner.kind in ("and", "or", "xor", "min", "max"):
                return self._connective(owner.kind, *(self.condition(v, positions) for v in owner.operands))
            case Select():
                condition, on_true, on_false = (self.condition(v, positions) for v in owner.operands)
                return self._pick(condition, on_true, on_false)
            case Broadcast() | Permute() | Reshape():
                return self.condition(owner.operands[0], source_positions(self.atoms, owner, positions))
            case Sort():
                return self.condition(owner.operands[owner.results.index(value)], self._sorted_from(owner, positions))
            case Butterfly() if (partner := partner_positions(self.atoms, owner, positions)) is not None:
                return self.condition(owner.operands[0], partner)
            case Take():
                return self.condition(owner.operands[0], self._taken_from(owner, positions))
            case Cast() if not owner.operands[0].tile.dtype.is_float:
                return terms.ne(self.element(owner.operands[0], positions))
            case If():
                index = owner.results.index(value)
                arms = [self.condition(region.ops[-1].operands[index], positions) for region in owner.regions]
                return self._pick(self.condition(owner.operands[0]), *arms)
            case _:
                return terms.ge(self._flag(value, positions), 1)

    def _by_class(self, op: Compare, positions: Positions) -> Formula | None:
        """A comparison of floats that has something in common with another one."""
        found = compared(op, self._same)
        if found is None:
            return None
        if found.constant is not None:
            constants = self.orders.constants.get(found.value)
            return (
                None
                if constants is None
                else condition(found.kind, found.constant, constants, self._float_class(found.value, positions))
            )
        pair = pair_of(found, self.orders)
        return condition(pair[1], 0.0, (0.0,), self._pair_class(pair[0], positions)) if pair is not None else None

    def _flag(self, value: Value, positions: Positions) -> Poly:
        if value in self._names:
            return self.symbol(self._names[value])
        found = self._read(value.owner, positions) if isinstance(value.owner, Load | Gather) else None
        return self.opaque(value, positions) if found is None else found

    def _pick(self, selector: Formula, on_true: Formula, on_false: Formula) -> Formula:
        taken = terms.conjunction((selector, on_true))
        return terms.disjunction((taken, terms.conjunction((terms.negate(selector), on_false))))

    def _connective(self, kind: str, left: Formula, right: Formula) -> Formula:
        if kind in ("and", "min"):
            return terms.conjunction((left, right))
        if kind in ("or", "max"):
            return terms.disjunction((left, right))
        return self._pick(left, terms.negate(right), right)


def _divides(op: Binary) -> bool:
    return op.kind in ("floordiv", "mod") and not op.result.tile.rank
