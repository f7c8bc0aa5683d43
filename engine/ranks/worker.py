"""`python -m engine.ranks.worker DESCRIPTOR`: the process of one rank, with one GPU.

In: lines of JSON from the socket of that descriptor, the first with the model and this rank's number. Out: a line `ready`, or
`refused` with an error, upon which all ranks end. The process ends when the other end of the socket closes, however that
process ended, also while the GPU works.

It opens its GPU and checks that it reaches the memory of the others. It does not run a model yet: the kernels of collectives
(`tilec.step.collectives`) do not exist, and a shared step is refused by their names.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from engine.errors import BundleRefused, DeviceError, EngineError
from engine.models.families import read_config
from engine.ranks.peers import open_rank
from engine.ranks.processes import PIECE_BYTES, READY, REFUSED
from engine.ranks.weights import step_of_ranks
from tilec.step.collectives import COLLECTIVES
from tilec.step.formats import SIXTEEN_BIT

ABANDONED: Final = 1


class Channel:
    """The socket to the process that started the rank."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._data = connection, b""

    def send(self, **message: Any) -> None:
        self._connection.sendall(json.dumps(message).encode() + b"\n")

    def received(self) -> dict[str, Any]:
        """The next message; EOFError if the other end is closed."""
        while b"\n" not in self._data:
            piece = self._connection.recv(PIECE_BYTES)
            if not piece:
                raise EOFError
            self._data += piece
        line, _, self._data = self._data.partition(b"\n")
        return json.loads(line)

    def end_with_it(self) -> None:
        """End this process when the other end closes, from a thread."""

        def watch() -> None:
            poll = select.poll()
            poll.register(self._connection, select.POLLRDHUP | select.POLLHUP)
            poll.poll()
            os._exit(ABANDONED)

        threading.Thread(target=watch, daemon=True).start()


def load(rank: int, model: Mapping[str, Any], api: Any = None) -> None:
    """Open the GPU of a rank for a model, in the rank's process. An EngineError says why it cannot."""
    open_rank(rank, int(model["ranks"]), api)


def missing_kernels(model: Mapping[str, Any]) -> BundleRefused:
    """The error for a shared step on GPUs: it names the kernels that no bundle can have yet."""
    ranks = int(model["ranks"])
    step = step_of_ranks(
        read_config(model["model"]), model.get("dtype") or "bf16", ranks, model.get("weight_format") or SIXTEEN_BIT
    )
    graphs = (step.graph("decode"), *(step.graph("prefill", tokens=tokens) for tokens in step.prefills(step.chunk_tokens)))
    needed = {op.kernel for graph in graphs for op in graph.ops} & {*COLLECTIVES}
    names = ", ".join(f"`{name}`" for name in COLLECTIVES if name in needed)
    what = f"a step of {ranks} GPUs needs the kernels {names}, which do not exist yet"
    return BundleRefused(what, fix="take one GPU, or `--backend interpreter` for a tiny model")


def work(channel: Channel) -> None:
    """Load the model that the first message names; ends with an error, or EOFError when the other end closes."""
    model = channel.received()
    channel.end_with_it()
    load(int(model["rank"]), model)
    channel.send(kind=READY)
    channel.received()  # all ranks have their GPUs
    raise missing_kernels(model)


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


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
