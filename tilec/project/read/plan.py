"""The build plan: one `Planned` per kernel, specialisation and target, with the digests of everything it depends on."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from tilec import pipeline
from tilec.cache import Entry, FileDigests, Store, key_of
from tilec.cache.notes import read_json, text_list, text_map
from tilec.cache.products import lookup
from tilec.diagnostics.diagnostic import CompileError, Diagnostic, Label
from tilec.diagnostics.spelling import ask_first
from tilec.ir.aligned import ALIGNED, ALIGNED_SUFFIX, without_aligned
from tilec.pipeline import Constant, Request
from tilec.project.read.buildfile import BuildFile
from tilec.project.read.kernel_entry import KernelEntry
from tilec.target.targets import Target

PACKAGE = Path(pipeline.__file__).parent
MAX_NAME = 120


@dataclass(frozen=True, slots=True)
class Planned:
    """One artifact: its file name without suffix, the request that makes it, its entry in the build file and its cache key."""

    name: str
    request: Request
    target: Target
    entry: KernelEntry
    fields: dict[str, str] = field(repr=False)
    key: str

    def products(self, store: Store) -> Entry | None:
        """The verified products in the store; None if they are missing or refused."""
        return lookup(store, self.key, "artifact", self.fields, f"artifact {self.name} for {self.target}")


@dataclass(frozen=True, slots=True)
class Refusal:
    """Diagnostics that concern all artifacts of one entry of `kernel`."""

    kernel: str
    diagnostics: tuple[Diagnostic, ...]


def artifact_name(kernel: str, constants: dict[str, Constant]) -> str:
    """File name of an artifact: the kernel and its constants, unique and safe for any file system. An aligned version has the
    name of the general one and `ALIGNED_SUFFIX`."""
    if ALIGNED in constants:
        return artifact_name(kernel, without_aligned(constants)) + ALIGNED_SUFFIX
    exact = "".join(f"-{name}={value}" for name, value in constants.items())
    safe = re.sub(r"[^\w=+\-]", "_", exact, flags=re.ASCII)
    if safe != exact or len(kernel + safe) > MAX_NAME:
        digest = hashlib.sha256(repr(list(constants.items())).encode()).hexdigest()[:12]
        safe = f"{safe[: max(MAX_NAME - len(kernel), 0)]}-{digest}"
    return kernel + safe


def is_artifact_name(name: str) -> bool:
    """Whether `artifact_name` can have made `name`: a file name, never a path."""
    return re.fullmatch(r"[\w=+\-]+", name) is not None and len(name) <= 2 * MAX_NAME


def digests_note(root: Path) -> str:
    """Name of the note in the store with the digests of a project's files."""
    return f"digests:{root}"


def compiler_digests(files: FileDigests) -> dict[str, str]:
    """Digest of tilec's own source by stage, and of the code that makes the manifest (`link`)."""

    @functools.cache
    def digest(packages: tuple[str, ...]) -> str:
        found: list[Path] = []
        for package in packages:
            path = PACKAGE / package
            found.extend([path] if path.is_file() else path.rglob("*.py"))
        return files.combined(found, PACKAGE)

    vocabulary = pipeline.VOCABULARY_SOURCE
    digests = {stage.name: digest((*vocabulary, *stage.packages)) for stage in pipeline.STAGES}
    return digests | {"link": digest((*vocabulary, *pipeline.LINK_PACKAGES))}


def plan(
    build: BuildFile,
    entries: tuple[KernelEntry, ...],
    targets: tuple[Target, ...] | None,
    store: Store,
    files: FileDigests,
    toolchain: dict[str, str],
) -> tuple[list[Planned], list[Refusal]]:
    """All artifacts of `entries`, in order, and refusals of kernels that cannot be read.

    `targets` None means those of the build file. A faulty kernel is a refusal, not an exception.
    """
    compiler = compiler_digests(files)
    planned: list[Planned] = []
    refused: list[Refusal] = []
    for entry in entries:
        try:
            sources, constants = kernel_files(build, entry, store, files)
            _check_constants(entry, constants)
        except CompileError as error:
            refused.append(Refusal(entry.name, error.diagnostics))
            continue
        path = (build.kernels / f"{entry.name}.py").relative_to(build.root).as_posix()
        for values in entry.specialisations():
            request = Request(
                entry.name, path, str(build.root), values, sources, toolchain, compiler, entry.overrides(values),
                entry.limits, _texts_of(sources, build.root, files),
            )  # fmt: skip
            for target in entry.among(targets):
                fields = pipeline.artifact_fields(request, target)
                name = artifact_name(entry.name, values)
                planned.append(Planned(name, request, target, entry, fields, key_of("artifact", dict(fields))))
    return planned, refused


