"""`--watch`: a command runs again whenever the content of a file that it reads changes, until it is interrupted.

In: the command, and what it was asked for. Out: its runs, with a line between them that says what changed; it ends by a signal,
with the status that `tilec.cli.ending` tells (Ctrl-C: 130). A kernel or a build file that is refused is told and waited for, so
is a file that an editor replaces, or that is away for a moment. `watchfiles` says when to look; content says what changed.
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
from tilec.cli.project import UsageError, find_project, print_diagnostics, print_line, refusals_as_json, say, status_of
from tilec.diagnostics import CompileError

LOOK_AGAIN: Final = 1000
"""Milliseconds after which files are looked at even where nothing was reported, as on a file system of a network."""
SETTLED: Final = 50
"""Milliseconds of silence after which an editor has written all that it writes."""
Contents = Mapping[Path, str]
Wakes = Callable[[Sequence[Path]], Iterator[object]]
"""Takes folders, and gives something whenever a look at their files is due."""


@dataclass(slots=True)
class Reads:
    """What a command reads: kernels of a project, or a kernel file, and files besides. Where that cannot be told now, it is
    what it was before."""

    project: str | None
    kernels: tuple[str, ...]
    besides: tuple[Path, ...] = ()
    references: bool = False
    known: set[Path] = field(default_factory=set[Path])

    def root(self) -> Path | None:
        """The folder that diagnostics name files from, where it can be told."""
        files = [Path(name) for text in self.kernels for name in text.split(",") if name.endswith(".py")]
        try:
            path = files[0].parent if files else Path(find_project(Path()) if self.project is None else self.project)
        except CompileError:
            return None
        return path if os.path.isdir(path) else path.parent

    def files(self) -> set[Path]:
        """Their paths, those among them that are not there now."""
        found, whole = {*self.besides}, True
        try:
            whole = self._collect(found)
        except (CompileError, OSError):
            whole = False
        self.known = found if whole else found | self.known
        return self.known

    def _collect(self, found: set[Path]) -> bool:
        """Add what is read; False where a kernel could not be followed to all that it imports."""
        from tilec.project.buildfile import read_build_file

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
    """Digests of files; those that are not there, or cannot be read, have an empty one."""
    found: dict[Path, str] = {}
    for file in files:
        try:
            found[file] = hashlib.sha256(file.read_bytes()).hexdigest()
        except OSError:
            found[file] = ""
    return found


def changed(before: Contents, now: Contents) -> list[str]:
    """Files whose content is another, in words; one that is only now known to be read counts where it is not there before."""
    words: list[str] = []
    for file in before.keys() | now.keys():
        old, new = before.get(file, ""), now.get(file, "")
        if old != new:
            words.append(f"{os.path.relpath(file)}{'' if old and new else ' is new' if new else ' is gone'}")
    return sorted(words)


def wakes(folders: Sequence[Path]) -> Iterator[object]:
    """When something happens in a folder, and once in a while. UsageError where `watchfiles` is not installed."""
    if importlib.util.find_spec("watchfiles") is None:
        raise UsageError("`--watch` needs watchfiles: pip install 'tilec[compiler]'")
    from watchfiles import watch

    return watch(
        *folders, watch_filter=None, debounce=SETTLED, step=SETTLED, rust_timeout=LOOK_AGAIN, yield_on_timeout=True,
        recursive=False, raise_interrupt=True,
    )  # fmt: skip


def answered(command: Callable[[], int], reads: Reads, *, as_json: bool, watch: bool) -> int:
    """The exit status of a command, whose refusals are JSON where its answer is; or of watching it."""

    def once() -> int:
        with refusals_as_json(as_json, reads.root() if as_json else None):
            status = command()
        sys.stdout.flush()
        return status

    return watched(once, reads) if watch else once()


def watched(command: Callable[[], int], reads: Reads, wakes: Wakes = wakes) -> int:
    """Run a command, and again at each change; it ends by a signal alone. UsageError of the first run ends it too."""
    wakes([])  # or there is nothing to watch with
    first = True
    while True:
        before = contents(reads.files())
        try:
            command()
        except CompileError as error:
            print_diagnostics(error.diagnostics)
            if status_of(error.diagnostics) == 2 and first and not reads.known:
                return 2
        except (UsageError, click.ClickException) as error:
            if first:
                raise
            print_line("error", error.format_message() if isinstance(error, click.ClickException) else str(error))
        first = False
        files = reads.files()
        before |= contents(files - before.keys())
        say(f"watching {len(files)} files; Ctrl-C ends it")
        say(f"changed: {', '.join(_next_change(before, reads, wakes))}")


def _next_change(before: Contents, reads: Reads, wakes: Wakes) -> list[str]:
    """Wait; what changed."""
    folders = sorted({folder for file in before for folder in (file.parent,) if folder.is_dir()})
    with contextlib.suppress(KeyboardInterrupt):  # which the library raises at every signal, or ends its loop
        for _ in wakes(folders):
            words = changed(before, contents(before))
            if words:
                return words
    raise raised()
