"""Files that change while they are read, and after: the change happens at one system call of the reader, chosen by seed.

The reader's calls are counted (with a substitute for `os` in `tilec.untrusted.regular_file`), so that every moment between two
of them can be tested, reproducibly. The result must be a refusal or the sound bundle.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.signing.scene import NAME, SIDECAR, SignedSetup
from tilec.runtime import open_bundle
from tilec.untrusted import regular_file

CALLS = ("open", "fstat", "pread", "read", "close")


class Interrupted:
    """The module `os`, which runs an action before its call number `at`."""

    def __init__(self, at: int = 0, act: Callable[[], None] | None = None) -> None:
        self.calls, self._at, self._act = 0, at, act

    def __getattr__(self, name: str) -> Any:
        found = getattr(os, name)
        if name not in CALLS:
            return found

        def call(*arguments: Any, **options: Any) -> Any:
            self.calls += 1
            if self.calls == self._at and self._act is not None:
                self._act()
            return found(*arguments, **options)

        return call


def _acts(setup: SignedSetup, path: Path, rng: random.Random) -> Callable[[], None]:
    """A change of a file, in place or by renaming another one to its path."""
    data = setup.sound[path.name]
    other_bundle, other_sidecar = setup.others[rng.choice(list(setup.others))]
    other = other_bundle if path.name == NAME else other_sidecar
    offset = rng.randrange(len(data))
    kind = rng.randrange(7)

    def act() -> None:
        if kind == 0:
            os.truncate(path, offset)
        elif kind == 1:
            with path.open("r+b") as file:
                file.seek(offset)
                file.write(bytes([data[offset] ^ 1]))
        elif kind == 2:
            path.write_bytes(other)
        elif kind == 3:
            path.with_name("new").write_bytes(other)
            path.with_name("new").replace(path)
        elif kind == 4:
            with path.open("ab") as file:
                file.write(b"x" * rng.randrange(1, 5000))
        elif kind == 5:
            path.unlink()
            os.mkfifo(path)
        else:
            path.unlink()
            path.symlink_to(setup.folder / "first.pub")

    return act


def changed_while_loading(setup: SignedSetup, rng: random.Random) -> Callable[[], None]:
    """Changes bundle or sidecar at one moment of opening."""
    path = setup.folder / rng.choice((NAME, SIDECAR))
    all_calls = Interrupted()
    _used(setup, all_calls)
    moment = Interrupted(rng.randrange(1, all_calls.calls + 1), _acts(setup, path, rng))
    return lambda: _used(setup, moment)


def _used(setup: SignedSetup, system: Interrupted) -> None:
    """The scene opened, with `system` for the operating system."""
    regular_file.os = system  # pyright: ignore[reportAttributeAccessIssue]
    try:
        setup.use()
    finally:
        regular_file.os = os


def changed_after_loading(setup: SignedSetup, rng: random.Random) -> Callable[[], None]:
    """Changes everything once the bundle is open: the open bundle stays the same."""
    acts = [_acts(setup, setup.folder / name, rng) for name in (NAME, SIDECAR)]

    def use() -> None:
        with open_bundle(setup.bundle, trust=setup.policy) as bundle:
            setup.check(bundle)
            for act in acts:
                act()
            setup.check(bundle)

    return use
