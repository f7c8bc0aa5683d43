"""`tilec build` and its option `--plan`."""

from __future__ import annotations

import json
import sys
import time

from tilec.cli.project import (
    attach_remote,
    chosen_targets,
    notify,
    open_project,
    open_store,
    print_diagnostics,
    print_line,
    status_of,
    toolchain,
)
from tilec.cli.selection import Selected, Selection, select
from tilec.diagnostics.diagnostic import CompileError
from tilec.project.build.driver import build_project, output_folder
from tilec.project.build.report import SPILL_NOTE, diagnostic_json, named_notes, notes, progress, summary_line, table
from tilec.project.build.report import as_json as to_json
from tilec.project.read.closed_world import Use, World
from tilec.project.read.closed_world import as_json as world_json
from tilec.project.read.plan import artifact_name
from tilec.project.read.served import other_code, predicted_choices


def build_command(
    project: str | None, arch: str | None, asked: Selection, jobs: int, *, as_json: bool, explain: bool,
    whole: bool, dump: tuple[str, str] | None, deny: str | None = None, remotes: tuple[str, ...] = (), farm: str | None = None,
) -> int:  # fmt: skip
    """Build and print. Returns the exit status. Notes are printed for new artifacts and predicted tables; for all
    artifacts if `deny` makes notes fail the build. Notes on predictions that build.toml accepts are printed like those on
    artifacts, and fail no build."""
    start = time.perf_counter()
    targets = chosen_targets(arch)
    build = open_project(project)
    selected = select(build, targets, asked)
    if selected.problems:
        raise CompileError(selected.problems)
    store = open_store()
    try:
        unused = attach_remote(store, build, remotes)
        dispatch = None
        if farm is not None:
            from tilec.project.farm.dask_scheduler import dispatch as farm_dispatch

            dispatch = farm_dispatch(farm, store)
        with progress() as show:
            built = build_project(
                build, selected.entries, targets, store, toolchain(store), jobs=jobs, progress=show, dump=dump, notify=notify,
                dispatch=dispatch, aligned=selected.aligned, whole=selected.whole,
            )  # fmt: skip
        if store.added or any(result.status == "built" for result in built.results):
            from tilec.cache.maintain import DEFAULT_CAP, prune, size

            if size(store)[1] > DEFAULT_CAP:
                prune(store)
    finally:
        store.close()
    seconds = time.perf_counter() - start
    for problem in (*built.problems, *built.troubles):
        print_line("warning", problem)
    if unused and any(result.status == "built" for result in built.results):
        urls = ", ".join(f"`{address.url}`" for address in unused)
        print_line(
            "note", f"build.toml names the remote cache {urls}, which is not used unless you allow it: `--remote project`"
        )
    print_diagnostics(built.diagnostics, build.root)
    if explain:
        for result in built.results:
            if result.status != "hit":
                print(f"{result.planned.name} {result.planned.target}: {'; '.join(result.reasons)}", file=sys.stderr)
    # Spills also of artifacts that were up to date: who drops a budget to see what spills builds nothing again.
    fresh = {id(result) for result in built.results if deny or result.status == "built"}
    note_diagnostics = notes(named_notes(built.results, lambda result, code: id(result) in fresh or code == SPILL_NOTE))
    accepted, others = [[one for one in build.served if one.accepted == kind] for kind in (True, False)]
    note_diagnostics += predicted_choices(others, targets or build.targets)
    if deny or any(result.status == "built" for result in built.results):
        note_diagnostics += other_code(others, output_folder(build.root))
        found = predicted_choices(accepted, targets or build.targets) + other_code(accepted, output_folder(build.root))
        print_diagnostics(found, build.root)
    print_diagnostics(note_diagnostics, build.root)
    if as_json:
        print(json.dumps(to_json(built, seconds, build.root), indent=1))
    else:
        shown = [result for result in built.results if whole or result.status != "hit"]
        if shown:
            table(shown)
        print(summary_line(built, seconds))
        _print_left(selected, asked, built_any=any(result.status == "built" for result in built.results))
    return status_of(built.diagnostics) or int(bool(deny and (note_diagnostics or build.notes)))


def _print_left(selected: Selected, asked: Selection, *, built_any: bool) -> None:
    """After a build that made something by the default dtype: how to get the rest."""
    if selected.left and built_any and not asked.dtypes:
        print_line("note", f"{selected.left} specialisations of other dtypes are left out; `--dtype all` builds them too")


def plan_command(project: str | None, arch: str | None, asked: Selection, *, as_json: bool) -> int:
    """Print every artifact that a model's step can request, with the requests. Returns the exit status, 2 if one is missing."""
    targets = chosen_targets(arch)
    build = open_project(project)
    selected = select(build, targets, asked, plan=True)
    used = {use.artifact for use in selected.uses}
    built = [entry for entry in selected.entries if entry.among(targets or None)]
    every = [artifact_name(entry.name, values) for entry in built for values in entry.specialisations()]
    unused = [name for name in every if name not in used]
    print_diagnostics(selected.problems, build.root)
    if as_json:
        errors = [diagnostic_json(item, build.root) for item in selected.problems]
        print(json.dumps({"uses": world_json(World(selected.uses, ())), "unused": unused, "errors": errors}, indent=1))
    else:
        _print_plan(selected.uses, unused)
    return status_of(selected.problems)


def _print_plan(uses: tuple[Use, ...], unused: list[str]) -> None:
    targets: dict[tuple[str, str, str], list[str]] = {}
    for use in uses:
        targets.setdefault((use.model, use.op, use.artifact), []).append(use.target.name)
    rows = [("model", "operation", "artifact", "arch"), *((*key, " ".join(names)) for key, names in targets.items())]
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    artifacts = {(use.artifact, use.target) for use in uses}
    models = {use.model for use in uses}
    print(f"{len(artifacts)} artifacts for {len(models)} models; {len(unused)} specialisations that no model asks for")
