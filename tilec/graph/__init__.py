"""The dataflow graph of a proven kernel as a picture: index values, accesses, obligations by rung, ownership.

In: a prover's result and the function it proved. Out: SVG text, deterministic.
"""

from __future__ import annotations

from tilec.graph.picture import Proven, picture
from tilec.graph.svg import svg
from tilec.ir.core import Function

__all__ = ["draw"]


def draw(proofs: Proven, function: Function) -> str:
    """The SVG of one kernel for one specialisation."""
    return svg(picture(proofs, function))
