"""`tilec ratchet`."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from tilec.artifact.manifest_reader import manifest_from_json
from tilec.cli.project import chosen_targets, notify, open_project, open_store, print_diagnostics, status_of, toolchain
from tilec.project.build.driver import build_project
from tilec.project.build.report import progress
from tilec.ship.bundle.ratchet import Record, changes, first_specialisations, read, verdict, write
from tilec.untrusted.output import Output


def ratchet_command(project: str | None, arch: str | None, golden: str | None, jobs: int, *, update: bool) -> int:
    """Compare with the golden files, or write them. Returns the exit status."""
    build = open_project(project)
    records = Output(Path(golden), None) if golden is not None else Output(build.root / "tests" / "golden", build.root)
    now = Record()
    with contextlib.closing(open_store()) as store:
        with progress() as show:
            built = build_project(
                build,
                first_specialisations(build),
                chosen_targets(arch),
                store,
                toolchain(store),
                jobs=jobs,
                progress=show,
                notify=notify,
            )
        for result in built.results:
            entry = result.planned.products(store) if result.status != "failed" else None
            if entry is not None:
                now.add(result.planned.name, manifest_from_json(json.loads(entry.outputs["json"])))
    if built.diagnostics:
        print_diagnostics(built.diagnostics, build.root)
        return status_of(built.diagnostics)
    if update:
        write(records, now)
        print(f"wrote the records of {len(now.proofs)} artifacts to {records.folder}")
        return 0
    recorded = read(records)
    for change in changes(recorded, now):
        if not change.worse:
            print(f"{change.name}: {change.text}")
    for relation, names in (
        ("not in", now.proofs.keys() - recorded.proofs.keys()),
        ("only in", recorded.proofs.keys() - now.proofs.keys()),
    ):
        if names:
            print(f"{relation} the golden files: {', '.join(sorted(names))}")
    problems = verdict(recorded, now)
    print_diagnostics(problems)
    if not problems:
        print(f"{len(recorded.proofs.keys() & now.proofs.keys())} artifacts hold")
    return status_of(problems)
