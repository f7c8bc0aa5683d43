"""Checks a kernel file with unsaved edits, as `tilec check` would check it after saving.

In: the file, unsaved texts, and values of constants for a file without a project. Out: a `Verdict` after each relevant new
result, the last one `complete`. It has diagnostics, the facts about every value by source location, and the proofs of accesses.
The stages run in workers under the project's budgets, through the store, which the editor shares with `tilec check`.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tilec import pipeline, progress
from tilec.cache import FileDigests, Store, store_root
from tilec.diagnostics.diagnostic import CompileError, Diagnostic, Label, Span
from tilec.diagnostics.internal_errors import reported_as_diagnostics
from tilec.frontend import load_kernel, meant_for_compiler, outline, read_kernel
from tilec.link import note_records
from tilec.passes.analysis.facts import Facts, facts
from tilec.project.build.report import before_build, notes
from tilec.project.build.worker import CHANGED, CHECK_PRELOAD, Outcome, Task, raise_if_fatal, run_stages
from tilec.project.read.buildfile import BuildFile, read_build_file
from tilec.project.read.models import Constant
from tilec.project.read.plan import Planned, by_specialisation, digests_note, plan
from tilec.project.read.single import single
from tilec.toolchain import PROVERS, fingerprint
from tilec.workers.scheduler import Crashed, PersistentServer, Report
from tilec.workers.verdict import diagnose

if TYPE_CHECKING:
    from tilec.frontend.emitter import Term

BUILD_FILE: Final = "build.toml"
PRELOAD: Final = (*CHECK_PRELOAD, "tilec.project.build.live")
KEPT: Final = 8
"""Specialisations with facts and proofs for the editor; the others only have diagnostics and notes."""
NO_VALUE: Final = "E0804"
"""Code of a kernel with a constant that has no value: it is not wrong, but nothing is proven."""


@dataclass(frozen=True, slots=True)
class Specialisation:
    """The results of one specialisation. `proven` is None until it is decided; `facts` is None if the frontend refused the
    kernel. `obligations` are records of proofs (`tilec.artifact.records.Obligation`), `launch_checks` the texts of the launch
    checks."""

    name: str
    constants: dict[str, Constant]
    facts: Facts | None = None
    proven: bool | None = None
    obligations: tuple[dict[str, Any], ...] = ()
    launch_checks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ScopedDiagnostic:
    """A diagnostic, and the names of its specialisations: none if it concerns the whole file."""

    diagnostic: Diagnostic
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """The results for a file. Spans name files relative to `root`; `files` are the real paths of the file's dependencies."""

    root: Path
    reported: tuple[ScopedDiagnostic, ...] = ()
    specialisations: tuple[Specialisation, ...] = ()
    files: frozenset[str] = frozenset()
    complete: bool = False


@dataclass(frozen=True, slots=True)
class _LiveTask:
    """For a worker: a task, and whether to report facts about its values."""

    task: Task
    values: bool


@dataclass(frozen=True, slots=True)
class _FactsMessage:
    """From a worker: the facts about the values of its specialisation."""

    facts: Facts


class Refused(CompileError):
    """A project or file that cannot be checked; spans of its diagnostics name files relative to `root`."""

    def __init__(self, error: CompileError, root: Path) -> None:
        super().__init__(error.diagnostics)
        self.root = root


def project_of_file(path: Path, texts: Mapping[str, str], constants: Mapping[str, tuple[Constant, ...]]) -> BuildFile:
    """The project whose kernels' folder contains the file, restricted to the entries of its kernel. Without one, a project of
    the file alone, with the values in `constants`. Raises Refused."""
    file = path.resolve()
    folder = next((folder for folder in file.parents if (folder / BUILD_FILE).is_file()), None)
    if folder is not None:
        try:
            build = read_build_file(folder / BUILD_FILE)
        except CompileError as error:
            raise Refused(error, folder) from None
        entries = tuple(entry for entry in build.entries if entry.name == path.stem)
        if entries and (build.kernels / file.name).resolve() == file:
            return replace(build, entries=entries)
    try:
        source = read_kernel(file, root=file.parent, texts=texts)
        missing = [name for name in source.constants if name not in constants]
        if missing:
            raise CompileError(_no_value(file, source.name, missing, texts))
        given = [f"{name}={_as_text(value)}" for name in source.constants for value in constants[name]]
        return single(file, given, None, texts)
    except CompileError as error:
        raise Refused(error, file.parent) from None


