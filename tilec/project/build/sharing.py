"""The team's cache in a build: its artifacts are fetched first, and a lease is acquired for each artifact that it lacks.

In: the artifacts that the local store lacks, by position. Out: their entries (`fetch_all`), and tasks for those whose lease
this builder acquires (`LeasedTasks`). For artifacts that other builders make, `wait` returns either the entry or a later lease.
Without a remote this builder makes everything.
"""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Final

from tilec.cache import Entry, Store
from tilec.cache.products import fetch
from tilec.project.build.worker import Task
from tilec.project.read.plan import Planned

if TYPE_CHECKING:
    from tilec.cache.remote.remote import Remote

POLL: Final = 0.2
"""Seconds between polls for artifacts of other builders."""
PATIENCE: Final = 300.0
"""Seconds for which a builder waits for others without receiving an artifact."""


def fetch_one(item: Planned, store: Store, *, again: bool = False) -> Entry | None:
    """The products of an artifact from the team's cache, or None."""
    from tilec.project.build.contract import contract_difference  # imported on use: it loads the prover

    label = f"artifact {item.name} for {item.target}"
    return fetch(store, item.key, "artifact", item.fields, label, contract_difference, again=again)


def fetch_all(items: Sequence[Planned], store: Store) -> Generator[tuple[int, Entry | None, float]]:
    """Position, entry and seconds of every item, in the order of completion. Requests have timeouts and run concurrently."""
    from tilec.cache.remote.remote import READERS

    def timed(item: Planned) -> tuple[Entry | None, float]:
        start = time.perf_counter()
        return fetch_one(item, store), time.perf_counter() - start

    pool = concurrent.futures.ThreadPoolExecutor(READERS)
    try:
        waiting = {pool.submit(timed, item): position for position, item in enumerate(items)}
        for future in concurrent.futures.as_completed(waiting):
            yield waiting[future], *future.result()
    finally:
        pool.shutdown(cancel_futures=True)


class LeasedTasks(Sequence[Task]):
    """The tasks of `groups` of positions. A task is created, and the leases of its artifacts are acquired, on first access,
    when a worker is free for it.

    Artifacts that another builder makes are moved from their group to `deferred`, so a task can have no targets.
    """

    def __init__(self, groups: list[list[int]], remote: Remote | None, key: Callable[[int], str],
                 task: Callable[[list[int]], Task]) -> None:  # fmt: skip
        self.groups = groups
        self.deferred: list[int] = []
        self._remote, self._key, self._task = remote, key, task
        self._requested: set[int] = set()

    def __len__(self) -> int:
        return len(self.groups)

    def __getitem__(self, index: int) -> Task:  # pyright: ignore[reportIncompatibleMethodOverride]
        if self._remote is not None and index not in self._requested:
            self._requested.add(index)
            lent = {position: self._remote.leases.claim(self._key(position)) for position in self.groups[index]}
            self.deferred += [position for position, acquired in lent.items() if not acquired]
            self.groups[index] = [position for position, acquired in lent.items() if acquired]
        return self._task(self.groups[index])


def wait(
    deferred: list[int], items: Callable[[int], Planned], store: Store, most: int, found: Callable[[int, Entry], None],
    deadline: Callable[[], float],
) -> tuple[list[int], list[int]]:  # fmt: skip
    """Wait for other builders until this one has something to make. Returns at most `most` positions with an acquired lease,
    and those that others still make. `found` is called for entries of the team's cache. After the `deadline` leases are
    ignored."""
    remote = store.remote
    assert remote is not None
    acquired: list[int] = []
    while deferred and not acquired:
        remaining: list[int] = []
        for position in deferred:
            entry = fetch_one(items(position), store, again=True)
            if entry is not None:
                found(position, entry)
            elif len(acquired) < most and (time.monotonic() >= deadline() or remote.leases.claim(items(position).key)):
                acquired.append(position)
            else:
                remaining.append(position)
        waited = len(remaining) == len(deferred)
        deferred = remaining
        if waited:
            time.sleep(POLL)
    return acquired, deferred
