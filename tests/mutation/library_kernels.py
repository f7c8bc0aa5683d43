"""Where mutants of the library's kernels are checked: at small launches that their own contract allows, past edges of tiles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.files import ROOT
from tests.library.prebuilt import BUILD, SOURCE, entries
from tests.mutation.verdict import Launch
from tilec.ir.core import Function
from tilec.passes.prover import Proofs
from tilec.project.read.models import Constant
from tilec.project.trial.inputs import InputsRefused, launch_inputs, own_inputs
from tilec.project.trial.interpreted import before_launch, outputs_of
from tilec.project.trial.launches import Contract, LaunchValuesError, random_tensors, small_launches, span_of
from tilec.project.trial.trial import NoReference, own_reference, reference_inputs, reference_results

LAUNCHES: Final = 3
"""Launches of a specialisation."""
SPECIALISATIONS: Final = 2
LARGEST: Final = 1 << 18
"""Elements of the tensors of a launch that is run, together: seconds of the interpreter. The smallest that a mutant's contract
allows may have billions."""
NAMES: Final = tuple(dict.fromkeys(entry.name for entry in BUILD.entries))
"""The library's kernels."""


class LibraryKernels:
    """Those of `tilec/kernels/source`."""

    folder: Path = SOURCE

    def specialisations(self, kernel: str) -> list[Mapping[str, Constant]]:
        """The first of the first entries of the build file."""
        return [next(iter(entry.specialisations())) for entry in entries(kernel)[:SPECIALISATIONS]]

    def launches(self, function: Function, proofs: Proofs, number: int) -> Iterator[Launch]:
        """Launches with inputs as the kernel's reference wants them, or random ones if the mutant's contract forbids these."""
        contract = Contract.of_function(function, proofs)
        try:
            sizes = small_launches(contract, {})[:LAUNCHES]
        except LaunchValuesError:
            return
        for seed, chosen in enumerate(sizes):
            env = {name: int(value) for name, value in chosen.items() if not isinstance(value, float)}
            if sum(span_of(spec, env) for spec in contract.tensors) > LARGEST:
                continue
            try:
                values, storage = launch_inputs(contract, chosen, seed, own_inputs(SOURCE, function.name, ROOT))
            except InputsRefused:
                values, storage = chosen, random_tensors(contract, chosen, seed)
            arrays = before_launch(contract, storage, {n: int(v) for n, v in values.items() if not isinstance(v, float)})
            inputs = reference_inputs(contract, {name: array.copy() for name, array in arrays.items()}, values)
            scalars = {spec.name: values[spec.name] for spec in contract.scalars}
            dims = {name: int(values[name]) for name in function.dims if name in values}
            yield Launch(arrays, scalars, dims, partial(_expected, contract, function.name, inputs, arrays))


def _expected(contract: Contract, kernel: str, inputs: dict[str, Any], arrays: Mapping[str, Any]) -> Mapping[str, Any]:
    """The results of the kernel's reference by tensor; empty if it has none for these inputs."""
    outputs, reference = outputs_of(contract), own_reference(SOURCE, kernel)
    with suppress(NoReference):
        if reference is not None:
            results, _ = reference_results(*reference, inputs, len(outputs))
            found = {spec.name: result for spec, result in zip(outputs, results, strict=True)}
            return found if all(result.shape == arrays[name].shape for name, result in found.items()) else {}
    return {}
