"""Runs a server: listens when the engine's process has loaded the model, drains on SIGTERM and SIGINT.

In: the engine's process, which has the `Load`, `Options`, and a socket with the address. Out: the exit status; 0 after it
drained. The address is taken before the model is loaded (`engine.serving.beginning`), so that a port in use costs nothing, and
nobody can connect before it is.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import uvicorn

from engine.phases import PHASES
from engine.serving.beginning import EngineProcess
from engine.serving.client import EngineClient, EngineRestarting
from engine.serving.connections import Bounds, LoopErrors
from engine.serving.http import application
from engine.serving.logs import Lines, log
from engine.serving.metrics import Metrics
from engine.serving.options import Options, ToolForm
from engine.serving.protocol import Load, Loaded
from engine.serving.served_model import ServedModel

RESTART_SECONDS: Final = 600.0
LAST_WORDS_SECONDS: Final = 2
"""How long requests that did not end in time may take to tell their clients so."""
LOCAL: Final = ("127.0.0.1", "::1", "localhost")


def serve(load: Load, options: Options, engine: EngineProcess, listening: socket.socket) -> int:
    """Serve until a signal ends it, or the engine's process ends once too often; returns 0. An EngineError says why it could
    not start, or why the engine ended."""
    logger = logging.getLogger("uvicorn")
    logger.handlers, logger.level, logger.propagate = [Lines()], logging.WARNING, False
    return asyncio.run(_serve(load, options, engine, listening))


async def _serve(load: Load, options: Options, engine: EngineProcess, listening: socket.socket) -> int:
    PHASES.ended("imports")
    start = time.perf_counter()
    bounds = Bounds.of_process(options.limits.header_seconds, options.limits.request_seconds)
    asyncio.get_running_loop().set_exception_handler(LoopErrors())
    ending, hurrying = asyncio.Event(), asyncio.Event()

    def end() -> None:
        (hurrying if ending.is_set() else ending).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, end)
    name = options.model_name or Path(load.model).resolve().name
    metrics = Metrics(name)
    log("loading", model=name, backend=load.backend)
    async with _engine(options, metrics) as client:
        loading = asyncio.ensure_future(_loaded(client, load, engine, name, options.tool_form))
        await _first(loading, ending)
        if not loading.done():
            loading.cancel()
            return 0
        model, loaded = loading.result()
        PHASES.ended("loaded")
        model.longest, metrics.pages = loaded.longest, loaded.pages
        app: Any = application(model, client, metrics, options.limits, options.keys, options.traces)
        server = uvicorn.Server(
            uvicorn.Config(
                app, http=bounds.protocol(), ws="none", lifespan="off", log_config=None, access_log=False, server_header=False,
                timeout_graceful_shutdown=options.drain_seconds + LAST_WORDS_SECONDS, backlog=bounds.backlog,
            )
        )  # fmt: skip
        listening.listen(bounds.backlog)  # connections wait for the server from here on
        address = listening.getsockname()
        log(
            "ready", model=model.name, host=address[0], port=address[1], rows=loaded.rows, tokens_of_row=loaded.longest,
            pages=loaded.pages, page_tokens=loaded.page_tokens, tokens=loaded.pages * loaded.page_tokens,
            cache=loaded.cache_format, load_seconds=round(loaded.seconds, 3),
            start_seconds=round(time.perf_counter() - start, 3), engine_phases=loaded.phases, server_phases=PHASES.rounded(),
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
        await _first(serving, asyncio.sleep(options.drain_seconds), hurrying)
        client.abandon("the server ended before the request was done")
        await _first(serving, asyncio.sleep(LAST_WORDS_SECONDS))
        connections: list[Any] = list(server.server_state.connections)
        for connection in connections:  # of clients that do not read: their time is over
            connection.drop()
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


async def _loaded(
    client: EngineClient, load: Load, engine: EngineProcess, name: str, tool_form: ToolForm | None
) -> tuple[ServedModel, Loaded]:
    """The model on its device, and meanwhile its tokenizer."""

    def read() -> ServedModel:
        model = ServedModel(load.model, load.max_seq_len, name, tool_form)
        PHASES.ended("tokenizer")
        return model

    reading = asyncio.to_thread(read)
    model, loaded = await asyncio.gather(reading, client.start(load, engine))
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
