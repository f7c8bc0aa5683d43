"""The server's application without sockets: a client of the engine whose reports the test writes, and requests by ASGI."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from engine.serving.asgi import Guard
from engine.serving.client import EngineClient
from engine.serving.http import application
from engine.serving.metrics import Metrics
from engine.serving.options import ServerLimits, ToolForm
from engine.serving.protocol import Loaded, Message, Report, Submit
from engine.serving.served_model import ServedModel
from engine.serving.traces import Traces
from engine.tools.tiny import write_tiny_model

TEMPLATE = """{%- if tools %}{{- '<|im_start|>system\\n' + (tools | tojson) + '<|im_end|>\\n' }}{%- endif %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') + '<|im_end|>\\n' }}
{%- endfor %}
{{- '<|im_start|>assistant\\n' }}
{%- if not enable_thinking %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
"""
"""As Qwen3's, in short."""

ADDED = ("<think>", "</think>", "<tool_call>", "</tool_call>")


Tokens = Callable[[Submit], Sequence[int] | None]


class ScriptedClient(EngineClient):
    """`EngineClient` without a process. `tokens` says what a request generates; None: nothing until `report` is called."""

    def __init__(self, tokens: Tokens, rows: int = 2, most_waiting: int = 2, metrics: Metrics | None = None) -> None:
        self.now = 0.0
        super().__init__(most_waiting, metrics, lambda: self.now)
        self.loaded = Loaded(rows, 256, rows * 4, 64, 0.0)
        self.sent: list[Message] = []
        self.tokens = tokens

    @property
    def submitted(self) -> list[Submit]:
        return [message for message in self.sent if isinstance(message, Submit)]

    def report(self, tokens: dict[int, int] | None = None, ended: dict[int, str] | None = None, **numbers: Any) -> None:
        """As if the engine had sent it."""
        defaults: dict[str, Any] = {"admitted": [], "prompt_tokens": 0, "running": 0, "waiting": 0, "used_pages": 0}
        self._take(Report(tokens or {}, ended or {}, **(defaults | numbers)))

    def _send(self, message: Message) -> None:
        self.sent.append(message)
        if isinstance(message, Submit):
            tokens = self.tokens(message)
            if tokens is not None:
                asyncio.get_running_loop().call_soon(self._play, message, list(tokens))

    def _play(self, work: Submit, tokens: list[int]) -> None:
        self.report(admitted=[work.number], prompt_tokens=len(work.ids), running=1)
        for count, token in enumerate(tokens, 1):
            stop = token in work.stop_tokens
            last = stop or count == min(len(tokens), work.max_tokens)
            self.report({work.number: token}, {work.number: "stop" if stop else "length"} if last else {})
            if last:
                break


@dataclass
class Received:
    """A response: status, headers, and the pieces of the body."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict[str, str])
    pieces: list[bytes] = field(default_factory=list[bytes])
    whole: bool = False

    @property
    def json(self) -> Any:
        return json.loads(b"".join(self.pieces))

    @property
    def error(self) -> dict[str, Any]:
        return self.json["error"]

    @property
    def events(self) -> list[Any]:
        """The events of a stream, without the last, which must be `[DONE]`."""
        lines = [line for line in b"".join(self.pieces).decode().split("\n\n") if line and not line.startswith(":")]
        assert all(line.startswith("data: ") for line in lines) and lines[-1] == "data: [DONE]", lines
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


@dataclass
class Server:
    """An application with its parts."""

    model: ServedModel
    client: ScriptedClient
    metrics: Metrics
    app: Guard

    async def ask(
        self, path: str, body: Any = None, *, method: str | None = None, headers: dict[str, str] | None = None,
        gone: asyncio.Event | None = None, pieces: Sequence[bytes] | None = None, each: Callable[[bytes], None] | None = None,
    ) -> Received:  # fmt: skip
        """A response; the client leaves when `gone` is set. `each` is called with every piece of the body."""
        raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        waiting = list(pieces if pieces is not None else [raw])
        received = Received()
        leaving = gone or asyncio.Event()

        async def receive() -> Any:
            if waiting:
                piece = waiting.pop(0)
                return {"type": "http.request", "body": piece, "more_body": bool(waiting)}
            await leaving.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                received.status = message["status"]
                received.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            else:
                received.pieces.append(message.get("body", b""))
                received.whole = not message.get("more_body", False)
                if each is not None:
                    each(received.pieces[-1])

        found = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
        method = method or ("GET" if body is None and pieces is None else "POST")
        scope = {
            "type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": b"", "headers": found,
            "root_path": "", "scheme": "http", "http_version": "1.1",
        }  # fmt: skip
        await self.app(scope, receive, send)
        return received


def server(
    folder: Path,
    tokens: Tokens,
    *,
    limits: ServerLimits | None = None,
    keys: Sequence[str] = (),
    longest: int = 256,
    traces: Traces | None = None,
    tool_form: ToolForm | None = None,
    **options: Any,
) -> Server:
    """A server of a model folder whose generations are `tokens`."""
    model, metrics = ServedModel(folder, longest, "talker", tool_form), Metrics("talker")
    client = ScriptedClient(tokens, metrics=metrics, **options)
    metrics.pages = client.loaded.pages
    return Server(model, client, metrics, application(model, client, metrics, limits or ServerLimits(), list(keys), traces))


def says(folder: Path, text: str) -> Tokens:
    """Generations that write a text and end."""
    model = ServedModel(folder, 256, "talker")
    ids = [*model.text.encode(text), model.generation.eos_token_id[0]]
    return lambda _: ids


def write_talker(folder: Path) -> None:
    """Write the folder of a model without weights that thinks and calls tools; `tokens` of a server say what it generates."""
    write_tiny_model(folder)
    (folder / "model.safetensors").unlink()
    tokenizer: Any = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in ADDED])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["vocab_size"] = tokenizer.get_vocab_size()
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
