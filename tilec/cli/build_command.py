"""`tilec build`."""

from __future__ import annotations

import json
import sys
import time

from tilec.build.driver import build_project
from tilec.build.report import as_json as to_json
from tilec.build.report import progress, summary_line, table
from tilec.cli.project import chosen_entries, chosen_targets, open_project, open_store, print_diagnostics, status_of, toolchain


def build_command(
    project: str, arch: str | None, kernels: tuple[str, ...], jobs: int, *, as_json: bool, explain: bool,
    dump: tuple[str, str] | None,
) -> int:  # fmt: skip
    """Build and print; the exit status."""
    start = time.perf_counter()
    targets = chosen_targets(arch)
    build = open_project(project)
    entries = chosen_entries(build, kernels)
    store = open_store(build)
    try:
        with progress() as show:
            built = build_project(
                build, entries, targets, store, toolchain(store), jobs=jobs, progress=show, dump=dump
            )  # fmt: skip
        if store.added or any(result.status == "built" for result in built.results):
            from tilec.cache.maintain import DEFAULT_CAP, prune, size

            if size(store)[1] > DEFAULT_CAP:
                prune(store)
    finally:
        store.close()
    seconds = time.perf_counter() - start
    for problem in built.problems:
        print(f"warning: {problem}", file=sys.stderr)
    print_diagnostics(built.diagnostics, build.root)
    if explain:
        for result in built.results:
            if result.status != "hit":
                print(f"{result.planned.name} {result.planned.target}: {'; '.join(result.reasons)}", file=sys.stderr)
    if as_json:
        print(json.dumps(to_json(built, seconds, build.root), indent=1))
    else:
        table(built.results)
        print(summary_line(built, seconds))
    return status_of(built.diagnostics)
