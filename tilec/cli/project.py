"""What the commands share: the project they run in, the kernels they were asked for, and how they print errors."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Generator, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tilec.diagnostics import CompileError, Diagnostic, render_all
from tilec.spelling import or_mean
from tilec.terminal import coloured, paint_for
from tilec.visible import visible

if TYPE_CHECKING:
    from tilec.cache import Store
    from tilec.cache.remote.address import Address
    from tilec.project.buildfile import BuildFile, KernelEntry
    from tilec.target import Target
    from tilec.toolchain import Package


BUILD_FILE = "build.toml"


class UsageError(Exception):
    """The command was asked for something it cannot do; exit status 2."""


def find_project(start: Path) -> str:
    """The nearest folder with a build file, from `start` upward, as a path relative to it; CompileError E0801 where none is."""
    here = start.absolute()
    for folder in (here, *here.parents):
        if (folder / BUILD_FILE).exists():
            return os.path.relpath(folder, here)
    hint = "run in a folder of a project, or name one with `--project`"
    message = f"no `{BUILD_FILE}` in `{here}`" + (" or any folder above it" if here != here.parent else "")
    raise CompileError(Diagnostic("E0801", message, hint=hint))


def open_project(folder: str | None) -> BuildFile:
    """The build file in `folder`, or the file named; None: the nearest one, in the current folder or above it, as cargo finds
    its manifest. Prints what is noted of it. CompileError E08 (exit status 2)."""
    from tilec.project.buildfile import read_build_file

    path = Path(find_project(Path()) if folder is None else folder)
    build = read_build_file(path / "build.toml" if os.path.isdir(path) or path.suffix != ".toml" else path)
    print_diagnostics(build.notes, build.root)
    return build


def open_store() -> Store:
    """The user's store; CompileError E0701 where it cannot be written, E0711 and E0712 where it cannot be trusted."""
    from tilec.cache import Store, store_root

    return Store(store_root())


def attach_remote(store: Store, build: BuildFile, given: Sequence[str]) -> tuple[Address, ...]:
    """Give the store the remotes that the user named or allowed; those of the build file that are not. `given` are the values
    of `--remote`. CompileError E0751 where one is no remote, E0752 where the key of the team cannot be used."""
    from tilec.cache.remote.address import chosen

    used, unused = chosen(given, build.remotes)
    if used:
        from tilec.cache.remote.remote import Remote, Settings
        from tilec.cache.remote.signer import read_key

        def load(key: str) -> tuple[dict[str, bytes], int] | None:
            found = store.lookup(key)
            return None if found is None else (found.outputs, found.cost)

        store.remote = Remote(Settings(used, read_key()), load)
    return unused


def chosen_entries(build: BuildFile, names: Iterable[str]) -> tuple[KernelEntry, ...]:
    """The entries of the kernels named (all, where none is); UsageError for a name the build file does not have."""
    wanted = _split(names)
    known = {entry.name for entry in build.entries}
    for name in wanted:
        if name not in known:
            raise UsageError(f"no kernel `{name}` in `{build.path.name}`{or_mean(name, known)}")
    return tuple(entry for entry in build.entries if not wanted or entry.name in wanted)


def open_kernels(
    project: str | None, names: Iterable[str], constants: Iterable[str] = (), arch: str | None = None
) -> tuple[BuildFile, tuple[KernelEntry, ...]]:  # fmt: skip
    """The project, and the entries of the kernels named with the specialisations that have `constants`; or a kernel file, where
    one is named, with `constants` as its values and no project. CompileError; UsageError for what is not there."""
    from tilec.project.single import single

    wanted = _split(names)
    files = [name for name in wanted if name.endswith(".py")]
    if not files:
        build = open_project(project)
        return build, narrowed(chosen_entries(build, wanted), constants)
    if len(wanted) > 1 or project is not None:
        raise UsageError(f"`{files[0]}` is a file: name it alone, and no project")
    build = single(Path(files[0]), _split(constants), chosen_targets(arch))
    return build, build.entries


