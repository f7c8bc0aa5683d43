"""Reads `[[model]]` and the numbers of `[[tuning]]` in the build file, and the step of each family: what a model can request.

    [[model]]
    name = "qwen3-4b"
    family = "qwen3"
    config = { hidden_size = 2560, head_dim = 128 }

The step of a family is the file `FAMILY.step` in the folder that `steps` of `[build]` names, or in its folder `FAMILY`; see
`tilec.step`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Final, Protocol

from tilec.artifact.bundle_format import MODEL
from tilec.diagnostics.diagnostic import Span
from tilec.diagnostics.spelling import ask_first
from tilec.step.caches import CACHE_FORMAT
from tilec.step.expressions import StepError
from tilec.step.formats import SIXTEEN_BIT, WEIGHT_FORMAT
from tilec.step.ranks import GPUS, MAX_RANKS
from tilec.step.reader import MAX_TEXT as MAX_STEP
from tilec.step.reader import Declaration, read_declaration
from tilec.step.requests import Request, requests
from tilec.step.step import DTYPES, Step
from tilec.step.tuning import KEYS, Tuning, read_tuning
from tilec.target.targets import TARGETS, Target
from tilec.untrusted.limits import read_file

Constant = int | float | bool | str
MAX_TEXT: Final = 200
"""Most characters of a string constant, which becomes part of file names."""
Refuse = Callable[..., None]
Locate = Callable[..., Span]

_TUNING_KEYS: Final = (*KEYS, "family", "constants", "shapes", "keep", "predicted")
_MODEL_KEYS: Final = ("name", "config", "family", "weights", "caches", "gpus", "requested")
_BESIDES: Final = {WEIGHT_FORMAT: 'weights = ["fp8"]', CACHE_FORMAT: 'caches = ["fp8"]', GPUS: "gpus = [2]"}
"""What says in a `[[model]]` what the config of a bundle has under these keys."""
_MODEL_NAME: Final = re.compile(r"[a-z0-9_\-]{1,64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Model:
    """A model. `config` has its numbers under its publisher's names; `family` names its step; `weights` are the formats of its
    linear weights that kernels are requested for, `caches` those of its caches, `gpus` the numbers of GPUs that may share it.
    The kernels of a model that is `requested` are built for its bundle only, not by a build of all kernels."""

    name: str
    family: str
    config: dict[str, Constant]
    span: Span
    weights: tuple[str, ...] = (SIXTEEN_BIT,)
    caches: tuple[str, ...] = (SIXTEEN_BIT,)
    requested: bool = False
    gpus: tuple[int, ...] = (1,)

    def bundle_name(self, weight_format: str, cache_format: str = SIXTEEN_BIT, gpus: int = 1) -> str:
        """The name of its bundle for weights and caches in formats: its own, each format that is not 16 bits, and how many GPUs
        share it, if there are several."""
        name = self.name if weight_format == SIXTEEN_BIT else f"{self.name}-{weight_format}"
        name = name if cache_format == SIXTEEN_BIT else f"{name}-cache-{cache_format}"
        return name if gpus == 1 else f"{name}-{gpus}-gpus"

    def bundles(self) -> Iterator[tuple[str, str, str, int]]:
        """The names of all its bundles, each with its formats of weights and of caches, and its number of GPUs."""
        for weights, cache, gpus in product(self.weights, self.caches, self.gpus):
            yield self.bundle_name(weights, cache, gpus), weights, cache, gpus


class Tuned(Protocol):
    """A tuning for the models of one family; None: any family."""

    @property
    def family(self) -> str | None: ...


class Serving(Protocol):
    """The table of a kernel for a target (`tilec.project.read.served.Served`)."""

    @property
    def tuned(self) -> Tuned: ...
    @property
    def target(self) -> Target: ...
    @property
    def table(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Family:
    """A family's step, read from the file `path`, and its tuning by target: `tables` as bundles contain them, `tunings`
    parsed."""

    name: str
    path: Path
    declaration: Declaration
    tables: Mapping[Target, tuple[dict[str, Any], ...]]
    tunings: Mapping[Target, Tuning]

    def requests(
        self, model: Model, target: Target, weight_format: str = SIXTEEN_BIT, cache_format: str = SIXTEEN_BIT, gpus: int = 1
    ) -> Iterator[Request]:  # fmt: skip
        """Every specialisation that the step of a model can request, in both dtypes, for weights and caches in a format each,
        and for each of `gpus` GPUs; StepError if the model lacks a number, or GPUs cannot have equal parts of it."""
        tuning = self.tunings[target]
        numbers = {**model.config, **tuning.numbers}
        for dtype in DTYPES:
            step = Step(
                self.declaration, numbers, tied=False, dtype=dtype, max_seq_len=1, weight_format=weight_format,
                cache_format=cache_format, ranks=gpus,
            )  # fmt: skip
            yield from requests(step, tuning)

    def span(self, node: Any) -> Span:
        """The span of a syntax node, or of an error with a position, in the step's file."""
        line = getattr(node, "lineno", 0) or getattr(node, "line", 0) or 1
        column = getattr(node, "col_offset", None)
        column = getattr(node, "column", 0) if column is None else column
        same_line = getattr(node, "end_lineno", line) == line
        end = getattr(node, "end_col_offset", None) if same_line else None
        return Span(str(self.path), line, column, line, end if end is not None else column + 1)


