"""Tiles of a launch by class: tiles that ask the same of every unit are one class.

In: the work of a launch. Out: `Tiles`, which the model of cycles reads. A product of thousands of tiles has a handful of
classes; causal attention has one for each length of a row of tiles.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilec.cost_model.demand import UNITS
from tilec.cost_model.scalars import Array
from tilec.cost_model.work import Work

NONE = -1
"""Class of a turn that a block does not run."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """`index`: the class of each (block, turn), `NONE` if the block has no such turn. By unit and class, `inside` has what a
    tile asks for in loops, `around` outside of them; `trips` the iterations of its pipeline, `read` and `written` its bytes."""

    index: Array
    inside: dict[str, Array]
    around: dict[str, Array]
    trips: Array
    read: Array
    written: Array


def tiles_of(work: Work) -> Tiles:
    """The tiles of a launch. What several roles do for a tile is added up, except iterations, of which the most count."""
    shape = work.tiles.shape
    columns: dict[tuple[str, str], Array] = {}
    for role in work.roles:
        for part_name, part in (("inside", role.inside), ("around", role.around)):
            for unit, amount in part.items():
                columns[part_name, unit] = columns.get((part_name, unit), np.zeros(shape)) + amount
    written = [box.bytes for box in work.boxes() if box.written]
    columns["", "written"] = np.broadcast_to(sum(written, start=np.zeros((1, 1))), shape)
    columns["", "read"] = np.broadcast_to(sum((role.copied for role in work.roles), start=np.zeros((1, 1))), shape)
    columns["", "trips"] = np.broadcast_to(
        np.max(np.stack([np.broadcast_to(one.trips, shape) for one in work.roles]), 0), shape
    )
    names, flat = list(columns), np.stack([np.broadcast_to(one, shape).ravel() for one in columns.values()], axis=1)
    classes, where = np.unique(flat[work.tiles.ravel()], axis=0, return_inverse=True)
    index = np.full(work.tiles.size, NONE)
    index[work.tiles.ravel()] = where.ravel()
    found = {name: classes[:, part_name] for part_name, name in enumerate(names)}
    inside, around = (
        {unit: found.get((part_name, unit), np.zeros(len(classes))) for unit in UNITS} for part_name in ("inside", "around")
    )
    return Tiles(index.reshape(shape), inside, around, found["", "trips"], found["", "read"], found["", "written"])
