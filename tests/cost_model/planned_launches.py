"""Scheduled kernels for tests of the model of time, and its work counted by brute force."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from tests.files import ROOT
from tilec.cost_model.cards import CARDS, Card
from tilec.cost_model.estimate import Prepared, prepared
from tilec.cost_model.work import Work, work_of
from tilec.frontend import load_kernel
from tilec.ir.core import Function
from tilec.passes.schedule import choose, prepare
from tilec.target.schedule import Overrides, Schedule
from tilec.target.targets import Target

H200 = CARDS["h200"]
PINGPONG = Overrides(copy="tma", consumers=2, stages=4, persistent=True, order="pingpong")
PERSISTENT = Overrides(copy="tma", consumers=2, stages=4, persistent=True, store="tma")
ONE_TILE = Overrides(copy="tma", consumers=2, stages=4)


@cache
def scheduled(
    kernel: str, constants: tuple[tuple[str, int | str], ...], overrides: Overrides, arch: str = "sm_90a"
) -> tuple[Function, Schedule]:
    """A shipped kernel after all scheduling passes."""
    target = Target.parse(arch)
    function = load_kernel(ROOT / "kernels_src" / f"{kernel}.py", dict(constants), root=ROOT)
    schedule = choose(function, target, overrides)
    return prepare(function, target, schedule), schedule


def matmul(rows: int, columns: int, overrides: Overrides, arch: str = "sm_90a") -> tuple[Function, Schedule]:
    """A product with tiles of this size, 64 deep, walked in groups of four rows."""
    constants = (("E", "bf16"), ("BM", rows), ("BN", columns), ("BK", 64), ("GROUP", 4))
    return scheduled("matmul", constants, overrides, arch)


def launch(made: tuple[Function, Schedule], values: Mapping[str, int | float], card: Card = H200) -> Prepared:
    """A launch of it on a card."""
    return prepared(work(made, values, card), card)


def work(made: tuple[Function, Schedule], values: Mapping[str, int | float], card: Card = H200) -> Work:
    """The work of a launch on a card."""
    function, schedule = made
    return work_of(function, schedule, values, card.multiprocessors * (schedule.blocks or 1))


def product(m: int, n: int, k: int) -> dict[str, int | float]:
    """The values of a product."""
    return {"M": m, "N": n, "K": k}


def prompt(tokens: int, past: int = 0) -> dict[str, int | float]:
    """The values of causal attention of a prompt: two key heads, three query heads for each."""
    return {"T": tokens, "S": tokens + past, "past": past, "HKV": 2, "G": 3, "scale": 1.0}
