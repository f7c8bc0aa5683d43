"""What the translation of a kernel keeps, and the unknowns that stand for values that it cannot express.

In: a value and positions in its tile. Out: an unknown with the value's range, always the same one for the same element. The
unknowns of one execution of a block have one value; those of another one are renamed (`accesses`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tilec.ir.core import Op, Value
from tilec.ir.ops import AtomicScatter, Binary, BlockId, Gather, Invariant, Load
from tilec.passes.analysis.ranges import Range
from tilec.passes.prover import terms
from tilec.passes.prover.float_orders import Orders, Pair, class_count
from tilec.passes.prover.host_terms import HostTerms
from tilec.passes.prover.prefix_sums import PrefixSums
from tilec.passes.prover.source_positions import Positions
from tilec.passes.prover.structure import Structure
from tilec.passes.prover.terms import Atom, Formula, Kind, Poly


@dataclass(slots=True)
class UnknownTerms(HostTerms):
    """The tables of a translation. `stored` are values with a promise, whose arithmetic has the same obligations as that of an
    index; `first_reads` are loads of `InOut` tensors that yield elements before the launch."""

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
    orders: Orders = field(default_factory=Orders)
    pairs_of: dict[Atom, Pair] = field(default_factory=dict[Atom, Pair])
    _with_obligation: frozenset[Op] = frozenset()
    _trial_values: frozenset[Value] = frozenset()
    _declared: dict[Value, Range] | None = None
    _names: dict[Value, str] = field(default_factory=dict[Value, str])
    _elements: dict[tuple[Value, Positions], Poly] = field(default_factory=dict[tuple[Value, Positions], Poly])
    _conditions: dict[tuple[Value, Positions], Formula] = field(default_factory=dict[tuple[Value, Positions], Formula])

    def scalar(self, value: Value) -> Poly:
        """An integer without axes."""
        return self.element(value, ())

    def element(self, value: Value, positions: Positions) -> Poly:
        """The element of an integer tile at `positions`."""
        raise NotImplementedError

    def condition(self, value: Value, positions: Positions = ()) -> Formula:
        """The element of a bool tile, as a formula."""
        raise NotImplementedError

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

    def _float_class(self, value: Value, positions: Positions) -> Poly:
        """The class of a float among the constants that it is compared with: an unknown."""
        varies = bool(positions) or not self._uniform(value)
        bounds = (0, class_count(self.orders.constants[value]) - 1)
        atom = self.atoms.make((value, positions), Kind.OPAQUE, "order", bounds, varies=varies)
        self.sources[atom], self.positions_of[atom] = value, positions
        return terms.of(atom)

    def _pair_class(self, pair: Pair, positions: Positions) -> Poly:
        """The class of a pair of floats: an unknown. Its source is the one of them that is computed in more loops; the label
        tells it from other unknowns of that one."""
        floats = [value for value in (pair.left, pair.right) if isinstance(value, Value)]
        varies = bool(positions) or not all(map(self._uniform, floats))
        label = f"pair {pair.number}"
        atom = self.atoms.make((label, positions), Kind.OPAQUE, "order", (0, 3), varies=varies, label=label)
        around = {value: self.structure.around(value) for value in floats}
        self.sources[atom] = max(floats, key=lambda value: -1 if (loops := around[value]) is None else len(loops))
        self.positions_of[atom], self.pairs_of[atom] = positions, pair
        return terms.of(atom)

    def untranslated(self, atom: Atom, positions: Positions) -> Poly:
        """The unknown of what is not translated that an unknown stands for, at other positions."""
        value = self.sources[atom]
        if atom in self.pairs_of:
            return self._pair_class(self.pairs_of[atom], positions)
        return self._float_class(value, positions) if value in self.orders.constants else self.opaque(value, positions)
