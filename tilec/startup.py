"""Keep the folder that someone stands in from being searched for modules: a project is data, and its `random.py` must not run.

In: how Python was started. Out: `sys.path` and an environment for children without that folder. `tilec/__init__.py` calls this
before it imports anything, and this file imports only what Python has loaded before it searches any folder (`sys`, `os`; not
even `__future__`).

What holds. `tilec`, `python -m tilec` and every child find modules where Python, its packages and absolute entries of
PYTHONPATH are, and nowhere else. An empty or relative entry of PYTHONPATH (what `PYTHONPATH=$PYTHONPATH:/x` leaves where it was
unset) names whatever folder one stands in, so it is dropped.

What cannot be held from here. `python -m tilec` looks for `tilec` itself in the current folder before any line of ours runs,
and as Python starts it imports `sitecustomize`, and what `.pth` files of its packages name, along PYTHONPATH as it stands. The
`tilec` command and `python -P -m tilec` do not do the former; PYTHONPATH is its owner's.
"""

import os
import sys


def forget_current_folder(package: str) -> None:
    """Where `package` is the program that runs (`python -m package`, or a script of that name): clean `sys.path`."""
    words = sys.argv
    if words[:1] == ["-m"]:  # so it reads while Python looks for the module to run
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
    """Whether a word of Python's command line, `package`, `-mpackage` or `-Pmpackage`, names the package or a part of it."""
    module = word if not word.startswith("-") else word[word.find("m") + 1 :]
    return module == package or module.startswith(package + ".")


def safe_path() -> list[str]:
    """`sys.path` without entries that mean another folder wherever one stands."""
    return [entry for entry in sys.path if os.path.isabs(entry)]


def child_environment() -> dict[str, str]:
    """The environment for a Python that we start."""
    found = dict(os.environ)
    kept = [entry for entry in found.pop("PYTHONPATH", "").split(os.pathsep) if os.path.isabs(entry)]
    if kept:
        found["PYTHONPATH"] = os.pathsep.join(kept)
    found["PYTHONSAFEPATH"] = "1"
    return found
