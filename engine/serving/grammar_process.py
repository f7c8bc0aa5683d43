"""Client of the process that checks grammars (`engine.serving.grammar_worker`); one is started with the first grammar.

A crash of it is an error of the request whose grammar it was: the next request starts a new one (`engine.reply_process`).
Grammars of the last requests are kept, so that one is not compiled anew for each.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
from collections import OrderedDict
from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import Any, Final

from engine.errors import DeviceError, UsageError
from engine.reply_process import WALL_SECONDS, ProcessEnded, ReplyProcess
from engine.serving import grammar_worker
from engine.serving.grammar_compiler import MOST_BYTES
from engine.serving.grammar_worker import CPU_SECONDS, MEMORY_BYTES, NO_VOCABULARY

KEPT: Final = 64
"""Grammars that are kept, each of at most `MOST_BYTES`."""
PACKAGES: Final = ("llguidance",)
REPLY_LIMIT: Final = 8 * MOST_BYTES
"""Maximum bytes of a reply: JSON has up to six for a character."""
CRASHES: Final = {-number for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)} | {1}
"""Exit statuses of the process that its own code is the reason for; 1: an error that nobody caught."""


class GrammarEnded(UsageError):
    """A grammar ended the process that checks it, or took too much."""


class ProcessLost(DeviceError):
    """The process ended at once, for a reason that is not the grammar's."""


class GrammarProcess(ReplyProcess):
    """The process for a model folder, with the values of `Compiler`. Thread-safe: requests are serialized."""

    def __init__(
        self, folder: str | PathLike[str], vocabulary: int, ending: Iterable[int], *,
        worker: str = grammar_worker.__file__, cpu_seconds: float = CPU_SECONDS, wall_seconds: float = WALL_SECONDS,
    ) -> None:  # fmt: skip
        arguments = [os.path.abspath(folder), str(vocabulary), ",".join(map(str, ending))]
        super().__init__(
            Path(worker), PACKAGES, what="checks grammars", extra="serve", reply_limit=REPLY_LIMIT, arguments=arguments
        )
        self._cpu_seconds, self._wall_seconds = cpu_seconds, wall_seconds
        self._kept: OrderedDict[bytes, str] = OrderedDict()

    def made(self, kind: str, value: Any) -> str:
        """As of `Compiler`: UsageError if it is no grammar, GrammarEnded if the process ended over it. DeviceError if two
        processes ended for a reason that is not the grammar's: one may have been killed before it was asked."""
        try:
            request = {"kind": kind, "value": value, "cpu_seconds": self._cpu_seconds}
            key = hashlib.sha256(json.dumps(request).encode()).digest()
        except RecursionError:
            raise UsageError("it is nested too deeply") from None
        if (kept := self._kept.pop(key, None)) is None:
            closes = self.closes
            try:
                kept = self._reply(request)
            except ProcessLost:
                if self.closes != closes:  # it was to end
                    raise
                kept = self._reply(request)
        self._kept[key] = kept
        if len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return kept

    def _reply(self, request: dict[str, Any]) -> str:
        try:
            reply = self.reply_to(request, wall_seconds=self._wall_seconds)
        except ProcessEnded as ended:
            if ended.status == -signal.SIGPROF:
                raise GrammarEnded(f"it takes over {self._cpu_seconds:g} seconds to compile") from None
            if ended.late is None and ended.status in CRASHES:
                raise GrammarEnded("it ended the process that checks it") from None
            lost = ProcessLost if ended.late is None and ended.status != NO_VOCABULARY else DeviceError
            raise lost(f"the process that checks grammars ended: {ended}") from None
        if "error" in reply:
            raise GrammarEnded(f"it takes over {MEMORY_BYTES >> 20} MiB of memory to compile")
        if "why" in reply:
            raise UsageError(reply["why"])
        return str(reply["grammar"])
