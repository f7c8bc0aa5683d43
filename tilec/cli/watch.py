"""`--watch`: runs a command again whenever the content of a file that it reads changes, until it is interrupted.

In: the command and its arguments. Out: its runs, with a line between them that lists the changed files. Only a signal ends it,
with the exit status of `tilec.cli.ending` (Ctrl-C: 130). After a refused kernel or build file it reports the error and waits
for a change; it also waits for a file that an editor replaces or that is briefly missing. `watchfiles` triggers a check of the
files; only changed content triggers a run.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import click

from tilec.cli.ending import raised
from tilec.cli.project import (
    UsageError,
    find_project,
    notify,
    print_diagnostics,
    print_line,
    refusals_as_json,
    status_of,
)
from tilec.diagnostics.diagnostic import CompileError

POLL_MILLISECONDS: Final = 1000
"""Milliseconds after which files are checked without an event, for example on a network file system."""
SETTLED: Final = 50
"""Milliseconds without an event after which an editor is assumed to have finished writing."""
Contents = Mapping[Path, str]
Wakes = Callable[[Sequence[Path]], Iterator[object]]
"""Given folders, yields whenever their files should be checked."""


@dataclass(slots=True)
class Reads:
    """The files that a command reads: kernels of a project, or a kernel file, and the files in `besides`. While they cannot be
    determined, those found before are kept."""

    project: str | None
    kernels: tuple[str, ...]
    besides: tuple[Path, ...] = ()
    references: bool = False
    last_found: set[Path] = field(default_factory=set[Path])

    def root(self) -> Path | None:
        """The folder to which file names in diagnostics are relative; None if it is unknown."""
        files = [Path(name) for text in self.kernels for name in text.split(",") if name.endswith(".py")]
        try:
            path = files[0].parent if files else Path(find_project(Path()) if self.project is None else self.project)
        except CompileError:
            return None
        return path if os.path.isdir(path) else path.parent

    def files(self) -> set[Path]:
        """The paths of the files, including files that are missing now."""
        found, complete = {*self.besides}, True
        try:
            complete = self._collect(found)
        except (CompileError, OSError):
            complete = False
        self.last_found = found if complete else found | self.last_found
        return self.last_found

    def _collect(self, found: set[Path]) -> bool:
        """Add the files that are read. False if the imports of a kernel could not be resolved."""
        from tilec.project.read.buildfile import read_build_file

        names = [name for text in self.kernels for name in text.split(",") if name]
        files = [Path(name) for name in names if name.endswith(".py")]
        folders, root = {path.parent for path in files}, None
        if not files:
            path = Path(find_project(Path()) if self.project is None else self.project)
            path = path / "build.toml" if os.path.isdir(path) or path.suffix != ".toml" else path
            found.add(path)
            build = read_build_file(path)
            root, folders = build.root, {build.kernels}
            files = [build.kernels / f"{one.name}.py" for one in build.entries if not names or one.name in names]
            found.update((build.kernels / "tuning").glob("*.json"))
        for folder in folders if self.references else ():
            found.update(folder.glob("reference*.py"))
        return False not in [_followed(file, root, found) for file in dict.fromkeys(files)]


def _followed(file: Path, root: Path | None, found: set[Path]) -> bool:
    from tilec.frontend import read_kernel

    found.add(file)
    try:
        found.update(read_kernel(file, root=root or file.resolve().parent).files)
    except CompileError:
        return False
    return True


def contents(files: Iterable[Path]) -> dict[Path, str]:
    """Digests of files; empty for a file that is missing or cannot be read."""
    found: dict[Path, str] = {}
    for file in files:
        try:
            found[file] = hashlib.sha256(file.read_bytes()).hexdigest()
        except OSError:
            found[file] = ""
    return found


def changed(before: Contents, now: Contents) -> list[str]:
    """The files whose content changed, as text; a file that is only in one of the two counts as new or gone."""
    descriptions: list[str] = []
    for file in before.keys() | now.keys():
        old, new = before.get(file, ""), now.get(file, "")
        if old != new:
            descriptions.append(f"{os.path.relpath(file)}{'' if old and new else ' is new' if new else ' is gone'}")
    return sorted(descriptions)


def wakes(folders: Sequence[Path]) -> Iterator[object]:
    """Yields after events in the folders, and every `POLL_MILLISECONDS`. UsageError if `watchfiles` is not installed."""
    if importlib.util.find_spec("watchfiles") is None:
        raise UsageError("`--watch` needs watchfiles: pip install 'tilec[compiler]'")
    from watchfiles import watch

    return watch(
        *folders, watch_filter=None, debounce=SETTLED, step=SETTLED, rust_timeout=POLL_MILLISECONDS, yield_on_timeout=True,
        recursive=False, raise_interrupt=True,
    )  # fmt: skip


def run_or_watch(command: Callable[[], int], reads: Reads, *, as_json: bool, watch: bool) -> int:
    """Run a command, or watch it. Returns the exit status. With `as_json` refusals are printed as JSON too."""

    def run_once() -> int:
        with refusals_as_json(as_json, reads.root() if as_json else None):
            status = command()
        sys.stdout.flush()
        return status

    return watched(run_once, reads) if watch else run_once()


def watched(command: Callable[[], int], reads: Reads, wakes: Wakes = wakes) -> int:
    """Run a command, and again after each change, until a signal. A UsageError of the first run ends it too."""
    wakes([])  # raises if `watchfiles` is missing
    first = True
    while True:
        before = contents(reads.files())
        try:
            command()
        except CompileError as error:
            print_diagnostics(error.diagnostics)
            if status_of(error.diagnostics) == 2 and first and not reads.last_found:
                return 2
        except (UsageError, click.ClickException) as error:
            if first:
                raise
            print_line("error", error.format_message() if isinstance(error, click.ClickException) else str(error))
        first = False
        files = reads.files()
        before |= contents(files - before.keys())
        notify(f"watching {len(files)} files; Ctrl-C ends it")
        notify(f"changed: {', '.join(_next_change(before, reads, wakes))}")


def _next_change(before: Contents, reads: Reads, wakes: Wakes) -> list[str]:
    """Wait for a change. Returns the changed files as text."""
    folders = sorted({folder for file in before for folder in (file.parent,) if folder.is_dir()})
    with contextlib.suppress(KeyboardInterrupt):  # the library raises it at every signal, or ends its loop
        for _ in wakes(folders):
            descriptions = changed(before, contents(before))
            if descriptions:
                return descriptions
    raise raised()
