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

from tests.signing.scene import NAME, SIDECAR, Scene
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


def _acts(scene: Scene, path: Path, rng: random.Random) -> Callable[[], None]:
    """A change of a file, in place or by renaming another one to its path."""
    data = scene.sound[path.name]
    other_bundle, other_sidecar = scene.others[rng.choice(list(scene.others))]
    other = other_bundle if path.name == NAME else other_sidecar
    at = rng.randrange(len(data))
    kind = rng.randrange(7)

    def act() -> None:
        if kind == 0:
            os.truncate(path, at)
        elif kind == 1:
            with path.open("r+b") as file:
                file.seek(at)
                file.write(bytes([data[at] ^ 1]))
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
            path.symlink_to(scene.folder / "first.pub")

    return act


def changed_while_loading(scene: Scene, rng: random.Random) -> Callable[[], None]:
    """Changes bundle or sidecar at one moment of opening."""
    path = scene.folder / rng.choice((NAME, SIDECAR))
    whole = Interrupted()
    _used(scene, whole)
    moment = Interrupted(rng.randrange(1, whole.calls + 1), _acts(scene, path, rng))
    return lambda: _used(scene, moment)


def _used(scene: Scene, system: Interrupted) -> None:
    """The scene opened, with `system` for the operating system."""
    regular_file.os = system  # pyright: ignore[reportAttributeAccessIssue]
    try:
        scene.use()
    finally:
        regular_file.os = os


def changed_after_loading(scene: Scene, rng: random.Random) -> Callable[[], None]:
    """Changes everything once the bundle is open: the open bundle stays the same."""
    acts = [_acts(scene, scene.folder / name, rng) for name in (NAME, SIDECAR)]

    def use() -> None:
        with open_bundle(scene.bundle, trust=scene.policy) as bundle:
            scene.check(bundle)
            for act in acts:
                act()
            scene.check(bundle)

    return use
