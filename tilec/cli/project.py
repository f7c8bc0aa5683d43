"""Functions shared by commands: they open the project and the requested kernels, and print diagnostics."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tilec.diagnostics.diagnostic import CompileError, Diagnostic, render_all
from tilec.diagnostics.spelling import or_mean
from tilec.diagnostics.terminal import coloured, paint_for
from tilec.diagnostics.visible import visible

if TYPE_CHECKING:
    from tilec.cache import Store
    from tilec.cache.remote.address import Address
    from tilec.project.read.buildfile import BuildFile
    from tilec.project.read.closed_world import World
    from tilec.project.read.kernel_entry import KernelEntry
    from tilec.target.targets import Target
    from tilec.toolchain import Package


BUILD_FILE = "build.toml"
T = TypeVar("T")


class UsageError(Exception):
    """The command cannot do what its arguments request; exit status 2."""


def find_project(start: Path) -> str:
    """The nearest folder with a build file, from `start` upward, as a path relative to `start`. CompileError E0801 if none."""
    start_folder = start.absolute()
    for folder in (start_folder, *start_folder.parents):
        if (folder / BUILD_FILE).exists():
            return os.path.relpath(folder, start_folder)
    hint = "run in a folder of a project, or name one with `--project`"
    message = f"no `{BUILD_FILE}` in `{start_folder}`" + (
        " or any folder above it" if start_folder != start_folder.parent else ""
    )
    raise CompileError(Diagnostic("E0801", message, hint=hint))


def open_project(folder: str | None) -> BuildFile:
    """Read the build file in `folder`, or the file itself. None: the nearest one, in the current folder or above it, as cargo
    finds its manifest. Prints its notes. CompileError E08 (exit status 2)."""
    from tilec.project.read.buildfile import read_build_file

    path = Path(find_project(Path()) if folder is None else folder)
    build = read_build_file(path / "build.toml" if os.path.isdir(path) or path.suffix != ".toml" else path)
    print_diagnostics(build.notes, build.root)
    return build


def open_store() -> Store:
    """Open the user's store. CompileError E0701 if it cannot be written, E0711 and E0712 if it cannot be trusted."""
    from tilec.cache import Store, store_root

    return Store(store_root())


def attach_remote(store: Store, build: BuildFile, given: Sequence[str]) -> tuple[Address, ...]:
    """Attach the remotes that the user named or allowed to the store. Returns the remotes of the build file that are not
    allowed. `given` are the values of `--remote`. CompileError E0751 for a malformed remote, E0752 if the team's key cannot be
    used."""
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


def chosen_entries(build: BuildFile, names: Iterable[str], world: World | None = None) -> tuple[KernelEntry, ...]:
    """The entries of the kernels `names`; without names those of a build of all kernels, for the requests of `world` (default:
    those of all models). UsageError for a name that the build file lacks."""
    from tilec.project.read.closed_world import default_entries, enumerate_world

    wanted = _split(names)
    known = {entry.name for entry in build.entries}
    for name in wanted:
        if name not in known:
            raise UsageError(f"no kernel `{name}` in `{build.path.name}`{or_mean(name, known)}")
    if not wanted:
        asks = any(entry.requested for entry in build.entries)
        return default_entries(build, world or enumerate_world(build)) if asks else build.entries
    return tuple(entry for entry in build.entries if entry.name in wanted)


def chosen_weights(build: BuildFile, text: str | None) -> tuple[str, ...]:
    """The formats of weights in a list (default: 16 bits), or `all` that models of the build file have. UsageError for one that
    no model has."""
    return _formats(build, "weights", "--weights", text, (each for model in build.models for each in model.weights))


def chosen_caches(build: BuildFile, text: str | None) -> tuple[str, ...]:
    """The same of caches."""
    return _formats(build, "caches", "--cache", text, (each for model in build.models for each in model.caches))


def chosen_gpus(build: BuildFile, text: str | None) -> tuple[int, ...]:
    """The numbers of GPUs in a list (default: 1), or `all` that models of the build file have. UsageError for one that no model
    has."""
    if text is None:
        return (1,)
    known = tuple(dict.fromkeys(each for model in build.models for each in model.gpus))
    wanted = _split([text])
    if "all" in wanted:
        return known
    for name in wanted:
        if name not in map(str, known):
            listed = f"those of its models are {', '.join(map(str, known))}" if known else "it has no `[[model]]`"
            raise UsageError(f"no model of `{build.path.name}` is shared by `{name:.60}` GPUs; {listed}")
    if not wanted:
        raise UsageError("`--gpus` names no number; write it as `--gpus 2`")
    return tuple(dict.fromkeys(map(int, wanted)))


def _formats(build: BuildFile, what: str, option: str, text: str | None, of_models: Iterable[str]) -> tuple[str, ...]:
    from tilec.step.formats import SIXTEEN_BIT

    if text is None:
        return (SIXTEEN_BIT,)
    known = tuple(dict.fromkeys(of_models))
    wanted = _split([text])
    if "all" in wanted:
        return known
    for name in wanted:
        if name not in known:
            listed = f"those of its models are {', '.join(known)}" if known else "it has no `[[model]]`"
            raise UsageError(f"no model of `{build.path.name}` has {what} in `{name:.60}`; {listed}")
    if not wanted:
        raise UsageError(f"`{option}` names no format; write it as `{option} fp8`")
    return tuple(dict.fromkeys(wanted))


