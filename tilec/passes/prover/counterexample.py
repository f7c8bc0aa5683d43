"""Turns a solution of a violated obligation into a readable counterexample: the concrete launch that goes wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tilec.diagnostics.diagnostic import Counterexample
from tilec.ir.core import Op
from tilec.ir.ops.loop_claims import FLAG, PASS
from tilec.ir.packed import authored_element
from tilec.ir.types import TensorType
from tilec.passes.prover import terms
from tilec.passes.prover.accesses import Instance
from tilec.passes.prover.index_terms import IndexTerms
from tilec.passes.prover.integer_sets import Assignment, evaluator
from tilec.passes.prover.replay import is_old_value
from tilec.passes.prover.replayed_floats import NAN
from tilec.passes.prover.terms import Atom, Kind


def counterexample(
    index: IndexTerms,
    found: Assignment,
    instances: tuple[Instance, ...],
    tensor: str = "",
    element: tuple[int, ...] = (),
    note: str = "",
) -> Counterexample:
    """The launch of an assignment, with the block ids, loop variables and loaded values of each instance."""
    value = evaluator(found)
    dims = {atom.name: number for atom, number in found.items() if atom.kind is Kind.SYMBOL}
    # A dim that the violation does not mention may have any size.
    dims = {name: 1 for name in index.function.dims if name not in index.function.strides} | dims
    order = [*index.function.dims, *(p.name for p in index.function.parameters)]
    dims = dict(sorted(dims.items(), key=lambda item: order.index(item[0]) if item[0] in order else len(order)))
    blocks = tuple(tuple(terms.evaluate(block, value) for block in instance.blocks) for instance in instances)
    iterations = tuple(
        {
            loop.variable or "i": terms.evaluate(count if loop.variable == PASS else variable, value)
            for loop, variable, count in instance.loops
        }
        for instance in instances
    )
    values = _loaded(index, found, dims)
    no_number = " and ".join(f"`{name}` is NaN" for name, number in values.items() if number == NAN)
    note = ", ".join(part for part in (note, no_number, *_untranslated(index, _needed(found, instances))) if part)
    values = {name: number for name, number in values.items() if number != NAN}
    type_ = next((p.value.type for p in index.function.parameters if p.name == tensor), None)
    if element and isinstance(type_, TensorType):  # the tile of a `take` is no parameter
        element = authored_element(type_, element)
        if type_.packed is not None:
            neighbour = ", ".join(map(str, (*element[:-1], element[-1] + 1)))
            note = ", ".join(part for part in (f"in one byte with `{tensor}[{neighbour}]`", note) if part)
    return Counterexample(dims, blocks, iterations, tensor, element, values, note)


class _Recorded(dict[Atom, int]):
    """An assignment that records which of its values are read."""

    def __init__(self, values: Assignment) -> None:
        super().__init__(values)
        self.read: set[Atom] = set()

    def get(self, key: Atom, default: int = 0) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.read.add(key)
        return super().get(key, default)


def _needed(found: Assignment, instances: tuple[Instance, ...]) -> Assignment:
    """The part of an assignment that determines which elements the instances access and whether they run, in the cases that
    apply."""
    if not instances:
        return found
    recorded = _Recorded(found)
    value = evaluator(recorded)
    for instance in instances:
        for axis in instance.axes:
            terms.evaluate(axis.start, value)
        for formula in instance.runs:
            terms.holds(formula, value)
    return {atom: number for atom, number in found.items() if atom in recorded.read}


def _untranslated(index: IndexTerms, found: Assignment) -> Iterator[str]:
    """Values that the prover does not translate exactly, such as loop-carried ones: a run of the launch computes them. What an
    atomic operation returns is assumed."""
    computed, assumed = dict[str, None](), dict[str, None]()
    value = evaluator(found)
    for atom, number in found.items():
        if atom.is_sum and (count := terms.evaluate(atom.args[-4], value)):
            computed[f"the first {count} elements of a scan have the sum {number}"] = None
        source = index.sources.get(atom)
        if source is None or atom.kind is not Kind.OPAQUE or FLAG in source.name or source.tile.dtype.is_float:
            continue  # that a loop goes on is clear from the iteration, and what a float is from memory
        location = source.owner.loc if isinstance(source.owner, Op) else None
        name = f"`{source.name}`" if source.name else f"the value computed at line {location.line}" if location else "a value"
        (assumed if is_old_value(source) else computed)[f"{name} is {number}"] = None
    for word, parts in (("where", computed), ("assuming that", assumed)):
        if parts:
            yield f"{word} {' and '.join(parts)}"


def _loaded(index: IndexTerms, found: Assignment, dims: Mapping[str, int]) -> dict[str, int]:
    """The elements that an assignment names. What lies outside of a tensor of these `dims` is no element: a padding replaces
    it."""
    values: dict[str, int] = {}
    value = evaluator(found)
    for atom, number in found.items():
        if atom.kind is Kind.LOADED and not atom.is_order and not atom.is_sum:
            at = [terms.evaluate(arg, value) for arg in atom.args]
            if index.function.parameter(atom.label).access is None:
                values[atom.label] = number
            elif _inside(index, atom.label, at, dims):
                type_ = index.function.parameter(atom.label).value.tensor
                text = ", ".join(map(str, authored_element(type_, at)))
                values[f"{atom.label}[{text}{f':{2 * at[-1] + 2}' if type_.packed is not None else ''}]"] = number
    return values


def _inside(index: IndexTerms, tensor: str, at: Sequence[int], sizes: Mapping[str, int]) -> bool:
    extents = index.function.parameter(tensor).value.tensor.dims
    try:
        return all(0 <= one < extent.evaluate(sizes) for one, extent in zip(at, extents, strict=True))
    except (KeyError, ZeroDivisionError):
        return True
