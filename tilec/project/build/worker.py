"""Code of a worker process: runs one specialisation of a kernel through the pipeline, for one target after the other."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tilec import pipeline
from tilec.cache import Store
from tilec.cache.agreement import ARTIFACT_PRODUCTS
from tilec.cache.products import fetch, put
from tilec.diagnostics.diagnostic import CompileError, Diagnostic
from tilec.link import link
from tilec.pipeline import Request
from tilec.target.targets import Target
from tilec.untrusted.output import Output

if TYPE_CHECKING:
    from tilec.cache.remote.remote import Remote, Settings

CHANGED = "E0713"  # the only E07 error that concerns a kernel instead of the store or an output
CHECK_PRELOAD = (
    "tilec.frontend", "tilec.artifact.records", "tilec.cache.products", "tilec.ir.claims", "tilec.ir.text.lines",
    "tilec.ir.text.parser", "tilec.ir.facts.rows", "tilec.ir.text.spans", "tilec.passes.prover", "tilec.passes.schedule",
    "tilec.passes.schedule.fed_products", "tilec.passes.schedule.notes", "tilec.lowering",
)  # fmt: skip
"""Modules for the stages of `tilec check`; the server that forks the workers imports them once."""
BUILD_PRELOAD = (
    *CHECK_PRELOAD, "tilec.codegen", "tilec.assemble", "cuda.bindings.nvjitlink", "llvmlite.binding", "torch_mlir.ir",
    "torch_mlir.passmanager", "torch_mlir.dialects.llvm",
)  # fmt: skip
"""Modules for all stages. The stage that needs a missing package reports it as a diagnostic."""


@dataclass(frozen=True, slots=True)
class Task:
    """A request for several targets. `keys` are the cache keys of the artifacts, in order. `dump` names a stage and the folder
    for its product of each target; with `stop` the task ends after that stage. With `check` only `pipeline.CHECK_STAGES` run;
    with `first` only the first stage runs, once, and its tile IR is the product. `remote` is the team's cache, or None."""

    request: Request
    name: str
    targets: tuple[Target, ...]
    keys: tuple[str, ...]
    store: str
    dump: tuple[str, str] | None = None
    stop: bool = False
    check: bool = False
    remote: Settings | None = None
    first: bool = False


@dataclass(frozen=True, slots=True)
class Began:
    """The worker starts the target at `position` of its task."""

    position: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result for the target at `position`: diagnostics, or the products of the artifact (of a check: `CHECK_PRODUCTS`).
    `made` are the keys of new entries, `counts` the statistics of the team's cache. `fetched`: the artifact came from that
    cache. `spoiled` are layer and key of entries that were refused there. `digests` are the sha256 of an artifact's products,
    computed in the process that made them."""

    position: int
    diagnostics: tuple[Diagnostic, ...] = ()
    products: dict[str, bytes] = field(default_factory=dict[str, bytes], repr=False)
    milliseconds: dict[str, float] = field(default_factory=dict[str, float])
    hits: dict[str, bool] = field(default_factory=dict[str, bool])
    problems: tuple[str, ...] = ()
    costs: dict[str, int] = field(default_factory=dict[str, int])
    made: tuple[str, ...] = ()
    counts: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])
    fetched: bool = False
    spoiled: tuple[tuple[str, str], ...] = ()
    digests: dict[str, str] = field(default_factory=dict[str, str])


def raise_if_fatal(outcome: Outcome) -> None:
    """Raise CompileError if the store or an output cannot be written, since every other task would fail too."""
    if any(item.code.startswith("E07") and item.code != CHANGED for item in outcome.diagnostics):
        raise CompileError(outcome.diagnostics)


def run(task: Task, emit: Callable[[object], None]) -> None:
    """Run a task and emit each outcome at once. Refusals are outcomes, not exceptions."""
    run_stages(task, emit, pipeline.STAGES)


def run_stages(task: Task, emit: Callable[[object], None], stages: tuple[pipeline.Stage, ...]) -> None:
    """`run` with other stages."""
    try:
        store = Store(Path(task.store))
    except CompileError as error:
        emit(Outcome(0, error.diagnostics))
        return
    if task.remote is not None:
        store.remote = _remote(task.remote)
    try:
        for position, target in enumerate(task.targets):
            emit(Began(position))
            outcome = _outcome(task, position, target, store, stages)
            emit(outcome)
            if task.first or (task.check and "proofs" not in outcome.hits):
                break  # refused in a target-independent stage: other targets would repeat the diagnostics
    finally:
        store.close()


@functools.lru_cache(1)
def _remote(settings: Settings) -> Remote:
    """The team's cache; all tasks of this process share its connections."""
    from tilec.cache.remote.remote import Remote

    return Remote(settings)


