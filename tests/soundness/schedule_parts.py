"""Common parts of descriptions of correct schedules: extents, tensors, a copied box."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.soundness.description import Description, Expr, Move, Statement, Tensor

Make = Callable[[random.Random], Description]
Schedules = dict[str, Make]


def registered_in(schedules: Schedules) -> Callable[[Make], Make]:
    """A decorator that registers a function there by its name."""

    def register(make: Make) -> Make:
        schedules[make.__name__] = make
        return make

    return register


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
    """Copies a box of the input to the same position of the output."""
    return [Move("load", "x", list(index), shape, tiled, loose), Move("store", "out", list(index), list(shape), tiled, loose)]
