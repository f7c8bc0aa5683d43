"""From a proven function to one that says how threads run it, for one target."""

from __future__ import annotations

from tilec.ir.core import Function
from tilec.passes import layout, staging, versioning
from tilec.passes.canonicalize import canonicalize
from tilec.target import Target


def prepare(function: Function, target: Target, *, num_warps: int | None = None) -> Function:
    """Clean up, pipeline the loops that feed tensor cores, free full blocks from masks, then decide layouts and vectors; in place.
    `num_warps` overrides the choice for kernels without tensor-core loops, whose shapes decide it."""
    canonicalize(function)
    staging.stage(function, target)
    versioning.version(function)
    return layout.assign(function, num_warps)
