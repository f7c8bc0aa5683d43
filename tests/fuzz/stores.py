"""Stores written by somebody else: forges one, uses it with every command, and checks the outcome.

In: the store that a build of a small project with `fake_stages` left, and a seed. Out: the forgeries and the violations. A
store is used in a forked process with an audit hook (PEP 578) that records code that runs, files that are opened or changed
outside the store and the project, and names that are opened without `O_NOFOLLOW`. The products must be those of an undisturbed
build, every refusal one clear error of the store, and everything must end within the time limit.
"""

from __future__ import annotations

import contextlib
import io
import random
import shutil
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fuzz.store_forgeries import forge
from tests.fuzz.store_scene import Scene, in_child, inline_workers, products
from tests.fuzz.store_watch import Watch
from tests.project import project
from tilec.cache import Store
from tilec.diagnostics.diagnostic import CompileError

REFUSALS = {"E0701", "E0711", "E0712"}
LATER = 1e5


@dataclass
class Result:
    """The outcome for one store: `wrong` is empty if it passed."""

    seed: int
    forged: list[str] = field(default_factory=list[str])
    wrong: list[str] = field(default_factory=list[str])
    refused: list[str] = field(default_factory=list[str])
    hits: int = 0
    seconds: float = 0.0


def one(scene: Scene, seed: int) -> Result:
    """Forges a store from `seed` and uses it in a process of its own."""
    rng, result = random.Random(seed), Result(seed)
    store = scene.root.parent / "store"
    if store.is_dir() and not store.is_symlink():
        shutil.rmtree(store)
    else:  # the last seed left a link, a pipe or a socket of that name
        store.unlink(missing_ok=True)
    shutil.copytree(scene.clean, store)
    store.chmod(0o700)
    scene.lay_out()
    result.forged = forge(store, rng, scene)
    before = scene.untouched()
    shown = in_child(lambda: _use(scene, store, keyed=bool(seed % 2)))
    result.wrong, result.refused, result.hits = shown["wrong"], shown["refused"], shown["hits"]
    result.seconds = shown["seconds"]
    if scene.untouched() != before:
        changed = {str(item) for item in set(scene.untouched()) ^ set(before)}
        result.wrong.append(f"files outside were touched: {sorted(changed)[:3]}")
    return result


def _use(scene: Scene, store: Path, *, keyed: bool) -> dict[str, Any]:
    """In the child: builds twice, verifies, prunes, measures, cleans."""
    wrong: list[str] = []
    refused: list[str] = []
    hits = 0
    inline_workers()
    output = scene.root / "artifacts" / "build"
    shutil.rmtree(output, ignore_errors=True)
    watch = Watch((store, scene.root, scene.key), scene.outside)
    with scene.environment(store, keyed):
        watch.start()
        for step in ("build", "verify", "size", "build", "prune", "build", "verify", "clean"):
            try:
                if step == "build":
                    built = project.build(scene.root)
                    hits += sum(item.status == "hit" for item in built.results)
                    texts = [item.message for item in built.diagnostics]
                    _report(wrong, f"{step}: {texts[:2]}", bool(texts))
                    _report(wrong, "wrong products", products(scene.root) != scene.products)
                    _fingerprint(wrong)
                else:
                    _command(step, wrong, refused)
            except CompileError as error:
                codes = {item.code for item in error.diagnostics}
                refused.extend(sorted(codes))
                _report(wrong, f"{step}: {error}", not codes <= REFUSALS)
            except Exception:
                wrong.append(f"{step}: traceback: {traceback.format_exc()[-1500:]}")
        watch.stop()
    return {"wrong": [*wrong, *watch.seen], "refused": refused, "hits": hits}


def _report(wrong: list[str], what: str, bad: bool) -> None:
    if bad:
        wrong.append(what)


def _command(step: str, wrong: list[str], refused: list[str]) -> None:
    """Runs a command of `tilec cache` with an ASCII-only stdout, as under LC_ALL=C."""
    from tilec.cli import commands

    streams = [io.TextIOWrapper(io.BytesIO(), encoding="ascii", write_through=True) for _ in range(2)]
    with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
        status = commands.run(["cache", step])
    shown = b"".join(stream.buffer.getvalue() for stream in streams).decode()  # type: ignore[attr-defined]
    if "Traceback" in shown or "internal error" in shown or "\x1b" in shown:
        wrong.append(f"{step}: {shown[-1500:]}")
    if status == 2:
        refused.append(step)
        _report(wrong, f"{step}: {shown[-500:]}", not any(code in shown for code in REFUSALS))


_FINGERPRINT: list[dict[str, str]] = []


def _fingerprint(wrong: list[str]) -> None:
    """A stub for the toolchain's fingerprint, whose note may be forged too: the one of a small package."""
    from tilec.cache import store_root
    from tilec.toolchain import Package, fingerprint

    packages = (Package("ml-dtypes", "ml_dtypes"),)
    if not _FINGERPRINT:
        _FINGERPRINT.append(fingerprint(None, packages))
    with contextlib.closing(Store(store_root())) as store:
        _report(wrong, "wrong fingerprint", fingerprint(store, packages) != _FINGERPRINT[0])


def campaign(folder: Path, count: int, seed: int = 0, stop: Callable[[Result], bool] | None = None) -> list[Result]:
    """Tries `count` stores from `seed` on."""
    scene = Scene.make(folder)
    results: list[Result] = []
    for number in range(seed, seed + count):
        results.append(one(scene, number))
        if stop is not None and stop(results[-1]):
            break
    return results
