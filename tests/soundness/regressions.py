"""Kernels on which prover and enumeration once disagreed, or nearly: small, with their verdict."""

from __future__ import annotations

from collections.abc import Callable

from tests.soundness.description import Assign, Branch, Description, LoadIndex, Loop, Move, Tensor

REGRESSIONS: dict[str, tuple[Callable[[], Description], str]] = {}


def _regression(kind: str) -> Callable[[Callable[[], Description]], Callable[[], Description]]:
    def register(make: Callable[[], Description]) -> Callable[[], Description]:
        REGRESSIONS[make.__name__] = (make, kind)
        return make

    return register


@_regression("refused_confirmed")
def divisor_is_a_block_id() -> Description:
    body = [Move("load", "x", [("//", 2, "b0")], [1], loose=True), Move("store", "out", ["b0"], [1])]
    return Description("divisor", ["N"], [Tensor("x", "In", ["N"]), Tensor("out", "Out", ["N"])], list(body))


@_regression("refused_confirmed")
def reads_what_the_next_block_writes() -> Description:
    body = [Move("load", "x", [("min", ("+", "b0", 1), ("-", "N", 1))], [1]), Move("store", "x", ["b0"], [1])]
    return Description("halo", ["N"], [Tensor("x", "InOut", ["N"])], list(body))


@_regression("refused_confirmed")
def index_grows_in_the_last_iteration() -> Description:
    loop = Loop("j", 0, ("+", "b0", 1), 1, [Move("load", "x", ["at"], [1]), Assign("at", ("+", "j", 1))])
    kernel = Description("carried", ["N"], [Tensor("x", "In", ["N"]), Tensor("out", "Out", ["N"])], [])
    kernel.body = [Assign("at", 0), loop, Move("load", "x", ["at"], [1]), Move("store", "out", ["b0"], [1])]
    return kernel


@_regression("refused_confirmed")
def slots_may_repeat() -> Description:
    slots = Tensor("slots", "In", ["N"], True, 0, "S")
    kernel = Description("slots", ["N"], [slots, Tensor("cache", "InOut", ["S"])], [])
    kernel.body = [LoadIndex("slot", "slots", ["b0"]), Move("store", "cache", ["slot"], [1])]
    return kernel


@_regression("refused_confirmed")
def both_branches_reach_one_row() -> Description:
    kernel = Description("branches", ["N"], [Tensor("out", "InOut", ["N"])], [])
    half = Move("store", "out", [("//", "b0", 2)], [1])
    kernel.body = [Branch(("==", ("%", "b0", 2), 0), [half], [half])]
    return kernel
