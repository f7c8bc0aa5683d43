"""A kernel file as an editor has it, judged as `tilec check` would judge it once it is saved.

In: the file, the texts that are not saved yet, and values of constants for a file that no project has. Out: a `Verdict` as
often as there is more to tell, the last one `complete`: diagnostics, what is known of every value by its place, and the proofs
of accesses. The stages run in workers under the project's budgets, and through the store, where answers of `tilec check` and of
the editor serve each other.
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
from tilec.defects import told_as_diagnostics
from tilec.diagnostics import CompileError, Diagnostic, Label, Span
from tilec.frontend import load_kernel, meant_for_compiler, outline, read_kernel
from tilec.link import note_records
from tilec.passes.analysis.facts import Facts, facts
from tilec.project.buildfile import BuildFile, read_build_file
from tilec.project.models import Constant
from tilec.project.plan import Planned, by_specialisation, digests_note, plan
from tilec.project.report import notes
from tilec.project.single import single
from tilec.project.worker import CHANGED, CHECK_PRELOAD, Outcome, Task, raise_if_fatal, run_stages
from tilec.toolchain import PROVERS, fingerprint
from tilec.workers.scheduler import Crashed, Report, Standing
from tilec.workers.verdict import diagnose

if TYPE_CHECKING:
    from tilec.frontend.emitter import Term

BUILD_FILE: Final = "build.toml"
PRELOAD: Final = (*CHECK_PRELOAD, "tilec.project.live")
KEPT: Final = 8
"""Specialisations whose values and proofs are kept for a reader; of the others, what is wrong and what is slow."""
NO_VALUE: Final = "E0804"
"""Code of a kernel that nobody gave a value of a constant: nothing is wrong with it, and nothing is proven."""


@dataclass(frozen=True, slots=True)
class Specialisation:
    """What is known of one. `proven` is None until it is decided; `facts` is None where the front end refused. `obligations`
    are the records of the proofs (`tilec.artifact.Obligation`), `launch_checks` their texts."""

    name: str
    constants: dict[str, Constant]
    facts: Facts | None = None
    proven: bool | None = None
    obligations: tuple[dict[str, Any], ...] = ()
    launch_checks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Told:
    """A diagnostic, and the names of the specialisations that it is told of: none where it is of the file as a whole."""

    diagnostic: Diagnostic
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is known of a file. Spans name files relative to `root`; `files` are the real paths of all that it depends on."""

    root: Path
    told: tuple[Told, ...] = ()
    specialisations: tuple[Specialisation, ...] = ()
    files: frozenset[str] = frozenset()
    complete: bool = False


@dataclass(frozen=True, slots=True)
class _Asked:
    """For a worker: a task, and whether to tell what is known of its values."""

    task: Task
    values: bool


@dataclass(frozen=True, slots=True)
class _Known:
    """From a worker: what is known of the values of its specialisation."""

    facts: Facts


class Refused(CompileError):
    """A project or file that cannot be judged; spans of its diagnostics name files relative to `root`."""

    def __init__(self, error: CompileError, root: Path) -> None:
        super().__init__(error.diagnostics)
        self.root = root


def project_of_file(path: Path, texts: Mapping[str, str], constants: Mapping[str, tuple[Constant, ...]]) -> BuildFile:
    """The project whose kernels' folder has the file, with the entries of its kernel alone; where none has, a project of the
    file, with those of `constants` that its kernel has. Refused."""
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
    words = ", ".join(f"`{name}`" for name in missing)
    hint = f"name `{kernel}` in a `build.toml`, with values for its constants; until then nothing is proven"
    text = texts.get(str(file))
    found = outline(Path(file.name), text) if text is not None else None
    place = Label(found.kernels[0].name_span) if found is not None and found.kernels else None
    return Diagnostic(NO_VALUE, f"no value for {words} of kernel `{kernel}`", place, hint=hint)


def _as_text(value: Constant) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def examine(asked: _Asked, emit: Callable[[object], None]) -> None:
    """In a worker: run a task, and tell what is known of its values, of a proven kernel once more."""
    if not asked.values:
        run_stages(asked.task, emit, pipeline.STAGES)
        return
    request, uses = asked.task.request, list[tuple[Span, "Term"]]()
    what = f"the front end of kernel `{request.kernel}`"
    function = None
    try:
        with told_as_diagnostics(what, lambda: None), progress.stage(what, request.limits):
            root = Path(request.root)
            function = load_kernel(root / request.path, request.constants, root=root, texts=request.texts, uses=uses)
            emit(_Known(facts(function, uses, proven=False)))
    except CompileError:
        function = None  # the stages tell why
    accepted: list[bool] = []

    def passed(message: object) -> None:
        if isinstance(message, Outcome):
            accepted.append(not message.diagnostics)
        emit(message)

    run_stages(asked.task, passed, pipeline.STAGES)
    if function is not None and any(accepted):
        emit(_Known(facts(function, uses, proven=True)))


