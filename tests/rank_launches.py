"""The kernels of collectives at sizes for tests: arguments of all ranks, and what `engine.ranks.collectives` makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from engine.ranks.collectives import collect
from tests.programs.machines import manifest
from tilec.artifact.records import Manifest
from tilec.codegen import to_ptx
from tilec.frontend import load_kernel
from tilec.interpreter.dtypes import numpy_dtype
from tilec.ir.core import Access, Function
from tilec.lowering import lower
from tilec.passes.prover import prove
from tilec.passes.schedule import choose, prepare
from tilec.step.graph import Op
from tilec.target.targets import SM_90A, Target

KERNELS: Final = Path(__file__).resolve().parents[1] / "kernels_src"
GATHER: Final = "all_gather"
MEET: Final = "rank_meet"
BLOCKS: Final = 3
PARTS: Final = 3
"""Of a sum that a rank has."""
SUMS: Final = ("all_reduce", "all_reduce_add", "all_reduce_add_scaled")
COLLECTIVES: Final = (*SUMS, GATHER)


def constants(kernel: str, ranks: int = 2, blocks: int = BLOCKS, dtype: str = "bf16") -> dict[str, Any]:
    """Small tiles, so that a launch has several for each of its few blocks."""
    found: dict[str, Any] = {"RANKS": ranks, "BLOCKS": blocks}
    if kernel != MEET:
        found |= {"E": dtype, "TOKENS": 2, "BLOCK": 64}
    return found | {"all_reduce_add_scaled": {"ROWS": 4}, GATHER: {"PARTS": PARTS}}.get(kernel, {})


@cache
def load(kernel: str, ranks: int = 2, blocks: int = BLOCKS, dtype: str = "bf16") -> Function:
    """The function as written."""
    return load_kernel(KERNELS / f"{kernel}.py", constants(kernel, ranks, blocks, dtype))


@cache
def compiled(
    kernel: str, ranks: int = 2, blocks: int = BLOCKS, dtype: str = "bf16", target: Target = SM_90A
) -> tuple[str, Manifest]:  # fmt: skip
    """A proven kernel's PTX and the manifest of its launch."""
    function = load_kernel(KERNELS / f"{kernel}.py", constants(kernel, ranks, blocks, dtype))
    proofs = prove(function)
    schedule = choose(function, target)
    prepared = prepare(function, target)
    lowered = lower(prepared, target)
    described = replace(manifest(prepared, lowered, target, schedule), launch_checks=proofs.launch_checks)
    return to_ptx(lowered.mlir, target), described


@dataclass(frozen=True, slots=True)
class Arguments:
    """By rank: arrays by parameter, of which ranks share `x` and `signals`, and launch values."""

    arrays: list[dict[str, Any]]
    values: list[dict[str, int | float]]

    def own(self, rank: int) -> dict[str, Any]:
        """Copies of a rank's arrays that no other rank has."""
        return {name: array.copy() for name, array in self.arrays[rank].items() if not _is_shared(name)}


def _is_shared(name: str) -> bool:
    return name.startswith(("x_", "signals_"))


def arguments(function: Function, ranks: int = 2, sizes: Mapping[str, int] | None = None, seed: int = 0) -> Arguments:
    """Random arguments: of floats, with some negative zeros, whose sums round differently in another order."""
    random = np.random.default_rng(seed)
    sizes = {"T": 5, "N": 192, "P": 48} if sizes is None else sizes
    env = {name: sizes[name] for name in function.dims}

    def array(name: str) -> Any:
        type_ = function.parameter(name).value.tensor
        shape = tuple(dim.evaluate(env) for dim in type_.dims)
        if function.parameter(name).access is Access.SIGNAL:
            return np.zeros(shape, np.uint32)
        found = random.standard_normal(shape) * 2.0 ** random.integers(-6, 6, shape)
        return np.where(random.random(shape) < 0.1, -0.0, found).astype(numpy_dtype(type_.dtype))

    names = [parameter.name for parameter in function.parameters if parameter.access is not None]
    shared = {name: array(name) for name in names if _is_shared(name)}
    whole = {name: array(name) for name in names if not _is_shared(name)}  # what all ranks have alike, such as a residual
    arrays = [shared | {name: one.copy() for name, one in whole.items()} for _ in range(ranks)]
    return Arguments(arrays, [{**env, "rank": rank} for rank in range(ranks)])


def expected(function: Function, given: Arguments, rank: int) -> dict[str, Any]:
    """What a collective leaves in a rank's own arrays."""
    own, ranks = given.own(rank), len(given.arrays)
    op = Op(function.name, function.name, dict(function.constants), {})
    collect(op, [given.arrays[0][f"x_{other}"] for other in range(ranks)], own)
    return own
