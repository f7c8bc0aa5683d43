"""What the process of the engine does (`engine.serving.worker`): loads a model on its device and serves it.

In: messages of `engine.serving.protocol`, the first a `Load`. Out: reports on the same socket. It goes on until the other end
closes (EOFError), or its device fails (an EngineError). Between iterations it takes what has come, and sleeps only when no
request is left.
"""

from __future__ import annotations

import gc
import select
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final, NoReturn, cast

from engine.backends import Backend
from engine.backends.load import device_errors
from engine.errors import EngineError
from engine.loading import load_backend
from engine.models.config import GenerationConfig
from engine.models.families import read_config
from engine.options import BackendName
from engine.phases import PHASES
from engine.serving.constraints import Constraints
from engine.serving.loop import EngineLoop
from engine.serving.protocol import Cancel, Frames, Load, Loaded, Message, Submit, ToEngine, encoded, to_engine
from engine.serving.rows import rows_of

PIECE_BYTES: Final = 1 << 20


class Channel:
    """The socket to the other process."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._frames = connection, Frames()

    def send(self, message: Message) -> None:
        """Send a message; waits until the other process read the ones before."""
        self._connection.sendall(encoded(message))

    def received(self, *, wait: bool, watched: Sequence[int] = ()) -> Iterator[ToEngine]:
        """The messages that have come; with `wait`, at least some bytes, unless one of the descriptors `watched` can be read.
        EOFError if the other end is closed."""
        while self._connection in select.select([self._connection, *watched], [], [], None if wait else 0)[0]:
            wait = False
            piece = self._connection.recv(PIECE_BYTES)
            if not piece:
                raise EOFError
            yield from map(to_engine, self._frames.push(piece))


def work(channel: Channel) -> NoReturn:
    """Load the model that the first message names and serve it until the other end closes (EOFError)."""
    pending: list[ToEngine] = []
    while not pending:
        pending += channel.received(wait=True)
    load = pending.pop(0)
    assert isinstance(load, Load)  # the protocol's first message
    PHASES.ended("imports")
    start = time.perf_counter()
    config = read_config(load.model)
    backend, bundle = load_backend(
        load.model, config, bundle=load.bundle, backend=cast("BackendName", load.backend),
        max_seq_len=load.max_seq_len, weight_format=load.weight_format, cache_format=load.cache_format, dummy=load.dummy,
        bundle_digest=load.bundle_digest, trust=load.trust, gpus=load.gpus, serves=True,
    )  # fmt: skip
    try:
        with device_errors():
            ending = GenerationConfig.read(load.model, config).eos_token_id
            grammars = Constraints(load.model, config.vocab_size, ending)
            on = rows_of(backend, load.rows, load.pages)
            loop = EngineLoop(backend, on, load.chunk_tokens, grammars, load.guesses, load.chunk_prompts, channel.send)
            PHASES.ended("pages")
            backend.finish()
            PHASES.ended("upload")
            gc.freeze()  # as `without_collections`, which this process began with
            gc.enable()
            channel.send(_loaded(loop, time.perf_counter() - start, backend.step.cache_format))
            take(loop, pending)
            while True:
                turn(loop, channel, backend)
    finally:
        with suppress(EngineError), device_errors():  # the first error is the one to report
            backend.close()
        if bundle is not None:
            bundle.close()


def turn(loop: EngineLoop, channel: Channel, backend: Backend) -> None:
    """Take what has come and do an iteration. While nothing is asked, and while the device has a step to compute, make some of
    what requests may need ready."""
    if loop.idle and loop.prepare():
        take(loop, channel.received(wait=False))
        return
    take(loop, channel.received(wait=loop.idle, watched=backend.watched if loop.idle else ()))
    if loop.idle:
        backend.wait()  # nothing was asked for: the device may have failed, and says so here
    channel.send(loop.iteration())
    if loop.ahead:
        loop.prepare()


def _loaded(loop: EngineLoop, seconds: float, cache_format: str) -> Loaded:
    """The message for the other process, of a model that was loaded in so many seconds."""
    memory = loop.memory
    fits = memory.rows, memory.longest, memory.pages, memory.page_tokens
    return Loaded(*fits, seconds, loop.grammars, cache_format, PHASES.rounded())


def take(loop: EngineLoop, messages: Iterable[ToEngine]) -> None:
    """Do what messages ask for."""
    for message in messages:
        match message:
            case Submit():
                loop.submit(message)
            case Cancel():
                loop.cancel(message.number)
            case Load():
                raise AssertionError("a model is loaded once")
