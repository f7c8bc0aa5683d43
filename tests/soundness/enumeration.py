"""The prover's oracle: runs every block, iteration and element of one concrete launch and reports faults.

It shares no code with the analyses or the interpreter: plain loops over plain integers and floats. A fault is one of bounds (an
access, or an index of `take`, is out of bounds), race (two blocks access an element and one writes it), once (an `Out` element
is written twice in a block, or a scatter writes an element from two positions), coverage (an `Out` element is written by no
block), wrap (index arithmetic overflows its dtype), divisor (a divisor or loop step is not positive), order (a `Scratch`
element is read before its block wrote it, or a `Peer` one before its block met other ranks), address (two elements of a strided
tensor share memory), invariant (one is false), progress (the number of a `while` is not positive or does not fall), promise
(what `ensures` says of a tensor is not true at the end). Large launches can be sampled: `only` selects blocks, and loops keep
the ends; promises are then not checked. Values that no index, bound, condition or promise depends on are not computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product
from math import prod

from tests.soundness.arithmetic import Tile, evaluate, sort, wrapped
from tests.soundness.dependence import deciding_values, needed_values
from tests.soundness.memory import Element, Memory, NoSuchLaunch
from tilec.ir import ops
from tilec.ir.core import Access, Block, Effect, Function, Op, Parameter, Value
from tilec.ir.types import MAX_DIM

BlockIndex = tuple[int, ...]
LONG = 64
"""Sampled launches run no more iterations of a loop that carries values."""


class OverBudget(Exception):
    """The launch takes more steps than allowed."""


class _Cut(Exception):
    """A loop that carries values was not run to its end: what follows in the block would be no true run."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault, with its operation (None for a race or a gap found only at the end)."""

    kind: str
    op: Op | None
    tensor: str = ""
    element: Element = ()
    blocks: tuple[BlockIndex, ...] = ()

    def __str__(self) -> str:
        at = f"line {self.op.loc.line}" if self.op is not None and self.op.loc is not None else "the kernel"
        return f"{self.kind} at {at}: {self.tensor}{list(self.element)} in blocks {list(self.blocks)}"


@dataclass(slots=True)
class _Traffic:
    """Accesses to an element: two blocks per role are enough to detect a race. Unsafe writes only count as written."""

    writers: dict[Element, set[BlockIndex]] = field(default_factory=dict[Element, "set[BlockIndex]"])
    atomics: dict[Element, set[BlockIndex]] = field(default_factory=dict[Element, "set[BlockIndex]"])
    readers: dict[Element, set[BlockIndex]] = field(default_factory=dict[Element, "set[BlockIndex]"])
    trusted: set[Element] = field(default_factory=set[Element])


