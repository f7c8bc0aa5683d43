"""Collectives: their contracts, and what they compute, in NumPy. A GPU's kernel must give the same bits.

All parts are added in f32 in the order of ranks, and each element of a result is rounded once, so all ranks have the same bits,
in every repetition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.graph.contract import Contract
from tilec.artifact.records import TensorSpec
from tilec.ir.expr import Expr, binary, const, sym
from tilec.step.collectives import GATHER, REDUCE, REDUCE_ADD, REDUCE_ADD_SCALED
from tilec.step.graph import Op
from tilec.target.dtypes import f32

Array = NDArray[Any]

ALIGN: Final = 16


def collective_contract(op: Op) -> Contract:
    """The contract of a collective of some ranks: what it takes, and what it leaves in this rank. Its dims are those of `x`."""
    dtype = str(op.constants["E"])
    dims = tuple(sym(f"D{axis}") for axis in range(len(op.tensors["x"].shape)))

    def spec(name: str, access: str, shape: tuple[Expr, ...] = dims, dtype: str = dtype) -> TensorSpec:
        return TensorSpec(name, access, dtype, shape, None, ALIGN)

    x = spec("x", "in")
    match op.kernel:
        case "all_reduce":
            return Contract((x, spec("out", "out")), (), ())
        case "all_gather":
            return Contract((x, spec("out", "out", (binary("*", dims[0], const(_ranks(op))), *dims[1:]))), (), ())
        case "all_reduce_add":
            return Contract((x, spec("residual", "inout")), (), ())
        case _:
            groups = (*dims[:-1], binary("//", dims[-1], const(int(op.constants["ROWS"]))))
            squares = spec("squares", "out", groups, f32.name)
            outputs = (spec("residual", "inout"), spec("weight", "in", dims[-1:]), spec("scaled", "out"), squares)
            return Contract((x, *outputs), (), ())


def _ranks(op: Op) -> int:
    return int(op.constants["RANKS"])


def collect(op: Op, parts: Sequence[Array], own: Mapping[str, Array]) -> None:
    """Write a rank's results of a collective: `parts` are `x` of all ranks in order, `own` the rank's arrays by parameter."""
    match op.kernel:
        case str(kernel) if kernel == GATHER:
            np.concatenate(list(parts), out=own["out"])
        case str(kernel) if kernel == REDUCE:
            own["out"][...] = _sum(parts).astype(own["out"].dtype)
        case str(kernel) if kernel in (REDUCE_ADD, REDUCE_ADD_SCALED):
            residual = own["residual"]
            residual[...] = (_sum(parts) + residual.astype(np.float32)).astype(residual.dtype)
            if kernel == REDUCE_ADD_SCALED:
                _scale(residual.astype(np.float32), own)
        case _:
            raise AssertionError(f"`{op.kernel}` is no collective")


def _sum(parts: Sequence[Array]) -> NDArray[np.float32]:
    total = parts[0].astype(np.float32)
    for part in parts[1:]:
        total += part.astype(np.float32)
    return total


def _scale(values: NDArray[np.float32], own: Mapping[str, Array]) -> None:
    """What a norm needs of a row but its scale, as `matvec_add_scaled` leaves it."""
    own["scaled"][...] = (values * own["weight"].astype(np.float32)).astype(own["scaled"].dtype)
    groups = own["squares"]
    groups[...] = (values * values).reshape(*groups.shape, -1).sum(axis=-1, dtype=np.float32)
