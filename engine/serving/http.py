"""The application: paths, and what each of them does. Pure ASGI around starlette's routes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router

from engine.serving.asgi import EventStream, Guard, JsonResponse, error_response, read_body, too_long, while_connected
from engine.serving.client import EngineClient, Generations
from engine.serving.completions import ChatCompletion, Completion, TextCompletion
from engine.serving.errors import ApiError, invalid
from engine.serving.metrics import Metrics
from engine.serving.openai_types import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
    read,
)
from engine.serving.options import ServerLimits
from engine.serving.page import page_routes
from engine.serving.responses import ResponseCompletion
from engine.serving.responses_types import read_response
from engine.serving.served_model import ServedModel
from engine.serving.traces import Traces, note
from tilec.version import VERSION

METRICS_TYPE: Final = "text/plain; version=1.0.0; charset=utf-8"


class Endpoints:
    """The endpoints of a server."""

    def __init__(self, model: ServedModel, client: EngineClient, metrics: Metrics, limits: ServerLimits) -> None:
        self._model, self._client, self._metrics, self._limits = model, client, metrics, limits
        self._created = int(time.time())

    async def chat(self, request: Request) -> Response:
        """POST /v1/chat/completions."""
        asked = read(await self._body(request), ChatRequest)
        self._check_model(asked.model)
        begin = partial(ChatCompletion.begin, self._model, self._client, asked)
        return await self._complete(request, begin, stream=asked.stream)

    async def text(self, request: Request) -> Response:
        """POST /v1/completions."""
        asked = read(await self._body(request), CompletionRequest)
        self._check_model(asked.model)
        begin = partial(TextCompletion.begin, self._model, self._client, asked)
        return await self._complete(request, begin, stream=asked.stream)

    async def responses(self, request: Request) -> Response:
        """POST /v1/responses."""
        asked = read_response(await self._body(request))
        self._check_model(asked.model)
        begin = partial(ResponseCompletion.make, self._model, self._client, asked)
        return await self._complete(request, begin, stream=asked.stream)

    async def models(self, _: Request) -> Response:
        """GET /v1/models."""
        return JsonResponse({"object": "list", "data": [self._card()]})

    async def model(self, request: Request) -> Response:
        """GET /v1/models/{name}."""
        self._check_model(request.path_params["name"])
        return JsonResponse(self._card())

    async def health(self, _: Request) -> Response:
        """GET /health: 200 if the engine's process lives, and iterations end while there are requests; else 503."""
        if self._client.failure is not None:
            what = str(self._client.failure)
        elif (seconds := self._client.stalled_seconds()) > self._limits.stall_seconds:
            what = f"no iteration of the engine has ended for {seconds:.0f} seconds"
        else:
            return Response(status_code=200)
        return error_response(ApiError(503, what, code="unhealthy", kind="server_error", retry=True))

    async def version(self, _: Request) -> Response:
        """GET /version."""
        return JsonResponse({"version": VERSION})

    async def metrics(self, _: Request) -> Response:
        """GET /metrics."""
        return Response(self._metrics.text(), headers={"content-type": METRICS_TYPE})

    async def tokenize(self, request: Request) -> Response:
        """POST /tokenize."""
        asked = read(await self._body(request), TokenizeRequest)
        self._check_model(asked.model)
        if (asked.prompt is None) == (asked.messages is None):
            raise invalid("prompt", "give either `prompt` or `messages`")
        if asked.messages is not None:
            keywords = asked.chat_template_kwargs
            ids = await self._model.chat(asked.messages, asked.tools, think=keywords is None or keywords.enable_thinking)
        else:
            ids = await self._model.raw(asked.prompt or "")
        return JsonResponse({"count": len(ids), "max_model_len": self._model.longest, "tokens": ids, "token_strs": None})

    async def detokenize(self, request: Request) -> Response:
        """POST /detokenize."""
        asked = read(await self._body(request), DetokenizeRequest)
        self._check_model(asked.model)
        return JsonResponse({"prompt": await self._model.decode(asked.tokens)})

    async def _body(self, request: Request) -> bytes:
        """The body, within the limits of size and time."""
        try:
            async with asyncio.timeout(self._limits.request_seconds):
                return await read_body(request, self._limits.body_bytes)
        except TimeoutError:
            raise too_long(self._limits.request_seconds) from None

    async def _complete(
        self, request: Request, begin: Callable[[], Awaitable[tuple[Completion, Generations]]], *, stream: bool
    ) -> Response:
        """The response to a request for a completion, whole or as a stream."""
        limits = self._limits
        if stream:
            response, generations = await begin()
            events = _noting(response, response.events(generations))
            return EventStream(events, response.framing, generations, limits.request_seconds, limits.ping_seconds)

        async def whole() -> dict[str, Any]:
            response, generations = await begin()
            try:
                async with generations:
                    return await response.whole(generations)
            finally:
                note(response.noted())

        try:
            async with asyncio.timeout(limits.request_seconds):
                return JsonResponse(await while_connected(request.receive, whole()))
        except TimeoutError:
            raise too_long(limits.request_seconds) from None

    def _check_model(self, name: str | None) -> None:
        """ApiError for a model that is not served; a request without a name means this one."""
        if name not in (None, self._model.name):
            what = f"the model {name[:128]!r} is not served here, but {self._model.name!r}"
            raise ApiError(404, what, param="model", code="model_not_found")

    def _card(self) -> dict[str, Any]:
        return {
            "id": self._model.name, "object": "model", "created": self._created, "owned_by": "tilec",
            "root": self._model.name, "parent": None, "max_model_len": self._model.longest,
        }  # fmt: skip


async def _noting(response: Completion, events: AsyncGenerator[dict[str, Any]]) -> AsyncGenerator[dict[str, Any]]:
    """The events of a response, which a trace hears of at their end."""
    try:
        async with aclosing(events):
            async for event in events:
                yield event
    finally:
        note(response.noted())


def application(
    model: ServedModel,
    client: EngineClient,
    metrics: Metrics,
    limits: ServerLimits,
    keys: list[str],
    traces: Traces | None = None,
) -> Guard:
    """The whole application; with `keys`, requests need one of them. `traces` gets a span of each."""
    endpoints = Endpoints(model, client, metrics, limits)
    gets: dict[str, Callable[[Request], Awaitable[Response]]] = {
        "/v1/models": endpoints.models, "/v1/models/{name:path}": endpoints.model, "/health": endpoints.health,
        "/metrics": endpoints.metrics, "/version": endpoints.version,
    }  # fmt: skip
    posts: dict[str, Callable[[Request], Awaitable[Response]]] = {
        "/v1/chat/completions": endpoints.chat, "/v1/completions": endpoints.text,
        "/v1/responses": endpoints.responses, "/tokenize": endpoints.tokenize, "/detokenize": endpoints.detokenize,
    }  # fmt: skip
    routes = [Route(path, endpoint, methods=["GET"]) for path, endpoint in gets.items()]
    routes += [Route(path, endpoint, methods=["POST"]) for path, endpoint in posts.items()]
    routes += page_routes()
    return Guard(Router(routes, redirect_slashes=False), keys, traces)
