"""Build or check a project: find what is up to date, make the rest in workers, put the results beside each other on disk."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tilec.build.buildfile import BUDGETS, BuildFile, KernelEntry
from tilec.build.plan import Planned, Refusal, plan
from tilec.build.scheduler import Crashed, Report, Runner
from tilec.build.scheduler import run as run_tasks
from tilec.build.worker import BUILD_PRELOAD, Began, Outcome, Task, raise_if_fatal
from tilec.build.worker import run as run_task
from tilec.cache import FileDigests, Store, reasons, write_atomically
from tilec.diagnostics import CompileError, Diagnostic, Label
from tilec.target import Target

FILES = ("ptx", "cubin", "json")  # in the order they are written


@dataclass(slots=True)
class Result:
    """What became of one artifact. `status` is hit, built or failed; `milliseconds` by stage; `reasons` why it was rebuilt."""

    planned: Planned
    status: str = "failed"
    milliseconds: dict[str, float] = field(default_factory=dict[str, float])
    hits: dict[str, bool] = field(default_factory=dict[str, bool])
    summary: dict[str, Any] = field(default_factory=dict[str, Any])
    reasons: list[str] = field(default_factory=list[str])
    diagnostics: tuple[Diagnostic, ...] = ()


@dataclass(slots=True)
class BuildResult:
    """All results in the order of the plan, refusals of whole kernels, and one line per damaged entry of the store."""

    results: list[Result]
    refusals: list[Refusal]
    problems: list[str]

    @property
    def diagnostics(self) -> list[Diagnostic]:
        """Every diagnostic once, with the specialisations it concerns as a note."""
        found = [item for refusal in self.refusals for item in refusal.diagnostics]
        where: dict[Diagnostic, list[str]] = {}
        plain: dict[tuple[str, str, str], Diagnostic] = {}
        for result in self.results:
            for item in result.diagnostics:
                first = plain.setdefault((item.code, item.message, str(item.primary)), item)
                where.setdefault(_hashable(first), []).append(f"{result.planned.name} for {result.planned.target}")
        for first in plain.values():
            names = where[_hashable(first)]
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            found.append(replace(first, notes=(*first.notes, f"specialised as {names[0]}{more}")))
        return found


def _hashable(diagnostic: Diagnostic) -> Any:
    return (diagnostic.code, diagnostic.message, str(diagnostic.primary))


Progress = Callable[[Result, int, int], None]
"""Called with a result as it comes, how many are done, and how many there are."""


def store_root(root: Path) -> Path:
    """Folder of the store: `TILEC_CACHE_DIR`, else `artifacts/store` of the project."""
    given = os.environ.get("TILEC_CACHE_DIR")
    return Path(given).absolute() if given else root / "artifacts" / "store"


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
) -> BuildResult:
    """Bring every artifact of `entries` up to date. CompileError only where nothing can be built at all (E07)."""
    files = FileDigests(store.base / "files.json")
    planned, refusals = plan(build, entries, targets, store, files, toolchain)
    files.save()
    output = output_folder(build.root)
    results = [Result(item) for item in planned]
    done = 0

    def finish(result: Result) -> None:
        nonlocal done
        done += 1
        _check_budget(result)
        if progress is not None:
            progress(result, done, len(results))

    todo: list[int] = []
    for position, item in enumerate(planned):
        start = time.perf_counter()
        before = len(store.problems)
        entry = store.lookup(item.key, f"artifact {item.name} for {item.target}") if dump is None else None
        if entry is None or not {*FILES, "summary"} <= entry.outputs.keys():
            results[position].reasons = _why(item, planned, store, output, damaged=store.problems[before:])
            todo.append(position)
            continue
        result = results[position]
        result.status = "hit"
        result.summary = json.loads(entry.outputs["summary"])
        _write_outputs(output, item, entry.outputs)
        result.milliseconds["lookup"] = (time.perf_counter() - start) * 1000
        finish(result)
    if todo:
        _make(results, todo, store, output, jobs, finish, dump, runner, preload)
        made = [results[position].planned for position in todo if results[position].status == "built"]
        store.set_texts({_note(item): json.dumps(item.fields) for item in made})
    if entries == build.entries and dump is None:
        _remove_stale(output, planned, refusals, store)
    return BuildResult(results, refusals, list(dict.fromkeys(store.problems)))


def _note(item: Planned) -> str:
    return f"built:{item.request.root}|{item.target}|{item.name}"


def _why(item: Planned, planned: list[Planned], store: Store, output: Path, damaged: list[str]) -> list[str]:
    if damaged:
        return ["entry corrupt" if "corrupt" in damaged[-1] else "entry missing"]
    text = store.get_text(_note(item))
    if text is None:
        return _changed_constants(item, planned, store, output) or reasons(None, item.fields)
    return reasons(json.loads(text), item.fields) or ["entry missing"]


def _changed_constants(item: Planned, planned: list[Planned], store: Store, output: Path) -> list[str]:
    """How constants differ from the closest artifact of the kernel that was built before and is no longer asked for."""
    text = store.get_text(_outputs_note(output, item.target))
    wanted = {other.name for other in planned if other.target == item.target}
    found: list[list[str]] = []
    before: list[str] = json.loads(text or "[]")
    for name in sorted(set(before) - wanted):
        former = store.get_text(_note(replace(item, name=name))) if name.startswith(f"{item.request.kernel}-") else None
        if former is not None:
            found.append([line for line in reasons(json.loads(former), item.fields) if line.startswith("constant ")])
    return min(found, key=len, default=list[str]())


def _make(
    results: list[Result], todo: list[int], store: Store, output: Path, jobs: int,
    finish: Callable[[Result], None], dump: tuple[str, str] | None, runner: Runner, preload: Sequence[str],
) -> None:  # fmt: skip
    groups: dict[tuple[str, int | None, int | None], list[int]] = {}
    for position in todo:
        item = results[position].planned
        groups.setdefault((item.name, item.request.num_warps, item.request.min_blocks), []).append(position)
    remaining = list(groups.values())
    while remaining:
        tasks = [_task(results, group, store, dump) for group in remaining]
        at = [0] * len(tasks)
        again: list[list[int]] = []
        for event in run_tasks(tasks, runner, jobs, preload):
            group = remaining[event.index]
            if isinstance(event, Report):
                if isinstance(event.message, Began):
                    at[event.index] = event.message.position
                elif isinstance(event.message, Outcome):
                    result = results[group[event.message.position]]
                    _accept(result, event.message, store, output)
                    finish(result)
                    at[event.index] = event.message.position + 1
            elif isinstance(event, Crashed) and at[event.index] < len(group):
                result = results[group[at[event.index]]]
                result.diagnostics = (crash(result.planned, event.text),)
                finish(result)
                rest = group[at[event.index] + 1 :]
                if rest:
                    again.append(rest)
        remaining = again


def _task(results: list[Result], group: list[int], store: Store, dump: tuple[str, str] | None) -> Task:
    items = [results[position].planned for position in group]
    return Task(
        items[0].request, items[0].name, tuple(item.target for item in items), tuple(item.key for item in items),
        str(store.root), dump,
    )  # fmt: skip


def _accept(result: Result, outcome: Outcome, store: Store, output: Path) -> None:
    raise_if_fatal(outcome)
    result.milliseconds, result.hits = outcome.milliseconds, outcome.hits
    result.diagnostics = outcome.diagnostics
    store.problems.extend(outcome.problems)
    if not outcome.diagnostics:
        result.status = "built"
        result.summary = json.loads(outcome.products["summary"])
        _write_outputs(output, result.planned, outcome.products)


def crash(item: Planned, text: str) -> Diagnostic:
    """What to report where the worker at `item` died or raised; `text` is the scheduler's."""
    lines = tuple(text.strip().splitlines()[-3:])
    if text.startswith("Traceback"):
        message, why = f"internal error in tilec while compiling `{item.request.kernel}` for {item.target}", lines
    else:
        message = f"LLVM ended the worker process that compiled `{item.request.kernel}` for {item.target}"
        why = (*lines, "LLVM aborts on an instruction it cannot select for the chip")
    return Diagnostic("E0504", message, notes=why, hint="this is a defect of tilec; please report it with the kernel")


