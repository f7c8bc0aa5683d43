"""Searches launches in which a tensor is left partly unwritten, where what is written depends on memory.

In: a kernel, a tensor, and sizes to begin with. Out: a launch that was run from start to end, with what memory holds, and an
element that no block of it writes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from tilec.diagnostics.diagnostic import Counterexample
from tilec.ir.core import Access
from tilec.passes.prover import terms
from tilec.passes.prover.counterexample import counterexample
from tilec.passes.prover.findings import Findings
from tilec.passes.prover.integer_sets import Assignment
from tilec.passes.prover.launch_run import Launch
from tilec.passes.prover.replayed_floats import NAN
from tilec.passes.prover.tensor_contents import deciding_tensors, fillings

STEPS: Final = 600_000
"""Limit on the elements that are computed for one tensor, about a third of a second."""
NAMED: Final = 16
"""A counterexample names at most so many elements."""
SIZES: Final = 8
"""How many sizes are tried."""


def unwritten_element(findings: Findings, tensor: str, example: Assignment | None) -> Counterexample | None:
    """A launch that leaves an element of a tensor unwritten; None if none is found. Sizes of `example` are tried first. What an
    `InOut` tensor held breaks a promise of order or distinctness only next to another element, which may have to be of the same
    row."""
    function, budget = findings.index.function, STEPS
    related = {flag for promise in function.promises if promise.tensor == tensor for flag in promise.flags}
    fewest = 2 if related and function.parameter(tensor).access is Access.INOUT else 1
    fewest_in_row = fewest if related == {"distinct_in_rows"} else 1
    deciding = deciding_tensors(function)
    for admitted in _sizes(findings, example):
        sizes = {
            name: admitted[atom] for name in findings.index.symbols if (atom := findings.index.symbol(name).atom) in admitted
        }
        for filling in fillings(function, sizes):
            launch = Launch(function, sizes, filling, tensor, budget // 4, fewest, fewest_in_row)
            element = launch.unwritten()
            budget -= budget // 4 - launch.budget + 1
            read = {name: elements for name, elements in launch.read.items() if name in deciding}
            shown = _contents(read, filling.is_uniform) if element is not None else None
            if element is not None and shown is not None:
                values, texts = shown
                note = "is written by no block" + (f" where {' and '.join(texts)}" if texts else "")
                return replace(counterexample(findings.index, admitted, (), tensor, element, note), values=values)
            if budget <= 0:
                return None
            if not read:
                break
    return None


def _sizes(findings: Findings, example: Assignment | None) -> Iterator[Assignment]:
    """Sizes that the contract admits, with a number for every launch value."""
    index, ladder = findings.index, findings.ladder
    symbols = [atom for name in index.symbols if (atom := index.symbol(name).atom) is not None]
    used = [atom for atom in symbols if atom.name not in index.function.strides]
    seen: list[Assignment] = []
    for sizes in (example or {}, *ladder.small_sizes(used, ())):
        found = ladder.admitted({atom: number for atom, number in sizes.items() if atom.kind is terms.Kind.SYMBOL})
        if found is None:
            continue
        whole = {atom: found.get(atom, max(atom.low, min(atom.high, 0))) for atom in symbols}
        if whole not in seen:
            seen.append(whole)
            yield whole
        if len(seen) == SIZES:
            return


def _contents(read: dict[str, dict[tuple[int, ...], int]], is_uniform: bool) -> tuple[dict[str, int], list[str]] | None:
    """What memory holds: elements by name, and texts about others; None if these are too many to show."""
    values, texts = dict[str, int](), list[str]()
    for name, elements in read.items():
        numbers = set(elements.values())
        if is_uniform and len(numbers) == 1:
            (number,) = numbers
            texts.append(f"every element of `{name}` is {'NaN' if number == NAN else number}")
            continue
        for at, number in elements.items():
            element = f"{name}[{', '.join(map(str, at))}]"
            if number == NAN:
                texts.append(f"`{element}` is NaN")
            else:
                values[element] = number
    return (values, texts) if len(values) + len(texts) <= NAMED else None
