"""Where mutants of the shipped kernels are checked: at the launches of `tests.shipped_launches`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from tests import shipped
from tests.mutation.verdict import Launch
from tests.shipped_launches import SIZES, expected, launch_values, make_arrays
from tilec.ir.core import Function
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
