"""Read and check `build.toml`: which kernels, at which constants, for which architectures, within which budgets.

Every problem of the file is found in one go and points at its line (E0801 not readable or not TOML, E0802 a key that is
unknown, missing or of the wrong type, E0803 a kernel without a file, E0806 one artifact asked for twice). Models and what their
steps ask for are read by `models`.
"""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tilec.build.models import Constant, Model, Step, read_models, read_steps
from tilec.build.toml_locate import locate
from tilec.diagnostics import CompileError, Diagnostic, Label, Span
from tilec.target import Target

BUDGETS: Final = {
    "max_registers": "registers",
    "spill_bytes": "spill_bytes",
    "stack_bytes": "stack_bytes",
    "shared_bytes": "shared_bytes",
}
_BUILD_KEYS: Final = ("kernels", "arch")
_KERNEL_KEYS: Final = ("name", "constants", "budget", "num_warps", "min_blocks", "arch")
MAX_SPECIALISATIONS: Final = 10_000


@dataclass(frozen=True, slots=True)
class KernelEntry:
    """One `[[kernel]]`: every value of each constant, budgets by name, `arch` where it differs from the project's, `span` of
    the entry and `constant_spans` of each constant in the file."""

    name: str
    constants: dict[str, tuple[Constant, ...]]
    budget: dict[str, int]
    num_warps: int | None
    min_blocks: int | None
    targets: tuple[Target, ...]
    span: Span
    constant_spans: dict[str, Span]

    def specialisations(self) -> list[dict[str, Constant]]:
        """All combinations of the constants' values, in the order of the file."""
        names = list(self.constants)
        return [dict(zip(names, values, strict=True)) for values in itertools.product(*self.constants.values())]


@dataclass(frozen=True, slots=True)
class BuildFile:
    """A checked build file; `root` is its folder."""

    path: Path
    root: Path
    kernels: Path
    targets: tuple[Target, ...]
    entries: tuple[KernelEntry, ...]
    models: tuple[Model, ...] = ()
    steps: tuple[Step, ...] = ()