def narrowed(entries: tuple[KernelEntry, ...], constants: Iterable[str]) -> tuple[KernelEntry, ...]:
    """What of `entries` has the values of texts `NAME=VALUE`; UsageError where nothing has."""
    from tilec.project.single import constant

    wanted: dict[str, list[str]] = {}
    known = dict.fromkeys(name for entry in entries for name in entry.constants)
    shown = " or ".join(dict.fromkeys(f"`{entry.name}`" for entry in entries))
    for item in _split(constants):
        name, equals, value = item.partition("=")
        if not equals or name not in known:
            raise UsageError(f"`{item}` is not NAME=VALUE for a constant of {shown} ({', '.join(known)}){or_mean(name, known)}")
        wanted.setdefault(name, []).append(value)
    found: list[KernelEntry] = []
    for entry in entries:
        values = {
            name: tuple(
                one
                for one in given
                if name not in wanted or any(str(one) == text or repr(one) == repr(constant(text)) for text in wanted[name])
            )
            for name, given in entry.constants.items()
        }
        if wanted.keys() <= values.keys() and all(values.values()):
            found.append(replace(entry, constants=values))
    if not found:
        raise UsageError(f"`build.toml` has no specialisation of {shown} with {', '.join(constants)}")
    return tuple(found)


def open_one(
    project: str | None, kernel: str, constants: Iterable[str], arch: str | None = None
) -> tuple[BuildFile, KernelEntry]:  # fmt: skip
    """The project and the first specialisation of a kernel that has `constants`, as an entry of its own; see `open_kernels`.
    UsageError where a constant is given several values."""
    given: dict[str, dict[str, None]] = {}
    for item in _split(constants):
        name, _, value = item.partition("=")
        given.setdefault(name, {})[value] = None
    for name, values in given.items():
        if len(values) > 1:
            raise UsageError(f"`{name}` has several values: {' and '.join(values)}; give one")
    build, entries = open_kernels(project, [kernel], constants, arch)
    first = entries[0].specialisations()[0]
    return build, replace(entries[0], constants={name: (value,) for name, value in first.items()})


def _split(names: Iterable[str]) -> list[str]:
    return [name for text in names for name in text.split(",") if name]


def chosen_targets(text: str | None) -> tuple[Target, ...] | None:
    """Targets of a list such as `sm_90,sm_100`, each once; None for no list. CompileError E0603; UsageError for an
    empty list."""
    from tilec.target import Target

    if text is None:
        return None
    found = tuple(dict.fromkeys(Target.parse(item) for item in text.split(",") if item.strip()))
    if not found:
        raise UsageError("`--arch` names no architecture; write --arch sm_90,sm_100, or leave it out")
    return found


def toolchain(store: Store, packages: Sequence[Package] | None = None) -> dict[str, str]:
    """The fingerprint of the installed compilers, or of `packages` alone; CompileError E0601 where one is missing."""
    from tilec.toolchain import fingerprint

    return fingerprint(store, packages)


def say(line: str) -> None:
    """A line for a person while a command runs."""
    print(visible(line), file=sys.stderr, flush=True)


def print_diagnostics(diagnostics: Iterable[Diagnostic], root: Path | None = None) -> None:
    """Diagnostics on stderr; files are relative to `root`."""
    from tilec.project.report import source_texts

    found = list(diagnostics)
    if found:
        print(render_all(found, source_texts(found, root), paint_for(sys.stderr)), file=coloured(sys.stderr))


@contextlib.contextmanager
def refusals_as_json(as_json: bool, root: Path | None = None) -> Generator[None]:
    """What ends a command that prints JSON is JSON too: `{"errors": [...]}`, on stdout. `root`: as of `print_diagnostics`."""
    try:
        yield
    except CompileError as error:
        if as_json:
            from tilec.project.report import diagnostic_json

            print(json.dumps({"errors": [diagnostic_json(item, root) for item in error.diagnostics]}, indent=1), flush=True)
        raise


def print_line(kind: str, text: str) -> None:
    """A line on stderr that begins with `error`, `warning` or `note` (a role of `terminal.STYLES`)."""
    print(f"{paint_for(sys.stderr)(kind, kind)}: {visible(text)}", file=coloured(sys.stderr))


REFUSALS = ("E0704", "E0705", "E0706", "E0708", "E0714", "E0732", "E0805", "E0811", "E0812")
"""Codes of what was looked at and found wanting, where the command and its environment are in order."""


AT_FAULT = ("E0102", "E0514", "E0601", "E0603")
"""Codes of what is wrong with the build file, with a file that was named, or with what is installed."""


def status_of(diagnostics: Iterable[Diagnostic]) -> int:
    """Exit status: 0 for none, 2 where the build file, a file that was named, the cache or the environment is at fault, 1 where
    only kernels and bundles are."""
    found = [item.code for item in diagnostics]
    if any(code in AT_FAULT or (code.startswith(("E07", "E08")) and code not in REFUSALS) for code in found):
        return 2
    return int(bool(found))
