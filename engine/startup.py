"""Removes the current folder from the module search path: a `random.py` next to a model must not run. Also makes Ctrl-C during
imports end the program with one line instead of a traceback.

In: how Python was started. Out: `sys.path` without that folder, and the SIGINT handler. `engine/__init__.py` calls this before
any other import, and this file imports only modules that Python loads before it searches any folder (`sys`, `os`, `_signal`;
not even `__future__`). The path code repeats `tilec/startup.py` in short, because with the folder on the path `import tilec`
could already load the folder's.

`python -m engine` then finds modules only in Python's folders, its packages and absolute entries of PYTHONPATH. An empty or
relative entry (`PYTHONPATH=$PYTHONPATH:/x` leaves one if the variable was unset) names the current folder and is dropped.

One gap remains: `python -m engine` looks for `engine` itself in the current folder before any line of this file runs. Use
`python -P -m engine` to avoid that.
"""

import os
import sys

SIGNAL = __import__("_signal")  # the already loaded module under `signal`
INTERRUPTED = 130
"""Exit status of a program that Ctrl-C ended (128 + SIGINT, as shells report it)."""


def begin(package: str) -> None:
    """Clean `sys.path` if `package` is the running program (`python -m package`, or a script of that name). If its modules are
    still to be imported, also make Ctrl-C end the program at once, unless SIGINT is ignored."""
    arguments = sys.argv
    if arguments[:1] == ["-m"]:  # `sys.argv` while Python looks for the module to run
        if not _names_module(sys.orig_argv[-len(arguments)], package):
            return
        if SIGNAL.getsignal(SIGNAL.SIGINT) is SIGNAL.default_int_handler:
            SIGNAL.signal(SIGNAL.SIGINT, end_at_once)
        if not sys.flags.safe_path:
            del sys.path[0]
    elif not arguments or os.path.basename(arguments[0]) != package:
        return
    python_path = "" if sys.flags.ignore_environment else os.environ.get("PYTHONPATH", "")
    entries = python_path.split(os.pathsep) if python_path else []
    absolute = {os.path.abspath(entry) for entry in entries if os.path.isabs(entry)}
    relative = {os.path.abspath(entry) for entry in entries if not os.path.isabs(entry)} - absolute
    sys.path[:] = [entry for entry in sys.path if os.path.isabs(entry) and entry not in relative]


def end_at_once(*_: object) -> None:
    """SIGINT handler for the time before anything is open and after everything is closed."""
    try:
        os.write(2, b"error: interrupted\n")
    finally:
        os._exit(INTERRUPTED)


def _names_module(argument: str, package: str) -> bool:
    """Whether a word of Python's command line (`package`, `-mpackage` or `-Pmpackage`) names the package or a module of it."""
    module = argument if not argument.startswith("-") else argument[argument.find("m") + 1 :]
    return module == package or module.startswith(package + ".")
