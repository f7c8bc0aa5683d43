"""Process setup and teardown shared by `python -m engine` and `python -m engine.bench`.

Runs the module of a command and returns its exit status. Errors during imports are one line and an exit status, like later
errors. No Ctrl-C is lost. Output is complete even if stdout cannot encode a character; a closed stdout is reported.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from contextlib import suppress
from typing import Any, Final

from engine.errors import EngineError, Interrupted, MissingPackage
from engine.startup import end_at_once

PACKAGES: Final = {
    "click": "tilec", "rich": "tilec", "numpy": "tilec", "cuda": "tilec", "jinja2": "tilec[engine]",
    "markupsafe": "tilec[engine]", "tokenizers": "tilec[engine]", "ml_dtypes": "tilec[engine]",
    "safetensors": "tilec[engine]", "matplotlib": "tilec[engine,bench]", "starlette": "tilec[serve]",
    "uvicorn": "tilec[serve]", "msgspec": "tilec[serve]", "prometheus_client": "tilec[serve]",
    "llguidance": "tilec[serve]",
}  # fmt: skip
"""The requirement to install for each package that the engine imports; `tilec[compiler]` for others."""

RERAISE_DELAY: Final = 0.01
"""Seconds until a lost Ctrl-C is raised again."""


def enter(module: str) -> int:
    """Run `run()` of a module; returns the exit status. Output that Python would still flush to a closed or full stdout at exit
    is discarded."""
    signal.signal(signal.SIGINT, end_at_once)
    if sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison]  # None in a process that was started without stdout
        return fail(EngineError("cannot write the output: stdout is closed"))
    escape_unencodable()
    try:
        importlib.import_module("tilec.diagnostics.visible").guard_streams()
        run = importlib.import_module(module).run
        sys.unraisablehook = raise_lost_interrupt
        signal.signal(signal.SIGINT, signal.default_int_handler)
        status = int(run())
    except ModuleNotFoundError as error:
        status = fail(missing(error))
    except OSError as error:  # from writes that the command does not make itself
        reader_closed = isinstance(error, BrokenPipeError)  # the reader of the output closed the pipe on purpose
        failure = EngineError(f"cannot write the output: {error.strerror or error}")
        status = EngineError.exit_code if reader_closed else fail(failure)
    except KeyboardInterrupt:  # between two lines of `run`
        status = fail(Interrupted())
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGINT, end_at_once)
    # If Ctrl-C arrived inside `exec` of a string (`dataclass` uses it), CPython ends the process by the signal even if the
    # exception was caught. The next `exec` of a string clears that state.
    exec("")
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return status


def escape_unencodable() -> None:
    """Let stdout escape characters that its encoding lacks, so that output never stops in the middle."""
    reconfigure: Any = getattr(sys.stdout, "reconfigure", None)  # absent if a test replaced stdout
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")


def argument_text(argument: str) -> str:
    """A command-line argument, decoded as UTF-8 if the locale is ASCII; unchanged if it is not valid UTF-8."""
    with suppress(UnicodeError):
        return os.fsencode(argument).decode("utf-8") if any("\udc80" <= c <= "\udcff" for c in argument) else argument
    return argument


def missing(error: ModuleNotFoundError) -> EngineError:
    """The error for a module that is not installed; raises ModuleNotFoundError again for a module of this project."""
    name, _, inner = (error.name or "").partition(".")
    if name in ("", __package__) or (name == "tilec" and inner):
        raise error
    if name == "tilec":
        return MissingPackage("the package `tilec` is not installed", fix="run `pip install -e .` in the checkout")
    return MissingPackage(
        f"the package `{name}` is not installed", fix=f"pip install '{PACKAGES.get(name, 'tilec[compiler]')}'"
    )


def fail(error: EngineError) -> int:
    """Print an error to stderr, if it is open; returns the exit status."""
    with suppress(OSError, AttributeError, ValueError):
        sys.stderr.write(f"error: {error}\n")
        sys.stderr.flush()
    return error.exit_code


def raise_lost_interrupt(lost: Any) -> None:
    """Replacement for `sys.unraisablehook`. Python prints and drops the KeyboardInterrupt of a Ctrl-C that arrives in a
    finalizer or while the lock of an imported module is released (backends are imported on demand). This hook raises it again
    after `RERAISE_DELAY`."""
    if not issubclass(lost.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(lost)
        return
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, RERAISE_DELAY)
