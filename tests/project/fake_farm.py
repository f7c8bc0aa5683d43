"""A farm without Dask: a client whose workers are threads of this process, and may change their results as a test requires.

Its nodes have the identity of the caller. A worker's data passes through `tamper`, with the worker's name: a test flips bits
there, as a wire would, or substitutes another result.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.project import fake_stages, project
from tilec.cache import Store
from tilec.project.build.driver import BuildResult, build_project
from tilec.project.farm import dask_scheduler, node
from tilec.project.farm.node import Parcel, TaskReply
from tilec.project.farm.tasks import Farm
from tilec.project.read.buildfile import read_build_file
from tilec.workers.scheduler import PersistentServer

Tamper = Callable[[str, bytes], bytes]


LOST_WORKER = b"gone"
"""The data of a worker that ends before its result is fetched."""


class Future:
    """A future whose result is there immediately."""

    def __init__(self, found: bytes | BaseException | None) -> None:
        self.found = found
        self.status = "pending" if found is None else "error" if isinstance(found, BaseException) else "finished"

    def result(self, timeout: float | None = None) -> Any:
        if self.found == LOST_WORKER:
            raise TimeoutError
        return self.found

    def exception(self) -> Any:
        return self.found

    def cancel(self) -> None:
        pass

    def add_done_callback(self, call: Callable[[Any], None]) -> None:
        if self.status != "pending":
            call(self)


class Client:
    """Stands in for `distributed.Client`; `silent` makes every call to the scheduler block."""

    me: Any = None

    def __init__(self, workers: Sequence[str], tamper: Tamper) -> None:
        self.workers, self.tamper = list(workers), tamper
        self.status, self.silent = "running", False
        self.done: list[str] = []
        self.answers: dict[bytes, bytes] = {}
        self.closed = threading.Event()
        self.standing = PersistentServer([fake_stages.__name__])

    def scheduler_info(self, n_workers: int = -1) -> dict[str, Any]:
        if self.silent:
            self.closed.wait()
        return {"workers": {name: {"nthreads": 1} for name in self.workers}}

    def submit(self, run: Any, *args: Any, workers: Sequence[str], **_: Any) -> Future:
        (name,) = workers
        if run is node.describe:
            return Future(self.tamper(name, node.framed(self.me)))
        self.me, data = args
        self.done.append(name)
        try:
            return Future(self.tamper(name, self.performed(data)))
        except Exception as error:
            return Future(error)

    def performed(self, data: bytes) -> bytes:
        """The result of a worker for a parcel, cached by parcel."""
        if data not in self.answers:
            parcel: Parcel = node.unframed(data)
            self.answers[data] = node.framed(TaskReply(tuple(self.standing.run([parcel.task], parcel.runner))))
        return self.answers[data]

    def close(self, timeout: float = 0) -> None:
        self.closed.set()
        self.standing.stop()


def build(root: Path, folder: Path, client: Client, messages: list[str] | None = None) -> BuildResult:
    """Builds a project on the farm of `client`, with a store of its own."""
    file = read_build_file(root / "build.toml")
    with contextlib.closing(Store(folder)) as store, pytest.MonkeyPatch.context() as patch:
        patch.setattr(Farm, "identify", _ask)
        patch.setitem(sys.modules, "distributed", types.SimpleNamespace(Client=functools.partial(_given, client)))
        return build_project(
            file, file.entries, None, store, project.TOOLCHAIN, jobs=2, runner=fake_stages.run, preload=(),
            dispatch=dask_scheduler.dispatch("dask://127.0.0.1:1", store),
            notify=(messages if messages is not None else []).append,
        )  # fmt: skip


def _given(client: Client, *_: Any, **__: Any) -> Client:
    return client


_real_ask = Farm.identify


def _ask(self: Any, names: list[str]) -> None:
    self.client.me = self.me
    _real_ask(self, names)
