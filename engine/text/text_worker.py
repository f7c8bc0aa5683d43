"""`python -m engine.text.text_worker DESCRIPTOR FOLDER`: the tokenizer of a model folder in a process of its own.

In: requests of `engine.text.text_process` from the socket of that descriptor, each a line of JSON with the name of a `call` and
its `arguments`. Out: a line for each, with its `value` or the `error` that it raised; the first line says, unasked, whether the
tokenizer could be read. The process ends when the other end closes, however that process ended. Ctrl-C at a terminal is for the
other process.
"""

from __future__ import annotations

import gc
import json
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from engine.entry import missing
from engine.errors import DeviceError, EngineError, ModelError

if TYPE_CHECKING:
    from engine.text.tokenizer import Text

CONFIG_FILE: Final = "config.json"
LIMIT_BYTES: Final = 1 << 20
ABSENT: Final = "give the folder that holds config.json, the tokenizer and the safetensors files"
"""As `engine.models.families`, whose imports take longer than reading a tokenizer."""

CALLS: Final = ("raw", "chat", "decode", "is_silent")
"""The methods of `Text` that can be called."""


def main(descriptor: int, folder: str) -> int:
    """Read the tokenizer of a folder, and reply to requests until the other end closes, or at once if it cannot be read."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()  # the tokenizer lives as long as the process, and replies make no cycles
    found: list[Text] = []
    with suppress(ConnectionError), socket.socket(fileno=descriptor) as connection, connection.makefile("rwb") as stream:
        line = b'{"call": "read", "arguments": []}'
        while line:
            reply = json.dumps(_reply_to(partial(_called, found, folder, json.loads(line))))
            stream.write(reply.encode() + b"\n")
            stream.flush()
            line = stream.readline() if found else b""
    return 0


def _called(found: list[Text], folder: str, request: dict[str, Any]) -> Any:
    """What a request asks for; the first one reads the tokenizer."""
    if not found:
        from engine.checkpoint.json_file import read_object  # late: what fails in it is a reply too
        from engine.text.policy import POLICIES
        from engine.text.tokenizer import Text

        # The other process reads all of the config, and reports what is wrong with it; here its family is enough.
        name = read_object(Path(folder) / CONFIG_FILE, LIMIT_BYTES, ABSENT).get("model_type")
        if not isinstance(name, str) or name not in POLICIES:
            raise ModelError("`model_type` is not a model's that the engine takes", where=Path(folder) / CONFIG_FILE)
        found.append(Text.read(folder, POLICIES[name]))
        return None
    assert request["call"] in CALLS
    return getattr(found[0], request["call"])(*request["arguments"], **request["options"])


def _reply_to(call: Callable[[], Any]) -> dict[str, Any]:
    """The reply to a request."""
    try:
        return {"value": call()}
    except EngineError as error:
        failure = error
    except ModuleNotFoundError as error:
        failure = missing(error)
    except MemoryError:
        failure = DeviceError("the host has too little memory", fix="use a smaller model")
    return {"error": {"kind": type(failure).__name__, "what": failure.what, "where": failure.where, "fix": failure.fix}}


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2]))
