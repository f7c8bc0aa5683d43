"""The processes of ranks, one a GPU: started, watched and ended together.

Each has a socket to this process, with messages of one line of JSON. If a rank ends on its own, for whatever reason, all
others are killed at once: they may be waiting on their GPU for what the dead one would have written. There is one error: what
the first rank to end said, or how it ended.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from engine.errors import BundleRefused, DeviceError, EngineError, ModelError, UsageError

READY: Final = "ready"
HANDLE: Final = "handle"
PROGRESS: Final = "progress"
DONE: Final = "done"
REFUSED: Final = "refused"
"""Kinds of messages of a rank: its GPU is open; memory for the others to map; bytes loaded; a reply; an error."""
PIECE_BYTES: Final = 1 << 16
LINE_BYTES: Final = 1 << 24
"""The longest message."""
LAST_SECONDS: Final = 5.0
"""How long ranks may take to end after their sockets were closed; then they are killed."""

KINDS: Final = {kind.exit_code: kind for kind in (UsageError, ModelError, BundleRefused, DeviceError)}

Message = dict[str, Any]


class RankEnded(DeviceError):
    """The process of a rank ended, and nobody had told it to."""

    exit_code = 6


class RanksDiffer(DeviceError):
    """Ranks chose different tokens, so nothing that they computed can be relied upon."""


def same_tokens(of_ranks: Sequence[NDArray[np.int32]]) -> NDArray[np.int32]:
    """The tokens that all ranks chose, given for each rank; RanksDiffer if they are not the same."""
    first, *others = of_ranks
    for rank, tokens in enumerate(others, 1):
        if (tokens != first).any():
            raise RanksDiffer(f"rank {rank} chose the tokens {tokens.tolist()}, and rank 0 {first.tolist()}")
    return first


class RankProcesses:
    """`ranks` processes; `command` gives the arguments of one from its rank and the descriptor of its socket. A thread watches
    them until `end`. Not thread-safe."""

    def __init__(self, ranks: int, command: Callable[[int, int], Sequence[str]]) -> None:
        self._sockets: list[socket.socket] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._lines = [b""] * ranks
        self._lock, self._first, self._ending = threading.Lock(), -1, False
        self._decided = threading.Event()
        self._wake, self._woken = os.pipe()
        self._watcher = threading.Thread(target=self._watch, name="ranks", daemon=True)
        try:
            for rank in range(ranks):
                ours, theirs = socket.socketpair()
                self._sockets.append(ours)
                with theirs:
                    self._processes.append(
                        subprocess.Popen(
                            [*command(rank, theirs.fileno())], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
                            start_new_session=True,
                        )
                    )  # fmt: skip
        except BaseException:
            for process in self._processes:
                process.kill()
                process.wait()
            self._close()
            raise
        self._watcher.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(process.pid for process in self._processes)

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The sockets of the ranks, which can be read without a request only when one of them has ended."""
        return () if self._ending else tuple(own.fileno() for own in self._sockets)

    def send(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Send a message to each rank. The error of a rank that has ended."""
        for own, message in zip(self._sockets, messages, strict=True):
            try:
                own.sendall(json.dumps(dict(message)).encode() + b"\n")
            except OSError:
                raise self._ended() from None

    def gather(self, progress: Callable[[int, Message], None] | None = None) -> list[Message]:
        """The next message of each rank, in order; waits for all. `progress` gets those that a rank sends in between, with its
        number. Otherwise ends all ranks, and raises what the first of them to end said, or RankEnded."""
        found: dict[int, Message] = {}
        while len(found) < len(self._sockets):
            waiting = [rank for rank in range(len(self._sockets)) if rank not in found]
            for rank in self._readable(waiting):
                message = self._received(rank)
                if message is None:
                    continue
                if message.get("kind") == REFUSED:
                    self.end()
                    raise _refused(message)
                if message.get("kind") != PROGRESS:
                    found[rank] = message
                elif progress is not None:
                    progress(rank, message)
        return [found[rank] for rank in range(len(self._sockets))]

    def _readable(self, ranks: Sequence[int]) -> Sequence[int]:
        """Those of some ranks that have sent something; waits for one."""
        whole = [rank for rank in ranks if b"\n" in self._lines[rank]]
        if whole:
            return whole
        sockets = {self._sockets[rank]: rank for rank in ranks}
        return [sockets[own] for own in select.select(list(sockets), [], [])[0]]

    def _received(self, rank: int) -> Message | None:
        """A message of a rank that has come whole; None if more must come. The error of ranks that ended."""
        if b"\n" not in self._lines[rank]:
            try:
                piece = self._sockets[rank].recv(PIECE_BYTES)
            except ConnectionError:
                piece = b""
            if not piece:
                raise self._ended()
            self._lines[rank] += piece
            if b"\n" not in self._lines[rank] and len(self._lines[rank]) > LINE_BYTES:
                self.end()
                raise RankEnded(f"rank {rank} sent no message, but {len(self._lines[rank])} bytes")
        line, newline, rest = self._lines[rank].partition(b"\n")
        if not newline:
            return None
        self._lines[rank] = rest
        return json.loads(line)

    def _ended(self) -> EngineError:
        """The error of the rank that ended first, after all have ended."""
        self._decided.wait(LAST_SECONDS)
        rank = self._first
        try:
            message = None if rank < 0 else self._last_words(rank)
            status = None if rank < 0 else self._processes[rank].wait(LAST_SECONDS)
        finally:
            self.end()
        if message is not None:
            return _refused(message)
        if rank < 0:
            return RankEnded("a rank closed its socket, and all are stopped")
        others = "the other rank is" if len(self._processes) == 2 else "all other ranks are"
        return RankEnded(f"rank {rank} (process {self._processes[rank].pid}) ended {_how(status)}, so {others} stopped too")

    def _last_words(self, rank: int) -> Message | None:
        """What a rank that has ended said last, if it refused."""
        data = self._lines[rank]
        with suppress(OSError):
            while piece := self._sockets[rank].recv(PIECE_BYTES, socket.MSG_DONTWAIT):
                data += piece
        messages = [json.loads(line) for line in data.split(b"\n")[:-1]]
        return next((message for message in messages if message.get("kind") == REFUSED), None)

    def _watch(self) -> None:
        """Wait until a process ends, and kill the others."""
        descriptors: dict[int, int] = {}
        try:
            for rank, process in enumerate(self._processes):
                descriptors[os.pidfd_open(process.pid)] = rank
            ended, _, _ = select.select([*descriptors, self._wake], [], [])
            with self._lock:
                if not self._ending and self._wake not in ended:
                    self._first = min(descriptors[descriptor] for descriptor in ended)
                    for process in self._processes:
                        process.kill()
        finally:
            self._decided.set()
            for descriptor in descriptors:
                os.close(descriptor)

    def end(self) -> None:
        """Close the sockets, upon which ranks end by themselves, and kill those that do not; idempotent."""
        with self._lock:
            if self._ending:
                return
            self._ending = True
        os.write(self._woken, b".")
        for own in self._sockets:
            own.close()
        for process in self._processes:
            try:
                process.wait(LAST_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._watcher.join()
        self._close()

    def _close(self) -> None:
        for own in self._sockets:
            own.close()
        os.close(self._wake)
        os.close(self._woken)


def _refused(message: Mapping[str, Any]) -> EngineError:
    kind = KINDS.get(int(message.get("status", 1)), EngineError)
    return kind(str(message.get("what", "")), where=str(message.get("where", "")), fix=str(message.get("fix", "")))


def _how(status: int | None) -> str:
    if status is None:
        return "without a status"
    return f"by {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
