"""Runs a server: starts the engine's process, listens when the model is loaded, drains on SIGTERM and SIGINT.

In: a `Load` for the engine and `Options`. Out: the exit status; 0 after it drained. The address is taken before the model is
loaded, so that a port in use costs nothing, and nobody can connect before it is.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import uvicorn

from engine.errors import UsageError
from engine.serving.client import EngineClient, EngineRestarting
from engine.serving.http import Limits, application
from engine.serving.logs import Lines, log
from engine.serving.metrics import Metrics
from engine.serving.protocol import Load, Loaded
from engine.serving.served_model import ServedModel
from engine.serving.traces import Traces

BACKLOG: Final = 1024
RESTART_SECONDS: Final = 600.0
LOCAL: Final = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True)
class Options:
    """Of a server. `port` 0 takes a free one. `most_waiting`: requests that wait beyond those that fit the rows.
    `drain_seconds`: how long requests may go on after SIGTERM. `restarts`: how often within `RESTART_SECONDS` the model is
    loaded again after the engine's process ended."""

    host: str = "127.0.0.1"
    port: int = 8000
    model_name: str | None = None
    most_waiting: int = 256
    drain_seconds: int = 30
    restarts: int = 3
    keys: list[str] = field(default_factory=list[str])
    limits: Limits = field(default_factory=Limits)
    traces: Traces | None = None


def serve(load: Load, options: Options) -> int:
    """Serve until a signal ends it, or the engine's process ends once too often; returns 0. An EngineError says why it could
    not start, or why the engine ended."""
    logger = logging.getLogger("uvicorn")
    logger.handlers, logger.level, logger.propagate = [Lines()], logging.WARNING, False
    with _bound(options.host, options.port) as listening:
        return asyncio.run(_serve(load, options, listening))


async def _serve(load: Load, options: Options, listening: socket.socket) -> int:
    start = time.perf_counter()
    ending = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ending.set)
    name = options.model_name or Path(load.model).resolve().name
    metrics = Metrics(name)
    log("loading", model=name, backend=load.backend)
    async with _engine(options, metrics) as client:
        loading = asyncio.ensure_future(_loaded(client, load, name))
        await _first(loading, ending)
        if not loading.done():
            loading.cancel()
            return 0
        model, loaded = loading.result()
        model.longest, metrics.pages = loaded.longest, loaded.pages
        app: Any = application(model, client, metrics, options.limits, options.keys, options.traces)
        server = uvicorn.Server(
            uvicorn.Config(
                app, http="h11", ws="none", lifespan="off", log_config=None, access_log=False, server_header=False,
                timeout_graceful_shutdown=options.drain_seconds,
            )
        )  # fmt: skip
        listening.listen(BACKLOG)  # connections wait for the server from here on
        address = listening.getsockname()
        log(
            "ready", model=model.name, host=address[0], port=address[1], rows=loaded.rows, tokens_of_row=loaded.longest,
            pages=loaded.pages, page_tokens=loaded.page_tokens, tokens=loaded.pages * loaded.page_tokens,
            cache=loaded.cache_format, load_seconds=round(loaded.seconds, 3),
            start_seconds=round(time.perf_counter() - start, 3),
        )  # fmt: skip
        if not options.keys and options.host not in LOCAL:
            log("no_api_key", "warning", host=options.host, message="whoever reaches this address can use the server")
        serving = asyncio.ensure_future(server.serve([listening]))
        restarts = Restarts(options.restarts)
        await _first(client.ended.wait(), ending, serving)
        while client.ended.is_set() and not ending.is_set() and not serving.done() and restarts.allowed():
            await restarts.restart(client, load, ending)
            await _first(client.ended.wait(), ending, serving)
        log("draining" if client.failure is None else "engine_ended", outstanding=client.outstanding)
        server.should_exit = True
        await serving
        model.close()
        if client.failure is not None and not isinstance(client.failure, EngineRestarting):
            raise client.failure
    log("ended")
    return 0


class Restarts:
    """Loads the model again when the engine's process has ended: `most` times within `RESTART_SECONDS`, each time after one
    more second."""

    def __init__(self, most: int) -> None:
        self._most, self._times = most, list[float]()

    def allowed(self) -> bool:
        """Whether it may be tried once more."""
        now = time.monotonic()
        self._times = [one for one in self._times if now - one < RESTART_SECONDS]
        return len(self._times) < self._most

    async def restart(self, client: EngineClient, load: Load, ending: asyncio.Event) -> None:
        """Try it; `client.failure` says whether it succeeded. It is given up when the server ends."""
        log("engine_ended", "error", message=str(client.failure), restarts=len(self._times))
        pause, start = float(len(self._times)), time.monotonic()
        self._times.append(start)
        loading = asyncio.ensure_future(client.restart(load, pause))
        await _first(loading, ending)
        if not loading.done():
            loading.cancel()
        elif loading.exception() is None:
            log("restarted", load_seconds=round(loading.result().seconds, 3), start_seconds=round(time.monotonic() - start, 3))


async def _loaded(client: EngineClient, load: Load, name: str) -> tuple[ServedModel, Loaded]:
    """The model on its device, and meanwhile its tokenizer."""
    reading = asyncio.to_thread(ServedModel, load.model, load.max_seq_len, name)
    model, loaded = await asyncio.gather(reading, client.start(load))
    return model, loaded


@asynccontextmanager
async def _engine(options: Options, metrics: Metrics) -> AsyncGenerator[EngineClient]:
    """A client whose process ends with the block."""
    client = EngineClient(options.most_waiting, metrics)
    try:
        yield client
    finally:
        await client.stop()


async def _first(*events: Any) -> None:
    """Wait for one of some futures, events and coroutines; the others go on, apart from waiting for them."""
    waiting = [asyncio.ensure_future(one.wait() if isinstance(one, asyncio.Event) else one) for one in events]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for task, one in zip(waiting, events, strict=True):
        if task is not one:
            task.cancel()


def _bound(host: str, port: int) -> socket.socket:
    """A socket with the address; UsageError if it cannot be had."""
    found: socket.socket | None = None
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
    except OSError as error:
        if found is not None:
            found.close()
        what = f"cannot listen on {host} port {port}: {error.strerror or error}"
        raise UsageError(what, fix="give another --host or --port") from None
    return found


def keys_of(text: str, where: str) -> list[str]:
    """The API keys in a text, one a line; UsageError if there is none."""
    keys = [line.strip() for line in text.splitlines() if line.strip()]
    if not keys:
        raise UsageError("there is no API key in it", where=where, fix="give one key a line")
    return keys
