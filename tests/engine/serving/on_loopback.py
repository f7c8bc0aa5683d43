"""The server's application on a loopback port, in a thread of this process, for clients that need a real connection. The model
says what a client can be tested by: a thought and a sentence, or a call of the first tool and then a sentence of its result."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import socket
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from in_process import ScriptedClient, server

from engine.serving.protocol import Submit
from engine.serving.served_model import ServedModel

START_SECONDS = 60
THOUGHT, SENTENCE, AFTER_TOOL = "hm", "Because the sky scatters blue.", "It is sunny."
TOOL, ARGUMENTS = "weather", {"city": "Paris"}
LONGEST = 4096


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that arrived: its path, the fields of its body, and headers."""

    method: str
    path: str
    fields: dict[str, Any]
    headers: dict[str, str]


@dataclass(slots=True)
class Listening:
    """A server that listens: its port, the model's name and what was asked."""

    port: int
    model: str
    client: ScriptedClient
    asked: list[Asked] = field(default_factory=list[Asked])
    loop: asyncio.AbstractEventLoop | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def report(self, *reports: Any) -> None:
        """As if the engine had sent it, in the server's thread."""
        assert self.loop is not None
        self.loop.call_soon_threadsafe(self.client.report, *reports)


class Conversation:
    """What the model says to a prompt, as token ids: see the module."""

    def __init__(self, folder: Path) -> None:
        self._model = ServedModel(folder, LONGEST, "talker")

    def __call__(self, work: Submit) -> Sequence[int]:
        prompt = self._model.text.tokenizer.decode(work.ids, skip_special_tokens=False)
        call = f'<tool_call>\n{{"name": "{TOOL}", "arguments": {json.dumps(ARGUMENTS)}}}\n</tool_call>'
        if "<|im_start|>tool" in prompt:
            reply = AFTER_TOOL
        elif re.search(rf'"name": ?"{TOOL}"', prompt):
            reply = call
        elif "</think>" in prompt or "<|im_start|>assistant" not in prompt:
            reply = SENTENCE
        else:
            reply = f"<think>\n{THOUGHT}\n</think>\n\n{SENTENCE}"
        return [*self._model.text.encode(reply), self._model.generation.eos_token_id[0]]


@contextmanager
def listening(folder: Path, *, keys: Sequence[str] = (), **options: Any) -> Generator[Listening]:
    """A server of the model in a folder, which listens until the context ends."""
    one = server(folder, options.pop("tokens", None) or Conversation(folder), keys=keys, longest=LONGEST, rows=8, **options)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        found = Listening(listener.getsockname()[1], "talker", one.client)

        async def app(scope: Any, receive: Any, send: Any) -> None:
            body = bytearray()

            async def received() -> Any:
                message = await receive()
                body.extend(message.get("body", b""))
                return message

            try:
                await one.app(scope, received, send)
            finally:
                headers = {name.decode(): value.decode() for name, value in scope["headers"]}
                fields = json.loads(body) if body[:1] == b"{" else {}
                found.asked.append(Asked(scope["method"], scope["path"], fields, headers))

        config = uvicorn.Config(app, http="h11", ws="none", lifespan="off", log_config=None, access_log=False)
        running = uvicorn.Server(config)

        async def run() -> None:
            found.loop = asyncio.get_running_loop()
            started.set()
            await running.serve([listener])

        started = threading.Event()
        thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
        thread.start()
        assert started.wait(START_SECONDS)
        try:
            yield found
        finally:
            running.should_exit = True
            thread.join()
            one.model.close()
