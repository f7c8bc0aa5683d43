"""Makes the artifacts that the local store lacks: fetched from the team's cache, else built in workers; writes them to disk.

In: results by position, and the positions to make. Out: the results, completed one by one, the files below the output folder,
and cache counts. If a worker dies, only its current artifact fails. Artifacts that other builders are making are waited for.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from tilec.cache import Entry, Store
from tilec.cache.statistics import LOCAL, Statistics
from tilec.diagnostics.diagnostic import Diagnostic
from tilec.pipeline import CHECK_STAGES
from tilec.project.build.sharing import PATIENCE, LeasedTasks, fetch_all, wait
from tilec.project.build.worker import Began, Outcome, Task, raise_if_fatal
from tilec.project.read.plan import Planned
from tilec.untrusted.output import Output
from tilec.workers.scheduler import Crashed, Finished, Report
from tilec.workers.verdict import diagnose
from tilec.workers.worker import Runner

if TYPE_CHECKING:
    from tilec.cache.remote.remote import Remote

Dispatch = Callable[
    [Sequence[Any], Runner, int, Sequence[str], Callable[[str], None] | None], Generator[Report | Finished | Crashed]
]  # fmt: skip
"""Runs tasks, like `tilec.workers.scheduler.run`. Parameters: tasks, the function that runs one, number of workers, modules to
preload, and a function for messages to a person."""
FILES: Final = ("ptx", "cubin", "json")  # in the order they are written


@dataclass(slots=True)
class Result:
    """The result of one artifact. `status` is hit, built or failed. `milliseconds` are wall time and `costs` CPU milliseconds,
    by stage. `reasons` say why it was rebuilt."""

    planned: Planned
    status: str = "failed"
    milliseconds: dict[str, float] = field(default_factory=dict[str, float])
    hits: dict[str, bool] = field(default_factory=dict[str, bool])
    costs: dict[str, int] = field(default_factory=dict[str, int])
    summary: dict[str, Any] = field(default_factory=dict[str, Any])
    reasons: list[str] = field(default_factory=list[str])
    diagnostics: tuple[Diagnostic, ...] = ()


def settle(result: Result, entry: Entry, output: Output, counter_name: str, seconds: float) -> None:
    """Complete the result of an artifact found in a cache: write its files, and add `seconds` under the name `counter_name`."""
    start = time.perf_counter()
    result.status = "hit"
    result.summary = json.loads(entry.outputs["summary"])
    write_outputs(output, result.planned, entry.outputs)
    result.milliseconds[counter_name] = (seconds + time.perf_counter() - start) * 1000


@dataclass
class Job:
    """One run over the artifacts that the local store lacks."""

    results: list[Result]
    store: Store
    output: Output
    jobs: int
    finish: Callable[[Result], None]
    dump: tuple[str, str] | None
    runner: Runner
    preload: Sequence[str]
    notify: Callable[[str], None] | None
    dispatch: Dispatch
    counts: Statistics = field(default_factory=Statistics)
    troubles: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self.remote = self.store.remote if self.dump is None else None
        self.last_activity = 0.0
        """Time of the last artifact from another builder. After `PATIENCE` seconds without one, this builder stops waiting."""

    def make(self, todo: list[int]) -> None:
        """Make the artifacts at these positions."""
        if self.remote is not None:
            todo = self.fetch(todo)
        groups: dict[tuple[str, str], list[int]] = {}
        for position in todo:
            planned = self.results[position].planned
            # Targets of one name may have aligned versions with other preconditions, which are other specialisations.
            groups.setdefault((planned.name, repr(planned.request.constants)), []).append(position)
        remaining, deferred = self.run(list(groups.values()), self.remote)
        self.counts.add(LOCAL, "waited", len(deferred))
        self.last_activity = time.monotonic()
        while remaining or deferred:
            if not remaining:
                own, deferred = wait(
                    deferred, self.planned, self.store, self.jobs, self.accept_entry, lambda: self.last_activity + PATIENCE
                )
                remaining = [[position] for position in own]
            remaining, _ = self.run(remaining, None)  # their leases are held, or waiting has timed out

    def run(self, groups: list[list[int]], remote: Remote | None) -> tuple[list[list[int]], list[int]]:
        """Run the tasks of `groups`, with leases at `remote` if it is given. Returns groups to run again, and positions that
        other builders make."""
        if not groups:
            return [], []
        leased = LeasedTasks(groups, remote, lambda position: self.planned(position).key, self.task)
        with contextlib.closing(self.dispatch(leased, self.runner, self.jobs, self.preload, self.notify)) as events:
            return self.follow(events, leased.groups), leased.deferred

    def fetch(self, todo: list[int]) -> list[int]:
        """Fetch artifacts from the team's cache. Returns the positions that it lacks."""
        missing: list[int] = []
        for index, entry, seconds in fetch_all([self.results[position].planned for position in todo], self.store):
            if entry is None:
                missing.append(todo[index])
            else:
                self.accept_entry(todo[index], entry, seconds)
        return sorted(missing)

    def accept_entry(self, position: int, entry: Entry, seconds: float = 0.0) -> None:
        """Complete a result with an artifact of the team's cache."""
        self.last_activity = time.monotonic()
        settle(self.results[position], entry, self.output, "fetch", seconds)
        self.finish(self.results[position])

    def planned(self, position: int) -> Planned:
        """The planned artifact at a position."""
        return self.results[position].planned

    def task(self, group: list[int]) -> Task:
        """The task of a group: one specialisation, for several targets."""
        items = [self.results[position].planned for position in group]
        first = items[0] if items else self.results[0].planned
        remote = None if self.remote is None else replace(self.remote.settings, addresses=self.remote.working())
        return Task(
            first.request, first.name, tuple(item.target for item in items), tuple(item.key for item in items),
            str(self.store.root), self.dump, remote=remote,
        )  # fmt: skip

    def follow(self, events: Iterable[Report | Finished | Crashed], remaining: list[list[int]]) -> list[list[int]]:
        """Process the events of the tasks of `remaining`. Returns the groups to run again, without targets whose worker
        died."""
        reached = [0] * len(remaining)
        again: list[list[int]] = []
        for event in events:
            group = remaining[event.index]
            if isinstance(event, Report):
                if isinstance(event.message, Began):
                    reached[event.index] = event.message.position
                elif isinstance(event.message, Outcome):
                    self.accept(self.results[group[event.message.position]], event.message)
                    reached[event.index] = event.message.position + 1
            elif isinstance(event, Crashed) and reached[event.index] < len(group):
                first = reached[event.index]
                last = len(group) if _shared(event) else first + 1
                for result in (self.results[position] for position in group[first:last]):
                    result.diagnostics = (crash(result.planned, event),)
                    self.written(result.planned, ())
                    self.finish(result)
                if group[last:]:
                    again.append(group[last:])
        return again

    def accept(self, result: Result, outcome: Outcome) -> None:
        """Complete a result with a worker's outcome, and write what the worker made to the team's cache."""
        raise_if_fatal(outcome)
        result.milliseconds, result.hits, result.costs = outcome.milliseconds, outcome.hits, outcome.costs
        result.diagnostics = outcome.diagnostics
        self.store.problems.extend(outcome.problems)
        self.counts.merge(Statistics(outcome.counts))
        if self.remote is not None:
            self.remote.spoil(outcome.spoiled)
        made: tuple[str, ...] = outcome.made
        if not outcome.diagnostics:
            result.status = "hit" if outcome.fetched else "built"
            result.summary = json.loads(outcome.products["summary"])
            write_outputs(self.output, result.planned, outcome.products)
            if not outcome.fetched:
                self.counts.add(LOCAL, "made")
                made = (*made, result.planned.key)
        self.written(result.planned, made)
        self.finish(result)

    def written(self, item: Planned, made: tuple[str, ...]) -> None:
        """Write entries back, and release the lease of the artifact after the last one."""
        if self.remote is not None:
            remote = self.remote
            remote.publish(made, lambda: remote.leases.release(item.key))

    def close(self, seconds: float | None = None) -> Statistics:
        """Wait at most `seconds` (default: `FLUSH`) for writes to the team's cache. Returns the counts."""
        if self.remote is not None:
            self.remote.close(*([] if seconds is None else [seconds]))
            self.counts.merge(self.remote.statistics)
            self.store.problems.extend(self.remote.problems)
            self.troubles = self.remote.troubles()
        return self.counts


def crash(item: Planned, event: Crashed) -> Diagnostic:
    """The diagnostic for an artifact whose worker died or raised."""
    return diagnose(event, f"compiling `{item.request.kernel}` for {item.target}", item.entry.span)


def _shared(event: Crashed) -> bool:
    """Whether the worker would fail for every other target too: it exceeded a budget in a target-independent stage."""
    death = event.death
    return death is not None and death.over != "" and death.what.startswith(tuple(f"stage `{s.name}`" for s in CHECK_STAGES))


def write_outputs(output: Output, item: Planned, products: dict[str, bytes]) -> None:
    """Write the files to `<output>/<arch>/`, the manifest last, so that a manifest on disk always has its CUBIN."""
    for name in FILES:
        output.write(f"{item.target.name}/{item.name}.{name}", products[name], durable=False)