def _check_budget(result: Result) -> None:
    entry, summary = result.planned.entry, result.summary
    if result.status == "failed" or not entry.budget:
        return
    used: dict[str, int] = dict(summary["resources"])
    used["shared_bytes"] = used["static_shared_bytes"] + used["dynamic_shared_bytes"]
    over = [
        Diagnostic(
            "E0805",
            f"`{entry.name}` uses {used[BUDGETS[name]]} {_WORDS[name]} on {result.planned.target}, the budget is {limit}",
            Label(entry.span),
            hint=f"raise `{name}`, or make tiles smaller",
        )
        for name, limit in entry.budget.items()
        if used[BUDGETS[name]] > limit
    ]
    if over:
        result.diagnostics = (*result.diagnostics, *over)
        result.status = "failed"


_WORDS = {
    "max_registers": "registers",
    "spill_bytes": "bytes of spills",
    "stack_bytes": "bytes of stack",
    "shared_bytes": "bytes of shared memory",
}


def _write_outputs(output: Path, item: Planned, products: dict[str, bytes]) -> None:
    """Copies in `<output>/<arch>/`; the manifest last, so that one on disk always has its CUBIN."""
    for name in FILES:
        path = output / item.target.name / f"{item.name}.{name}"
        try:
            if path.is_file() and path.read_bytes() == products[name]:
                continue
            write_atomically(path, products[name], durable=False)
        except OSError as error:
            hint = "free space or permissions there"
            raise CompileError(Diagnostic("E0702", f"`{path}` cannot be written: {error.strerror}", hint=hint)) from None


def _outputs_note(output: Path, target: Target) -> str:
    return f"outputs:{output}|{target}"


def _remove_stale(output: Path, planned: list[Planned], refusals: list[Refusal], store: Store) -> None:
    """Remove what an earlier build left for specialisations that the build file no longer has; nothing tilec did not write."""
    unread = tuple(refusal.kernel for refusal in refusals)
    for arch in {item.target for item in planned}:
        note = _outputs_note(output, arch)
        names = {item.name for item in planned if item.target == arch}
        text = store.get_text(note)
        before: set[str] = set(json.loads(text or "[]"))
        # A kernel that cannot be read has no plan, but its former artifacts are still wanted.
        kept = {name for name in before if name in unread or name.startswith(tuple(f"{kernel}-" for kernel in unread))}
        for name in before - names - kept:
            for suffix in reversed(FILES):
                (output / arch.name / f"{name}.{suffix}").unlink(missing_ok=True)
        if before != names | kept:
            store.set_texts({note: json.dumps(sorted(names | kept))})
