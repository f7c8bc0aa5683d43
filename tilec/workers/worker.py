"""The worker: receives tasks from its pipe one by one and sends reports back, until the pipe ends.

In: first the function that runs a task, pickled by name, then tasks. Out: `("report", message)` for each message that the
function emits, `("say", line)` for a line to show at once, and `("done", None)` or `("crash", traceback)` after each task.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from tilec import progress
from tilec.progress import Slot

Emit = Callable[[Any], None]
Runner = Callable[[Any, Emit], None]
"""Runs one task in a worker and reports through `Emit`; must be importable by name there."""


def serve(pipe: Connection, slot: Slot, command: int) -> int:
    """Main function of a worker. `command` is the process id of the command; returns the exit status."""
    progress.attach(slot, lambda line: pipe.send(("say", line)), command)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        runner: Runner | None = None
        text = ""
        try:
            runner = pipe.recv()
        except (EOFError, OSError):
            return 0
        except Exception:
            text = traceback.format_exc()
        while True:
            task = pipe.recv()
            if runner is None:
                pipe.send(("crash", text))
                continue
            try:
                runner(task, lambda message: pipe.send(("report", message)))
            except (BrokenPipeError, ConnectionResetError):
                return 0
            except Exception:
                pipe.send(("crash", traceback.format_exc()))
            else:
                pipe.send(("done", None))
    return 0
