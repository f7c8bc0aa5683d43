"""A launch of a kernel of the library as PTX on the emulator, and on the interpreter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.clean import check_clean
from tests.files import ROOT
from tests.library.prebuilt import SOURCE
from tests.programs.machines import manifest
from tilec.codegen import to_ptx
from tilec.emulator import launch
from tilec.frontend import load_kernel
from tilec.interpreter import run
from tilec.lowering import lower
from tilec.passes.prover import positive_divisions, prove
from tilec.passes.schedule import choose, prepare
from tilec.project.read.kernel_entry import KernelEntry
from tilec.project.trial.inputs import launch_inputs, own_inputs
from tilec.project.trial.launches import Contract
from tilec.target.dtypes import DTYPES, numpy_dtype
from tilec.target.schedule import merged
from tilec.target.targets import MAIN_TARGETS


def check_emulated(entry: KernelEntry, constants: dict[str, Any], given: Mapping[str, float]) -> None:
    """The emulator finds no fault in a launch for sm_90a and writes what the interpreter writes, of the kernel's own inputs."""
    target, path = MAIN_TARGETS[0], SOURCE / f"{entry.name}.py"
    assert target.name == "sm_90a"
    written = load_kernel(path, constants, root=SOURCE)
    contract = Contract.of_function(written, prove(written))
    overrides = merged(entry.overrides(constants), target)
    schedule = choose(load_kernel(path, constants, root=SOURCE), target, overrides)
    scheduled = load_kernel(path, constants, root=SOURCE)
    positive = frozenset(op.operands[1] for op in positive_divisions(scheduled))
    lowered = lower(prepare(scheduled, target, overrides, positive=positive), target, min_blocks=schedule.blocks)
    described = manifest(written, lowered, target, schedule)
    values, storage = launch_inputs(contract, given, 1, own_inputs(SOURCE, entry.name, ROOT))
    dims = {name: int(value) for name, value in values.items() if not isinstance(value, float)}
    arrays: dict[str, Any] = {}
    for spec in contract.tensors:
        shape = tuple(dim.evaluate(dims) for dim in spec.dims)
        arrays[spec.name] = storage[spec.name].view(numpy_dtype(DTYPES[spec.dtype])).reshape(shape)
    report = launch.emulate(to_ptx(lowered.mlir, target), described, arrays, values)
    check_clean(report)
    expected = {name: array.copy() for name, array in arrays.items()}
    scalars = {spec.name: values[spec.name] for spec in contract.scalars}
    run(written, expected, scalars, dims={name: dims[name] for name in dims if name in written.dims})
    for spec in contract.tensors:
        if spec.access == "in":
            continue
        found = report.tensors[spec.name].astype(np.float64)
        wanted = expected[spec.name].astype(np.float64)
        relative = DTYPES[spec.dtype].tolerance
        np.testing.assert_allclose(found, wanted, rtol=relative, atol=relative, err_msg=spec.name)
