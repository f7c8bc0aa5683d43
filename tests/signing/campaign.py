"""Tries families of changes on something that must then be refused, and reports the outcome of each family.

A `Subject` is anything that is verified before it is used: files below a folder, how to restore them, and how to use them. A
`Family` changes a right subject, by a seed; the subject must then be refused, with one of its documented codes, quickly and in
little memory. It must never be used. A family that may be harmless (a file is changed while it is read: before, after, or in
the middle) may also end in a use of the sound content, which the subject asserts.
"""

from __future__ import annotations

import dataclasses
import random
import signal
import time
import tracemalloc
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from tests.fuzz.watch import Tally

HANGS_AFTER = 30
"""Processor seconds after which a use counts as hanging."""


class Subject(Protocol):
    """The target of tampering."""

    folder: Path

    def restore(self) -> None:
        """Restores everything."""
        ...

    def use(self) -> None:
        """Verifies and uses it. Returns the refusal's code, or an empty text; AssertionError if anything but the right content
        was used."""
        ...


@dataclass(frozen=True, slots=True)
class Family:
    """A kind of change. `change` gets a subject and a seeded generator, and may return another way to use it than the subject's
    own; `harmless`: a use of the sound content is right too; `refusal` and `codes`: the expected refusal."""

    change: Callable[[Any, random.Random], Callable[[], None] | None]
    refusal: type[Exception]
    codes: tuple[str, ...]
    harmless: bool = False


@dataclass
class Outcome:
    """The outcome of a family; `used` counts only harmless uses, others are in `wrong`."""

    tried: int = 0
    refused: dict[str, int] = field(default_factory=dict[str, int])
    used: int = 0
    wrong: list[str] = field(default_factory=list[str])
    worst_seconds: float = 0.0
    worst_mib: float = 0.0
    """Peak growth of Python's memory during one use."""


class Hanged(Exception):
    """A use that does not end."""


def run(
    subject: Subject, families: Mapping[str, Family], count: int, seed: int, *, memory: bool = True
) -> dict[str, Outcome]:  # fmt: skip
    """Tries `count` changes, cycling through the families; returns outcomes by family. With `memory`, each repeatable use runs
    a second time to measure its memory."""
    found = {name: Outcome() for name in families}
    subject.restore()
    for _ in range(2):  # imports and compiles everything a reader needs
        subject.use()
    names = list(families)
    for number in range(count):
        name = names[number % len(names)]
        _attempt(subject, families[name], found[name], f"{name} {number}", seed * 1_000_003 + number, memory)
        if number % 50 == 0:
            subject.restore()
            subject.use()  # the unchanged subject opens
    subject.restore()
    subject.use()
    return found


def _attempt(subject: Subject, family: Family, outcome: Outcome, label: str, seed: int, memory: bool) -> None:
    subject.restore()
    use = family.change(subject, random.Random(seed)) or subject.use
    tally = Tally()
    began = time.process_time()
    with _deadline():
        accepted = tally.attempt(label, 0, subject.folder, lambda: refusal(use, family))
    outcome.worst_seconds = max(outcome.worst_seconds, time.process_time() - began)
    outcome.tried += 1
    for code, times in tally.refused.items():
        if code.startswith("E"):
            outcome.refused[code] = outcome.refused.get(code, 0) + times
    outcome.wrong += [f"{line}, seed {seed}" for line in (*tally.violations, *tally.tracebacks, *tally.wrong)]
    if accepted and family.harmless:
        outcome.used += 1
    elif accepted:
        outcome.wrong.append(f"{label}, seed {seed}: it was used")
    if memory and not family.harmless:
        outcome.worst_mib = max(outcome.worst_mib, _traced(lambda: refusal(use, family)))


def refusal(use: Callable[[], None], family: Family) -> str:
    """The code of a refusal, or an empty text; AssertionError for an undocumented one."""
    try:
        use()
    except family.refusal as error:
        code, text = str(getattr(error, "code", "")), str(error)
        if code not in family.codes or "\n" in text or len(text) > 2000 or not text.isprintable():
            raise AssertionError(f"a bad refusal: {text!r:.300}") from None
        return code
    return ""


def _traced(use: Callable[[], Any]) -> float:
    tracemalloc.start()
    try:
        use()
        return tracemalloc.get_traced_memory()[1] / (1 << 20)
    finally:
        tracemalloc.stop()


@contextmanager
def _deadline() -> Generator[None]:
    def end(number: int, frame: FrameType | None) -> None:
        raise Hanged(f"no answer in {HANGS_AFTER} s of processor time")

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, HANGS_AFTER)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def as_json(outcomes: Mapping[str, Outcome]) -> dict[str, Any]:
    """Plain data."""
    return {name: dataclasses.asdict(one) for name, one in outcomes.items()}