def open_kernels(
    project: str | None, names: Iterable[str], constants: Iterable[str] = (), arch: str | None = None
) -> tuple[BuildFile, tuple[KernelEntry, ...]]:  # fmt: skip
    """The project, and the entries of the kernels `names`, restricted to specialisations with `constants`. If a name is a
    kernel file, a project of that file alone, with `constants` as its values. CompileError for a bad build file or kernel,
    UsageError for unknown names."""
    from tilec.project.read.single import single

    wanted = _split(names)
    files = [name for name in wanted if name.endswith(".py")]
    if not files:
        build = open_project(project)
        return build, narrowed(chosen_entries(build, wanted), constants)
    if len(wanted) > 1 or project is not None:
        raise UsageError(f"`{files[0]}` is a file: give it alone, without `--project`")
    build = single(Path(files[0]), _split(constants), chosen_targets(arch))
    return build, build.entries


def narrowed(entries: tuple[KernelEntry, ...], constants: Iterable[str]) -> tuple[KernelEntry, ...]:
    """The specialisations of `entries` with the values in texts `NAME=VALUE`. UsageError if there are none."""
    from tilec.project.read.single import constant

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
    """The project, and the first specialisation of a kernel with `constants` that is built for `arch`, as a separate entry; see
    `open_kernels`. UsageError if a constant has several values, or if none is built for `arch`."""
    given: dict[str, dict[str, None]] = {}
    for item in _split(constants):
        name, _, value = item.partition("=")
        given.setdefault(name, {})[value] = None
    for name, values in given.items():
        if len(values) > 1:
            raise UsageError(f"`{name}` has several values: {' and '.join(values)}; give one")
    build, entries = open_kernels(project, [kernel], constants, arch)
    targets = chosen_targets(arch)
    built = [entry for entry in entries if targets is None or entry.among(targets)]
    if not built:
        known = ", ".join(dict.fromkeys(one.name for entry in entries for one in (*entry.targets, *entry.on_request)))
        raise UsageError(f"`{kernel}` with these constants is built for {known} only: choose one of them, or other constants")
    chosen = built[0]
    first = chosen.specialisations()[0]
    return build, replace(chosen, constants={name: (value,) for name, value in first.items()})


def _split(names: Iterable[str]) -> list[str]:
    return [name for text in names for name in text.split(",") if name]


def chosen_targets(text: str | None) -> tuple[Target, ...] | None:
    """Parse a list of targets such as `sm_90,sm_100`, without duplicates; None without a list. CompileError E0603 for an
    unknown target, UsageError for an empty list."""
    from tilec.target.targets import Target

    if text is None:
        return None
    found = tuple(dict.fromkeys(Target.parse(item) for item in text.split(",") if item.strip()))
    if not found:
        raise UsageError("`--arch` names no architecture; write --arch sm_90,sm_100, or leave it out")
    return found


def named_gpu(gpu: str, known: Mapping[str, T]) -> T:
    """What is known of a GPU that an option names, in any case; UsageError if nothing is."""
    if gpu.lower() not in known:
        raise UsageError(f"unknown GPU `{gpu}`; known are {', '.join(known)}")
    return known[gpu.lower()]


def toolchain(store: Store, packages: Sequence[Package] | None = None) -> dict[str, str]:
    """The fingerprint of the installed compilers, or only of `packages`. CompileError E0601 if one is missing."""
    from tilec.toolchain import fingerprint

    return fingerprint(store, packages)


def notify(line: str) -> None:
    """Print a progress message for a person on stderr."""
    print(visible(line), file=sys.stderr, flush=True)


def print_diagnostics(diagnostics: Iterable[Diagnostic], root: Path | None = None) -> None:
    """Print diagnostics on stderr; file names are relative to `root`."""
    from tilec.project.build.report import source_texts

    found = list(diagnostics)
    if found:
        print(render_all(found, source_texts(found, root), paint_for(sys.stderr)), file=coloured(sys.stderr))


@contextlib.contextmanager
def refusals_as_json(as_json: bool, root: Path | None = None) -> Generator[None]:
    """With `as_json`, print a CompileError that ends the command as `{"errors": [...]}` on stdout. `root` is that of
    `print_diagnostics`."""
    try:
        yield
    except CompileError as error:
        if as_json:
            from tilec.project.build.report import diagnostic_json

            print(json.dumps({"errors": [diagnostic_json(item, root) for item in error.diagnostics]}, indent=1), flush=True)
        raise


def print_line(kind: str, text: str) -> None:
    """Print a line on stderr that begins with `error`, `warning` or `note` (a role of `terminal.STYLES`)."""
    print(f"{paint_for(sys.stderr)(kind, kind)}: {visible(text)}", file=coloured(sys.stderr))


REFUSALS = ("E0704", "E0705", "E0706", "E0708", "E0714", "E0718", "E0732", "E0805", "E0811", "E0812")
"""E07 and E08 codes of a refused input; the command and its environment are in order."""


AT_FAULT = ("E0102", "E0514", "E0601", "E0603")
"""Other codes for errors in the build file, in a named file, or in the installation."""


def status_of(diagnostics: Iterable[Diagnostic]) -> int:
    """Exit status: 0 without diagnostics, 2 for errors in the build file, a named file, the cache or the environment, 1 if only
    kernels or bundles are refused."""
    found = [item.code for item in diagnostics]
    if any(code in AT_FAULT or (code.startswith(("E07", "E08")) and code not in REFUSALS) for code in found):
        return 2
    return int(bool(found))
