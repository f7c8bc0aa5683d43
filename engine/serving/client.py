"""The engine's process as the server sees it: starts it, submits requests, hands their tokens to who waits for them.

What arrives is kept until it is taken, at most the tokens that a request may generate, so who reads slowly stops nobody.
"""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Self

import msgspec

from engine.errors import BundleRefused, DeviceError, EngineError, ModelError, UsageError
from engine.sampling import Logprobs
from engine.serving.beginning import EngineProcess
from engine.serving.protocol import Cancel, Frames, Load, Loaded, Message, Refused, Report, Submit, encoded, from_engine

PIECE_BYTES: Final = 1 << 20
LAST_SECONDS: Final = 10.0
"""How long the engine may take to end after its socket was closed; then it is killed."""


class EngineEnded(EngineError):
    """The engine's process ended, or that of one of its GPUs, and nobody had told it to."""

    exit_code = 6


KINDS: Final = {kind.exit_code: kind for kind in (UsageError, ModelError, BundleRefused, DeviceError, EngineEnded)}
"""The errors with which the engine's process ends, by exit status."""


class EngineRestarting(EngineEnded):
    """The engine's process ended, and another is loading the model."""


class QueueFull(EngineError):
    """As many requests wait as may wait."""


class NeverFits(UsageError):
    """Generations that are submitted together are more than can be served or wait at any time."""


@dataclass(slots=True)
class Times:
    """What is known of a request: its prompt's tokens, and when it came, began and got tokens, by the client's clock. `cached`:
    how many tokens of its prompt were in the cache of prefixes."""

    prompt: int
    submitted: float
    admitted: float | None = None
    first: float | None = None
    last: float | None = None
    generated: int = 0
    cached: int = 0


class Watcher:
    """Gets what happens; this one ignores it (`engine.serving.metrics`)."""

    def reported(self, report: Report) -> None:
        """An iteration is over."""

    def admitted(self, times: Times) -> None:
        """A request has begun."""

    def token(self, times: Times, now: float) -> None:
        """A request got a token; `times` are those before it."""

    def ended(self, times: Times, now: float, reason: str) -> None:
        """A request ended: `stop`, `length`, `error` or `abort`."""


@dataclass(slots=True)
class Arrival:
    """What one of several generations got: tokens, and why it ended; None: it goes on. `logprobs`: of each token, if the
    generation asks for them."""

    index: int
    tokens: list[int] = field(default_factory=list[int])
    ended: str | None = None
    logprobs: list[Logprobs] = field(default_factory=list[Logprobs])


@dataclass(eq=False)
class Generations:
    """Generations that were submitted together; `async with` cancels at its end those that go on. `cached`: tokens of their
    prompts that were in the cache of prefixes, for those that have begun."""

    client: EngineClient
    numbers: list[int]
    cached: list[int] = field(init=False)
    _waiting: dict[int, Arrival] = field(default_factory=dict[int, Arrival])
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.cached = [0] * len(self.numbers)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cancel(range(len(self.numbers)))

    def put(self, index: int, token: int | None, ended: str | None, logprobs: Logprobs | None = None) -> None:
        """A token, or the end, of one of them."""
        arrival = self._waiting.get(index)
        if arrival is None:
            arrival = self._waiting[index] = Arrival(index)
        if token is not None:
            arrival.tokens.append(token)
        if logprobs is not None:
            arrival.logprobs.append(logprobs)
        if ended is not None:
            arrival.ended = ended
        self._arrived.set()

    async def arrivals(self) -> list[Arrival]:
        """What has arrived since the last call, in the order of the generations; waits for something."""
        await self._arrived.wait()
        self._arrived.clear()
        found, self._waiting = self._waiting, {}
        return [found[index] for index in sorted(found)]

    def cancel(self, indices: Sequence[int], reason: str = "abort") -> None:
        """End some of them, for a reason as of `Watcher.ended`; those that have ended stay so."""
        for index in indices:
            self.client.cancel(self.numbers[index], reason)


