"""Where mutants of the shipped kernels are checked: at the launches of `tests.shipped_launches`, and at these with the smallest
and largest integers that a kernel allows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from tests import shipped
from tests.mutation.verdict import Launch
from tests.shipped_launches import SIZES, Array, expected, launch_values, make_arrays
from tilec.ir.core import Access, Function
from tilec.passes.prover import Proofs
from tilec.project.read.models import Constant


class ShippedKernels:
    """Those of `kernels_src`."""

    folder: Path = shipped.ROOT / "kernels_src"

    def specialisations(self, kernel: str) -> list[Mapping[str, Constant]]:
        """One for each of the sizes."""
        return [shipped.specialisation(kernel, size)[1] for size in SIZES[kernel]]

    def launches(self, function: Function, proofs: Proofs, number: int) -> Iterator[Launch]:
        """The launch of the size."""
        env = launch_values(function, SIZES[function.name][number])
        arrays = make_arrays(function, env)
        before = {name: array.copy() for name, array in arrays.items()}
        scalars = {p.name: env[p.name] for p in function.parameters if p.access is None}
        dims = {name: int(value) for name, value in env.items() if name in function.dims}
        yield Launch(arrays, scalars, dims, lambda: expected(function, before, env))


class AtEnds(ShippedKernels):
    """The same, and for each size two launches more, in which every input of integers has the smallest numbers that the
    kernel's contract allows, and the largest: among random ones are rarely those at which an index one further is outside."""

    def launches(self, function: Function, proofs: Proofs, number: int) -> Iterator[Launch]:
        """The launches of a size; those at the ends have no reference, and there are none if no input has integers."""
        yield from super().launches(function, proofs, number)
        for largest in (False, True):
            for launch in super().launches(function, proofs, number):
                env = {name: int(value) for name, value in launch_values(function, SIZES[function.name][number]).items()}
                if ends := _ends(function, launch.arrays, env, largest=largest):
                    yield Launch(launch.arrays | ends, launch.scalars, launch.dims, dict)


def _ends(function: Function, arrays: Mapping[str, Array], env: Mapping[str, int], *, largest: bool) -> dict[str, Array]:
    """The inputs of integers of which the contract says a range, at its smallest or largest numbers."""
    found: dict[str, Array] = {}
    inputs = {parameter.name for parameter in function.parameters if parameter.access is Access.IN}
    for fact in function.values:
        if fact.tensor in inputs:
            array, low, high = arrays[fact.tensor], fact.low.evaluate(env), fact.high.evaluate(env)
            steps = np.arange(array.size).reshape(array.shape) if fact.distinct else np.zeros(array.shape, np.int64)
            found[fact.tensor] = (high - 1 - steps if largest else low + steps).astype(array.dtype)
    return found
