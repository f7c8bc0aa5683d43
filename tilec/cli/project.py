"""What the commands share: the project they run in, the kernels they were asked for, and how they print errors."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tilec.diagnostics import Diagnostic, render_all
from tilec.spelling import or_mean
from tilec.terminal import paint_for

if TYPE_CHECKING:
    from tilec.cache import Store
    from tilec.project.buildfile import BuildFile, KernelEntry
    from tilec.target import Target
    from tilec.toolchain import Package


class UsageError(Exception):
    """The command was asked for something it cannot do; exit status 2."""


def open_project(folder: str) -> BuildFile:
    """The build file in `folder`, or the file named; CompileError E08 (exit status 2)."""
    from tilec.project.buildfile import read_build_file

    path = Path(folder)
    return read_build_file(path / "build.toml" if path.is_dir() or path.suffix != ".toml" else path)


def open_store() -> Store:
    """The user's store; CompileError E0701 where it cannot be written, E0711 and E0712 where it cannot be trusted."""
    from tilec.cache import Store, store_root

    return Store(store_root())


def chosen_entries(build: BuildFile, names: Iterable[str]) -> tuple[KernelEntry, ...]:
    """The entries of the kernels named (all, where none is); UsageError for a name the build file does not have."""
    wanted = [name for text in names for name in text.split(",") if name]
    known = {entry.name for entry in build.entries}
    for name in wanted:
        if name not in known:
            raise UsageError(f"no kernel `{name}` in `{build.path.name}`{or_mean(name, known)}")
    return tuple(entry for entry in build.entries if not wanted or entry.name in wanted)


def chosen_targets(text: str | None) -> tuple[Target, ...] | None:
    """Targets of a list such as `sm_90,sm_100`, each once; None for no list. CompileError E0603."""
    from tilec.target import Target

    if text is None:
        return None
    return tuple(dict.fromkeys(Target.parse(item) for item in text.split(",") if item.strip()))


def toolchain(store: Store, packages: Sequence[Package] | None = None) -> dict[str, str]:
    """The fingerprint of the installed compilers, or of `packages` alone; CompileError E0601 where one is missing."""
    from tilec.toolchain import fingerprint

    return fingerprint(store, packages)


def say(line: str) -> None:
    """A line for a person while a command runs."""
    print(line, file=sys.stderr, flush=True)


def print_diagnostics(diagnostics: Iterable[Diagnostic], root: Path | None = None) -> None:
    """Diagnostics on stderr; files are relative to `root`."""
    from tilec.project.report import source_texts

    found = list(diagnostics)
    if found:
        print(render_all(found, source_texts(found, root), paint_for(sys.stderr)), file=sys.stderr)


def print_line(kind: str, text: str) -> None:
    """A line on stderr that begins with `error`, `warning` or `note` (a role of `terminal.STYLES`)."""
    print(f"{paint_for(sys.stderr)(kind, kind)}: {text}", file=sys.stderr)


REFUSALS = ("E0704", "E0705", "E0706", "E0708", "E0805", "E0811", "E0812")
"""Codes of what was looked at and found wanting, where the command and its environment are in order."""


def status_of(diagnostics: Iterable[Diagnostic]) -> int:
    """Exit status: 0 for none, 2 where the build file, the cache or the environment is at fault, 1 where only kernels
    and bundles are."""
    found = [item.code for item in diagnostics]
    if any(code in ("E0601", "E0603") or (code.startswith(("E07", "E08")) and code not in REFUSALS) for code in found):
        return 2
    return int(bool(found))
