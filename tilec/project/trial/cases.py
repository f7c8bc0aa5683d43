"""Launches kept in files, for another process: inputs, and results of the interpreter and the reference.

A file is an archive of NumPy arrays. `before/NAME` is the flat storage of a tensor, `interpreter/NAME` a result of the
interpreter as stored, `bound/NAME` how far each of its elements may be off by rounding, `reference/NAME` what the reference
returned. `case` is JSON: launch values, and tolerances (relative, absolute; least) by result.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilec.untrusted.output import Output

Array = NDArray[Any]
Tolerance = tuple[float | None, float | None]


@dataclass(frozen=True, slots=True)
class Case:
    """One launch. `references` is empty without a reference; its `tolerance` is that of `comparison.compared`, and so are
    `bounds` and `least`."""

    values: Mapping[str, float]
    before: Mapping[str, Array]
    interpreted: Mapping[str, Array]
    allowances: Mapping[str, Tolerance]
    references: Mapping[str, Array] = field(default_factory=dict[str, Array])
    tolerance: Tolerance = (None, None)
    bounds: Mapping[str, Array] = field(default_factory=dict[str, Array])
    least: Mapping[str, float] = field(default_factory=dict[str, float])


def write_case(path: Path, case: Case) -> None:
    """Write a case into an existing folder. CompileError E0702 if that fails."""
    groups = {
        "before": case.before, "interpreter": case.interpreted, "reference": case.references, "bound": case.bounds,
    }  # fmt: skip
    about = {
        "values": dict(case.values), "allowances": dict(case.allowances), "tolerance": case.tolerance,
        "least": dict(case.least),
    }  # fmt: skip
    arrays: dict[str, Any] = {"case": np.frombuffer(json.dumps(about).encode(), np.uint8)}
    arrays |= {f"{group}/{name}": array for group, found in groups.items() for name, array in found.items()}
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    Output(path.parent, None).write(path.name, buffer.getvalue(), durable=False)


def read_case(path: Path) -> Case:
    """Read what `write_case` wrote."""
    with np.load(path, allow_pickle=False) as archive:
        about = json.loads(archive["case"].tobytes())
        groups: dict[str, dict[str, Array]] = {"before": {}, "interpreter": {}, "reference": {}, "bound": {}}
        for key in archive.files:
            group, _, name = key.partition("/")
            if group in groups:
                groups[group][name] = archive[key]
    return Case(
        about["values"], groups["before"], groups["interpreter"],
        {name: (one[0], one[1]) for name, one in about["allowances"].items()}, groups["reference"],
        (about["tolerance"][0], about["tolerance"][1]), groups["bound"], about["least"],
    )  # fmt: skip
