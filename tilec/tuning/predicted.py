"""Predicted times of the candidates of a `[[tuning]]`, in the form of records: for cards that nobody has measured.

Builds read a table made of them like one of measurements. `Table.predicted`, notes of a build and the description, which
`tilec check --schedule` and bundles print, say that it was predicted. `tilec tune` on the card replaces it.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tilec.cost_model.cards import Card
from tilec.project.read.buildfile import BuildFile
from tilec.project.read.kernel_entry import KernelEntry
from tilec.project.read.plan import plan
from tilec.project.read.tuned import Tuned
from tilec.target.targets import Target
from tilec.tuning.made import Built
from tilec.tuning.prediction import predict, scheduled
from tilec.tuning.records import MeasuredOn, Records, rounded, shape_of
from tilec.tuning.table import NO_DRIVER, PREDICTED

if TYPE_CHECKING:
    from tilec.cache import Store


def predicted_records(
    build: BuildFile, tuned: Tuned, entries: Mapping[int, KernelEntry], target: Target, built: Sequence[Built], card: Card,
    store: Store, toolchain: Mapping[str, str],
) -> Records:  # fmt: skip
    """A time for every built candidate at every shape; `entries` has the entry of each candidate by its `id`. UnknownWork for
    a kernel whose loops depend on data."""
    from tilec.cache import FileDigests

    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    measured_on = MeasuredOn(card.name + PREDICTED, NO_DRIVER, card.multiprocessors, today)
    found = Records(Path(), measured_on.device, last=measured_on, wrong={one.cubin: "" for one in built}, dates={today})
    files = FileDigests()
    for one in built:
        (item,), _ = plan(build, (entries[id(one.candidate)],), (target,), store, files, dict(toolchain))
        kernel = scheduled(item.request, target, str(store.root))
        for shape in tuned.shapes:
            (estimate,) = predict((kernel.on(card, shape),), card)
            time = rounded(estimate.microseconds)
            found.times.setdefault(shape_of(shape), {})[one.cubin] = (time, time, time)
    return found