def _no_value(file: Path, kernel: str, missing: list[str], texts: Mapping[str, str]) -> Diagnostic:
    names = ", ".join(f"`{name}`" for name in missing)
    hint = f"name `{kernel}` in a `build.toml`, with values for its constants; until then nothing is proven"
    text = texts.get(str(file))
    found = outline(Path(file.name), text) if text is not None else None
    label = Label(found.kernels[0].name_span) if found is not None and found.kernels else None
    return Diagnostic(NO_VALUE, f"no value for {names} of kernel `{kernel}`", label, hint=hint)


def _as_text(value: Constant) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def examine(live_task: _LiveTask, emit: Callable[[object], None]) -> None:
    """In a worker: run a task and, if requested, report the facts about its values after the frontend, and again after the
    proof."""
    if not live_task.values:
        run_stages(live_task.task, emit, pipeline.STAGES)
        return
    request, uses = live_task.task.request, list[tuple[Span, "Term"]]()
    stage_name = f"the front end of kernel `{request.kernel}`"
    function = None
    try:
        with reported_as_diagnostics(stage_name, lambda: None), progress.stage(stage_name, request.limits):
            root = Path(request.root)
            function = load_kernel(root / request.path, request.constants, root=root, texts=request.texts, uses=uses)
            emit(_FactsMessage(facts(function, uses, proven=False)))
    except CompileError:
        function = None  # the stages report the error
    accepted: list[bool] = []

    def forward(message: object) -> None:
        if isinstance(message, Outcome):
            accepted.append(not message.diagnostics)
        emit(message)

    run_stages(live_task.task, forward, pipeline.STAGES)
    if function is not None and any(accepted):
        emit(_FactsMessage(facts(function, uses, proven=True)))


@dataclass(slots=True)
class _LiveResults:
    """Collects the results of the groups; a group is one specialisation for its targets."""

    root: Path
    groups: list[list[Planned]]
    files: frozenset[str]
    reported: dict[tuple[str, str, str], ScopedDiagnostic] = field(default_factory=dict[tuple[str, str, str], ScopedDiagnostic])
    specialisations: list[Specialisation] = field(default_factory=list[Specialisation])
    notes: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list[tuple[str, Mapping[str, Any]]])
    changed: bool = False

    def __post_init__(self) -> None:
        self.specialisations = [Specialisation(group[0].name, group[0].request.constants) for group in self.groups]

    def verdict(self, *, complete: bool = False) -> Verdict:
        """The results so far."""
        slow = tuple(ScopedDiagnostic(note) for note in notes(self.notes)) if complete else ()
        return Verdict(self.root, (*self.reported.values(), *slow), tuple(self.specialisations), self.files, complete)

    def add(self, item: Diagnostic, name: str = "") -> None:
        """Add a diagnostic of a specialisation, or of the whole file without a `name`."""
        key = (item.code, item.message, str(item.primary))
        scoped = self.reported.get(key, ScopedDiagnostic(item))
        if name and name not in scoped.names[-1:]:  # a specialisation repeats a diagnostic for its targets in a row
            scoped = replace(scoped, names=(*scoped.names, name))
        self.reported[key] = scoped

    def process(self, number: int, message: object) -> bool:
        """Process one message of a worker. True if a verdict should be sent at once: for the first facts, and for new
        diagnostics."""
        specialisation = self.specialisations[number]
        if isinstance(message, _FactsMessage):
            first = all(one.facts is None for one in self.specialisations)
            self.specialisations[number] = replace(specialisation, facts=message.facts)
            return first
        if not isinstance(message, Outcome):
            return False
        raise_if_fatal(message)
        before = len(self.reported)
        for item in message.diagnostics:
            self.changed = self.changed or item.code == CHANGED
            self.add(item, specialisation.name)
        if message.diagnostics:
            self.specialisations[number] = replace(specialisation, proven=False)
            return len(self.reported) > before
        planned = self.groups[number][message.position]
        records = before_build(planned, note_records(json.loads(message.products["launch"]), message.products["spans"]))
        self.notes += [(f"{planned.name} {planned.target}", record) for record in records]
        if specialisation.proven is None and number < KEPT:
            proofs = json.loads(message.products["proofs"])
            launch_checks = tuple(one["text"] for one in proofs["launch_checks"])
            self.specialisations[number] = replace(
                specialisation, proven=True, obligations=tuple(proofs["obligations"]), launch_checks=launch_checks
            )  # fmt: skip
        return False


