"""Functions of an author's Python files next to the kernels: finds them without executing them, and reports what they raise.

In: the folder of the kernels, names of files and the name of a function. Out: its file, or the text of an error that says at
which line of the file it was raised.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import sys
import traceback
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Final

from tilec.untrusted.limits import MAX_SOURCE_BYTES, read_file

REFERENCES: Final = "reference*.py"
"""Files with references and inputs."""


def find_function(folder: Path, name: str, files: str = REFERENCES) -> tuple[Path, str] | None:
    """The file and name of a function, in the first of `files` in `folder` that defines it. Nothing is executed."""
    for path in sorted(folder.glob(files)):
        if name in defined_in(path):
            return path.resolve(), name
    return None


def defined_in(path: Path) -> Mapping[str, int]:
    """The functions that a file defines, with their lines, and other names for them, `same = first`; none if it cannot be read
    or parsed."""
    try:
        return _defined(read_file(path, MAX_SOURCE_BYTES))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return {}


@functools.lru_cache(maxsize=64)
def _defined(text: bytes) -> Mapping[str, int]:
    """`defined_in` of a text, which a project asks for once for each of its kernels."""
    found: dict[str, int] = {}
    for node in ast.parse(text).body:
        match node:
            case ast.FunctionDef(name=name):
                found[name] = node.lineno
            case ast.Assign(targets=[ast.Name(id=alias)], value=ast.Name(id=name)) if name in found:
                found[alias] = found[name]
            case _:
                pass
    return found


@contextlib.contextmanager
def author_errors(shown: str, path: Path, refuse: Callable[[str], Exception]) -> Generator[None]:
    """Convert what code of `path` raises by `refuse`, which takes a text. NotImplementedError says which inputs the code is
    for. What it prints goes to stderr, since a program may read stdout."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except NotImplementedError as error:
        raise refuse(f"{shown} is not for such inputs: {error}") from None
    except (Exception, SystemExit) as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        where = f" at line {frames[-1].lineno}" if frames else ""
        raise refuse(f"{shown} fails{where}: {type(error).__name__}: {error}") from None
