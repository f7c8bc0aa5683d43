"""One launch of an accepted kernel on two machines: the interpreter's ranks, and as many devices of the PTX emulator.

In: a kernel as text, a seed for sizes, contents and the order of threads. Out: what the emulator found wrong, or where the two
left different contents; nothing if they agree.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tests.programs.machines import manifest
from tests.rank_soundness.launches import SHARED
from tests.rank_soundness.verdict import RankKernel, parse, valuations
from tilec.codegen import to_ptx
from tilec.emulator.errors import Limits
from tilec.emulator.ranks import emulate_ranks
from tilec.interpreter import run_ranks
from tilec.interpreter.dtypes import numpy_dtype
from tilec.ir import ops
from tilec.ir.core import Access, Block, Function
from tilec.lowering import lower
from tilec.passes.prover import prove
from tilec.passes.schedule import choose, prepare
from tilec.target.targets import SM_90A, Target

WRITTEN = (Access.OUT, Access.INOUT, Access.ATOMIC)
Arrays = list[dict[str, Any]]


def contents(function: Function, sizes: Sequence[Mapping[str, int]], seed: int) -> Arrays:
    """Random contents by rank, within what the kernel declares of integers; those of parts are the same arrays in all ranks."""
    random_numbers = np.random.default_rng(seed)

    def array(name: str) -> Any:
        parameter, env = function.parameter(name), sizes[0]
        tensor = parameter.value.tensor
        shape = tuple(dim.evaluate(env) for dim in tensor.dims)
        if parameter.access is Access.SIGNAL:
            return np.zeros(shape, np.uint32)
        if tensor.dtype.is_float:
            return random_numbers.integers(-8, 9, shape).astype(numpy_dtype(tensor.dtype))
        facts = [(fact.low.evaluate(env), fact.high.evaluate(env)) for fact in function.values if fact.tensor == name]
        low, high = max([0, *(one[0] for one in facts)]), min([9, *(one[1] for one in facts)])
        return random_numbers.integers(low, high, shape).astype(numpy_dtype(tensor.dtype))

    tensors = [p for p in function.parameters if p.access is not None]
    shared = {p.name: array(p.name) for p in tensors if p.access in SHARED}
    return [shared | {p.name: array(p.name) for p in tensors if p.access not in SHARED} for _ in sizes]


def disagreement(kernel: RankKernel, seed: int = 0, target: Target = SM_90A) -> str | None:
    """What is wrong, an empty string if nothing, None if the kernel has no launch that both machines can run. All contents are
    small integers, so that every sum is exact in any order."""
    function, _ = parse(kernel)
    assert function is not None
    proofs = prove(function)
    if not _meets_first(function):
        return None
    launches = [sizes for sizes, large in valuations(function, proofs.launch_checks, random.Random(seed), 6) if not large]
    if not launches:
        return None
    sizes = launches[seed % len(launches)]
    given = contents(function, sizes, seed)
    written = [p.name for p in function.parameters if p.access in WRITTEN]
    expected = _with_copies(function, given)
    scalars = [p.name for p in function.parameters if p.access is None]
    run_ranks(function, expected, [{name: one[name] for name in scalars} for one in sizes])
    schedule = choose(function, target)
    prepared = prepare(function, target)
    lowered = lower(prepared, target)
    described = replace(manifest(prepared, lowered, target, schedule), launch_checks=proofs.launch_checks)
    report = emulate_ranks(
        to_ptx(lowered.mlir, target), described, given, sizes, seed=seed, limits=Limits(instructions=2_000_000)
    )
    if not report.clean:
        return "\n".join(map(str, report.faults))
    for rank, one in enumerate(expected):
        for name in written:
            found = report.tensors[f"{name}@{rank}"]
            if not np.array_equal(found, one[name]):
                return f"{name} of rank {rank} at {dict(sizes[rank])}: {found.tolist()}, not {one[name].tolist()}"
    return ""


def _meets_first(function: Function) -> bool:
    """Whether ranks meet, and no operation before that names a part: not in a branch that nobody takes, nor without proof."""
    met = next((k for k, op in enumerate(function.body.ops) if isinstance(op, ops.Meet)), None)
    early = [tensor for op in Block(ops=function.body.ops[:met]).walk() for tensor, _ in op.touched()]
    parts = [p.value for p in function.parameters if p.access is Access.PEER]
    return met is not None and not any(tensor in parts for tensor in early)


def _shared(function: Function) -> set[str]:
    return {p.name for p in function.parameters if p.access in SHARED}


def _with_copies(function: Function, given: Arrays) -> Arrays:
    """Contents for a second machine; what ranks share, they share there too."""
    shared = {name: given[0][name].copy() for name in _shared(function)}
    return [{name: shared.get(name, array.copy()) for name, array in one.items()} for one in given]
