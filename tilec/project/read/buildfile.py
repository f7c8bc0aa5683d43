"""Reads and checks `build.toml`: kernels with their constants, architectures, schedules and budgets.

All problems of the file are reported together, each at its line (E0801 not readable or not TOML, E0802 a key that is unknown,
missing or of the wrong type, E0803 a kernel without a file, E0806 a duplicate artifact, E0514 too large). `models` reads models
and their steps, `remotes` the caches of a team.
"""

from __future__ import annotations

import functools
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, Final

from tilec.cache.remote.address import Address
from tilec.diagnostics.diagnostic import CompileError, Diagnostic, Label, Span
from tilec.diagnostics.spelling import ask_first
from tilec.ir.aligned import ALIGNED
from tilec.progress import DEFAULT_LIMITS, Limits
from tilec.project.read.architectures import Architectures, Problem, named_targets, read_others
from tilec.project.read.kernel_entry import KernelEntry
from tilec.project.read.models import MAX_TEXT, Constant, Family, Model, read_families, read_models, split_tuning, too_wide
from tilec.project.read.remotes import read_remotes
from tilec.project.read.schedules import read_schedule
from tilec.project.read.served import Served, expanded, fixed_twice, serve
from tilec.project.read.toml_locate import locate
from tilec.project.read.tuned import read_tuned
from tilec.target.targets import Target
from tilec.untrusted.limits import (
    LONG_KEY,
    MAX_BUILD_BYTES,
    MAX_KEY_PARTS,
    MAX_REQUESTS,
    MAX_SPECIALISATIONS,
    MAX_TABLES,
    read_file,
)

BUDGETS: Final = {
    "max_registers": "registers",
    "spill_bytes": "spill_bytes",
    "stack_bytes": "stack_bytes",
    "shared_bytes": "shared_bytes",
}
LIMITS: Final = ("stage_seconds", "stage_memory_mb")
"""Keys of `[build]`, which a kernel can override: the limits of one stage of one specialisation."""
MOST: Final = 1 << 24
_BUILD_KEYS: Final = ("kernels", "steps", "arch", "also", "like", "remote", "aligned", *LIMITS)
_KERNEL_KEYS: Final = ("name", "constants", "budget", "schedule", "arch", "aligned", "requested", *LIMITS)
_FORMER: Final = {"num_warps": "warps", "min_blocks": "blocks"}
"""Former keys of a kernel, with the keys of `schedule` that replace them."""
TABLES: Final = ("kernel", "model", "tuning")
WIDE: Final = f"integers have 64 bits, strings {MAX_TEXT} characters"
TOO_LARGE: Final = "split the project in several, each with its own build file"


@dataclass(frozen=True, slots=True)
class BuildFile:
    """A checked build file; `root` is its folder. `remotes` are caches of a team, used if the user allows it
    (`tilec.cache.remote.address`). `entries` are built: the `declared` ones, with the choices of `served` for constants that
    they leave out. `notes` report measurements that are not used."""

    path: Path
    root: Path
    kernels: Path
    targets: tuple[Target, ...]
    entries: tuple[KernelEntry, ...]
    models: tuple[Model, ...] = ()
    families: Mapping[str, Family] = field(default_factory=dict[str, Family])
    remotes: tuple[Address, ...] = ()
    declared: tuple[KernelEntry, ...] = ()
    served: tuple[Served, ...] = ()
    notes: tuple[Diagnostic, ...] = ()


