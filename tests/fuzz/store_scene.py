"""A project and the store of an undisturbed build: the reference for forged stores.

In: a folder. Out: a `Scene`, the products of a build, and `in_child`, which uses a store in a forked process.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import select
import shutil
import signal
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.processor_time import TICK, Use
from tests.project import project
from tilec.cache.seal import KEY_FILE

SECONDS = 300.0
"""Processor time for all uses of one forged store."""


@dataclass
class Scene:
    """A project, the store of an undisturbed build, its products, and files outside of both that nothing may touch."""

    root: Path
    clean: Path
    products: dict[str, bytes]
    outside: Path
    key: Path

    @classmethod
    def make(cls, folder: Path) -> Scene:
        """Builds once, with a key and without, into one store."""
        root = project.make(folder / "p")
        scene = cls(root, folder / "clean", {}, folder / "outside", folder / "key")
        scene.lay_out()
        report = in_child(scene.build_both)
        assert not report["wrong"], report["wrong"]
        scene.products = products(root)
        return scene

    def build_both(self) -> dict[str, Any]:
        """In a child: the undisturbed builds, one without a key and one with."""
        inline_workers()
        for keyed in (False, True):
            with self.environment(self.clean, keyed):
                project.build(self.root)
        return {"wrong": [], "refused": [], "hits": 0}

    def lay_out(self) -> None:
        """Writes the files outside anew: a forger can have changed them through a hard link."""
        shutil.rmtree(self.outside, ignore_errors=True)
        (self.outside / "deep").mkdir(parents=True)
        for name in ("a.json", "a.cubin", "deep/b.ptx", "deep/code.py"):
            (self.outside / name).write_text(f"precious {name}")

    @contextlib.contextmanager
    def environment(self, store: Path, keyed: bool) -> Iterator[None]:
        """The environment of a user of `store`, with a key or without."""
        before = dict(os.environ)
        os.environ["TILEC_CACHE_DIR"] = str(store)
        os.environ.pop(KEY_FILE, None)
        if keyed:
            os.environ[KEY_FILE] = str(self.key)
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)

    def untouched(self) -> list[tuple[str, str, int, int]]:
        """The files outside, by name, digest, time of modification and mode."""
        found: list[tuple[str, str, int, int]] = []
        for path in sorted(self.outside.rglob("*")):
            status = path.lstat()
            data = path.read_bytes() if path.is_file() else b""
            found.append((str(path), hashlib.sha256(data).hexdigest(), status.st_mtime_ns if data else 0, status.st_mode))
        return found


def products(root: Path) -> dict[str, bytes]:
    """The files in `artifacts/build` after a build."""
    folder = root / "artifacts" / "build"
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def in_child(action: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The result of `action` in a forked process, and its processor `seconds`; reports a timeout or the process' death."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        os.close(reader)
        try:
            report = action()
        except BaseException:
            report = {"wrong": [f"traceback: {traceback.format_exc()[-1500:]}"], "refused": [], "hits": 0}
        with os.fdopen(writer, "w") as pipe:
            json.dump(report, pipe)
        os._exit(0)
    os.close(writer)
    text, use, why = b"", Use(child, SECONDS), ""
    with os.fdopen(reader, "rb", buffering=0) as pipe:
        while not why:
            if not select.select([pipe], [], [], TICK)[0]:
                why = use.look()
            elif part := pipe.read(65536):
                text += part
            else:
                break
        else:
            os.kill(child, signal.SIGKILL)
    took = os.wait4(child, 0)[2]
    seconds = {"seconds": took.ru_utime + took.ru_stime}
    try:
        return json.loads(text) | seconds
    except ValueError:
        return {"wrong": [f"no answer: {why or 'it died'}"], "refused": [], "hits": 0} | seconds


def inline_workers() -> None:
    """Runs tasks in this process, where the audit hook sees them."""
    from tilec.project.build import driver
    from tilec.workers.scheduler import Finished, Report

    def run(tasks: Any, runner: Any, workers: int, preload: Any = (), say: Any = None) -> Iterator[Any]:
        for index, task in enumerate(tasks):
            report: list[Any] = []
            runner(task, report.append)
            yield from (Report(index, message) for message in report)
            yield Finished(index)

    driver.run_tasks = run  # type: ignore[assignment]
