"""What `python -m engine` and `python -m engine.bench` do around their commands.

The name of a command goes in, its exit status comes out. What holds: whatever happens while modules are imported is a line and
a status, as it is later; no answer is lost because stdout cannot spell a character or is not there.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from contextlib import suppress
from typing import Any, Final

from engine.errors import EngineError, Interrupted, MissingPackage

PACKAGES: Final = {
    "click": "tilec", "rich": "tilec", "numpy": "tilec", "cuda": "tilec", "jinja2": "tilec[engine]",
    "markupsafe": "tilec[engine]", "tokenizers": "tilec[engine]", "ml_dtypes": "tilec[engine]",
    "matplotlib": "tilec[engine,bench]",
}  # fmt: skip
"""What to install for each package that the engine imports; `tilec[compiler]` for others."""


def enter(module: str) -> int:
    """Run `run()` of a module; the exit status. What Python would still write to a closed or full stdout as it ends is
    dropped."""
    signal.signal(signal.SIGINT, _interrupted)
    if sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison]  # so it is in a process that was given none
        return fail(EngineError("the answer cannot be written: stdout is closed"))
    spell_everything()
    try:
        importlib.import_module("tilec.visible").guard_streams()
        run = importlib.import_module(module).run
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
    signal.signal(signal.SIGINT, _interrupted)
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


def _interrupted(*_: Any) -> None:
    """End at once: nothing is open yet, or any more, and an exception would show as a traceback of whatever is imported."""
    with suppress(OSError):
        os.write(2, b"error: interrupted\n")
    os._exit(Interrupted.exit_code)
