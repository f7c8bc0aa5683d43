"""The value of an operation at one element in one execution: SSA values go in, z3 terms come out.

An `Execution` is one block at one iteration of each loop. `element` returns an integer or boolean by its position in the
tile, over unbounded integers: if an operation may wrap, a separate obligation states that it does not. Division rounds toward
minus infinity and is total, shifts accept every amount, casts keep values (a separate obligation again), and carried values
follow the rules of `Program`. Values without an exact term (data computed in floats, reductions, bit operations of two
variables) are bounded and recorded as vague.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilec.audit import smt
from tilec.audit.definitions import MOST_RUNS, Definitions, runs
from tilec.audit.positions import Position, moved
from tilec.audit.program import Program
from tilec.audit.running_sums import RunningSum
from tilec.audit.scene import ORDER, Loaded, Query
from tilec.audit.smt import Term
from tilec.ir.core import Op, Value
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
    Iota,
    Load,
    MemoryOp,
    NumBlocks,
    Permute,
    Reduce,
    Reshape,
    Select,
    Sort,
    Take,
    Unary,
)  # fmt: skip


class Execution:
    """`blocks` are the block's ids, `iterations` the current iteration (from 0) of each loop, an `int` for a loop that is
    evaluated iteration by iteration. `definitions` collects the definitions of quotients."""

    def __init__(
        self, query: Query, name: str, blocks: Sequence[Term], iterations: Mapping[For, Term | int],
        definitions: Definitions | None = None,
    ) -> None:  # fmt: skip
        self.query = query
        self.program: Program = query.program
        self.name = name
        self.blocks = tuple(blocks)
        self.iterations = dict(iterations)
        self.definitions = definitions if definitions is not None else query.universal
        self.own_facts: list[Term] = []  # facts about data read by a witness, true for any block
        self._known: dict[tuple[object, ...], tuple[Term, Position]] = {}

    # Values

    def element(self, value: Value, position: Position = ()) -> Term:
        """One element of a tile of integers or bools."""
        value = self.program.first_alike(value)
        key = (value, tuple(map(smt.identity, position)), self._iterations_of(value))
        if key not in self._known:
            self._known[key] = (self._element(value, position), position)
        return self._known[key][0]

    def _iterations_of(self, value: Value) -> object:
        """The iterations of the enclosing followed loops; part of the cache key of a value."""
        return tuple(
            iteration for loop in self.program.loops_of(value) if isinstance(iteration := self.iterations.get(loop), int)
        )

    def _element(self, value: Value, position: Position) -> Term:
        owner = value.owner
        if owner is self.program.function.body:
            return self.query.host.symbol(self.program.function.parameter_of(value).name)
        if owner in self.program.loops:
            return self._argument(self.program.loops[owner], value, position)
        assert isinstance(owner, Op)
        if isinstance(owner, For):
            return self._result(owner, value, position)
        if isinstance(owner, If):
            result_index = owner.results.index(value)
            sides = [region.ops[-1].operands[result_index] for region in owner.regions]
            condition = self.element(owner.operands[0])
            return smt.choose(condition, self.element(sides[0], position), self.element(sides[1], position))
        if isinstance(owner, Sort):
            return self.element(owner.operands[owner.results.index(value)], self._sorted_from(owner, position))
        if value.tile.dtype.kind == "b":
            return self._boolean(owner, value, position)
        if isinstance(owner, Binary | Select | Reshape) and (found := self.program.running_sum(value)) is not None:
            return self._running_sum(found, position)
        return self._integer(owner, value, position)

    def _integer(self, op: Op, value: Value, position: Position) -> Term:
        match op:
            case Constant():
                return smt.integer(int(op.value))
            case Iota():
                return position[0]
            case BlockId():
                return self.blocks[op.axis] if op.axis < len(self.blocks) else smt.integer(0)
            case NumBlocks():
                grid = self.program.contract.grid
                return self.query.expression(grid[op.axis]) if op.axis < len(grid) else smt.integer(1)
            case DimValue():
                return self.query.host.symbol(op.symbol)
            case Broadcast() | Butterfly() | Reshape() | Permute():
                return self.element(op.operands[0], moved(op, position))
            case Take():
                return self.element(op.operands[0], self._taken_from(op, position))
            case Select():
                condition, on_true, on_false = (self.element(operand, position) for operand in op.operands)
                return smt.choose(condition, on_true, on_false)
            case Cast() if op.operands[0].tile.dtype.kind == "b":
                return smt.choose(self.element(op.operands[0], position), smt.integer(1), smt.integer(0))
            case Cast() if not op.operands[0].tile.dtype.is_float:
                return self.element(op.operands[0], position)
            case Binary():
                return self._binary(op, value, position)
            case Unary() if op.kind == "neg":
                return smt.sub(smt.integer(0), self.element(op.operands[0], position))
            case Unary() if op.kind == "abs":
                operand = self.element(op.operands[0], position)
                return smt.larger(operand, smt.sub(smt.integer(0), operand))
            case Unary() if op.kind == "not":
                operand = self.element(op.operands[0], position)
                high = smt.integer(-1 if value.tile.dtype.kind == "i" else value.tile.dtype.integer_range()[1])
                return smt.sub(high, operand)
            case Load() | Gather():
                return self._loaded(op, position)
            case Reduce():
                return self._approximated(value, f"{op.kind} of a tile")
            case _:
                return self._approximated(value, op.opcode)

    def _binary(self, op: Binary, value: Value, position: Position) -> Term:
        left, right = (self.element(operand, position) for operand in op.operands)
        match op.kind:
            case "add":
                return smt.add(left, right)
            case "sub":
                return smt.sub(left, right)
            case "mul":
                return smt.mul(left, right)
            case "min":
                return smt.smaller(left, right)
            case "max":
                return smt.larger(left, right)
            case "floordiv" | "mod":
                positive = op in self.program.positive and not self.program.frames[op]  # executed on every path
                quotient, rest = self.definitions.divided(left, right, positive, self.program.bounds.get(op.operands[1]))
                return rest if op.kind == "mod" else self._wrapped(op, left, right, quotient)
            case "shl" | "shr":
                return self._shifted(op, left, smt.constant(right), value)
            case "and" | "or" | "xor" if (mask := smt.constant(right)) is not None and len(runs(mask)) <= MOST_RUNS:
                return self.definitions.masked(op.kind, left, mask)
            case "and" | "or" | "xor" if (mask := smt.constant(left)) is not None and len(runs(mask)) <= MOST_RUNS:
                return self.definitions.masked(op.kind, right, mask)
            case _:
                return self._approximated(value, f"`{op.kind}` of integers")

    def _wrapped(self, op: Binary, left: Term, right: Term, quotient: Term) -> Term:
        """The one quotient that wraps: the minimum of a signed type divided by -1 is itself."""
        dtype = op.result.tile.dtype
        low, high = self.program.bounds.get(op.operands[1], dtype.integer_range())
        if dtype.kind != "i" or op in self.program.positive or not low <= -1 <= high:
            return quotient
        least = smt.integer(dtype.integer_range()[0])
        return smt.choose(smt.every([left == least, right == -1]), least, quotient)

    def _shifted(self, op: Binary, left: Term, amount: int | None, value: Value) -> Term:
        width = value.tile.dtype.bits
        if amount is None:
            return self._approximated(value, "a shift by an amount that is not constant")
        if amount >= width or amount < 0:  # a negative amount counts as at least the width
            negative = value.tile.dtype.kind == "i" and op.kind == "shr"
            return smt.choose(left < 0, smt.integer(-1), smt.integer(0)) if negative else smt.integer(0)
        if op.kind == "shl":
            return smt.mul(left, smt.integer(1 << amount))
        return self.definitions.divided(left, smt.integer(1 << amount), True, None)[0]

    def _boolean(self, op: Op, value: Value, position: Position) -> Term:
        match op:
            case Constant():
                return smt.boolean(bool(op.value))
            case Compare() if not op.operands[0].tile.dtype.is_float:
                left, right = (self.element(operand, position) for operand in op.operands)
                if op.operands[0].tile.dtype.kind == "b":
                    left, right = (smt.choose(side, smt.integer(1), smt.integer(0)) for side in (left, right))
                return smt.compare(op.kind, left, right)
            case Broadcast() | Butterfly() | Reshape() | Permute():
                return self.element(op.operands[0], moved(op, position))
            case Take():
                return self.element(op.operands[0], self._taken_from(op, position))
            case Select():
                condition, on_true, on_false = (self.element(operand, position) for operand in op.operands)
                return smt.choose(condition, on_true, on_false)
            case Cast() if op.operands[0].tile.dtype.is_integer:
                return smt.compare("ne", self.element(op.operands[0], position), smt.integer(0))
            case Cast() if op.operands[0].tile.dtype.kind == "b":
                return self.element(op.operands[0], position)
            case Unary() if op.kind == "not":
                return smt.negate(self.element(op.operands[0], position))
            case Binary() if op.kind in ("and", "or", "min", "max", "mul"):
                sides = [self.element(operand, position) for operand in op.operands]
                return smt.every(sides) if op.kind in ("and", "min", "mul") else smt.some(sides)
            case Binary() if op.kind == "xor":
                left, right = (self.element(operand, position) for operand in op.operands)
                return smt.choose(left, smt.negate(right), right)
            case _:
                term = self.query.fresh_boolean(f"{self.name}.{op.opcode}")
                self.query.approximated[str(term)] = "a condition on data" if isinstance(op, Compare) else op.opcode
                return term

    def _approximated(self, value: Value, label: str) -> Term:
        term = self.query.fresh(f"{self.name}.{label}", self.program.bounds[value])
        self.query.approximated[str(term)] = label
        return term

    def _loaded(self, op: Load | Gather, position: Position) -> Term:
        name = self.program.parameter(op).name
        low, high = op.result.tile.dtype.integer_range()
        term = self.query.fresh(f"{self.name}.{name}", (low, high))
        if not self.program.reads_initial_contents(name):
            self.query.approximated[str(term)] = f"`{name}`, which the kernel writes"
        element_index = self.element_index(op, position)
        self.own_facts += self.query.record(Loaded(term, name, element_index))
        if self.definitions is self.query.universal:
            self.query.facts += self.own_facts
            self.own_facts = []
        if op.pad is None:
            return term
        pad = max(low, min(high, int(op.pad)))
        return smt.choose(smt.every(self.query.inside(name, element_index)), term, smt.integer(pad))

    def _taken_from(self, op: Take, position: Position) -> Position:
        """Positions in the operand: an index outside of the axis counts as the last position."""
        last = smt.integer(op.operands[0].tile.shape[op.axis] - 1)
        index = self.element(op.operands[1], position)
        chosen = smt.choose(smt.every([index >= 0, index <= last]), index, last)
        return (*position[: op.axis], chosen, *position[op.axis + 1 :])

    def _sorted_from(self, op: Sort, position: Position) -> Position:
        """Positions in the operands: along the axis an unknown one, the same for all tiles of the sort."""
        label = f"{ORDER}{self.program.order[op]}"
        loops = [self.iterations[frame.op] for frame in self.program.frames[op] if isinstance(frame.op, For)]
        counts = [smt.integer(count) if isinstance(count, int) else count for count in loops]
        others = (*position[: op.axis], *position[op.axis + 1 :])
        term = self.query.fresh(f"{self.name}.{label}", (0, op.results[0].tile.shape[op.axis] - 1))
        self.query.approximated[str(term)] = "positions that a sort takes elements from"
        index = (*self.blocks, *counts, *others, position[op.axis])
        self.own_facts += self.query.record_order(Loaded(term, label, index))
        if self.definitions is self.query.universal:
            self.query.facts += self.own_facts
            self.own_facts = []
        return (*position[: op.axis], term, *position[op.axis + 1 :])

    def _running_sum(self, found: RunningSum, position: Position) -> Term:
        """An unknown sum of the elements before one; its relations to others are those of `Query.record_sum`."""
        own, at = self.element(found.tile, position), position[found.axis]
        before = smt.sub(smt.integer(found.tile.tile.shape[found.axis] - 1), at) if found.backward else at
        assert isinstance(found.tile.owner, Op)
        label = f"sums of {self.program.order[found.tile.owner]} along {found.axis}{' backward' if found.backward else ''}"
        term = self.query.fresh(f"{self.name}.{label}")
        self.query.approximated[str(term)] = "a sum of data"
        loops = [self.iterations[loop] for loop in self.program.loops_of(found.tile)]
        counts = [smt.integer(count) if isinstance(count, int) else count for count in loops]
        others = (*position[: found.axis], *position[found.axis + 1 :])
        index = (*self.blocks, *counts, *others, before, own)
        self.own_facts += self.query.record_sum(Loaded(term, label, index), self.program.bounds[found.tile])
        if self.definitions is self.query.universal:
            self.query.facts += self.own_facts
            self.own_facts = []
        return smt.add(term, own) if found.inclusive else term

    # Loops

    def variable(self, loop: For) -> Term:
        """The loop variable."""
        iteration = self.iterations[loop]
        count = smt.integer(iteration) if isinstance(iteration, int) else iteration
        return smt.add(self.element(loop.lower), smt.mul(count, self.element(loop.step)))

    def _argument(self, loop: For, value: Value, position: Position) -> Term:
        body = loop.regions[0]
        argument_index = body.arguments.index(value)
        if argument_index == 0:
            return self.variable(loop)
        induction = self.program.induction(value)
        iteration = self.iterations[loop]
        initial = loop.initial[argument_index - 1]
        if induction is not None:
            return self._after(
                initial,
                induction.amount,
                induction.sign,
                position,
                smt.integer(iteration) if isinstance(iteration, int) else iteration,
            )
        if isinstance(iteration, int):
            return (
                self.element(initial, position)
                if iteration == 0
                else self._yielded(loop, argument_index - 1, iteration - 1, position)
            )
        if value.tile.dtype.kind == "b":
            term = self.query.fresh_boolean(f"{self.name}.carried")
            self.query.approximated[str(term)] = "a carried condition"
            return term
        return self._approximated(value, "a carried value")

    def _result(self, loop: For, value: Value, position: Position) -> Term:
        result_index = loop.results.index(value)
        argument = loop.regions[0].arguments[result_index + 1]
        induction, iterations = self.program.induction(argument), self.program.iterations(loop)
        if induction is not None and (induction.amount is None or iterations is not None):
            return self._after(
                loop.initial[result_index], induction.amount, induction.sign, position, smt.integer(iterations or 0)
            )
        if iterations is not None and loop in self.program.unrolled:
            if iterations == 0:
                return self.element(loop.initial[result_index], position)
            return self._yielded(loop, result_index, iterations - 1, position)
        if value.tile.dtype.kind == "b":
            term = self.query.fresh_boolean(f"{self.name}.result")
            self.query.approximated[str(term)] = "the result of a loop"
            return term
        return self._approximated(value, "the result of a loop")

    def _after(self, initial: Value, amount: Value | None, sign: int, position: Position, iterations: Term) -> Term:
        start = self.element(initial, position)
        if amount is None:
            return start
        growth = smt.mul(iterations, self.element(amount, position))
        return smt.add(start, growth) if sign > 0 else smt.sub(start, growth)

    def _yielded(self, loop: For, element_index: int, iteration: int, position: Position) -> Term:
        """A value that a followed loop yields at the end of an iteration."""
        before = self.iterations.get(loop)
        self.iterations[loop] = iteration
        try:
            return self.element(loop.regions[0].ops[-1].operands[element_index], position)
        finally:
            if before is None:
                del self.iterations[loop]
            else:
                self.iterations[loop] = before

    # When an operation runs

    def path_conditions(self, op: Op) -> list[Term]:
        """Conditions under which `op` is executed: ids within the grid, iterations within their loops, branches taken."""
        conditions: list[Term] = []
        for block, extent in zip(self.blocks, self.program.contract.grid, strict=True):
            conditions += [block >= 0, block < self.query.expression(extent)]
        for frame in self.program.frames[op]:
            if isinstance(frame.op, For):
                variable, iteration = self.variable(frame.op), self.iterations[frame.op]
                conditions.append(smt.compare("lt", variable, self.element(frame.op.upper)))
                if not isinstance(iteration, int):
                    conditions.append(iteration >= 0)
                    if frame.op in self.program.positive:
                        conditions.append(variable >= self.element(frame.op.lower))
            else:
                condition = self.element(frame.op.operands[0])
                conditions.append(condition if frame.region == 0 else smt.negate(condition))
        return conditions

    def known(self, op: Op) -> list[Term]:
        """What is true whenever `op` is executed: its path conditions, and the invariants that precede it, those of
        a branch if it was taken."""
        facts = self.path_conditions(op)
        for claim in self.program.claims:
            branches = self.program.branches_before(claim, op)
            if branches is not None:
                conditions = [self.element(frame.op.operands[0]) for frame in branches]
                taken = [one if frame.region == 0 else smt.negate(one) for one, frame in zip(conditions, branches, strict=True)]
                facts.append(smt.implies(smt.every(taken), self.element(claim.operands[0])))
        return facts

    # Memory accesses

    def element_index(self, op: MemoryOp, position: Position) -> tuple[Term, ...]:
        """The element of the tensor that an operation accesses at a position of its tile."""
        if op.indexed:
            return tuple(self.element(index, position) for index in op.indices)
        return tuple(smt.add(self.element(offset), at) for offset, at in zip(op.indices, position, strict=True))
