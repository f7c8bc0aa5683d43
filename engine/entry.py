"""What `python -m engine` and `python -m engine.bench` do around their commands.

The name of a command goes in, its exit status comes out. What holds: whatever happens while modules are imported is a line and
a status, as it is later, and no Ctrl-C is lost; no answer is lost because stdout cannot spell a character or is not there.
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
    "matplotlib": "tilec[engine,bench]",
}  # fmt: skip
"""What to install for each package that the engine imports; `tilec[compiler]` for others."""

SOON: Final = 0.01
"""Seconds after which a Ctrl-C that was lost is raised again."""


def enter(module: str) -> int:
    """Run `run()` of a module; the exit status. What Python would still write to a closed or full stdout as it ends is
    dropped."""
    signal.signal(signal.SIGINT, end_at_once)
    if sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison]  # so it is in a process that was given none
        return fail(EngineError("the answer cannot be written: stdout is closed"))
    spell_everything()
    try:
        importlib.import_module("tilec.visible").guard_streams()
        run = importlib.import_module(module).run
        sys.unraisablehook = raise_lost_interrupt
        signal.signal(signal.SIGINT, signal.default_int_handler)
        status = int(run())
    except ModuleNotFoundError as error:
        status = fail(missing(error))
    except OSError as error:  # of what is written behind the command's back
        gone = isinstance(error, BrokenPipeError)  # who read the answer has enough of it
        said = EngineError(f"the answer cannot be written: {error.strerror or error}")
        status = EngineError.exit_code if gone else fail(said)
    except KeyboardInterrupt:  # between two lines of `run`
        status = fail(Interrupted())
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGINT, end_at_once)
    # Where Ctrl-C came while a text was run, as `dataclass` does, CPython ends by the signal, caught or not. The next text that
    # is run undoes that.
    exec("")
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return status


def spell_everything() -> None:
    """Let stdout write a character that its encoding has not as an escape, so that no answer ends in the middle."""
    reconfigure: Any = getattr(sys.stdout, "reconfigure", None)  # absent where a test put another object there
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")


def argument_text(argument: str) -> str:
    """A text of the command line, read as UTF-8 where the locale knows only ASCII; unchanged where it is not UTF-8 either."""
    with suppress(UnicodeError):
        return os.fsencode(argument).decode("utf-8") if any("\udc80" <= c <= "\udcff" for c in argument) else argument
    return argument


def missing(error: ModuleNotFoundError) -> EngineError:
    """What to say about a module that is not there; ModuleNotFoundError again where it is one of this project."""
    name, _, inner = (error.name or "").partition(".")
    if name in ("", __package__) or (name == "tilec" and inner):
        raise error
    if name == "tilec":
        return MissingPackage("the package `tilec` is not installed", fix="run `pip install -e .` in the checkout")
    return MissingPackage(
        f"the package `{name}` is not installed", fix=f"pip install '{PACKAGES.get(name, 'tilec[compiler]')}'"
    )


def fail(error: EngineError) -> int:
    """Print an error to stderr, if that is there; its exit status."""
    with suppress(OSError, AttributeError, ValueError):
        sys.stderr.write(f"error: {error}\n")
        sys.stderr.flush()
    return error.exit_code


def raise_lost_interrupt(lost: Any) -> None:
    """In place of `sys.unraisablehook`. What Ctrl-C raises while Python finalizes an object, or drops the lock of a module that
    was imported (backends are imported when they are asked for), would be printed and then forgotten."""
    if not issubclass(lost.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(lost)
        return
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, SOON)
