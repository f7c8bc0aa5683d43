"""Faults for a build to survive: sudden death, damaged stores, concurrent builders, unwritable disks.

Each function injects a fault many times, checks what the store then serves, and returns counts; `wrong` and `unexplained` must
be empty. The right result is known from an undisturbed build, since builds are reproducible.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tilec.cache import Store
from tilec.cache.maintain import prune

ROOT = Path(__file__).resolve().parents[2]
Reference = dict[str, dict[str, str]]
"""Digests of the outputs by name, by key."""


@dataclass
class Count:
    """The outcomes of one kind of fault."""

    tried: int = 0
    served: int = 0
    misses: int = 0
    wrong: list[str] = field(default_factory=list[str])
    unexplained: list[str] = field(default_factory=list[str])
    notes: dict[str, Any] = field(default_factory=dict[str, Any])

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def environment(store: Path) -> dict[str, str]:
    """The environment of a build that uses this store and finds the project's packages. It writes no bytecode: Python does not
    detect truncated files, so other processes would load a partially written module."""
    return os.environ | {"TILEC_CACHE_DIR": str(store), "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}


def tilec(*arguments: str) -> list[str]:
    """A command line of tilec in a process of its own."""
    return [sys.executable, "-m", "tilec", *arguments]


def keys_of(store: Path) -> Reference:
    """Every entry of a store."""
    with contextlib.closing(Store(store)) as opened:
        return {key: record["outputs"] for key, record in opened.records()}


def outputs_of(root: Path) -> dict[str, bytes]:
    """The files in `artifacts/build` after a build."""
    folder = root / "artifacts" / "build"
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.*")) if path.is_file()}


def examine(store: Path, reference: Reference, count: Count, keys: Sequence[str] | None = None, *, damaged: bool) -> None:
    """Looks up every entry (or `keys`): a served entry must be right, and a miss must be explained by a problem."""
    with contextlib.closing(Store(store)) as opened:
        for key in list(reference) if keys is None else keys:
            before = len(opened.problems)
            listed = opened.digests(key)
            entry = opened.lookup(key, key[:8]) if listed is not None else None
            if entry is not None:
                count.served += 1
                if entry.digests != reference[key]:
                    count.wrong.append(key)
            elif listed is not None or damaged:
                count.misses += 1
                if len(opened.problems) == before and listed is not None:
                    count.unexplained.append(key)


def killed_builds(root: Path, command: list[str], kills: int, seed: int) -> Count:
    """Kills a build and all its workers `kills` times at random moments; the store is kept until a build completes."""
    rng, count = random.Random(seed), Count()
    safe, store = root.parent / "safe", root.parent / "killed"
    start = time.monotonic()
    subprocess.run(command, cwd=root, env=environment(safe), check=True, capture_output=True)
    seconds = time.monotonic() - start
    reference, right = keys_of(safe), outputs_of(root)
    finished, known = 0, set[str]()
    while count.tried < kills:
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen(command, cwd=root, env=environment(store), start_new_session=True, **quiet)
        try:
            process.wait(rng.uniform(0, seconds))
            finished += 1
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            count.tried += 1
        if not (store / "v2" / "entries").exists():
            continue
        examine(store, reference, count, damaged=False)
        present = set(keys_of(store))
        count.wrong.extend(present - reference.keys())
        count.unexplained.extend(known - present)
        known = present
        if len(present) == len(reference):
            shutil.rmtree(store)
            known = set()
    temporary = sum(1 for _ in store.rglob(".tmp-*")) if store.exists() else 0
    shutil.rmtree(root / "artifacts" / "build")
    subprocess.run(command, cwd=root, env=environment(store), check=True, capture_output=True)
    if outputs_of(root) != right:
        count.wrong.append("outputs of the build after the last kill")
    with contextlib.closing(Store(store)) as opened:
        prune(opened, now=time.time() + 10_000)
    if any(store.rglob(".tmp-*")):
        count.unexplained.append("temporary files that pruning leaves")
    count.notes = {
        "builds that got through": finished,
        "temporary files left for pruning": temporary,
        "entries": len(reference),
    }
    return count


def _damage(path: Path, rng: random.Random, others: list[Path]) -> str:
    data = path.read_bytes()
    kind = rng.choice(("flip", "truncate", "empty", "grow", "remove", "another entry's"))
    if kind == "flip" and data:
        changed = bytearray(data)
        changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(changed)
    elif kind == "truncate" and data:
        path.write_bytes(data[: rng.randrange(len(data))])
    elif kind == "grow":
        path.write_bytes(data + rng.randbytes(9))
    elif kind == "remove":
        path.unlink()
    elif kind == "another entry's":
        path.write_bytes(rng.choice([other for other in others if other != path]).read_bytes())
    else:
        path.write_bytes(b"" if data else b"x")
    return kind


def damaged_entries(store: Path, count: int, seed: int) -> Count:
    """Damages one blob after the other. Exactly the entries that name it must miss and report it, and nothing wrong may be
    served."""
    rng, result = random.Random(seed), Count()
    reference = keys_of(store)
    blobs = sorted((store / "v2" / "blobs").iterdir())
    users: dict[str, list[str]] = {}
    for key, outputs in reference.items():
        for digest in set(outputs.values()):  # two products of an entry may be the same bytes
            users.setdefault(digest, []).append(key)
    blobs = [path for path in blobs if path.name in users]
    kinds: dict[str, int] = {}
    for _ in range(count):
        path = rng.choice(blobs)
        data = path.read_bytes()
        kind = _damage(path, rng, blobs)
        kinds[kind] = kinds.get(kind, 0) + 1
        touched = users[path.name]
        with contextlib.closing(Store(store)) as opened:
            for key in touched:
                before = len(opened.problems)
                if opened.lookup(key, key[:8]) is not None:
                    result.wrong.append(f"{kind} of {path.name[:12]}")
                else:
                    result.misses += 1
                    if len(opened.problems) == before:
                        result.unexplained.append(f"{kind} of {path.name[:12]}")
            for key in rng.sample(list(reference), min(5, len(reference))):
                entry = opened.lookup(key) if key not in touched else None
                if entry is not None:
                    result.served += 1
                    if entry.digests != reference[key]:
                        result.wrong.append(key)
                elif key not in touched:
                    result.unexplained.append(f"{key[:12]} went with {path.name[:12]}")
            path.write_bytes(data)
            for key in touched:
                again = {name: opened.blob_path(digest).read_bytes() for name, digest in reference[key].items()}
                opened.put(key, again)
        result.tried += 1
    result.notes = {"kinds": dict(sorted(kinds.items())), "entries": len(reference), "blobs": len(blobs)}
    return result


def damaged_index(store: Path, count: int, seed: int) -> Count:
    """Flips bytes of entries: an entry that is still served must be right, all others are misses with a report."""
    rng, result = random.Random(seed), Count()
    reference = keys_of(store)
    for _ in range(count):
        key = rng.choice(sorted(reference))
        path = store / "v2" / "entries" / key
        original = path.read_bytes()
        data = bytearray(original)
        for _ in range(rng.choice((1, 20))):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data[: rng.randrange(len(data))] if rng.random() < 0.2 else data)
        result.tried += 1
        with contextlib.closing(Store(store)) as opened:
            for requested in {key, *rng.sample(sorted(reference), min(20, len(reference)))}:
                before = len(opened.problems)
                listed = opened.digests(requested)
                if listed is None:
                    result.misses += 1
                    if len(opened.problems) == before or requested != key:
                        result.unexplained.append(requested)
                elif listed == reference[requested]:
                    result.served += 1
                else:
                    result.wrong.append(requested)
        path.write_bytes(original)
    result.notes = {"entries": len(reference)}
    return result


def concurrent_builders(root: Path, store: Path, command: list[str], builders: int) -> Count:
    """Starts `builders` builds of one project on one empty store; each stage of each artifact must run in one of them only."""
    result = Count()
    runs = [
        subprocess.Popen(command, cwd=root, env=environment(store), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(builders)
    ]
    made: dict[tuple[str, str, str], int] = {}
    for run in runs:
        out, err = run.communicate(timeout=1800)
        if run.returncode != 0:
            result.unexplained.append(err.decode()[-500:])
            continue
        result.tried += 1
        for item in json.loads(out)["artifacts"]:
            for stage, hit in item["stage_hits"].items():
                arch = "" if stage in ("tir", "proofs") else item["arch"]
                made[(item["name"], arch, stage)] = made.get((item["name"], arch, stage), 0) + (not hit)
    result.wrong = [" ".join(key) for key, times in made.items() if times > 1]
    result.served = sum(times == 1 for times in made.values())
    result.notes = {"stages that ran": sum(made.values()), "stages that ran twice": len(result.wrong)}
    return result


CAP_DAC_OVERRIDE, PR_CAPBSET_DROP = 1, 24


def obey_permissions() -> None:
    """Runs in a child before it starts: makes read-only files read-only for root too (capabilities(7))."""
    if os.geteuid() == 0:
        ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0)


def small_files(limit: int) -> Callable[[], None]:
    """Runs in a child before it starts: writing past `limit` bytes of a file fails, as on a full disk (setrlimit(2))."""

    def apply() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    return apply


def one_clear_error(command: list[str], root: Path, store: Path, before: Callable[[], None] | None = None) -> str:
    """Runs a command that cannot write; returns the one error line it prints, or how its failure violates the rules."""
    done = subprocess.run(
        command, cwd=root, env=environment(store), capture_output=True, text=True, preexec_fn=before, timeout=600
    )
    lines = [line for line in done.stderr.splitlines() if "error" in line]
    if done.returncode != 2 or "Traceback" in done.stderr or len(lines) != 1 or not lines[0].startswith("error[E07"):
        return f"WRONG: status {done.returncode}: {done.stderr[-600:]}"
    return lines[0]