def check_file(
    path: Path, texts: Mapping[str, str], constants: Mapping[str, tuple[Constant, ...]],
    worker_server: Callable[[], PersistentServer], workers: int, stop: int,
) -> Generator[Verdict]:  # fmt: skip
    """Check a kernel file and yield a verdict after each relevant new result. `texts` replace file contents, by real path;
    `worker_server` returns the server of the workers. When the descriptor `stop` becomes readable, it ends without a complete
    verdict. If a source changes during the check, the check starts again. CompileError E0814 if no worker can be started; the
    server must then be stopped."""
    if not _is_kernel_file(path, texts):
        yield Verdict(path.parent, files=frozenset({os.path.realpath(path)}), complete=True)
        return
    while True:
        try:
            results, tasks = _plan(path, texts, constants)
        except Refused as refused:
            files = frozenset({os.path.realpath(path)})
            yield Verdict(
                refused.root, tuple(ScopedDiagnostic(planned) for planned in refused.diagnostics), files=files, complete=True
            )
            return
        ended = 0
        with contextlib.closing(worker_server().run(tasks, examine, workers, stop)) as events:
            for event in events:
                if isinstance(event, Report):
                    if results.process(event.index, event.message):
                        yield results.verdict()
                    continue
                ended += 1
                if isinstance(event, Crashed):
                    planned = results.groups[event.index][0]
                    results.add(diagnose(event, f"proving `{planned.name}`"), planned.name)
        if ended < len(tasks):
            return
        if not results.changed:
            yield results.verdict(complete=True)
            return


def _is_kernel_file(path: Path, texts: Mapping[str, str]) -> bool:
    """Whether a file has a kernel, or looks like an unfinished one. Other files are not checked: tile functions are checked
    with the kernels that call them."""
    text = texts.get(os.path.realpath(path))
    found = outline(path, text) if text is not None else None
    return text is None or (bool(found.kernels) if found is not None else meant_for_compiler(text))


def _plan(
    path: Path, texts: Mapping[str, str], constants: Mapping[str, tuple[Constant, ...]]
) -> tuple[_LiveResults, list[_LiveTask]]:  # fmt: skip
    """The collector of results and the tasks for the workers. Raises Refused."""
    build = project_of_file(path, texts, constants)
    try:
        with contextlib.closing(Store(store_root())) as store:
            files = FileDigests(store, digests_note(build.root), texts)
            planned, refusals = plan(build, build.entries, None, store, files, fingerprint(store, PROVERS))
            files.save()
            store_path = str(store.root)
    except CompileError as error:
        raise Refused(error, build.root) from None
    if refusals and not planned:
        raise Refused(CompileError([item for refusal in refusals for item in refusal.diagnostics]), build.root)
    sources = {os.path.realpath(build.root / name) for item in planned for name in item.request.sources}
    results = _LiveResults(build.root, by_specialisation(planned), frozenset(sources))
    for refusal in refusals:
        for item in refusal.diagnostics:
            results.add(item)
    tasks = [
        _LiveTask(
            Task(group[0].request, group[0].name, tuple(item.target for item in group), (), store_path, check=True),
            number < KEPT,
        )
        for number, group in enumerate(results.groups)
    ]
    return results, tasks
