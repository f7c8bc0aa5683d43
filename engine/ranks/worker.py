"""`python -m engine.ranks.worker DESCRIPTOR`: the process of one rank, with one GPU.

In: lines of JSON from the socket of that descriptor: the first with this rank's number, the second with the model, then one for
each thing to do (`engine.ranks.orders`). Out: `ready` with the GPU, `handle` with memory that other ranks map, `progress`,
`done` for a reply, or `refused` with an error, upon which all ranks end. The process ends when the other end of the
socket closes, however that process ended, also while the GPU works.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, NoReturn

from engine.backends.load import device_errors
from engine.errors import BundleRefused, DeviceError, EngineError
from engine.garbage import without_collections
from engine.models.families import read_config
from engine.ranks.cuda import RankCuda
from engine.ranks.memory import SharedMemory
from engine.ranks.orders import Orders
from engine.ranks.peers import DriverCalls, open_rank
from engine.ranks.processes import DONE, HANDLE, PIECE_BYTES, PROGRESS, READY, REFUSED
from engine.ranks.weights import rank_weights
from tilec.runtime import BundleError, Device, open_bundle
from tilec.runtime.trust_location import NO_POLICY

ABANDONED: Final = 1


class Channel:
    """The socket to the process that started the rank."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._data, self._lock = connection, b"", threading.Lock()

    def send(self, **message: Any) -> None:
        """Send a message; from any thread."""
        with self._lock:
            self._connection.sendall(json.dumps(message).encode() + b"\n")

    def received(self) -> dict[str, Any]:
        """The next message; EOFError if the other end is closed."""
        pieces = [self._data]
        while b"\n" not in pieces[-1]:
            piece = self._connection.recv(PIECE_BYTES)
            if not piece:
                raise EOFError
            pieces.append(piece)
        line, _, self._data = b"".join(pieces).partition(b"\n")
        return json.loads(line)

    def exchange(self, handle: bytes) -> Sequence[bytes]:
        """See `engine.ranks.memory.Exchange`."""
        self.send(kind=HANDLE, data=handle.hex())
        return [bytes.fromhex(one) for one in self.received()["handles"]]

    def end_with_it(self) -> None:
        """End this process when the other end closes, from a thread."""

        def watch() -> None:
            poll = select.poll()
            poll.register(self._connection, select.POLLRDHUP | select.POLLHUP)
            poll.poll()
            os._exit(ABANDONED)

        threading.Thread(target=watch, daemon=True).start()


def open_gpu(rank: int, ranks: int) -> tuple[DriverCalls, Device]:
    """The GPU of a rank. An EngineError says why it cannot be opened."""
    calls = DriverCalls()
    open_rank(rank, ranks, calls)
    return calls, Device()


def loaded(channel: Channel, calls: DriverCalls, device: Device, rank: int, model: dict[str, Any]) -> RankCuda:
    """The backend of a rank with its part of a model."""
    config = read_config(model["model"])
    weights = rank_weights(
        config, model["model"], rank, model["ranks"], dtype=model["dtype"], dummy=model["dummy"],
        weight_format=model["weight_format"],
    )  # fmt: skip
    try:
        # The other process verified this one.
        bundle = open_bundle(model["bundle"], digest=model["digest"], trust=NO_POLICY, proofs=False)
    except BundleError as error:
        raise BundleRefused(error.message, fix=error.hint) from None
    backend = RankCuda(bundle, SharedMemory(calls, rank, channel.exchange), model["ranks"], device)

    def progress(done: int, total: int) -> None:
        channel.send(kind=PROGRESS, done=done, total=total)

    with without_collections():
        backend.load(
            config, weights, model["max_seq_len"], model["dtype"], progress, model["cache_format"], serves=model["serves"]
        )  # fmt: skip
    return backend


def work(channel: Channel) -> None:
    """Load the model that messages name and do what further ones ask for; ends with an error, or EOFError when the other end
    closes."""
    first = channel.received()
    channel.end_with_it()
    rank = int(first["rank"])
    with device_errors():
        calls, device = open_gpu(rank, int(first["ranks"]))
        channel.send(
            kind=READY, name=device.name, architecture=device.architecture, memory_bytes=device.driver.memory()[1]
        )  # fmt: skip
        backend = loaded(channel, calls, device, rank, channel.received())
        channel.send(kind=DONE, seconds=backend.kernel_seconds)
        orders = Orders(backend)
        while True:
            for order in channel.received()["orders"]:
                reply = orders.follow(order)
                if reply is not None:
                    channel.send(kind=DONE, **reply)


def main(descriptor: int) -> int:
    """Serve the socket of a descriptor; returns the exit status."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    channel = Channel(socket.socket(fileno=descriptor))
    try:
        work(channel)
    except (EOFError, ConnectionError):
        return 0
    except EngineError as error:
        return _refuse(channel, error)
    except MemoryError:
        return _refuse(channel, DeviceError("the host has too little memory", fix="use a smaller model"))
    return 0


def _refuse(channel: Channel, refused: EngineError) -> int:
    """Tell the other process an error; returns the exit status."""
    with suppress(OSError):
        channel.send(kind=REFUSED, what=refused.what, where=refused.where, fix=refused.fix, status=refused.exit_code)
    return refused.exit_code


def run(descriptor: int) -> NoReturn:
    """Serve the socket of a descriptor and end the process at once. Otherwise a process with a CUDA context waits for its GPU,
    which may wait for a rank that is gone."""
    status = ABANDONED
    try:
        status = main(descriptor)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


if __name__ == "__main__":
    run(int(sys.argv[1]))
