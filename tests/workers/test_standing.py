"""A persistent server of workers: a stopped run leaves no worker at its task, and the next run is unaffected."""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Generator

import pytest

from tests.workers.held import hold
from tilec.workers.scheduler import Finished, PersistentServer, Report


@pytest.fixture
def standing() -> Generator[PersistentServer]:
    found = PersistentServer(())
    yield found
    found.stop()


def wait_for_end(pid: int) -> None:
    """Returns once a process that is not our child has ended."""
    with contextlib.suppress(ProcessLookupError):
        watched = os.pidfd_open(pid)
        select.select([watched], [], [])
        os.close(watched)


def test_a_run_that_is_stopped(standing: PersistentServer) -> None:
    stop = os.eventfd(0)
    held: list[int] = []
    for event in standing.run(["wait", "wait", "wait"], hold, 2, stop):
        assert isinstance(event, Report)
        held.append(event.message)
        if len(held) == 2:
            os.eventfd_write(stop, 1)
    for pid in held:
        wait_for_end(pid)
    os.eventfd_read(stop)
    again = list(standing.run(["go", "go", "go"], hold, 2, stop))
    assert sum(isinstance(event, Finished) for event in again) == 3
    os.close(stop)


def test_a_run_that_is_closed(standing: PersistentServer) -> None:
    with contextlib.closing(standing.run(["wait"], hold)) as events:
        event = next(events)
        assert isinstance(event, Report)
    wait_for_end(event.message)
    assert [type(event) for event in standing.run(["go"], hold)] == [Report, Finished]
