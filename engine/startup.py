"""Keep the folder that someone stands in from being searched for modules: a `random.py` beside a model must not run. And let
Ctrl-C end a program that still imports its modules with a line, where an exception would show as their traceback.

In: how Python was started. Out: `sys.path` without that folder, and what SIGINT does. `engine/__init__.py` calls this before it
imports anything, and this file imports only what Python has loaded before it searches any folder (`sys`, `os`, `_signal`; not
even `__future__`). The first is `tilec/startup.py` again in short, because with the folder still on the path `import tilec`
could already be the folder's.

What holds. `python -m engine` finds modules where Python, its packages and absolute entries of PYTHONPATH are. An empty or
relative entry of PYTHONPATH (what `PYTHONPATH=$PYTHONPATH:/x` leaves where it was unset) names whatever folder one stands in,
so it is dropped.

What cannot be held from here. `python -m engine` looks for `engine` itself in the current folder before any line of ours runs,
which `python -P -m engine` does not.
"""

import os
import sys

SIGNAL = __import__("_signal")  # what `signal` is made of, which is loaded already
INTERRUPTED = 130
"""Exit status of a program that Ctrl-C ended (128 + SIGINT, as shells report it)."""


def begin(package: str) -> None:
    """Where `package` is the program that runs (`python -m package`, or a script of that name): clean `sys.path`; and where its
    modules still are to be imported, end it at once on Ctrl-C, unless that is ignored."""
    words = sys.argv
    if words[:1] == ["-m"]:  # so it reads while Python looks for the module to run
        if not _names(sys.orig_argv[-len(words)], package):
            return
        if SIGNAL.getsignal(SIGNAL.SIGINT) is SIGNAL.default_int_handler:
            SIGNAL.signal(SIGNAL.SIGINT, end_at_once)
        if not sys.flags.safe_path:
            del sys.path[0]
    elif not words or os.path.basename(words[0]) != package:
        return
    given = "" if sys.flags.ignore_environment else os.environ.get("PYTHONPATH", "")
    entries = given.split(os.pathsep) if given else []
    absolute = {os.path.abspath(entry) for entry in entries if os.path.isabs(entry)}
    relative = {os.path.abspath(entry) for entry in entries if not os.path.isabs(entry)} - absolute
    sys.path[:] = [entry for entry in sys.path if os.path.isabs(entry) and entry not in relative]


def end_at_once(*_: object) -> None:
    """Handles SIGINT while nothing is open yet, or any more."""
    try:
        os.write(2, b"error: interrupted\n")
    finally:
        os._exit(INTERRUPTED)


def _names(word: str, package: str) -> bool:
    """Whether a word of Python's command line, `package`, `-mpackage` or `-Pmpackage`, names the package or a part of it."""
    module = word if not word.startswith("-") else word[word.find("m") + 1 :]
    return module == package or module.startswith(package + ".")
