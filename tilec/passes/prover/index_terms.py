"""Translates integer and bool values of a kernel into polynomials and formulas.

Arithmetic is translated as arithmetic on unbounded integers: every operation that an index, a loop bound or a branch depends
on has its own obligation not to wrap, so the translation is exact for accepted kernels. An element of a tile is translated
at symbolic positions, one polynomial per axis, which makes index tiles as exact as scalars. A value that cannot be expressed
becomes an opaque atom with its range from the dataflow analysis.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, field

from tilec.ir.core import Access, Block, Op, Value
from tilec.ir.ops import (
    AtomicScatter,
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
from tilec.ir.types import TileType
from tilec.passes.analysis.declared_ranges import declared_ranges
from tilec.passes.analysis.ranges import Range, symbol_ranges, value_ranges
from tilec.passes.analysis.relevance import deciding_ops
from tilec.passes.prover import terms
from tilec.passes.prover.bit_terms import BIT_KINDS, bit_term
from tilec.passes.prover.declared_bits import by_declared
from tilec.passes.prover.float_bounds import converted_floats
from tilec.passes.prover.float_orders import Orders, class_count, compared, float_orders, holds
from tilec.passes.prover.host_terms import HostTerms, compare, positive_symbols
from tilec.passes.prover.prefix_sums import PrefixSums
from tilec.passes.prover.related_facts import computed_in, related_to
from tilec.passes.prover.same_values import same_values
from tilec.passes.prover.source_positions import Positions, partner_positions, source_positions
from tilec.passes.prover.structure import Frame, Structure, structure
from tilec.passes.prover.terms import Atom, Formula, Kind, Poly

IN_ORDER = 100  # with more deciding operations than this, scalars are translated in program order
ONE_OF = 64  # limit on the elements of a reduction of which all but one are known to be 0
EXACT_SUM = 8  # limit on the elements of a scan whose additions are translated one by one
_COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


@dataclass(slots=True)
class IndexTerms(HostTerms):
    """The translation of one kernel; values are translated on demand and cached. `stored` are values with a promise, whose
    arithmetic has the same obligations as that of an index; `first_reads` are loads of `InOut` tensors that yield elements
    before the launch."""

    stored: tuple[Value, ...] = ()
    first_reads: frozenset[Op] = frozenset()
    ranges: dict[Value, Range] = field(default_factory=dict[Value, Range])
    structure: Structure = field(default_factory=Structure)
    prefix_sums: PrefixSums = field(default_factory=PrefixSums)
    deciding: list[Op] = field(default_factory=list[Op])
    sources: dict[Atom, Value] = field(default_factory=dict[Atom, Value])
    positions_of: dict[Atom, Positions] = field(default_factory=dict[Atom, Positions])
    _divisions: tuple[Binary, ...] = ()
    _claims: tuple[Invariant, ...] = ()
    _same: dict[Value, Value] = field(default_factory=dict[Value, Value])
    orders: Orders = field(default_factory=dict[Value, "tuple[int, ...]"])
    _with_obligation: frozenset[Op] = frozenset()
    _trial_values: frozenset[Value] = frozenset()
    _declared: dict[Value, Range] | None = None
    _names: dict[Value, str] = field(default_factory=dict[Value, str])
    _elements: dict[tuple[Value, Positions], Poly] = field(default_factory=dict[tuple[Value, Positions], Poly])
    _conditions: dict[tuple[Value, Positions], Formula] = field(default_factory=dict[tuple[Value, Positions], Formula])

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

    def scalar(self, value: Value) -> Poly:
        return self.element(value, ())

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
            place = (*before, terms.const(at), *after)
            condition = self.condition(selection.operands[0], place)
            if condition not in (terms.TRUE, terms.FALSE):
                return None
            value = selection.operands[1 if condition == terms.TRUE else 2]
            if self.ranges[value].constant != 0:
                chosen.append((value, place))
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

    # Loops

    def iteration(self, loop: For) -> Poly:
        """Number of iterations of the loop before this one."""
        step = self.ranges[loop.step]
        variable = self.ranges[loop.regions[0].arguments[0]]
        trips = max(0, variable.high - self.ranges[loop.lower].low) // max(1, step.low)
        name = loop.variable or "i"
        return terms.of(self.atoms.make(loop, Kind.ITERATION, name, (0, trips), label=name))

    def variable(self, loop: For) -> Poly:
        return self.scalar(loop.lower) + self.scalar(loop.step) * self.iteration(loop)

    def runs(self, frames: tuple[Frame, ...]) -> list[Formula]:
        """Conditions under which the body of the innermost frame is executed."""
        found: list[Formula] = []
        for frame in frames:
            if isinstance(frame.op, For):
                found.append(terms.lt(self.variable(frame.op), self.scalar(frame.op.upper)))
            else:
                condition = self.condition(frame.op.operands[0])
                found.append(terms.negate(condition) if frame.arm else condition)
        return found

    def given(self, op: Op, about: Iterable[Formula]) -> list[Formula]:
        """What is true whenever `op` is executed, because of operations that are executed before it: that divisors are
        positive, if they are launch values or computed in the formulas `about`, and claims of loops that share unknowns with
        these or with each other. Each has an obligation, proven from those before it."""
        claimed = dict.fromkeys(self._claimed(claim, op) for claim in self._claims)
        formulas = [*about, *self.runs(self.structure.frames[op])]
        related = related_to([one for one in claimed if one != terms.TRUE], formulas)
        return [*computed_in(formulas, self.divided(op)), *related]

    def _claimed(self, claim: Invariant, op: Op) -> Formula:
        """What a claim says where `op` is executed. One in a branch before it holds if the branch was taken."""
        branches = self.structure.branches_before(claim, op)
        if branches is None:
            return terms.TRUE
        return terms.disjunction((*map(terms.negate, self.runs(branches)), self.condition(claim.operands[0])))

    def divided(self, op: Op) -> list[Formula]:
        """Formulas stating that divisors are positive, for the divisions executed before `op` whenever `op` is. Each division
        has an obligation for its divisor, proven from those before it."""
        position, found = self.structure.position[op], list[Formula]()
        for other in self._divisions:
            if self.structure.position[other] >= position:
                break
            if self.structure.branches_before(other, op) == ():
                found.append(terms.ge(self.scalar(other.operands[1]), 1))
        return [formula for formula in dict.fromkeys(found) if formula != terms.TRUE]

    def _argument(self, value: Value, body: Block, positions: Positions) -> Poly:
        loop = self.structure.loops[body]
        index = body.arguments.index(value)
        if index == 0:
            return self.variable(loop)
        if value in self._trial_values:
            return self.opaque(value, positions)
        first = self.element(loop.initial[index - 1], positions)
        advance = self._advance(loop, index - 1, positions)
        if advance is None:
            later = self.opaque(value, positions)
            return self.choose(terms.eq(self.iteration(loop)), first, later) if value.tile.rank else later
        return first + advance * self.iteration(loop)

    def _after_loop(self, loop: For, number: int, positions: Positions) -> Poly | None:
        advance = self._advance(loop, number, positions)
        if advance is None:
            return None
        lower, upper, step = (self.scalar(v) for v in (loop.lower, loop.upper, loop.step))
        trips = self.atoms.maximum(terms.ZERO, self.atoms.quotient(upper - lower + step - 1, step))
        return self.element(loop.initial[number], positions) + advance * trips

    def _advance(self, loop: For, number: int, positions: Positions) -> Poly | None:
        """Growth per iteration of a carried value's element at `positions`, if it is the same in every iteration."""
        carried = loop.regions[0].arguments[number + 1]
        if not isinstance(carried.type, TileType) or not carried.type.dtype.is_integer:
            return None
        # Translate in a copy in which this element is an unknown, so that the growth found is valid for any value of it. Other
        # carried elements are unknowns that change inside the loop, so growth that depends on them is not constant.
        trial = copy(self)
        unknown = self.opaque(carried, positions)
        trial._trial_values = self._trial_values | {carried}
        trial._elements = {**self._elements, (carried, positions): unknown}
        trial._conditions = dict(self._conditions)
        growth = trial.element(loop.regions[0].ops[-1].operands[number], positions) - unknown
        inner = {*self._varying(loop), *unknown.atoms()}
        varies_in_loop = any(atom in inner or self._inside(atom, loop) for atom in terms.closure([Formula("ge", growth)]))
        return None if varies_in_loop else growth

    def _varying(self, loop: For) -> list[Atom]:
        atoms = [self.iteration(loop).atom]
        for inner in loop.regions[0].walk():
            if isinstance(inner, For):
                atoms.append(self.iteration(inner).atom)
        return [atom for atom in atoms if atom is not None]

    def _inside(self, atom: Atom, loop: For) -> bool:
        source = self.sources.get(atom)
        if atom.kind is not Kind.OPAQUE:
            return False
        if source is None:
            return True
        if isinstance(source.owner, Block):
            return source.owner is loop.regions[0] or self.structure.inside(self.structure.loops[source.owner], loop)
        return source.owner is not None and self.structure.inside(source.owner, loop)

    # What cannot be expressed

    def opaque(self, value: Value, positions: Positions) -> Poly:
        """An unknown with the value's range. One that depends only on launch values is the same in all blocks."""
        bounds = self.ranges[value]
        if bounds.constant is not None:
            return terms.const(bounds.constant)
        name = value.name if value.name.isidentifier() else "v"
        varies = bool(positions) or not self._uniform(value)
        atom = self.atoms.make((value, positions), Kind.OPAQUE, name, (bounds.low, bounds.high), varies=varies)
        self.sources[atom], self.positions_of[atom] = value, positions
        if bounds.modulus > 1:
            # Divisibility is expressed exactly: v = modulus * q + rest with a fresh q.
            share = ((bounds.low - bounds.rest) // bounds.modulus, (bounds.high - bounds.rest) // bounds.modulus)
            key = (value, positions, "multiple")
            inner = self.atoms.make(key, Kind.OPAQUE, name, share, varies=varies)
            self.sources[inner], self.positions_of[inner] = value, positions
            return terms.of(inner) * bounds.modulus + bounds.rest
        return terms.of(atom)

    def _uniform(self, value: Value) -> bool:
        if value in self._names:
            return True
        owner = value.owner
        if not isinstance(owner, Op) or owner.regions or isinstance(owner, BlockId | Load | Gather | AtomicScatter):
            return False
        return all(self._uniform(operand) for operand in owner.operands)

    def _translate_condition(self, value: Value, positions: Positions) -> Formula:
        owner = value.owner
        match owner:
            case Constant():
                return terms.TRUE if owner.value else terms.FALSE
            case Compare() if not owner.operands[0].tile.dtype.is_float:
                left, right = (self.element(v, positions) for v in owner.operands)
                return compare(_COMPARE[owner.kind], left, right)
            case Compare() if (parts := compared(owner, self._same)) is not None and parts[0] in self.orders:
                return holds(parts, self.orders, self._float_class(parts[0], positions))
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

    def _float_class(self, value: Value, positions: Positions) -> Poly:
        """The class of a float among the constants that it is compared with: an unknown."""
        varies = bool(positions) or not self._uniform(value)
        bounds = (0, class_count(self.orders[value]) - 1)
        atom = self.atoms.make((value, positions), Kind.OPAQUE, "order", bounds, varies=varies)
        self.sources[atom], self.positions_of[atom] = value, positions
        return terms.of(atom)

    def untranslated(self, value: Value, positions: Positions) -> Poly:
        """The unknown of an element of a value that is not translated."""
        return self._float_class(value, positions) if value in self.orders else self.opaque(value, positions)

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
