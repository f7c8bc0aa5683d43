"""`tilec new`: a project to begin with."""

from __future__ import annotations

import keyword
from pathlib import Path

from tilec import language
from tilec.cli.project import UsageError
from tilec.project.scaffold import scaffold


def new_command(folder: Path, name: str | None) -> int:
    """Write it and say what to do next."""
    kernel = folder.name if name is None else name
    if not (kernel.isascii() and kernel.isidentifier()) or keyword.iskeyword(kernel) or kernel in ("reference", "tilec"):
        raise UsageError(f"`{kernel}` is no name for a kernel; write --name with letters, digits and `_`")
    if kernel in language.__all__:
        raise UsageError(f"`{kernel}` is a word of the language; write --name with another, such as `my_{kernel}`")
    try:
        written = scaffold(folder, kernel)
    except OSError as error:
        raise UsageError(f"cannot make the project `{folder}`: {error.strerror}; name a folder that is not there") from None
    print("\n".join(f"{folder}/{file}" for file in written))
    print(f"next: cd {folder} && tilec test")
    return 0