class Launch:
    """One concrete launch of a kernel. `only` restricts it to some blocks; `visit` makes long loops include these values."""

    def __init__(
        self,
        function: Function,
        sizes: Mapping[str, int],
        memory: Memory,
        budget: int = 400_000,
        only: Iterable[BlockIndex] | None = None,
        visit: Mapping[str, Iterable[int]] | None = None,
    ) -> None:
        self.function = function
        self.sizes = sizes
        self.memory = memory
        self.budget = budget
        self.only = None if only is None else list(dict.fromkeys(only))
        self.visit = {name: set(values) for name, values in (visit or {}).items()}
        self.grid = tuple(extent.evaluate(sizes) for extent in function.grid)
        self.parameters: dict[Value, Parameter] = {p.value: p for p in function.parameters}
        self.dims: dict[Value, BlockIndex] = {
            p.value: tuple(d.evaluate(sizes) for d in p.value.tensor.dims) for p in function.parameters if p.access is not None
        }
        if any(not 1 <= extent <= MAX_DIM for dims in self.dims.values() for extent in dims):
            raise NoSuchLaunch("an extent that no launcher takes")
        self.strides: dict[Value, BlockIndex | None] = {
            value: None if value.tensor.strides is None else tuple(s.evaluate(sizes) for s in value.tensor.strides)
            for value in self.dims
        }
        self.deciding = deciding_values(function)
        self.needed = needed_values(function)
        self.faults: dict[tuple[str, Op | None, str], Fault] = {}
        self.traffic: dict[str, _Traffic] = {p.name: _Traffic() for p in function.parameters if p.access is not None}
        self.skipped = False
        self.block: BlockIndex = ()
        self.written_by_block: dict[str, set[Element]] = {}
        self.values: dict[Value, Tile] = {}
        self.numbers: dict[int, int] = {}
        self.met = False
        self.before: dict[tuple[str, Element], int | float] = {}

    def run(self) -> list[Fault]:
        """All faults, at most one per kind and operation."""
        if self.only is None:
            self._step(prod(self.grid))
            self._remember()
        blocks = product(*map(range, self.grid)) if self.only is None else iter(self.only)
        for block in blocks:
            self.block = block
            self.written_by_block = {p.name: set() for p in self.function.parameters if p.access is not None}
            self.values, self.met = self._arguments(), False
            with suppress(_Cut):
                self._run(self.function.body)
        self._races()
        self._addresses()
        if self.only is None:
            self._uncovered()
            self._broken_promises()
        return list(self.faults.values())

    def _arguments(self) -> dict[Value, Tile]:
        scalars = {p.value: p for p in self.function.parameters if p.access is None}
        return {value: [self.memory.scalar(p.name, value.tile.dtype, self.sizes)] for value, p in scalars.items()}

    def _fault(self, kind: str, op: Op | None, tensor: str = "", element: Element = (), *others: BlockIndex) -> None:
        blocks = (self.block, *others) if op is not None else others
        self.faults.setdefault((kind, op, tensor), Fault(kind, op, tensor, element, blocks))

    def _step(self, count: int = 1) -> None:
        self.budget -= count
        if self.budget < 0:
            raise OverBudget

    def _scalar(self, value: Value) -> int:
        number = self.values[value][0]
        assert isinstance(number, int), number
        return number

    def _run(self, block: Block) -> None:
        for op in block.ops:
            self._step()
            if isinstance(op, ops.For):
                self._loop(op)
            elif isinstance(op, ops.If):
                region = op.regions[0] if self._scalar(op.operands[0]) else op.regions[1]
                self._run(region)
                self._bind(op.results, region.ops[-1].operands)
            elif isinstance(op, ops.Load | ops.Gather):
                found = self._read(op)
                if op.result in self.needed:
                    self.values[op.result] = found
            elif isinstance(op, ops.WriteOp):
                self._write(op)
                if op.results and op.results[0] in self.needed:  # what other blocks left there
                    dtype, count = op.results[0].tile.dtype, op.results[0].tile.size
                    ends = (-2, 2) if dtype.is_float else dtype.integer_range()
                    self.values[op.results[0]] = [self.memory.pick(*ends) for _ in range(count)]
            elif isinstance(op, ops.BlockId):
                self.values[op.result] = [self.block[op.axis]]
            elif isinstance(op, ops.NumBlocks):
                self.values[op.result] = [self.grid[op.axis]]
            elif isinstance(op, ops.DimValue):
                self.values[op.result] = [self.sizes[op.symbol]]
            elif isinstance(op, ops.Invariant | ops.Decreases):
                self._claim(op)
            elif isinstance(op, ops.Sort):
                self._sort(op)
            elif isinstance(op, ops.Meet):
                self.met = True
            elif not isinstance(op, ops.Yield | ops.Print):
                if isinstance(op, ops.Take):
                    self._take(op)
                self._compute(op)

    def _bind(self, targets: list[Value], sources: list[Value]) -> None:
        """Assigns values, all at once; values that are not needed are missing."""
        assigned = [
            (target, self.values[source]) for target, source in zip(targets, sources, strict=True) if target in self.needed
        ]
        self.values.update(assigned)

    def _sort(self, op: ops.Sort) -> None:
        if any(result in self.needed for result in op.results):
            self._step(op.results[0].tile.size)
            self.values.update(zip(op.results, sort(op, [self.values[value] for value in op.operands]), strict=True))

    def _compute(self, op: Op) -> None:
        (result,) = op.results
        if result not in self.needed:
            return
        is_deciding = result in self.deciding
        divides = isinstance(op, ops.Binary) and op.kind in ("floordiv", "mod")
        if is_deciding and divides and any(divisor <= 0 for divisor in self.values[op.operands[1]]):
            self._fault("divisor", op)
        self._step(result.tile.size)
        computed: Tile = evaluate(op, [self.values[value] for value in op.operands])
        dtype = result.tile.dtype
        if dtype.is_integer:
            wrapped_values: Tile = [wrapped(int(v), dtype) for v in computed]
            if wrapped_values != computed and is_deciding:
                self._fault("wrap", op)
            computed = wrapped_values
        self.values[result] = computed

    def _claim(self, op: ops.Invariant | ops.Decreases) -> None:
        number = self._scalar(op.operands[0])
        if isinstance(op, ops.Invariant):
            if not number:
                self._fault("invariant", op)
        elif op.point == "start":
            self.numbers[op.number] = number
            if number < 1:
                self._fault("progress", op)
        elif number >= self.numbers[op.number]:
            self._fault("progress", op)

    def _take(self, op: ops.Take) -> None:
        source, indices = op.operands
        extent = source.tile.shape[op.axis]
        if not all(0 <= index < extent for index in self.values[indices]):
            self._fault("bounds", op)

    def _loop(self, op: ops.For) -> None:
        lower, upper, step = (self._scalar(value) for value in op.operands[:3])
        body = op.regions[0]
        self._bind(body.arguments[1:], op.initial)
        if step <= 0:
            self._fault("divisor", op)
            step = max(1, -step)
        iteration_values = range(lower, upper, step)
        if iteration_values and iteration_values[-1] + step != wrapped(iteration_values[-1] + step, op.upper.tile.dtype):
            self._fault("wrap", op)  # the variable passes the last value once more before the loop ends
        for iteration in self._iterations(op, iteration_values):
            self._step()
            self.values[body.arguments[0]] = [iteration]
            self._run(body)
            self._bind(body.arguments[1:], body.ops[-1].operands)
        if op.initial and self.only is not None and len(iteration_values) > LONG:
            raise _Cut
        self._bind(op.results, body.arguments[1:])

    def _iterations(self, op: ops.For, every: range) -> Iterable[int]:
        if self.only is None or len(every) <= LONG:
            return every
        self.skipped = True
        if op.initial:
            return every[:LONG]  # carried values forbid skipping; a prefix of the iterations is still a true run
        chosen = {*every[:3], *every[-3:], *(v for v in self.visit.get(op.variable, ()) if v in every)}
        return sorted(chosen)

    def _elements(
        self, op: Op, tensor: Value, index_operands: list[Value], tile: Value, allow_out_of_bounds: bool
    ) -> Iterator[Element | None]:
        """Elements in tile order; None for a position that is masked. An out-of-bounds element is a fault, and still counts as
        accessed: two blocks may race there too."""
        dims = self.dims[tensor]
        name = self.parameters[tensor].name
        shape = tile.tile.shape
        self._step(tile.tile.size)
        if isinstance(op, ops.MemoryOp) and op.indexed:
            columns = [self.values[index] for index in index_operands]
            candidates: Iterable[Element] = zip(*columns, strict=True)  # pyright: ignore[reportAssignmentType]
        else:
            starts = [self._scalar(index) for index in index_operands]
            for index, start, extent in zip(index_operands, starts, shape, strict=True):
                if start + extent - 1 != wrapped(start + extent - 1, index.tile.dtype):
                    self._fault("wrap", op, name)
            candidates = product(*(range(s, s + n) for s, n in zip(starts, shape, strict=True)))
        for element in candidates:
            if all(0 <= index < extent for index, extent in zip(element, dims, strict=True)):
                yield element
            elif allow_out_of_bounds:
                yield None
            else:
                self._fault("bounds", op, name, element)
                yield element

    def _read(self, op: ops.Load | ops.Gather) -> Tile:
        tensor, tile = op.source, op.result
        parameter = self.parameters[tensor]
        name, traffic, written = parameter.name, self.traffic[parameter.name], self.written_by_block[parameter.name]
        values: Tile = []
        is_needed = op.result in self.needed
        pad: int | float = 0 if op.pad is None else op.pad if tensor.tensor.dtype.is_float else int(op.pad)
        for element in self._elements(op, tensor, op.operands[1:], tile, op.pad is not None or op.unsafe is not None):
            if element is None:
                values.append(pad)
                continue
            if op.unsafe is None:
                if parameter.access is not Access.IN:
                    _record_block(traffic.readers, self._address(tensor, element), self.block)
                if parameter.access is Access.PEER and not self.met:
                    self._fault("order", op, name, element)
                if parameter.access in (Access.SCRATCH, Access.OUT) and element not in written and not self.skipped:
                    self._fault("order", op, name, element)
            if is_needed:
                values.append(self.memory.read(name, element))
        return values

    def _write(self, op: ops.WriteOp) -> None:
        tensor = op.target
        parameter = self.parameters[tensor]
        name, traffic, written = parameter.name, self.traffic[parameter.name], self.written_by_block[parameter.name]
        values = self.values.get(op.tile)
        role = traffic.atomics if op.effect is Effect.ATOMIC else traffic.writers
        accessed: set[Element] = set()
        allow_out_of_bounds = op.mask or op.unsafe is not None
        for position, element in enumerate(self._elements(op, tensor, op.indices, op.tile, allow_out_of_bounds)):
            if element is None:
                continue
            if op.unsafe is None:
                _record_block(role, self._address(tensor, element), self.block)
                written_before = element in written and parameter.access is Access.OUT
                if (written_before or element in accessed) and op.effect is not Effect.ATOMIC:
                    self._fault("once", op, name, element)
            else:
                written.add(element)
            accessed.add(element)
            written.add(element)
            if values is not None:
                self.memory.write(name, element, None if op.effect is Effect.ATOMIC else values[position])
        if op.unsafe is not None:
            traffic.trusted |= {self._address(tensor, element) for element in accessed}

    def _address(self, tensor: Value, element: Element) -> Element:
        """The identity of an element in memory: its index, or for declared strides its distance from the start."""
        strides = self.strides[tensor]
        return element if strides is None else (sum(i * s for i, s in zip(element, strides, strict=True)),)

    def _races(self) -> None:
        for name, traffic in self.traffic.items():
            for element in {*traffic.writers, *traffic.atomics}:
                writers = traffic.writers.get(element, set())
                atomics = traffic.atomics.get(element, set())
                readers = traffic.readers.get(element, set())
                conflict = len(writers) > 1 or any(len(writers | other) > 1 for other in (atomics, readers) if writers)
                conflict = conflict or bool(atomics and readers and len(atomics | readers) > 1)
                if conflict:
                    self._fault("race", None, name, element, *sorted(writers | atomics | readers)[:3])
                    break

    def _addresses(self) -> None:
        """Reports small writable strided tensors in which two elements share an address."""
        for value, strides in self.strides.items():
            count = prod(self.dims[value])
            if strides is not None and count <= 4096 and self.parameters[value].access is not Access.IN:
                addresses = {self._address(value, element) for element in product(*map(range, self.dims[value]))}
                if len(addresses) < count:
                    self._fault("address", None, self.parameters[value].name)

    def _uncovered(self) -> None:
        for parameter in self.function.parameters:
            if parameter.access is Access.OUT:
                traffic = self.traffic[parameter.name]
                written = {*traffic.writers, *traffic.trusted}
                self._step(prod(self.dims[parameter.value]))
                for element in product(*map(range, self.dims[parameter.value])):
                    if self._address(parameter.value, element) not in written:
                        self._fault("coverage", None, parameter.name, element)
                        break

    def _all_elements(self, tensor: str) -> list[Element]:
        dims = next(self.dims[p.value] for p in self.function.parameters if p.name == tensor)
        self._step(prod(dims))
        return list(product(*map(range, dims)))

    def _remember(self) -> None:
        """The elements that a promise compares with, before the launch."""
        for name in {name for promise in self.function.promises for name in promise.above}:
            self.before |= {(name, element): self.memory.read(name, element) for element in self._all_elements(name)}

    def _broken_promises(self) -> None:
        """Elements that were not written are what they were: any that the contract allows."""
        for promise in self.function.promises:
            low, high = promise.low.evaluate(self.sizes), promise.high.evaluate(self.sizes)
            elements = self._all_elements(promise.tensor)
            left = [self.memory.read(promise.tensor, element) for element in elements]
            for position, (element, value) in enumerate(zip(elements, left, strict=True)):
                share = value - sum(self.before[name, element] for name in promise.above)
                equal = promise.distinct and value in left[:position]
                in_row = zip(elements[:position], left[:position], strict=True)
                equal |= promise.distinct_in_rows and any(one[:-1] == element[:-1] and v == value for one, v in in_row)
                if not low <= share < high or equal or (promise.sorted and position and value < left[position - 1]):
                    self._fault("promise", None, promise.tensor, element)
                    break


def _record_block(role: dict[Element, set[BlockIndex]], element: Element, block: BlockIndex) -> None:
    blocks = role.setdefault(element, set())
    if len(blocks) < 3:
        blocks.add(block)