@dataclass(slots=True)
class _Judgement:
    """What comes of the groups, each a specialisation for its targets."""

    root: Path
    groups: list[list[Planned]]
    files: frozenset[str]
    told: dict[tuple[str, str, str], Told] = field(default_factory=dict[tuple[str, str, str], Told])
    known: list[Specialisation] = field(default_factory=list[Specialisation])
    notes: list[tuple[str, dict[str, Any]]] = field(default_factory=list[tuple[str, dict[str, Any]]])
    changed: bool = False

    def __post_init__(self) -> None:
        self.known = [Specialisation(group[0].name, group[0].request.constants) for group in self.groups]

    def verdict(self, *, complete: bool = False) -> Verdict:
        """What is known by now."""
        slow = tuple(Told(note) for note in notes(self.notes)) if complete else ()
        return Verdict(self.root, (*self.told.values(), *slow), tuple(self.known), self.files, complete)

    def tell(self, item: Diagnostic, name: str = "") -> None:
        """A diagnostic of a specialisation, or of all."""
        mark = (item.code, item.message, str(item.primary))
        told = self.told.get(mark, Told(item))
        if name and name not in told.names[-1:]:  # a specialisation tells one thing of several targets in a row
            told = replace(told, names=(*told.names, name))
        self.told[mark] = told

    def take(self, number: int, message: object) -> bool:
        """One message of a worker; whether it is worth telling before all is known: the first that is known of values, and
        what is refused."""
        known = self.known[number]
        if isinstance(message, _Known):
            first = all(one.facts is None for one in self.known)
            self.known[number] = replace(known, facts=message.facts)
            return first
        if not isinstance(message, Outcome):
            return False
        raise_if_fatal(message)
        before = len(self.told)
        for item in message.diagnostics:
            self.changed = self.changed or item.code == CHANGED
            self.tell(item, known.name)
        if message.diagnostics:
            self.known[number] = replace(known, proven=False)
            return len(self.told) > before
        planned = self.groups[number][message.position]
        found = note_records(json.loads(message.products["launch"]), message.products["spans"])
        self.notes += [(f"{planned.name} {planned.target}", record) for record in found]
        if known.proven is None and number < KEPT:
            proofs = json.loads(message.products["proofs"])
            checks = tuple(one["text"] for one in proofs["launch_checks"])
            self.known[number] = replace(
                known, proven=True, obligations=tuple(proofs["obligations"]), launch_checks=checks
            )  # fmt: skip
        return False


def judge(
    path: Path, texts: Mapping[str, str], constants: Mapping[str, tuple[Constant, ...]], standing: Callable[[], Standing],
    workers: int, stop: int,
) -> Generator[Verdict]:  # fmt: skip
    """Judge a kernel file; a verdict as often as there is more to tell. `texts` are those that count in place of the disk's, by
    real path; `standing` gives the server of the workers; once the descriptor `stop` can be read, it ends without a complete
    verdict. CompileError E0814 where no worker can be started, after which the server has to be stopped."""
    if not _is_kernel_file(path, texts):
        yield Verdict(path.parent, files=frozenset({os.path.realpath(path)}), complete=True)
        return
    while True:
        try:
            judgement, tasks = _plan(path, texts, constants)
        except Refused as refused:
            files = frozenset({os.path.realpath(path)})
            yield Verdict(refused.root, tuple(Told(item) for item in refused.diagnostics), files=files, complete=True)
            return
        over = 0
        with contextlib.closing(standing().run(tasks, examine, workers, stop)) as events:
            for event in events:
                if isinstance(event, Report):
                    if judgement.take(event.index, event.message):
                        yield judgement.verdict()
                    continue
                over += 1
                if isinstance(event, Crashed):
                    item = judgement.groups[event.index][0]
                    judgement.tell(diagnose(event, f"proving `{item.name}`"), item.name)
        if over < len(tasks):
            return
        if not judgement.changed:
            yield judgement.verdict(complete=True)
            return


def _is_kernel_file(path: Path, texts: Mapping[str, str]) -> bool:
    """Whether a file has a kernel, or is being typed to have one. Others are no concern of a check: tile functions alone are
    judged with the kernels that call them."""
    text = texts.get(os.path.realpath(path))
    found = outline(path, text) if text is not None else None
    return text is None or (bool(found.kernels) if found is not None else meant_for_compiler(text))


def _plan(
    path: Path, texts: Mapping[str, str], constants: Mapping[str, tuple[Constant, ...]]
) -> tuple[_Judgement, list[_Asked]]:  # fmt: skip
    """What is to be judged, and the tasks of the workers. Refused."""
    build = project_of_file(path, texts, constants)
    try:
        with contextlib.closing(Store(store_root())) as store:
            files = FileDigests(store, digests_note(build.root), texts)
            planned, refusals = plan(build, build.entries, None, store, files, fingerprint(store, PROVERS))
            files.save()
            place = str(store.root)
    except CompileError as error:
        raise Refused(error, build.root) from None
    if refusals and not planned:
        raise Refused(CompileError([item for refusal in refusals for item in refusal.diagnostics]), build.root)
    sources = {os.path.realpath(build.root / name) for item in planned for name in item.request.sources}
    judgement = _Judgement(build.root, by_specialisation(planned), frozenset(sources))
    for refusal in refusals:
        for item in refusal.diagnostics:
            judgement.tell(item)
    tasks = [
        _Asked(
            Task(group[0].request, group[0].name, tuple(item.target for item in group), (), place, check=True), number < KEPT
        )
        for number, group in enumerate(judgement.groups)
    ]
    return judgement, tasks
