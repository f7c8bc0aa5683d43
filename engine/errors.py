"""Exceptions of the engine: each prints as one line, and each kind has an exit status.

| status | exception      | what went wrong                                                                           |
|--------|----------------|-------------------------------------------------------------------------------------------|
| 1      | EngineError    | the output cannot be written, or a step breaks a rule (`engine.graph.verify`)             |
| 2      | UsageError     | an option, a prompt, a token id or a sampling value that cannot be served                 |
| 2      | MissingPackage | a package that the engine needs is not installed                                          |
| 3      | ModelError     | a file of the model folder is absent, damaged, too large, or of an unsupported model      |
| 4      | BundleRefused  | the bundle is absent, damaged, for another GPU, or lacks an artifact the model needs      |
| 5      | DeviceError    | the GPU or its driver is absent, refused a call, or memory is too little (host too)       |
| 6      | EngineEnded    | the process of the server's engine ended on its own (`engine.serving.client`)             |
| 5      | RanksDiffer    | ranks chose different tokens (`engine.ranks.processes`)                                   |
| 6      | RankEnded      | the process of a rank ended on its own (`engine.ranks.processes`)                         |
| 130    | Interrupted    | the user stopped the run (128 + SIGINT, as shells report it)                              |

Any other exception that leaves the engine is an internal error.
"""

from __future__ import annotations

from os import PathLike, fspath
from typing import ClassVar


class EngineError(Exception):
    """Base class: `where` names the file or option, `what` is the problem, `fix` a suggestion.

    `str()` is one line, `where: what; fix`, with control characters escaped, so that no file content can forge a second line.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, *, where: str | PathLike[str] = "", fix: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = fspath(where)
        self.fix = fix

    def __str__(self) -> str:
        line = f"{self.where}: {self.what}" if self.where else self.what
        if self.fix:
            line += f"; {self.fix}"
        return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in line)


class UsageError(EngineError):
    """An option, a prompt, a token id or a sampling value is invalid."""

    exit_code: ClassVar[int] = 2


class MissingPackage(UsageError):
    """A package that the engine needs is not installed."""


class ModelError(EngineError):
    """A file of the model folder is absent, damaged, or of a model that the engine does not support."""

    exit_code: ClassVar[int] = 3


class BundleRefused(EngineError):
    """The bundle is absent, damaged, built for another GPU, or lacks an artifact that the model needs."""

    exit_code: ClassVar[int] = 4


class DeviceError(EngineError):
    """The GPU or its driver is absent, refused a call, or has too little memory."""

    exit_code: ClassVar[int] = 5


class Interrupted(EngineError):
    """The user stopped the run."""

    exit_code: ClassVar[int] = 130

    def __init__(self, what: str = "interrupted", *, where: str | PathLike[str] = "", fix: str = "") -> None:
        super().__init__(what, where=where, fix=fix)