def read_models(value: Any, refuse: Refuse, span: Locate) -> tuple[Model, ...]:
    """Read the `[[model]]` tables."""
    found: list[Model] = []
    for index, table in _tables(value, "model", _MODEL_KEYS, refuse, span):
        name, config = table.get("name"), table.get("config")
        if not (isinstance(name, str) and MODEL.fullmatch(name)):
            hint = "use small letters, digits, `-`, `_` and `.`: `qwen3-4b`"
            refuse("E0802", "`name` is not a name for a model", span("model", index, "name"), hint)
            continue
        if not isinstance(config, dict) or not config:
            hint = "write `config = { hidden_size = 2560 }`"
            refuse("E0802", f"`config` of `{name}` is not a table of numbers", span("model", index, "config"), hint)
            continue
        numbers: dict[str, Any] = config  # pyright: ignore[reportUnknownVariableType]
        for key, number in numbers.items():
            if isinstance(number, (int, float, bool, str)) and too_wide(number):
                hint = f"integers have 64 bits, strings {MAX_TEXT} characters"
                refuse("E0514", f"`{key}` is out of range", span("model", index, "config", key), hint)
            if key in _BESIDES:
                hint = f"write `{_BESIDES[key]}` next to `config`"
                refuse("E0802", f"`{key}` is no number of a model", span("model", index, "config", key), hint)
            if not (key.isidentifier() and isinstance(number, (int, float, bool, str))):
                refuse("E0802", f"`{key}` is not a number, bool or string", span("model", index, "config", key))
        if any(model.name == name for model in found):
            refuse("E0806", f"model `{name}` is named twice", span("model", index, "name"), "remove one of them")
        family = _family(table, "model", index, refuse, span)
        weights, caches = (
            _formats(key, table.get(key, [SIXTEEN_BIT]), name, span("model", index, key), refuse)
            for key in ("weights", "caches")
        )
        gpus = _gpus(table.get("gpus", [1]), name, span("model", index, "gpus"), refuse)
        requested = table.get("requested", False)
        if not isinstance(requested, bool):
            refuse("E0802", f"`requested` of `{name}` is not true or false", span("model", index, "requested"))
        model = Model(name, family, numbers, span("model", index, "name"), weights, caches, requested is True, gpus)
        taken = {one for other in found if other.name != name for one, *_ in other.bundles()}
        clash = next((one for one, *_ in model.bundles() if one in taken or not MODEL.fullmatch(one)), None)
        if clash is not None:
            refuse("E0806", f"`{clash}` cannot be the name of a bundle of `{name}`: too long, or another model's", model.span)
        found.append(model)
    return tuple(found)


def _formats(key: str, value: Any, name: str, where: Span, refuse: Refuse) -> tuple[str, ...]:
    """The formats of a model's weights or caches. Those that its step lacks are refused when the step is read."""
    formats: list[Any] = value if isinstance(value, list) else [None]  # pyright: ignore[reportUnknownVariableType]
    if not formats or not all(isinstance(one, str) for one in formats) or len(set(formats)) < len(formats):
        hint = f'write `{key} = ["{SIXTEEN_BIT}", "fp8"]`'
        refuse("E0802", f"`{key}` of `{name}` is not a list of formats, each once", where, hint)
        return (SIXTEEN_BIT,)
    return tuple(formats)


def _gpus(value: Any, name: str, where: Span, refuse: Refuse) -> tuple[int, ...]:
    """The numbers of GPUs that may share a model. Those that cannot are refused when its step is read."""
    numbers: list[Any] = value if isinstance(value, list) else [0]  # pyright: ignore[reportUnknownVariableType]
    allowed = all(type(one) is int and 1 <= one <= MAX_RANKS for one in numbers)
    if not numbers or not allowed or len(set(numbers)) < len(numbers):
        hint = f"write `gpus = [1, 2]`, with numbers from 1 to {MAX_RANKS}"
        refuse("E0802", f"`gpus` of `{name}` is not a list of numbers of GPUs, each once", where, hint)
        return (1,)
    return tuple(numbers)


def too_wide(value: Any) -> bool:
    """Whether an integer has more than 64 bits, or a string more than `MAX_TEXT` characters."""
    if isinstance(value, str):
        return len(value) > MAX_TEXT
    return isinstance(value, int) and value.bit_length() > 64


