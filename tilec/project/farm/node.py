"""The worker's end of a distributed build: the functions that a process of the farm runs.

In: the builder's identity (`Identity`: digests of tilec's source by stage, fingerprint of its toolchain) and parcels. A parcel
is a task with the contents of its sources, so a node needs no checkout. Out: the reports of the task. A node first compares the
identity with its own and refuses if they differ, since a different tilec or toolchain would make different bytes. A task runs
in a process forked from a persistent server, under the same budgets of time and memory as on the builder's machine.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import pickle
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, Final

from tilec.cache import FileDigests, Store, store_root
from tilec.diagnostics.diagnostic import CompileError
from tilec.project.build.worker import Task
from tilec.project.read.plan import compiler_digests
from tilec.toolchain import fingerprint
from tilec.untrusted.output import Output
from tilec.workers.scheduler import Crashed, Finished, PersistentServer, Report
from tilec.workers.worker import Runner

LARGEST_SOURCE: Final = 1 << 24
"""Most bytes of one source file of a kernel."""
DIGEST_SIZE: Final = hashlib.sha256().digest_size
_local = threading.local()


@dataclass(frozen=True, slots=True)
class Identity:
    """The inputs, other than the sources, that determine the bytes of a product."""

    compiler: dict[str, str]
    toolchain: dict[str, str]

    def difference(self, other: Identity) -> str:
        """How `other` differs from this identity, as the end of a sentence; empty if they are equal."""
        for name in sorted({*self.toolchain, *other.toolchain}):
            if self.toolchain.get(name) != other.toolchain.get(name):
                return f"has another {name}"
        stages = [
            name for name in sorted({*self.compiler, *other.compiler}) if self.compiler.get(name) != other.compiler.get(name)
        ]
        return f"has another tilec (stages {', '.join(stages)})" if stages else ""


@dataclass(frozen=True, slots=True)
class Parcel:
    """A task with its source files by path, the function that runs it, and the modules that the server preloads."""

    task: Task
    files: dict[str, bytes] = field(repr=False)
    runner: Runner
    preload: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TaskReply:
    """The events of a task and the seconds of work, or the reason why the node refused it."""

    events: tuple[Report | Finished | Crashed, ...] = field(default=(), repr=False)
    seconds: float = 0.0
    refused: str = ""


@functools.lru_cache(1)
def identity() -> Identity:
    """The identity of this process."""
    with contextlib.closing(Store(store_root())) as store:
        return Identity(compiler_digests(FileDigests(store, "digests:node")), fingerprint(store))


def framed(value: object) -> bytes:
    """The sha256 of a pickle followed by the pickle, so that data damaged in transit is not unpickled."""
    data = pickle.dumps(value)
    return hashlib.sha256(data).digest() + data


def unframed(data: object) -> Any:
    """Inverse of `framed`; ValueError if the digest does not match."""
    if not isinstance(data, bytes) or hashlib.sha256(data[DIGEST_SIZE:]).digest() != data[:DIGEST_SIZE]:
        raise ValueError("it was changed in transit")
    return pickle.loads(data[DIGEST_SIZE:])


def describe() -> bytes:
    """The identity of this node, or a text that says why it has none, framed."""
    try:
        return framed(identity())
    except CompileError as error:
        return framed(f"has no toolchain: {error.diagnostics[0].message}")


def perform(builder: Identity, data: bytes) -> bytes:
    """Run one parcel for `builder`; the answer, framed."""
    start = time.perf_counter()
    try:
        reason = builder.difference(identity())
        if reason:
            return framed(TaskReply(refused=reason))
        parcel: Parcel = unframed(data)
        with _sources(parcel) as root:
            task = replace(parcel.task, request=replace(parcel.task.request, root=str(root)), store=str(store_root()))
            events = tuple(_run(task, parcel.runner, parcel.preload))
    except CompileError as error:
        return framed(TaskReply(refused=error.diagnostics[0].message))
    except (OSError, ValueError) as error:
        return framed(TaskReply(refused=f"{type(error).__name__}: {error}"[:300]))
    return framed(TaskReply(events, time.perf_counter() - start))


@contextlib.contextmanager
def _sources(parcel: Parcel) -> Any:
    """A folder with the files of a parcel, each checked against its digest. ValueError if one is missing or differs."""
    wanted = parcel.task.request.sources
    if parcel.files.keys() != wanted.keys():
        raise ValueError("a parcel without all of its sources")
    with tempfile.TemporaryDirectory(prefix="tilec-node-", ignore_cleanup_errors=True) as folder:
        root = Path(folder)
        for name, data in parcel.files.items():
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or hashlib.sha256(data).hexdigest() != wanted[name]:
                raise ValueError("a source that is not what its task names")
            Output(root, None).write(str(path), data, durable=False)
        yield root


def _run(task: Task, runner: Runner, preload: Sequence[str]) -> list[Report | Finished | Crashed]:
    """Run a task on the server of this thread, which is started on first use."""
    standing: PersistentServer | None = getattr(_local, "standing", None)
    if standing is None:
        standing = _local.standing = PersistentServer([runner.__module__, *preload])
        atexit.register(standing.stop)
    try:
        return list(standing.run([task], runner))
    except BaseException:
        _local.standing = None
        standing.stop()
        raise
