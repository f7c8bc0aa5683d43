"""Keeps the current folder out of the module search path: a project is data, and its `random.py` must not run.

In: how Python was started. Out: `sys.path` and an environment for children without that folder. `tilec/__init__.py` calls this
before it imports anything, and this file imports only modules that Python has already loaded (`sys`, `os`; not even
`__future__`).

Guarantee: `tilec`, `python -m tilec` and every child find modules only in Python's own folders, its packages and absolute
entries of PYTHONPATH. An empty or relative entry of PYTHONPATH (as from `PYTHONPATH=$PYTHONPATH:/x` with the variable unset)
means the current folder, so it is dropped.

Limits: `python -m tilec` searches the current folder for `tilec` itself before any of this code runs. At startup Python imports
`sitecustomize`, and whatever `.pth` files of its packages name, along the unmodified PYTHONPATH. The `tilec` command and
`python -P -m tilec` avoid the former; PYTHONPATH is under its owner's control.
"""

import os
import sys


def forget_current_folder(package: str) -> None:
    """Cleans `sys.path` if `package` is the running program (`python -m package`, or a script of that name)."""
    words = sys.argv
    if words[:1] == ["-m"]:  # its value while Python searches for the module to run
        if not _names(sys.orig_argv[-len(words)], package):
            return
        if not sys.flags.safe_path:
            del sys.path[0]
    elif not words or os.path.basename(words[0]) != package:
        return
    given = "" if sys.flags.ignore_environment else os.environ.get("PYTHONPATH", "")
    entries = given.split(os.pathsep) if given else []
    absolute = {os.path.abspath(entry) for entry in entries if os.path.isabs(entry)}
    relative = {os.path.abspath(entry) for entry in entries if not os.path.isabs(entry)} - absolute
    sys.path[:] = [entry for entry in safe_path() if entry not in relative]


def _names(word: str, package: str) -> bool:
    """Whether a word of Python's command line, `package`, `-mpackage` or `-Pmpackage`, names the package or a submodule."""
    module = word if not word.startswith("-") else word[word.find("m") + 1 :]
    return module == package or module.startswith(package + ".")


def safe_path() -> list[str]:
    """`sys.path` without relative entries, which depend on the current folder."""
    return [entry for entry in sys.path if os.path.isabs(entry)]


def child_environment() -> dict[str, str]:
    """The environment for a child Python process."""
    found = dict(os.environ)
    kept = [entry for entry in found.pop("PYTHONPATH", "").split(os.pathsep) if os.path.isabs(entry)]
    if kept:
        found["PYTHONPATH"] = os.pathsep.join(kept)
    found["PYTHONSAFEPATH"] = "1"
    return found
