"""A persistent server of workers: a stopped run leaves no worker at its task, and the next run is unaffected."""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Generator

import pytest

from tests.workers.reporting_task import report_and_wait
from tilec.workers.scheduler import Finished, PersistentServer, Report


@pytest.fixture
def worker_server() -> Generator[PersistentServer]:
    found = PersistentServer(())
    yield found
    found.stop()


def wait_for_end(pid: int) -> None:
    """Returns once a process that is not our child has ended."""
    with contextlib.suppress(ProcessLookupError):
        watched = os.pidfd_open(pid)
        select.select([watched], [], [])
        os.close(watched)


def test_a_run_that_is_stopped(worker_server: PersistentServer) -> None:
    stop = os.eventfd(0)
    pids: list[int] = []
    for event in worker_server.run(["wait", "wait", "wait"], report_and_wait, 2, stop):
        assert isinstance(event, Report)
        pids.append(event.message)
        if len(pids) == 2:
            os.eventfd_write(stop, 1)
    for pid in pids:
        wait_for_end(pid)
    os.eventfd_read(stop)
    second_run = list(worker_server.run(["go", "go", "go"], report_and_wait, 2, stop))
    assert sum(isinstance(event, Finished) for event in second_run) == 3
    os.close(stop)


def test_a_run_that_is_closed(worker_server: PersistentServer) -> None:
    with contextlib.closing(worker_server.run(["wait"], report_and_wait)) as events:
        event = next(events)
        assert isinstance(event, Report)
    wait_for_end(event.message)
    assert [type(event) for event in worker_server.run(["go"], report_and_wait)] == [Report, Finished]