def aligned_version(item: Planned, text: str) -> Planned:
    """The plan of the aligned version of an artifact, with this precondition."""
    request = replace(item.request, constants={**item.request.constants, ALIGNED: text})
    fields = pipeline.artifact_fields(request, item.target)
    return replace(item, name=item.name + ALIGNED_SUFFIX, request=request, fields=fields, key=key_of("artifact", dict(fields)))


def by_specialisation(planned: list[Planned]) -> list[list[Planned]]:
    """Groups of artifacts with the same kernel and constants and different targets, in order."""
    groups: dict[str, list[Planned]] = {}
    for item in planned:
        groups.setdefault(item.name, []).append(item)
    return list(groups.values())


def _texts_of(sources: Mapping[str, str], root: Path, files: FileDigests) -> dict[str, str]:
    """The unsaved texts of a kernel's files, by real path."""
    if not files.texts:
        return {}
    paths = (os.path.realpath(root / name) for name in sources)
    return {path: files.texts[path] for path in paths if path in files.texts}


def _check_constants(entry: KernelEntry, constants: list[str]) -> None:
    problems: list[Diagnostic] = []
    declared = ", ".join(f"`{name}`" for name in constants) or "none"
    for name in without_aligned(entry.constants):
        if name not in constants:
            message = f"kernel `{entry.name}` has no constant `{name}`"
            hint = ask_first(name, constants, f"its constants: {declared}")
            problems.append(Diagnostic("E0804", message, Label(entry.constant_spans[name]), hint=hint))
    missing = [name for name in constants if name not in entry.constants]
    if missing:
        joined_names = ", ".join(f"`{name}`" for name in missing)
        hint = f"add `constants = {{ {', '.join(f'{name} = ...' for name in missing)} }}`"
        problems.append(
            Diagnostic("E0804", f"no value for {joined_names} of kernel `{entry.name}`", Label(entry.span), hint=hint)
        )
    if problems:
        raise CompileError(problems)


def kernel_files(
    build: BuildFile, entry: KernelEntry, store: Store, files: FileDigests
) -> tuple[dict[str, str], list[str]]:  # fmt: skip
    """Digest by path (relative to the root) of every file the kernel depends on, and the names of its constants.

    The imports are cached in the store. They are valid until one of the files changes, or a file appears at a path that an
    import searched before it found its file.
    """
    path = build.kernels / f"{entry.name}.py"
    note = f"files:{path}"
    known = _known(read_json(store, note), build, files)
    if known is not None:
        return known
    from tilec.frontend import read_kernel

    source = read_kernel(path, root=build.root, texts=files.texts)
    if source.name != entry.name:
        message = f"`{path.name}` holds the kernel `{source.name}`"
        raise CompileError(Diagnostic("E0803", message, Label(entry.span), hint=f"name the function `{entry.name}`"))
    found = {_relative(file, build.root): files.digest(file) for file in source.files}
    constants = list(source.constants)
    record = {
        "files": found,
        "constants": constants,
        "absent": [os.path.abspath(file) for file in source.absent],
        "reached": {os.path.abspath(file): os.path.realpath(file) for file in source.files},
    }
    store.set_texts({note: json.dumps(record)})
    return found, constants


def _known(data: object, build: BuildFile, files: FileDigests) -> tuple[dict[str, str], list[str]] | None:
    """The files and constants in a note. None unless every file still has its digest, each path resolves to the same file, and
    the paths that imports searched in vain are still absent."""
    if not isinstance(data, dict):
        return None
    record = cast("dict[Any, Any]", data)
    digests, reached = text_map(record.get("files")), text_map(record.get("reached"))
    absent, constants = text_list(record.get("absent")), text_list(record.get("constants"))
    if not digests or not reached or absent is None or constants is None:
        return None
    try:
        if any(map(os.path.isfile, absent)) or any(os.path.realpath(path) != real for path, real in reached.items()):
            return None
        same = all(files.digest(build.root / name) == digest for name, digest in digests.items())
    except (OSError, ValueError):
        return None
    return (digests, constants) if same else None


def _relative(file: Path, root: Path) -> str:
    file = file.resolve()
    return file.relative_to(root).as_posix() if file.is_relative_to(root) else str(file)