def read_build_file(path: Path) -> BuildFile:
    """Read and check a build file; CompileError with every problem found."""
    shown = str(path)
    try:
        read = read_file(path, MAX_BUILD_BYTES)
        if len(read) > MAX_BUILD_BYTES:
            raise CompileError(Diagnostic("E0514", f"`{path}` has more than {MAX_BUILD_BYTES} bytes", hint=TOO_LARGE))
        text = read.decode("utf-8-sig").replace("\r\n", "\n")
    except OSError as error:
        hint = "run in a folder with a `build.toml`, or name one with `--project`"
        raise CompileError(Diagnostic("E0801", f"cannot read `{path}`: {error.strerror}", hint=hint)) from None
    except UnicodeDecodeError as error:
        raise CompileError(Diagnostic("E0801", f"`{path}` is not UTF-8 at byte {error.start}")) from None
    if dotted := LONG_KEY.search(text):
        line = text.count("\n", 0, dotted.start()) + 1
        message = f"a dotted key has more than {MAX_KEY_PARTS} parts"
        raise CompileError(Diagnostic("E0514", message, Label(Span(shown, line, 0, line, 1)), hint="keys here have one part"))
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise CompileError(_syntax(str(error), shown, text)) from None
    except RecursionError:
        hint = "write values as numbers, strings and lists of those"
        raise CompileError(Diagnostic("E0514", f"`{path}` nests arrays or tables too deeply", hint=hint)) from None
    except ValueError:  # Python rejects integers of more than 4300 digits
        hint = "integers have at most 64 bits"
        raise CompileError(Diagnostic("E0514", f"`{path}` has an integer of thousands of digits", hint=hint)) from None
    for name in TABLES:
        tables: Any = data.get(name)
        if isinstance(tables, list) and len(tables) > MAX_TABLES:  # pyright: ignore[reportUnknownArgumentType]
            message = f"`{path}` has more than {MAX_TABLES} `[[{name}]]`"
            raise CompileError(Diagnostic("E0514", message, Label(locate(text, shown, name, MAX_TABLES)), hint=TOO_LARGE))
    reader = _Reader(path, str(path), text)
    result = reader.read(data)
    if reader.problems:
        raise CompileError(reader.problems)
    return result


def _syntax(message: str, file: str, text: str) -> Diagnostic:
    found = re.search(r" \(at (?:line (\d+), column (\d+)|end of document)\)", message)
    lines = text.split("\n")
    line = int(found[1]) if found and found[1] else max(len(lines), 1)
    column = int(found[2]) - 1 if found and found[2] else len(lines[-1])
    text_before = message[: found.start()] if found else message
    text_before = text_before[:1].lower() + text_before[1:]
    return Diagnostic("E0801", f"not valid TOML: {text_before}", Label(Span(file, line, column, line, column + 1)))


