"""Requests to a server of this process, each from its path and body to what came back."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from in_process import Received, Server

T = TypeVar("T")

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Why?"}]}

HANG_SECONDS = 60


def finished(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine, which may take no longer than a test that hangs."""
    return asyncio.run(asyncio.wait_for(work, HANG_SECONDS))


def ask(one: Server, path: str, body: Any = None, **options: Any) -> Received:
    return finished(one.ask(path, body, **options))


def chat(one: Server, **fields: Any) -> Received:
    return ask(one, "/v1/chat/completions", CHAT | fields)
