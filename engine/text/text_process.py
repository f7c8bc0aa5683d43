"""The tokenizer of a model folder in another process (`engine.text.text_worker`), for a start that cannot wait for it.

The tokenizer library takes half a second to read a file, and holds Python's lock all the while: a thread would gain nothing.
Only the standard library is imported here, so that the process starts before anything else is imported.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from os import PathLike, fspath
from typing import Any, Final

from engine.errors import DeviceError, EngineError, MissingPackage, ModelError, UsageError

KINDS: Final[Mapping[str, type[EngineError]]] = {
    kind.__name__: kind for kind in (DeviceError, EngineError, MissingPackage, ModelError, UsageError)
}
"""The errors that a reply may have."""


class TextProcess:
    """What one prompt needs of `engine.text.tokenizer.Text`. Made at once; whoever asks first waits until the tokenizer was
    read, and gets the ModelError if it could not be. DeviceError if the process ended on its own. Not thread-safe."""

    def __init__(self, folder: str | PathLike[str]) -> None:
        ours, its = socket.socketpair()
        with its:
            safe = ["-P"] if sys.flags.safe_path else []
            module = f"{__package__}.text_worker"
            try:
                self._process = subprocess.Popen(
                    [sys.executable, *safe, "-m", module, str(its.fileno()), os.path.abspath(fspath(folder))],
                    pass_fds=[its.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                ours.close()
                what = f"the tokenizer's process cannot be started: {error.strerror or error}"
                raise DeviceError(what, fix="free memory or processes") from None
            except BaseException:
                ours.close()
                raise
        self._connection, self._stream, self._read = ours, ours.makefile("rwb"), False

    def ready(self) -> None:
        """Wait until the tokenizer was read; its ModelError."""
        if not self._read:
            self._reply()
            self._read = True

    def raw(self, text: str, *, allow_control_tokens: bool = False) -> list[int]:
        """As of `Text`."""
        return self._call("raw", text, allow_control_tokens=allow_control_tokens)

    def chat(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] | None = None, thinking: bool = True,
        allow_control_tokens: bool = False,
    ) -> list[int]:  # fmt: skip
        """As of `Text`; messages and tools have JSON types."""
        return self._call("chat", messages, tools=tools, thinking=thinking, allow_control_tokens=allow_control_tokens)

    def decode(self, ids: Sequence[int]) -> str:
        """As of `Text`."""
        return self._call("decode", list(ids))

    def is_silent(self, token: int) -> bool:
        """As of `Text`."""
        return self._call("is_silent", token)

    def close(self) -> None:
        """End the process, whatever it does: it has nothing to save. Idempotent."""
        with suppress(OSError):  # what could not be sent
            self._stream.close()
        self._connection.close()
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    def _call(self, name: str, *arguments: Any, **options: Any) -> Any:
        self.ready()
        request = json.dumps({"call": name, "arguments": arguments, "options": options})
        try:
            self._stream.write(request.encode() + b"\n")
            self._stream.flush()
        except ConnectionError:
            raise _ended() from None
        return self._reply()

    def _reply(self) -> Any:
        try:
            line = self._stream.readline()
        except ConnectionError:
            line = b""
        if not line.endswith(b"\n"):
            raise _ended()
        reply: dict[str, Any] = json.loads(line)
        if (error := reply.get("error")) is not None:
            raise KINDS.get(error["kind"], EngineError)(error["what"], where=error["where"], fix=error["fix"])
        return reply["value"]


def _ended() -> DeviceError:
    return DeviceError("the tokenizer's process ended on its own", fix="free memory, and run it again")
