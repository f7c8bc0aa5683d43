"""Parts that many descriptions of right schedules are made of: extents, tensors, a copied box."""

from __future__ import annotations

from tests.soundness.description import Expr, Move, Statement, Tensor


def cdiv(left: Expr, right: Expr) -> Expr:
    """`left / right`, rounded up."""
    return ("cdiv", left, right)


def mul(left: Expr, right: Expr) -> Expr:
    """`left * right`."""
    return ("*", left, right)


def io(*dims: Expr) -> list[Tensor]:
    """An input and an output of the same shape."""
    return [Tensor("x", "In", list(dims)), Tensor("out", "Out", list(dims))]


def copy(index: list[Expr], shape: list[int], tiled: bool = True, loose: bool = False) -> list[Statement]:
    """A box of the input to the same place of the output."""
    return [Move("load", "x", list(index), shape, tiled, loose), Move("store", "out", list(index), list(shape), tiled, loose)]
