"""Predicted times of a planned kernel, by the model of time (`tilec.cost_model`), with no GPU.

In: a request, its target, a card, values of a launch. Out: an `Estimate`. The work is derived from the scheduled tile IR, which
the compiler's stages make or find in the store.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tilec.cost_model.calibration import CALIBRATION, Calibration
from tilec.cost_model.cards import Card
from tilec.cost_model.estimate import Estimate, Prepared, estimate, prepared
from tilec.cost_model.work import work_of
from tilec.ir.core import Function
from tilec.ir.text.parser import parse_function
from tilec.passes.schedule.passes import pass_names
from tilec.pipeline import STAGES, Request, Work, run_stage, stage_named, tile_ir_after
from tilec.target.schedule import Schedule
from tilec.target.targets import Target

LAST_PASS: Final = pass_names()[-1]


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A kernel after all scheduling passes."""

    function: Function
    schedule: Schedule

    def on(
        self, card: Card, values: Mapping[str, int | float], known: Calibration = CALIBRATION
    ) -> Prepared:  # fmt: skip
        """A launch on a card; UnknownWork if a loop depends on data."""
        at_once = card.multiprocessors * (self.schedule.blocks or 1)
        return prepared(work_of(self.function, self.schedule, values, at_once), card, known)


def scheduled(request: Request, target: Target, store_folder: str) -> Scheduled:
    """The scheduled kernel of a request. CompileError if it is rejected."""
    return parsed(*texts(request, target, store_folder))


def texts(request: Request, target: Target, store_folder: str) -> tuple[str, dict[str, Any]]:
    """The same as text and plain data, for a worker to send. CompileError if the kernel is rejected."""
    from tilec.cache import Store

    text = tile_ir_after(request, target, LAST_PASS, store_folder)
    work = Work(request, target)
    with contextlib.closing(Store(Path(store_folder))) as store:
        for stage in STAGES[: STAGES.index(stage_named("mlir"))]:
            run_stage(stage, work, store)
    return text, work.data("schedule")


def parsed(text: str, schedule: dict[str, Any]) -> Scheduled:
    """The scheduled kernel that `texts` has written."""
    return Scheduled(parse_function(text), Schedule.from_json(schedule))


def predict(
    kernels: tuple[Prepared, ...], card: Card, known: Calibration = CALIBRATION, *, overlapped: bool = False
) -> list[Estimate]:  # fmt: skip
    """The times of launches that follow each other again and again in a CUDA graph. Each but the first may overlap the one
    before; the first may with `overlapped`."""
    found: list[Estimate] = []
    for position, one in enumerate(kernels):
        before = kernels[position - 1]
        left = card.shared - before.room.used * before.work.reserved_bytes
        found.append(estimate(one, card, known, overlapped=overlapped or position > 0, left=left))
    return found
