"""What runs in an `engine.reply_process`: requests arrive on stdin and replies go to stdout, each as 8 bytes of length,
little-endian, and JSON. A kernel timer ends the process if a request does not end in time.
"""

from __future__ import annotations

import json
import resource
import signal
from collections.abc import Callable
from typing import Any, BinaryIO


def serve(
    requests: BinaryIO, replies: BinaryIO, reply_to: Callable[[dict[str, Any]], dict[str, Any]], *, cpu_seconds: float,
    memory_bytes: int,
) -> None:  # fmt: skip
    """Reply to requests until stdin closes. Each may take `cpu_seconds` of processor time, or what its field of that name says;
    the process has `memory_bytes` of address space, mapped files included. A MemoryError is the reply `{"error": "memory"}`."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    while len(header := requests.read(8)) == 8:
        text = requests.read(int.from_bytes(header, "little"))
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds)  # SIGPROF ends the process
        try:
            request = json.loads(text)
            signal.setitimer(signal.ITIMER_PROF, request.get("cpu_seconds", cpu_seconds))
            reply = json.dumps(reply_to(request)).encode()
        except MemoryError:
            reply = b'{"error": "memory"}'
        signal.setitimer(signal.ITIMER_PROF, 0)
        replies.write(len(reply).to_bytes(8, "little") + reply)
        replies.flush()
