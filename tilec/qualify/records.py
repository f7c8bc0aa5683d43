"""Writes what `--tune` measured as records of `tilec tune`: one file for each kernel, `KERNEL-ARCH.jsonl`.

`tilec tune` on the project reads such a file from `kernels_src/tuning/`, and measures nothing again that has a record.
"""

from __future__ import annotations

from pathlib import Path

from tilec.artifact.records import Manifest
from tilec.qualify.session import Session
from tilec.tuning.records import MeasuredOn, Records, Time, read_records, shape_of


def write(session: Session, folder: Path, date: str) -> dict[str, int]:
    """Append the records of a session; returns the number of launches by path. CompileError if a file cannot be written."""
    device, counts = session.device, dict[str, int]()
    if not device:
        return counts
    measured_on = MeasuredOn(device["device"], device["driver"], device["multiprocessors"], date)
    for row in session.tuned:
        group, times = row["tuned"], row["us"]
        if not times:
            continue
        path = folder / f"{group['kernel']}-{session.bundle.arch}.jsonl"
        records = read_records(path, device["device"])
        manifests = {name: session.bundle.kernel(name).manifest for name in times}
        for manifest in manifests.values():
            _describe(records, manifest)
            if records.wrong.get(manifest.digests["cubin"]) != "":
                records.checked(manifest.digests["cubin"], "", measured_on)
        name, number = group["launch"]
        values = session.side.entries[name].launches[int(number)].values
        digests: dict[str, Time] = {manifests[one].digests["cubin"]: (us[0], us[1], us[2]) for one, us in times.items()}
        records.timed(shape_of(dict(values)), digests, measured_on)
        counts[str(path)] = counts.get(str(path), 0) + 1
    return counts


def _describe(records: Records, manifest: Manifest) -> None:
    """Record the description of a candidate, as `tilec tune` does."""
    facts = {"constants": manifest.constants, "schedule": manifest.schedule, "source": manifest.digests.get("source", "")}
    records.describe(manifest.digests["cubin"], {**facts, "toolchain": manifest.toolchain})