def _outcome(
    task: Task, position: int, target: Target, store: Store, stages: tuple[pipeline.Stage, ...]
) -> Outcome:  # fmt: skip
    if store.remote is not None and not task.check and task.dump is None:
        try:
            found = _made_elsewhere(task, position, target, store)
        except CompileError as error:
            return Outcome(position, error.diagnostics)
        if found is not None:
            return found
    work = pipeline.Work(task.request, target)
    diagnostics: tuple[Diagnostic, ...] = ()
    products: dict[str, bytes] = {}
    digests: dict[str, str] = {}
    before = len(store.problems)
    try:
        for stage in stages[:1] if task.first else stages:
            if task.check and stage not in stages[: len(pipeline.CHECK_STAGES)]:
                continue
            pipeline.run_stage(stage, work, store)
            if task.dump is not None and task.dump[0] == stage.name:
                _dump(task, stage, work)
                if task.stop:
                    return Outcome(position, problems=tuple(store.problems[before:]))
        if task.first:
            products = {stages[0].name: work.products[stages[0].name]}
        elif task.check:
            products = {name: work.products[name] for name in pipeline.CHECK_PRODUCTS}
        else:
            link(work)
            products = {name: work.products[name] for name in ARTIFACT_PRODUCTS}
            fields = pipeline.artifact_fields(task.request, target)
            label, cost = f"artifact {task.name} for {target}", sum(work.costs.values())
            digests = put(store, task.keys[position], "artifact", fields, products, label, cost).digests
    except CompileError as error:
        diagnostics = error.diagnostics
    counts = store.remote.statistics.drain() if store.remote is not None else {}
    problems = _problems(store, before)
    made = tuple(store.made)
    store.made.clear()
    spoiled = tuple(sorted(store.remote.spoiled)) if store.remote is not None else ()
    spent = work.milliseconds, work.hits, problems, work.costs
    return Outcome(position, diagnostics, products, *spent, made, counts, spoiled=spoiled, digests=digests)


def _problems(store: Store, before: int) -> tuple[str, ...]:
    found = store.problems[before:]
    if store.remote is not None:
        found += store.remote.problems
        store.remote.problems.clear()
    return tuple(found)


def _made_elsewhere(task: Task, position: int, target: Target, store: Store) -> Outcome | None:
    """The artifact, if another builder has written it to the team's cache since this build started."""
    from tilec.project.build.contract import contract_difference  # imported on use: it loads the prover

    assert store.remote is not None
    start, before = time.perf_counter(), len(store.problems)
    fields = pipeline.artifact_fields(task.request, target)
    label = f"artifact {task.name} for {target}"
    found = fetch(store, task.keys[position], "artifact", fields, label, contract_difference, again=True)
    if found is None:
        return None
    spent = {"fetch": (time.perf_counter() - start) * 1000}
    counts = store.remote.statistics.drain()
    problems = _problems(store, before)
    return Outcome(position, (), found.outputs, spent, problems=problems, counts=counts, fetched=True)


def _dump(task: Task, stage: pipeline.Stage, work: pipeline.Work) -> None:
    assert task.dump is not None
    folder = f"{work.target.name}/" if work.target else ""  # made here, so no link is followed
    Output(Path(task.dump[1]), None).write(f"{folder}{task.name}{stage.suffix}", work.products[stage.name], durable=False)
