"""Builds a project: finds the artifacts that are up to date, makes the rest in workers, and writes all of them to disk."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tilec.cache import FileDigests, Store, reasons
from tilec.cache.notes import read_json, read_texts, text_list
from tilec.cache.statistics import LOCAL, Statistics
from tilec.diagnostics.diagnostic import Diagnostic, Label
from tilec.ir.aligned import ALIGNED_SUFFIX
from tilec.project.build.job import FILES, Dispatch, Job, Result, settle
from tilec.project.build.worker import BUILD_PRELOAD
from tilec.project.build.worker import run as run_task
from tilec.project.read.buildfile import BUDGETS, BuildFile
from tilec.project.read.kernel_entry import KernelEntry
from tilec.project.read.plan import Planned, Refusal, aligned_version, digests_note, is_artifact_name, plan
from tilec.target.targets import Target
from tilec.untrusted.output import Output
from tilec.workers.scheduler import run as run_tasks
from tilec.workers.worker import Runner


@dataclass(slots=True)
class BuildResult:
    """All results in the order of the plan, and refusals of whole kernels. `problems` has one line per damaged entry of the
    store or a remote, `troubles` one line per failed remote; `counts` are those of the cache."""

    results: list[Result]
    refusals: list[Refusal]
    problems: list[str]
    troubles: list[str] = field(default_factory=list[str])
    counts: Statistics = field(default_factory=Statistics)

    @property
    def diagnostics(self) -> list[Diagnostic]:
        """Every diagnostic once, with a note about its specialisations."""
        found = [item for refusal in self.refusals for item in refusal.diagnostics]
        names_by_diagnostic: dict[Diagnostic, list[str]] = {}
        plain: dict[tuple[str, str, str], Diagnostic] = {}
        for result in self.results:
            for item in result.diagnostics:
                first = plain.setdefault((item.code, item.message, str(item.primary)), item)
                names_by_diagnostic.setdefault(_hashable(first), []).append(
                    f"{result.planned.name} for {result.planned.target}"
                )
        for first in plain.values():
            names = names_by_diagnostic[_hashable(first)]
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            found.append(replace(first, notes=(*first.notes, f"specialised as {names[0]}{more}")))
        return found


def _hashable(diagnostic: Diagnostic) -> Any:
    return (diagnostic.code, diagnostic.message, str(diagnostic.primary))


Progress = Callable[[Result, int, int], None]
"""Called after each result with the result, the number of finished results, and their total."""


def output_folder(root: Path) -> Path:
    """Folder of the built artifacts, one folder per architecture below it."""
    return root / "artifacts" / "build"


def build_project(
    build: BuildFile,
    entries: tuple[KernelEntry, ...],
    targets: tuple[Target, ...] | None,
    store: Store,
    toolchain: dict[str, str],
    *,
    jobs: int,
    progress: Progress | None = None,
    dump: tuple[str, str] | None = None,
    runner: Runner = run_task,
    preload: Sequence[str] = BUILD_PRELOAD,
    output: Output | None = None,
    notify: Callable[[str], None] | None = None,
    dispatch: Dispatch | None = None,
    aligned: bool = False,
    whole: bool = False,
) -> BuildResult:
    """Bring every artifact of `entries` up to date and write it below `output` (default: `artifacts/build` of the project).
    Messages for a person go to `notify`. `dispatch` runs the tasks, on a build farm or (None) in local processes. `aligned`
    adds the aligned versions of artifacts whose summary has a precondition for one, if their entries want them; they follow all
    others. `whole`: nothing else is to remain in `output`, as if `entries` were all of the build file. CompileError only
    if nothing can be built at all (E07, E0814)."""
    files = FileDigests(store, digests_note(build.root))
    planned, refusals = plan(build, entries, targets, store, files, toolchain)
    files.save()
    if output is None:
        output = Output(output_folder(build.root), build.root)
    for target in sorted({item.target for item in planned}, key=str):
        output.check(target.name)
        output.sweep(target.name)
    results = list[Result]()
    done = 0

    def finish(result: Result) -> None:
        nonlocal done
        done += 1
        _check_budget(result)
        if progress is not None:
            progress(result, done, len(results))

    counts, troubles = Statistics(), list[str]()

    def bring_up_to_date(items: list[Planned]) -> None:
        results.extend(map(Result, items))
        todo = [position for position in range(len(results) - len(items), len(results)) if not found(position)]
        counts.add(LOCAL, "misses", len(todo))
        if todo:
            job = Job(results, store, output, jobs, finish, dump, runner, preload, notify, dispatch or run_tasks)
            try:
                job.make(todo)
            except BaseException:
                job.close(0.0)
                raise
            counts.merge(job.close())
            troubles.extend(job.troubles)
            planned_new = [results[position].planned for position in todo if results[position].status != "failed"]
            store.set_texts({_note(item): json.dumps(item.fields) for item in planned_new})

    def found(position: int) -> bool:
        item = results[position].planned
        start = time.perf_counter()
        before = len(store.problems)
        entry = item.products(store) if dump is None else None
        if entry is None or not {*FILES, "summary"} <= entry.outputs.keys():
            results[position].reasons = _rebuild_reasons(item, planned, store, output.folder, damaged=store.problems[before:])
            return False
        settle(results[position], entry, output, "lookup", time.perf_counter() - start)
        counts.add(LOCAL, "hits")
        counts.add(LOCAL, "saved_ms", entry.cost)
        finish(results[position])
        return True

    bring_up_to_date(planned)
    if aligned:
        planned += (added := _aligned_versions(results))
        bring_up_to_date(added)
    store.count(counts)
    if (whole or entries == build.entries) and dump is None:
        _remove_stale(output, planned, refusals, store, keep_aligned=not aligned)
    return BuildResult(results, refusals, list(dict.fromkeys(store.problems)), troubles, counts)


def _aligned_versions(results: list[Result]) -> list[Planned]:
    """The aligned versions that these artifacts have a use for and their entries want."""
    wanted = [result for result in results if result.planned.entry.aligned and result.summary.get("aligned")]
    return [aligned_version(result.planned, result.summary["aligned"]) for result in wanted]


def _note(item: Planned) -> str:
    return f"built:{item.request.root}|{item.target}|{item.name}"


def _rebuild_reasons(item: Planned, planned: list[Planned], store: Store, output: Path, damaged: list[str]) -> list[str]:
    if damaged:
        return ["entry missing" if "is missing" in damaged[-1] else "entry corrupt"]
    former = read_texts(store, _note(item))
    if former is None:
        return _changed_constants(item, planned, store, output) or reasons(None, item.fields)
    return reasons(former, item.fields) or ["entry missing"]


def _changed_constants(item: Planned, planned: list[Planned], store: Store, output: Path) -> list[str]:
    """How constants differ from the closest artifact of the kernel that an earlier build made and this plan lacks."""
    before = _outputs_before(store, output, item.target)
    wanted = {other.name for other in planned if other.target == item.target}
    found: list[list[str]] = []
    for name in sorted(before - wanted):
        former = read_texts(store, _note(replace(item, name=name))) if name.startswith(f"{item.request.kernel}-") else None
        if former is not None:
            found.append([line for line in reasons(former, item.fields) if line.startswith("constant ")])
    return min(found, key=len, default=list[str]())


def _check_budget(result: Result) -> None:
    entry, summary = result.planned.entry, result.summary
    if result.status == "failed" or not entry.budget:
        return
    used: dict[str, int] = dict(summary["resources"])
    used["shared_bytes"] = used["static_shared_bytes"] + used["dynamic_shared_bytes"]
    exceeded = [
        Diagnostic(
            "E0805",
            f"`{entry.name}` uses {used[BUDGETS[name]]} {_UNITS[name]} on {result.planned.target}, the budget is {limit}",
            Label(entry.span),
            hint=f"raise `{name}`, or make tiles smaller",
        )
        for name, limit in entry.budget.items()
        if used[BUDGETS[name]] > limit
    ]
    if exceeded:
        result.diagnostics = (*result.diagnostics, *exceeded)
        result.status = "failed"


_UNITS = {
    "max_registers": "registers",
    "spill_bytes": "bytes of spills",
    "stack_bytes": "bytes of stack",
    "shared_bytes": "bytes of shared memory",
}


def _outputs_note(output: Path, target: Target) -> str:
    return f"outputs:{output}|{target}"


def _outputs_before(store: Store, output: Path, target: Target) -> set[str]:
    """Names of the artifacts that an earlier build wrote. Names that no artifact can have, such as paths, are dropped."""
    names = text_list(read_json(store, _outputs_note(output, target))) or []
    return {name for name in names if is_artifact_name(name)}


def _remove_stale(
    output: Output, planned: list[Planned], refusals: list[Refusal], store: Store, *, keep_aligned: bool
) -> None:  # fmt: skip
    """Remove files that an earlier build wrote for specialisations no longer in the build file, and no other files. With
    `keep_aligned` the aligned versions of what is planned stay: this build did not ask for them."""
    unread = tuple(refusal.kernel for refusal in refusals)
    for arch in {item.target for item in planned}:
        note = _outputs_note(output.folder, arch)
        names = {item.name for item in planned if item.target == arch}
        before = _outputs_before(store, output.folder, arch)
        # A kernel that cannot be read has no plan, but its earlier artifacts must stay.
        kept = {name for name in before if name in unread or name.startswith(tuple(f"{kernel}-" for kernel in unread))}
        kept |= {
            name
            for name in before
            if keep_aligned and name.endswith(ALIGNED_SUFFIX) and name.removesuffix(ALIGNED_SUFFIX) in names
        }
        for name in before - names - kept:
            for suffix in reversed(FILES):
                output.remove(f"{arch.name}/{name}.{suffix}")
        if before != names | kept:
            store.set_texts({note: json.dumps(sorted(names | kept))})