class EngineClient:
    """The engine's process. `most_waiting`: how many requests may wait beyond those that fit the rows. One event loop's
    alone."""

    def __init__(self, most_waiting: int, watcher: Watcher | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._most_waiting, self._watcher, self._clock = most_waiting, watcher or Watcher(), clock
        self._process: subprocess.Popen[bytes] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._open: dict[int, tuple[Generations, int, Times]] = {}
        self._next, self._last_report = 0, clock()
        self.loaded = Loaded(0, 0, 0, 0, 0.0)
        self.failure: EngineError | None = None
        self.ended = asyncio.Event()

    async def start(self, load: Load, engine: EngineProcess | None = None) -> Loaded:
        """Start the process and load a model; the engine's own error if that fails. `engine`: the process, which has
        the message to load it already."""
        if engine is None:
            engine = EngineProcess.start(wake=load.wakes)
            engine.tell(encoded(load))
        self._process = engine.process
        reader, self._writer = await asyncio.open_unix_connection(sock=engine.connection)
        ready: asyncio.Future[Loaded] = asyncio.get_running_loop().create_future()
        self._reading = asyncio.create_task(self._read(reader, ready))
        self.loaded = await ready
        return self.loaded

    @property
    def outstanding(self) -> int:
        """Requests that have not ended."""
        return len(self._open)

    def stalled_seconds(self) -> float:
        """How long no iteration has ended although there are requests; 0 without any."""
        return self._clock() - self._last_report if self._open else 0.0

    def submit(self, works: Sequence[Submit]) -> Generations:
        """Submit generations together, whose numbers are set here. NeverFits, QueueFull, or the error with which the engine
        ended."""
        if self.failure is not None:
            raise self.failure
        most = self.loaded.rows + self._most_waiting
        if len(works) > most:
            what = f"it makes {len(works)} generations, and at most {most} are served or wait here"
            raise NeverFits(f"{what} ({self.loaded.rows} rows and --max-waiting {self._most_waiting})")
        room = most - len(self._open)
        if len(works) > room:
            raise QueueFull(f"{len(self._open)} requests are being served or wait, and there is room for {max(0, room)} more")
        now = self._clock()
        if not self._open:
            self._last_report = now
        numbers = [self._next + index for index in range(len(works))]
        self._next += len(works)
        group = Generations(self, numbers)
        for index, (number, work) in enumerate(zip(numbers, works, strict=True)):
            self._open[number] = group, index, Times(len(work.ids), now)
            self._send(msgspec.structs.replace(work, number=number))
        return group

    def cancel(self, number: int, reason: str = "abort") -> None:
        """End a request, for a reason as of `Watcher.ended`; nothing if it has ended."""
        found = self._open.pop(number, None)
        if found is not None:
            self._watcher.ended(found[2], self._clock(), reason)
            if self.failure is None:
                self._send(Cancel(number))

    def abandon(self, why: str) -> None:
        """End all requests with an error, as if the engine had said so."""
        for number in list(self._open):
            self._end(number, f"error: {why}")
            if self.failure is None:
                self._send(Cancel(number))

    async def restart(self, load: Load, pause: float = 0.0) -> Loaded:
        """Load the model in another process, after the engine's ended and `pause` seconds; that process's own error if it
        fails. Requests are refused until then (EngineRestarting)."""
        self.failure = EngineRestarting(f"{self.failure}; the model is being loaded again")
        await asyncio.sleep(pause)
        await self.stop()
        self.ended.clear()
        try:
            loaded = await self.start(load)
        except OSError as error:  # there is no process whose end could say so
            self.failure = EngineEnded(f"the engine's process cannot be started: {error}")
            self.ended.set()
            raise self.failure from None
        self.failure = None
        return loaded

    async def stop(self) -> None:
        """End the process; idempotent."""
        if self._writer is not None:
            self._writer.close()
        if self._reading is not None:
            self._reading.cancel()
            with suppress(asyncio.CancelledError):
                await self._reading
        if self._process is not None:
            try:
                await asyncio.to_thread(self._process.wait, LAST_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                await asyncio.to_thread(self._process.wait)

    def _send(self, message: Message) -> None:
        assert self._writer is not None  # `start` set it
        self._writer.write(encoded(message))

    async def _read(self, reader: asyncio.StreamReader, ready: asyncio.Future[Loaded]) -> None:
        """Take messages until the engine closes the stream."""
        frames = Frames()
        failure: EngineError = EngineEnded("the engine's process ended")
        try:
            while piece := await reader.read(PIECE_BYTES):
                for message in map(from_engine, frames.push(piece)):
                    match message:
                        case Loaded():
                            if not ready.done():
                                ready.set_result(message)
                        case Refused():
                            kind = KINDS.get(message.exit_code, EngineError)
                            failure = kind(message.what, where=message.where, fix=message.fix)
                        case Report():
                            self._take(message)
        except ConnectionError:
            pass
        except Exception as error:  # without the reader, requests would wait forever
            failure = EngineEnded(f"what the engine's process sends cannot be used: {error!r}")
        self.failure = failure
        if not ready.done():
            ready.set_exception(self.failure)
        for number in list(self._open):
            self._end(number, f"error: {self.failure}")
        self._watcher.reported(Report({}, {}, [], 0, 0, 0, 0))
        self.ended.set()

    def _take(self, report: Report) -> None:
        now = self._last_report = self._clock()
        self._watcher.reported(report)
        for number in report.admitted:
            if number in self._open:
                group, index, times = self._open[number]
                times.admitted, times.cached = now, report.cached.get(number, 0)
                group.cached[index] = times.cached
                self._watcher.admitted(times)
        for number, token in report.each():
            if number not in self._open:
                continue
            group, index, times = self._open[number]
            self._watcher.token(times, now)
            times.first, times.last, times.generated = times.first or now, now, times.generated + 1
            group.put(index, token, None, report.logprobs.get(number))
        for number, reason in report.ended.items():
            self._end(number, reason)

    def _end(self, number: int, reason: str) -> None:
        found = self._open.pop(number, None)
        if found is not None:
            group, index, times = found
            kind = reason.partition(":")[0]
            self._watcher.ended(times, self._clock(), "error" if kind == "invalid" else kind)
            group.put(index, None, reason)