class _Reader:
    def __init__(self, path: Path, shown: str, text: str) -> None:
        self.path = path
        self.shown = shown
        self.text = text
        self.problems: list[Diagnostic] = []

    def span(self, table: str, index: int = 0, key: str = "", inner: str = "") -> Span:
        return locate(self.text, self.shown, table, index, key, inner)

    def refuse(self, code: str, message: str, span: Span, hint: str = "", label: str = "") -> None:
        self.problems.append(Diagnostic(code, message, Label(span, label), hint=hint))

    def read(self, data: dict[str, Any]) -> BuildFile:
        root = self.path.resolve().parent
        for key in data:
            if key not in ("build", *TABLES):
                tables = "the tables are `[build]`, `[[kernel]]`, `[[model]]` and `[[tuning]]`"
                hint = ask_first(key, ("build", *TABLES), tables)
                self.refuse("E0802", f"unknown table `{key}`", self.span(key), hint)
        build = data.get("build")
        if not isinstance(build, dict):
            self.refuse("E0802", "`[build]` is missing", self.span("build"), 'write `[build]` with `arch = ["sm_90"]`')
            build = {"arch": ["sm_90"]}
        table: dict[str, Any] = build  # pyright: ignore[reportUnknownVariableType]
        self.unknown(table, _BUILD_KEYS, "build", 0)
        kernels = self.folder(table, "kernels", root, root / "kernels_src")
        steps = self.folder(table, "steps", root, kernels)
        targets = self.targets(table.get("arch"), "build", 0)
        limits = self.limits(table, "build", 0, DEFAULT_LIMITS)
        architectures = read_others(table, targets, self.problem_in("build", 0))
        aligned = self.switch(table, "aligned", "build", 0, default=True)
        entries = self.entries(data.get("kernel", []), kernels, architectures, limits, aligned)
        models = read_models(data.get("model", []), self.refuse, self.span)
        numbers, tables = split_tuning(data.get("tuning", []), self.refuse, self.span)
        notes: list[Diagnostic] = []
        served: list[Served] = []
        for tuned in read_tuned(tables, architectures, self.refuse, self.span):
            served += serve(tuned, entries, kernels, root, notes)
            if fixed_twice(tuned, entries):
                hint = "remove the constants of the choices from the `[[kernel]]`, or move their schedules there"
                message = f"choices of `{tuned.kernel}` have a `schedule`, but their constants are in a `[[kernel]]`"
                self.refuse("E0802", message, tuned.span, hint)
        every = tuple(entries)
        entries = expanded(entries, served)
        families = read_families(steps, models, numbers, served, self.refuse)
        remotes = read_remotes(table.get("remote", []), self.refuse, functools.partial(self.span, "build", 0, "remote"))
        return BuildFile(
            self.path, root, kernels, targets, tuple(entries), models, families, remotes, every, tuple(served), tuple(notes)
        )

    def folder(self, table: dict[str, Any], key: str, root: Path, default: Path) -> Path:
        """The folder that a key names, `default` if it is absent. An absolute path becomes one relative to `root`."""
        value = table.get(key)
        if value is None:
            return default
        if isinstance(value, str) and len(value) <= MAX_TEXT and "\0" not in value:
            return root / (os.path.relpath(value, root) if value.startswith("/") else value)
        self.refuse("E0802", f"`{key}` is not a string", self.span("build", 0, key), f'name a folder: "{default.name}"')
        return default

    def unknown(self, table: Mapping[str, Any], known: tuple[str, ...], name: str, index: int) -> None:
        for key in table:
            if key not in known:
                hint = ask_first(key, known, f"the keys here are {', '.join(f'`{item}`' for item in known)}")
                self.refuse("E0802", f"unknown key `{key}`", self.span(name, index, key), hint)

    def targets(self, value: Any, table: str, index: int) -> tuple[Target, ...]:
        """The architectures of the key `arch` of a table; an empty list is refused too."""
        found: list[Target] = []
        hint = 'write `arch = ["sm_90", "sm_100"]`'
        for name, target in named_targets(value or None, "arch", self.problem_in(table, index), hint):
            if target in found:
                self.refuse("E0806", f"architecture `{name}` is named twice", self.span(table, index, "arch"))
            found.append(target)
        return tuple(found)

    def problem_in(self, table: str, index: int) -> Problem:
        """What refuses the value of a key in a table."""
        return lambda key, what, hint: self.refuse("E0802", what, self.span(table, index, key), hint)

    def limits(self, table: dict[str, Any], name: str, index: int, default: Limits) -> Limits:
        found = [default.seconds, default.memory_mb]
        for position, key in enumerate(LIMITS):
            value = table.get(key, found[position])
            if type(value) not in (int, float) or not (0 < value <= MOST) or (position == 1 and type(value) is not int):
                kind = "a number of seconds of CPU time" if position == 0 else "a number of MiB"
                hint = f"write `{key} = {found[position]:g}`"
                self.refuse("E0802", f"`{key}` is not {kind}, above 0 and at most {MOST}", self.span(name, index, key), hint)
            else:
                found[position] = value
        return Limits(float(found[0]), int(found[1]))

    def switch(self, table: dict[str, Any], key: str, name: str, index: int, default: bool) -> bool:
        """The value of a key that is true or false."""
        value = table.get(key, default)
        if isinstance(value, bool):
            return value
        hint = f"write `{key} = {str(not default).lower()}`, or leave it out"
        self.refuse("E0802", f"`{key}` is not a bool", self.span(name, index, key), hint)
        return default

    def entries(
        self, value: Any, kernels: Path, architectures: Architectures, limits: Limits, aligned: bool
    ) -> list[KernelEntry]:  # fmt: skip
        if not isinstance(value, list):
            self.refuse("E0802", "`kernel` is not a list of tables", self.span("kernel"), "write `[[kernel]]`")
            return []
        found: list[KernelEntry] = []
        seen: dict[str, Span] = {}
        total = 0
        items: list[Any] = value  # pyright: ignore[reportUnknownVariableType]
        for index, item in enumerate(items):
            entry = self.entry(item, index, kernels, architectures, limits, aligned) if isinstance(item, dict) else None  # pyright: ignore[reportUnknownArgumentType]
            if entry is None:
                continue
            total += prod(map(len, entry.constants.values()))
            if total > MAX_REQUESTS:
                self.refuse("E0514", f"all kernels have more than {MAX_REQUESTS} specialisations", entry.span, TOO_LARGE)
                break
            found.append(entry)
            for values in entry.specialisations():
                name = f"{entry.name} {sorted(values.items())!r}"
                if name in seen:
                    values_text = ", ".join(f"{key} = {item}" for key, item in values.items())
                    first = Label(seen[name], "first listed here")
                    message = f"kernel `{entry.name}` is listed twice" + (f" at {values_text}" if values_text else "")
                    self.problems.append(Diagnostic("E0806", message, Label(entry.span), (first,), hint="remove one of them"))
                    break
                seen[name] = entry.span
        return found

    def entry(
        self, table: dict[str, Any], index: int, kernels: Path, architectures: Architectures, limits: Limits, aligned: bool
    ) -> KernelEntry | None:  # fmt: skip
        def span_of(key: str, inner: str = "") -> Span:
            return self.span("kernel", index, key, inner)

        for key, part in _FORMER.items():
            if key in table:
                self.refuse(
                    "E0802",
                    f"`{key}` is a part of the schedule",
                    span_of(key),
                    f"write `schedule = {{ {part} = {table[key]} }}`",
                )
        self.unknown({key: item for key, item in table.items() if key not in _FORMER}, _KERNEL_KEYS, "kernel", index)
        name = table.get("name")
        if not (isinstance(name, str) and name.isidentifier()):
            self.refuse("E0802", "`name` is not the name of a kernel", span_of("name"), 'write `name = "rms_norm"`')
            return None
        if not os.path.isfile(kernels / f"{name}.py"):
            files = {path.stem for path in kernels.glob("*.py") if path.is_file()}
            hint = ask_first(name, files, f"create `{kernels.name}/{name}.py`, or correct the name")
            self.refuse("E0803", f"kernel `{name}` has no file in `{kernels.name}`", span_of("name"), hint)
        constants = self.constants(table.get("constants", {}), span_of)
        spans = {key: span_of("constants", key) for key in constants}
        if "arch" in table:
            architectures = architectures.of_kernel(self.targets(table["arch"], "kernel", index))
        budget = self.budget(table.get("budget", {}), span_of)
        limits = self.limits(table, "kernel", index, limits)
        aligned = self.switch(table, "aligned", "kernel", index, aligned)
        requested = self.switch(table, "requested", "kernel", index, default=False)
        schedule = read_schedule(table.get("schedule", []), constants, architectures, self.refuse, span_of)
        return KernelEntry(
            name, constants, budget, schedule, architectures.built, span_of("name"), spans, limits, "arch" in table,
            on_request=architectures.others, aligned=aligned, requested=requested,
        )  # fmt: skip

    def constants(self, value: Any, span_of: Any) -> dict[str, tuple[Constant, ...]]:
        if not isinstance(value, dict):
            self.refuse("E0802", "`constants` is not a table", span_of("constants"), "write `constants = { BLOCK = [1024] }`")
            return {}
        found: dict[str, tuple[Constant, ...]] = {}
        items: dict[str, Any] = value  # pyright: ignore[reportUnknownVariableType]
        total = 1
        for key, given in items.items():
            if key == ALIGNED:
                message = f"`{key}` is no constant of a kernel"
                self.refuse("E0802", message, span_of("constants", key), "state it in the kernel: `requires(N % 8 == 0)`")
                continue
            values: list[Any] = given if isinstance(given, list) else [given]  # pyright: ignore[reportUnknownVariableType]
            if not values or not all(isinstance(item, (int, float, bool, str)) for item in values):
                hint = f"write `{key} = 1024` or `{key} = [1024, 2048]`"
                self.refuse("E0802", f"`{key}` is not a number, bool, string or list of those", span_of("constants", key), hint)
                continue
            if any(too_wide(item) for item in values):
                self.refuse(
                    "E0514",
                    f"`{key}` is out of range",
                    span_of("constants", key),
                    f"integers have 64 bits, strings {MAX_TEXT} characters",
                )
                continue
            if len({repr(item) for item in values}) != len(values):
                self.refuse("E0806", f"`{key}` lists a value twice", span_of("constants", key), "remove one of them")
                continue
            found[key] = tuple(values)
            total *= len(values)
        if total > MAX_SPECIALISATIONS:
            self.refuse(
                "E0802", f"{total} specialisations of one kernel", span_of("constants"), f"at most {MAX_SPECIALISATIONS}"
            )
            return {}
        return found

    def budget(self, value: Any, span_of: Any) -> dict[str, int]:
        if not isinstance(value, dict):
            self.refuse("E0802", "`budget` is not a table", span_of("budget"), "write `budget = { max_registers = 128 }`")
            return {}
        items: dict[str, Any] = value  # pyright: ignore[reportUnknownVariableType]
        for key, limit in items.items():
            if key not in BUDGETS:
                hint = ask_first(key, BUDGETS, f"the budgets are {', '.join(f'`{name}`' for name in BUDGETS)}")
                self.refuse("E0802", f"unknown budget `{key}`", span_of("budget", key), hint)
            elif type(limit) is not int or limit < 0:
                self.refuse("E0802", f"budget `{key}` is not a non-negative integer", span_of("budget", key))
        return {key: limit for key, limit in items.items() if key in BUDGETS and type(limit) is int}
