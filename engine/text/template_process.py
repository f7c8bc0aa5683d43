"""Client of the process that renders chat templates (`engine.text.template_worker`); one is started on first use.

Returns the reply to a request, or raises a `TemplateEnded` that names the exceeded limit. The process opens no file of a model.
It ends when a template exceeds its limits; the next request starts a new one (`engine.reply_process`).
"""

from __future__ import annotations

import atexit
import signal
from pathlib import Path
from typing import Any, Final

from engine.reply_process import WALL_SECONDS, ProcessEnded, ReplyProcess
from engine.text import template_worker
from engine.text.template_worker import CPU_SECONDS, MEMORY_BYTES, OUTPUT_LIMIT

REPLY_LIMIT: Final = 32 * OUTPUT_LIMIT
"""Maximum bytes of a reply: two texts with up to 12 bytes per character."""

PACKAGES: Final = ("jinja2", "markupsafe")


class TemplateEnded(Exception):
    """The process exited or was killed before it replied; `str()` is the reason."""


class TemplateProcess(ReplyProcess):
    """The process, started on the first request. Thread-safe: requests are serialized."""

    def __init__(self) -> None:
        super().__init__(
            Path(template_worker.__file__), PACKAGES, what="renders chat templates", extra="engine", reply_limit=REPLY_LIMIT
        )
        self.cpu_seconds = CPU_SECONDS

    def send_request(self, request: dict[str, Any], *, wall_seconds: float = WALL_SECONDS) -> dict[str, Any]:
        """The reply to a request; TemplateEnded if there is none."""
        try:
            return self.reply_to(request | {"cpu_seconds": self.cpu_seconds}, wall_seconds=wall_seconds)
        except ProcessEnded as ended:
            reason = _exit_reason(ended.status, self.cpu_seconds) if ended.late is None else str(ended)
            raise TemplateEnded(reason) from None


def _exit_reason(status: int | None, cpu_seconds: float) -> str:
    """What an exit status of the process says about the template."""
    if status == -signal.SIGPROF:
        return f"took over {cpu_seconds:g} seconds"
    if status == -signal.SIGSEGV:
        return "nests too deeply"
    if status == -signal.SIGKILL:
        return f"was ended, perhaps for want of memory (its limit is {MEMORY_BYTES >> 20} MiB)"
    return f"ended the process that renders it (status {status})"


SHARED: Final = TemplateProcess()
"""The process shared by this program."""

atexit.register(SHARED.close)