def split_tuning(
    value: Any, refuse: Refuse, span: Locate
) -> tuple[dict[str, list[dict[str, Any]]], list[tuple[int, dict[str, Any]]]]:
    """The `[[tuning]]` tables: those with numbers by family, and those of kernels with their index in the file."""
    numbers: dict[str, list[dict[str, Any]]] = {}
    kernels: list[tuple[int, dict[str, Any]]] = []
    for index, table in _tables(value, "tuning", _TUNING_KEYS, refuse, span):
        if "family" in table or "kernel" not in table:
            family = _family(table, "tuning", index, refuse, span)
        else:
            family = None
        if "kernel" in table:
            kernels.append((index, table | {"family": family}))
        if family is None or ("kernel" in table and "numbers" not in table):
            continue
        rest = {key: item for key, item in table.items() if key in ("numbers", "measured")}
        numbers.setdefault(family, []).append(rest)
        try:
            read_tuning([rest])
        except StepError as error:
            refuse("E0802", str(error), span("tuning", index), "`tilec explain E0810` shows a table")
    return numbers, kernels


def read_families(
    folder: Path, models: tuple[Model, ...], numbers: Mapping[str, list[dict[str, Any]]], served: Sequence[Serving],
    refuse: Refuse,
) -> dict[str, Family]:  # fmt: skip
    """The families of `models`, with their numbers and the tables of their kernels."""
    found: dict[str, Family] = {}
    for model in {model.family: model for model in reversed(models)}.values():
        own = folder / model.family
        path = (own if own.is_dir() else folder) / f"{model.family}.step"
        numbers_of_model = numbers.get(model.family, [])
        tables = {
            target: (
                *numbers_of_model,
                *(one.table for one in served if one.target == target and one.tuned.family in (None, model.family)),
            )
            for target in TARGETS
        }
        try:
            text = read_file(path, MAX_STEP).decode("utf-8")
            found[model.family] = Family(model.family, path, read_declaration(text), tables, _read_once(tables))
        except OSError as error:
            hint = f'write it, or name the folder of steps: `[build]` with `steps = "{folder.name}"`'
            refuse("E0808", f"`{path.name}`, the step of `{model.name}`, cannot be read: {error.strerror}", model.span, hint)
        except UnicodeDecodeError as error:
            refuse("E0808", f"`{path}` is not UTF-8 at byte {error.start}", model.span)
        except StepError as error:
            location = Span(str(path), error.line, error.column, error.line, max(error.end, error.column + 1))
            refuse("E0808", str(error), location if error.line else model.span)
    for model in models:
        if model.family in found:
            _refuse_other_formats(model, found[model.family], refuse)
    return found


def _refuse_other_formats(model: Model, family: Family, refuse: Refuse) -> None:
    step = family.declaration
    for what, given, declared in (("weights", model.weights, step.formats), ("caches", model.caches, step.caches)):
        known = (SIXTEEN_BIT, *declared)
        for one in given:
            if one not in known:
                hint = ask_first(one, known, f"its formats are {', '.join(f'`{name}`' for name in known)}")
                refuse("E0802", f"the step of `{model.name}` has no {what} in `{one:.60}`", model.span, hint)


def _read_once(tables: Mapping[Target, tuple[dict[str, Any], ...]]) -> dict[Target, Tuning]:
    """The tuning of each target. Equal tables share one object, because it caches the choices made for each prompt length."""
    known: dict[str, Tuning] = {}
    for some in tables.values():
        if repr(some) not in known:
            known[repr(some)] = read_tuning(some)
    return {target: known[repr(some)] for target, some in tables.items()}


def _tables(
    value: Any, name: str, keys: tuple[str, ...], refuse: Refuse, span: Locate
) -> Iterator[tuple[int, dict[str, Any]]]:  # fmt: skip
    items: list[Any] = value if isinstance(value, list) else [None]  # pyright: ignore[reportUnknownVariableType]
    for index, item in enumerate(items):
        if not isinstance(item, dict):
            refuse("E0802", f"`{name}` is not a list of tables", span(name), f"write `[[{name}]]`")
            return
        table: dict[str, Any] = item  # pyright: ignore[reportUnknownVariableType]
        for key in table:
            if key not in keys:
                hint = ask_first(key, keys, f"the keys here are {', '.join(f'`{one}`' for one in keys)}")
                refuse("E0802", f"unknown key `{key}`", span(name, index, key), hint)
        yield index, table


def _family(table: Mapping[str, Any], name: str, index: int, refuse: Refuse, span: Locate) -> str:
    family = table.get("family")
    if isinstance(family, str) and _MODEL_NAME.fullmatch(family):
        return family
    refuse(
        "E0802",
        "`family` is not the name of a family's step",
        span(name, index, "family"),
        "use small letters, digits, `-` and `_`",
    )
    return ""
