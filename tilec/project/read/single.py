"""A build file for a single kernel file without a project, from the command line.

In: the file and its constants as texts. Out: a `BuildFile` of one kernel, whose root is the file's folder.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from tilec.diagnostics.diagnostic import CompileError, Diagnostic, Span
from tilec.diagnostics.spelling import ask_first
from tilec.frontend import read_kernel
from tilec.project.read.buildfile import WIDE, BuildFile
from tilec.project.read.kernel_entry import KernelEntry
from tilec.project.read.models import MAX_TEXT, Constant, too_wide
from tilec.target.targets import MAIN_TARGETS, Target


def single(
    path: Path, given: Iterable[str], targets: tuple[Target, ...] | None, texts: Mapping[str, str] = MappingProxyType({})
) -> BuildFile:  # fmt: skip
    """The project of a kernel file. `given` are texts `NAME=VALUE`; a repeated name has several values. `texts` replace file
    contents, by real path.

    CompileError E01 for a file without a kernel, E0803 if the kernel's name differs from the file's, E0804 for a constant that
    is unknown or has no value, E0514 for a value out of range.
    """
    source = read_kernel(path, root=Path(os.path.realpath(path)).parent, texts=texts)
    if source.name != path.stem:
        message = f"`{path.name}` holds the kernel `{source.name}`"
        raise CompileError(Diagnostic("E0803", message, hint=f"name the file `{source.name}.py`"))
    values: dict[str, list[Constant]] = {name: [] for name in source.constants}
    problems: list[Diagnostic] = []
    for item in given:
        name, equals, text = item.partition("=")
        if not equals or name not in values:
            declared = ", ".join(f"`{one}`" for one in values) or "none"
            message = f"`{item}` is not NAME=VALUE for a constant of `{source.name}`"
            problems.append(Diagnostic("E0804", message, hint=ask_first(name, values, f"its constants: {declared}")))
        elif too_wide(value := constant(text)):
            problems.append(Diagnostic("E0514", f"`{name}` is out of range", hint=WIDE))
        elif repr(value) not in map(repr, values[name]):
            values[name].append(value)
    missing = [name for name, found in values.items() if not found]
    if missing and not problems:
        joined_names = ", ".join(f"`{name}`" for name in missing)
        examples = " ".join(f"-c {name}={'bf16' if name in source.elements else '1024'}" for name in missing)
        problems.append(
            Diagnostic("E0804", f"no value for {joined_names} of kernel `{source.name}`", hint=f"give them: {examples}")
        )
    if problems:
        raise CompileError(problems)
    return project_of(path, source.name, values, MAIN_TARGETS if targets is None else targets)


def project_of(
    path: Path, kernel: str, values: Mapping[str, Iterable[Constant]], targets: tuple[Target, ...]
) -> BuildFile:  # fmt: skip
    """The project of a kernel file that contains `kernel`, for these values of each of its constants."""
    root = Path(os.path.realpath(path)).parent
    span = Span(path.name, 1, 0, 1, 1)
    constants = {name: tuple(found) for name, found in values.items()}
    entry = KernelEntry(kernel, constants, {}, (), targets, span, dict.fromkeys(constants, span))
    return BuildFile(path, root, root, targets, (entry,))


def constant(text: str) -> Constant:
    """Parse a constant as an integer, float or bool, else as a string: `1024`, `0.5`, `true`, `bf16`."""
    if text in ("true", "false"):
        return text == "true"
    if len(text) > MAX_TEXT:
        return text  # out of range for any type
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text