def read_build_file(path: Path) -> BuildFile:
    """Read and check a build file; CompileError with every problem found."""
    shown = path.name
    try:
        text = path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    except OSError as error:
        hint = "run in a folder with a `build.toml`, or name one with `--project`"
        raise CompileError(Diagnostic("E0801", f"cannot read `{path}`: {error.strerror}", hint=hint)) from None
    except UnicodeDecodeError as error:
        raise CompileError(Diagnostic("E0801", f"`{path}` is not UTF-8 at byte {error.start}")) from None
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise CompileError(_syntax(str(error), shown, text)) from None
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
    said = message[: found.start()] if found else message
    said = said[:1].lower() + said[1:]
    return Diagnostic("E0801", f"not valid TOML: {said}", Label(Span(file, line, column, line, column + 1)))


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
            if key not in ("build", "kernel", "model", "step"):
                hint = "the tables are `[build]`, `[[kernel]]`, `[[model]]` and `[[step]]`"
                self.refuse("E0802", f"unknown table `{key}`", self.span(key), hint)
        build = data.get("build")
        if not isinstance(build, dict):
            self.refuse("E0802", "`[build]` is missing", self.span("build"), 'write `[build]` with `arch = ["sm_90"]`')
            build = {"arch": ["sm_90"]}
        table: dict[str, Any] = build  # pyright: ignore[reportUnknownVariableType]
        self.unknown(table, _BUILD_KEYS, "build", 0)
        folder = table.get("kernels", "kernels_src")
        if not isinstance(folder, str):
            self.refuse("E0802", "`kernels` is not a string", self.span("build", 0, "kernels"), 'name a folder: "kernels_src"')
            folder = "kernels_src"
        kernels = root / folder
        targets = self.targets(table.get("arch"), "build", 0)
        entries = self.entries(data.get("kernel", []), kernels, targets)
        models = read_models(data.get("model", []), self.refuse, self.span)
        steps = read_steps(data.get("step", []), self.refuse, self.span)
        return BuildFile(self.path, root, kernels, targets, tuple(entries), models, steps)

    def unknown(self, table: Mapping[str, Any], known: tuple[str, ...], name: str, index: int) -> None:
        for key in table:
            if key not in known:
                hint = f"the keys here are {', '.join(f'`{item}`' for item in known)}"
                self.refuse("E0802", f"unknown key `{key}`", self.span(name, index, key), hint)

    def targets(self, value: Any, table: str, index: int) -> tuple[Target, ...]:
        span = self.span(table, index, "arch")
        items: list[Any] = value if isinstance(value, list) else []  # pyright: ignore[reportUnknownVariableType]
        if not items or not all(isinstance(item, str) for item in items):
            self.refuse("E0802", "`arch` is not a list of architectures", span, 'write `arch = ["sm_90", "sm_100"]`')
            return ()
        found: list[Target] = []
        for item in items:
            try:
                target = Target.parse(item)
            except CompileError as error:
                (problem,) = error.diagnostics
                self.refuse("E0802", problem.message, span, problem.hint)
                continue
            if target in found:
                self.refuse("E0806", f"architecture `{item}` is named twice", span)
            found.append(target)
        return tuple(found)

    def entries(self, value: Any, kernels: Path, targets: tuple[Target, ...]) -> list[KernelEntry]:
        if not isinstance(value, list):
            self.refuse("E0802", "`kernel` is not a list of tables", self.span("kernel"), "write `[[kernel]]`")
            return []
        found: list[KernelEntry] = []
        seen: dict[str, Span] = {}
        items: list[Any] = value  # pyright: ignore[reportUnknownVariableType]
        for index, item in enumerate(items):
            entry = self.entry(item, index, kernels, targets) if isinstance(item, dict) else None  # pyright: ignore[reportUnknownArgumentType]
            if entry is None:
                continue
            found.append(entry)
            for values in entry.specialisations():
                name = f"{entry.name} {sorted(values.items())!r}"
                if name in seen:
                    words = ", ".join(f"{key} = {item}" for key, item in values.items())
                    first = Label(seen[name], "first asked for here")
                    message = f"kernel `{entry.name}` is asked for twice" + (f" at {words}" if words else "")
                    self.problems.append(Diagnostic("E0806", message, Label(entry.span), (first,), hint="remove one of them"))
                    break
                seen[name] = entry.span
        return found

    def entry(self, table: dict[str, Any], index: int, kernels: Path, targets: tuple[Target, ...]) -> KernelEntry | None:
        def at(key: str, inner: str = "") -> Span:
            return self.span("kernel", index, key, inner)

        self.unknown(table, _KERNEL_KEYS, "kernel", index)
        name = table.get("name")
        if not (isinstance(name, str) and name.isidentifier()):
            self.refuse("E0802", "`name` is not the name of a kernel", at("name"), 'write `name = "rms_norm"`')
            return None
        if not (kernels / f"{name}.py").is_file():
            hint = f"create `{kernels.name}/{name}.py`, or correct the name"
            self.refuse("E0803", f"kernel `{name}` has no file in `{kernels.name}`", at("name"), hint)
        warps = self.count(table, "num_warps", at)
        min_blocks = self.count(table, "min_blocks", at)
        constants = self.constants(table.get("constants", {}), at)
        spans = {key: at("constants", key) for key in constants}
        if "arch" in table:
            targets = self.targets(table["arch"], "kernel", index)
        budget = self.budget(table.get("budget", {}), at)
        return KernelEntry(name, constants, budget, warps, min_blocks, targets, at("name"), spans)

    def count(self, table: dict[str, Any], key: str, at: Any) -> int | None:
        value = table.get(key)
        if value is not None and (type(value) is not int or not 1 <= value <= 32):
            self.refuse("E0802", f"`{key}` is not a number from 1 to 32", at(key))
            return None
        return value

    def constants(self, value: Any, at: Any) -> dict[str, tuple[Constant, ...]]:
        if not isinstance(value, dict):
            self.refuse("E0802", "`constants` is not a table", at("constants"), "write `constants = { BLOCK = [1024] }`")
            return {}
        found: dict[str, tuple[Constant, ...]] = {}
        items: dict[str, Any] = value  # pyright: ignore[reportUnknownVariableType]
        total = 1
        for key, given in items.items():
            values: list[Any] = given if isinstance(given, list) else [given]  # pyright: ignore[reportUnknownVariableType]
            if not values or not all(isinstance(item, (int, float, bool, str)) for item in values):
                hint = f"write `{key} = 1024` or `{key} = [1024, 2048]`"
                self.refuse("E0802", f"`{key}` is not a number, bool, string or list of those", at("constants", key), hint)
                continue
            if len({repr(item) for item in values}) != len(values):
                self.refuse("E0806", f"`{key}` lists a value twice", at("constants", key), "remove one of them")
                continue
            found[key] = tuple(values)
            total *= len(values)
        if total > MAX_SPECIALISATIONS:
            self.refuse("E0802", f"{total} specialisations of one kernel", at("constants"), f"at most {MAX_SPECIALISATIONS}")
            return {}
        return found

    def budget(self, value: Any, at: Any) -> dict[str, int]:
        if not isinstance(value, dict):
            self.refuse("E0802", "`budget` is not a table", at("budget"), "write `budget = { max_registers = 128 }`")
            return {}
        items: dict[str, Any] = value  # pyright: ignore[reportUnknownVariableType]
        for key, limit in items.items():
            if key not in BUDGETS:
                hint = f"the budgets are {', '.join(f'`{name}`' for name in BUDGETS)}"
                self.refuse("E0802", f"unknown budget `{key}`", at("budget", key), hint)
            elif type(limit) is not int or limit < 0:
                self.refuse("E0802", f"budget `{key}` is not a non-negative integer", at("budget", key))
        return {key: limit for key, limit in items.items() if key in BUDGETS and type(limit) is int}
