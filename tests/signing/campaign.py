"""Tries families of changes on something that must then be refused, and says what each family came to.

A `Subject` is whatever is verified before it is used: files below a folder, how to put them right, and how to use them. A
`Family` changes a subject that is right, by a seed; the subject must refuse to be used, with an error of the codes that it
documents, soon and in little memory. The one thing that must not happen is that it was used. A family that may be harmless (a
file is changed while it is read: before or after, or in the middle) may also end in a use, of the sound content, which the
subject asserts.
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
"""Processor seconds after which a use is taken to go on for ever."""


class Subject(Protocol):
    """What is tampered with."""

    folder: Path

    def restore(self) -> None:
        """Make everything right again."""
        ...

    def use(self) -> None:
        """Verify and use it; `refusal` where that is refused, AssertionError where anything but the right thing was used."""
        ...


@dataclass(frozen=True, slots=True)
class Family:
    """A kind of change. `change` gets a subject and a seeded generator, and may give back how to use it, where that is not the
    subject's own way; `harmless` says that a use of the sound content is right too; `refusal` and `codes` say what refuses."""

    change: Callable[[Any, random.Random], Callable[[], None] | None]
    refusal: type[Exception]
    codes: tuple[str, ...]
    harmless: bool = False


@dataclass
class Outcome:
    """What a family came to; `used` counts only uses that are harmless, others are in `wrong`."""

    tried: int = 0
    refused: dict[str, int] = field(default_factory=dict[str, int])
    used: int = 0
    wrong: list[str] = field(default_factory=list[str])
    worst_seconds: float = 0.0
    worst_mib: float = 0.0
    """Most memory that Python held more than before, during one use."""


class Hanged(Exception):
    """A use that does not end."""


def run(
    subject: Subject, families: Mapping[str, Family], count: int, seed: int, *, memory: bool = True
) -> dict[str, Outcome]:  # fmt: skip
    """Try `count` changes, the families in turn; by family what came of them. With `memory` each that can be is used a second
    time to measure what it takes."""
    found = {name: Outcome() for name in families}
    subject.restore()
    for _ in range(2):  # imports and compiles what a reader needs
        subject.use()
    names = list(families)
    for number in range(count):
        name = names[number % len(names)]
        _attempt(subject, families[name], found[name], f"{name} {number}", seed * 1_000_003 + number, memory)
        if number % 50 == 0:
            subject.restore()
            subject.use()  # what is not changed opens
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
    """The code of a refusal, empty where there was none; AssertionError for one that is not as documented."""
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
