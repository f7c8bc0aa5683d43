"""`tilec new`: creates a project."""

from __future__ import annotations

import keyword
import os
from pathlib import Path

from tilec import language
from tilec.cli.project import UsageError
from tilec.project.trial.scaffold import copy_shipped, names_used, scaffold


def new_command(folder: Path, name: str | None, *, shipped: bool) -> int:
    """Write the project and print the next steps."""
    if shipped and name is not None:
        raise UsageError("`--name` names a new kernel, but `--shipped` writes existing ones; leave one out")
    real_folder = Path(os.path.realpath(folder))  # `Path.resolve` raises for a cycle of links
    kernel = "" if shipped else _checked(real_folder.name if name is None else name)
    try:
        written = copy_shipped(folder) if shipped else scaffold(folder, kernel)
    except OSError as error:
        hint = "name a new or an empty folder"
        raise UsageError(f"cannot make the project `{folder}`: {error.strerror}; {hint}") from None
    print("\n".join(str(folder / file) for file in written))
    cd_prefix = "" if real_folder == Path.cwd() else f"cd {folder} && "
    print(f"next: {cd_prefix}tilec {'build' if shipped else 'test'}")
    return 0


def _checked(kernel: str) -> str:
    """`kernel` if it is a valid name; UsageError if no kernel can have it."""
    if not (kernel.isascii() and kernel.isidentifier()):
        raise UsageError(f"`{kernel}` is not a valid kernel name; write --name with letters, digits and `_`")
    reserved_names = {
        "the language": language.__all__,
        "Python": keyword.kwlist,
        "the project that is written": (*names_used(), "tilec"),
    }
    for owner in (owner for owner, names in reserved_names.items() if kernel in names):
        raise UsageError(f"`{kernel}` is a word of {owner}; write --name with another, such as `my_{kernel}`")
    return kernel
