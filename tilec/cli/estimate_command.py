"""`tilec estimate`: the predicted time of a launch on a card, from the kernel's schedule, and what bounds it. Needs no GPU."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tilec.cli.project import (
    UsageError,
    chosen_targets,
    named_gpu,
    notify,
    open_one,
    open_store,
    print_diagnostics,
    status_of,
    toolchain,
)  # fmt: skip
from tilec.diagnostics.diagnostic import CompileError

if TYPE_CHECKING:
    from tilec.cost_model.cards import Card
    from tilec.cost_model.estimate import Estimate
    from tilec.ir.core import Function
    from tilec.project.read.plan import Planned
    from tilec.tuning.prediction import Scheduled

COMPARED = "compared with measurements on it: ci/bench/results/time_model.md"
NEVER = "never compared with a measurement on it"


def estimate_command(
    project: str | None, kernel: str, constants: tuple[str, ...], dims: str, gpu: str, *, overlapped: bool, as_json: bool
) -> int:  # fmt: skip
    """Print the estimate of one launch of one specialisation. Returns the exit status."""
    from tilec.cost_model.cards import CARDS
    from tilec.cost_model.work import UnknownWork
    from tilec.tuning.prediction import predict

    card = named_gpu(gpu, CARDS)
    try:
        made = _scheduled(project, kernel, constants, card)
    except CompileError as error:
        print_diagnostics(error.diagnostics)
        return status_of(error.diagnostics)
    values = _values(made, dims)
    try:
        (found,) = predict((made.on(card, values),), card, overlapped=overlapped)
    except UnknownWork as error:
        raise UsageError(f"`{made.function.name}` has no estimate: {error}") from None
    if as_json:
        print(json.dumps(_data(made, card, values, found), indent=1))
    else:
        print("\n".join(_lines(made, card, values, found)))
    return 0


def _scheduled(project: str | None, kernel: str, constants: tuple[str, ...], card: Card) -> Scheduled:
    """The kernel after all scheduling passes, for the card's architecture. CompileError if it is refused."""
    from tilec.cache import FileDigests
    from tilec.project.read.plan import plan
    from tilec.tuning.prediction import parsed, texts
    from tilec.workers.call import call

    build, entry = open_one(project, kernel, constants, card.arch)
    with contextlib.closing(open_store()) as store:
        targets = chosen_targets(card.arch)
        assert targets is not None
        planned, refusals = plan(build, (entry,), targets, store, FileDigests(), toolchain(store))
        if refusals:
            raise CompileError(*(item for refusal in refusals for item in refusal.diagnostics))
        item: Planned = planned[0]
        what = f"scheduling of kernel `{item.request.kernel}`"
        text: tuple[str, dict[str, Any]] = call(texts, item.request, item.target, str(store.root), what=what, notify=notify)
    return parsed(*text)


def _values(made: Scheduled, dims: str) -> dict[str, int | float]:
    """The launch values: those given, and for the rest 1 for floats and strides without gaps. UsageError if one is missing or
    not allowed."""
    from tilec.ir.types import TileType
    from tilec.project.trial.launches import LaunchValuesError, given_values

    function = made.function
    try:
        given = given_values(dims)
    except LaunchValuesError as error:
        raise UsageError(str(error)) from None
    kinds = {one.name: one.value.type.dtype.kind for one in function.parameters if isinstance(one.value.type, TileType)}
    floats = [name for name, kind in kinds.items() if name not in given and kind == "f"]
    integers = [name for name, kind in kinds.items() if name not in given and kind in "iu"]
    missing = [name for name in (*function.dims, *integers) if name not in given and name not in function.strides]
    if missing:
        raise UsageError(f"`--dims` leaves {', '.join(f'`{name}`' for name in missing)} open")
    values: dict[str, int | float] = {**given, **dict.fromkeys(floats, 1.0)}
    values = {**_strides_without_gaps(function, {name: int(value) for name, value in given.items()}), **values}
    integer_values = {name: int(value) for name, value in values.items() if name not in floats}
    for one in function.requires:
        if not one.condition.evaluate(integer_values):
            raise UsageError(f"the kernel requires {one.condition}")
    return values


def _strides_without_gaps(function: Function, dims: dict[str, int]) -> dict[str, int]:
    """Strides by name, of tensors whose elements follow each other."""
    from tilec.ir.types import TensorType

    strides: dict[str, int] = {}
    for tensor in (parameter.value.type for parameter in function.parameters):
        if not isinstance(tensor, TensorType) or tensor.strides is None:
            continue
        step = 1
        for dim, stride in reversed(list(zip(tensor.dims, tensor.strides, strict=True))):
            if stride.op == "sym":
                strides[stride.name] = step
            step *= dim.evaluate(dims)
    return strides


def _data(made: Scheduled, card: Card, values: Mapping[str, int | float], found: Estimate) -> dict[str, Any]:
    return {
        "kernel": made.function.name, "constants": made.function.constants, "launch": dict(values), "card": card.name,
        "arch": card.arch, "schedule": made.schedule.to_json(), "predicted_us": found.microseconds,
        "clock_ghz": found.clock / 1e9, "bound": found.bound, "alone_us": dict(found.parts), "compared": card.measured,
        "bytes": {"read": found.traffic.read, "copied": found.traffic.copied, "written": found.traffic.written},
        "multiply_adds": found.multiply_adds,
    }  # fmt: skip


def _lines(made: Scheduled, card: Card, values: Mapping[str, int | float], found: Estimate) -> list[str]:
    from tilec.project.trial.launches import values_text

    constants = " ".join(f"{name}={value}" for name, value in made.function.constants.items())
    launch = values_text(values)
    head = [
        f"{made.function.name}  {constants}  {card.arch}  {made.schedule}",
        f"{card.name}; the model was {COMPARED if card.measured else NEVER}",
        f"{launch}: {found.microseconds:.2f} us predicted, at {found.clock / 1e9:.2f} GHz; bound by {found.bound}",
    ]
    width = max(map(len, found.parts))
    rows = [f"{'alone':{width}}  {'us':>10}  {'of all':>6}"]
    for name, alone in found.parts.items():
        rows.append(f"{name:{width}}  {alone:10.2f}  {alone / found.microseconds:6.0%}")
    return [*head, *rows]
