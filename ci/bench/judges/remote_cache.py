"""Tests a team's remote cache: a second clone, killed servers, concurrent builders, poisoned entries.

Builds the project with real compilers in temporary clones, each with its own store, against Redis, nginx (WebDAV) and moto (S3)
on the loopback. Writes remote_cache.json and remote_cache.md; results of parts that were not run are kept from the existing
JSON. Needs redis-server, nginx (ci/apt-packages.txt), moto and s3fs.

No verdict depends on time. Where servers live, builds have limits that no load reaches (`patient_tilec`), so nothing may be
late or fail, and everything must be shared; where they are killed, builds have the limits of a user. Seconds are figures.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

from ci.bench.front import Outcome, names
from ci.bench.judges import clones
from ci.bench.judges.clones import by_part, clone, command, products
from ci.bench.judges.patient_tilec import MODULE, PATIENT
from tests import servers
from tests.cache.remote_mutants import mutants
from tilec.cache import Store
from tilec.cache.products import ProductError, decode
from tilec.cache.remote.address import Address
from tilec.cache.remote.address import parse as parse_address
from tilec.cache.remote.envelope import Received, pack
from tilec.cache.remote.guard import Guard
from tilec.cache.remote.layer import Layer
from tilec.cache.remote.opening import open_layer
from tilec.cache.remote.remote import Remote, Settings
from tilec.cache.remote.signer import Secret, Unsigned

PARTS = ("second", "kills", "together", "poison")
GAVE_UP = ("late", "failures")
"""Counts of a remote that a build gave up for an entry: such a build says nothing about sharing."""


def counts(project: Path) -> dict[str, dict[str, int]]:
    """The counts of `tilec cache stats` for the store of a project."""
    with contextlib.closing(Store(Path(f"{project}-store"))) as store:
        return store.statistics().counts


def gave_up(project: Path) -> int:
    """How often builds of a project gave a remote up, for want of time or by an error."""
    return sum(found.get(name, 0) for found in counts(project).values() for name in GAVE_UP)


def build(project: Path, options: list[str], more: dict[str, str] | None = None) -> tuple[float, dict[str, Any]]:
    """`clones.build` without limits of time."""
    return clones.build(project, options, more, MODULE)


@contextlib.contextmanager
def served(kind: str, folder: Path) -> Generator[tuple[str, dict[str, str]]]:
    """The URL of a server, and the environment that a build needs to reach it."""
    folder.mkdir()
    if kind == "redis":
        with servers.redis_server(folder) as url:
            yield url, {}
    elif kind == "webdav":
        with servers.webdav_server(folder) as url:
            yield url, {}
    else:
        with servers.s3_server(folder) as found:
            yield found


def patient(url: str) -> list[str]:
    """The options of a build that waits for a server as long as it takes."""
    return ["--remote", url + PATIENT]


def second(work: Path, options: list[str]) -> dict[str, Any]:
    """One build of everything, written back to all three servers; then a fresh clone for each of them."""
    with contextlib.ExitStack() as stack:
        found = {kind: stack.enter_context(served(kind, work / kind)) for kind in ("redis", "webdav", "s3")}
        names = found["s3"][1]
        first = clone(work / "first")
        remotes = [option for url, _ in found.values() for option in patient(url)]
        cold, report = build(first, [*options, *remotes], names)
        rows: list[dict[str, Any]] = []
        for kind, (url, _) in found.items():
            other = clone(work / f"second-{kind}")
            seconds, again = build(other, [*options, *patient(url)], names)
            counted = counts(other)
            rows.append(
                {
                    "remote": kind, "artifacts": len(again["artifacts"]), "cold_seconds": cold, "seconds": seconds,
                    "made": sum(item["status"] != "hit" for item in again["artifacts"]),
                    "compiler_stages_run": sum(len(item["stage_hits"]) for item in again["artifacts"]),
                    "same_bytes": products(other) == products(first),
                    "received": counted[Address(url).shown]["bytes_in"],
                    "written": counts(first)[Address(url).shown].get("bytes_out", 0),
                    "entries_written": counts(first)[Address(url).shown].get("stored", 0),
                    "cpu_saved_seconds": counted[Address(url).shown]["saved_ms"] / 1000,
                    "gave_up": gave_up(first) + gave_up(other),
                }
            )  # fmt: skip
            print(rows[-1], file=sys.stderr, flush=True)
    assert len(report["artifacts"]) == rows[0]["artifacts"]
    return {"rows": rows, "ok": second_is_right(rows)}


def second_is_right(rows: list[dict[str, Any]]) -> bool:
    """Whether every second clone received everything, right."""
    return all(not row["made"] and not row["gave_up"] and row["same_bytes"] for row in rows)


def kills(work: Path, options: list[str], wanted: int = 50) -> dict[str, Any]:
    """Builds while the server is killed and restarted at random times: all must succeed, with the same bytes."""
    reference = clone(work / "reference")
    clones.build(reference, options)
    expected = products(reference)
    killed = builds = wrong = failed = 0
    stop, rng = threading.Event(), random.Random(1)
    folder = work / "redis"
    folder.mkdir()
    port = servers.free_port()

    def disturb() -> None:
        nonlocal killed
        while not stop.is_set():
            with open(folder / "log", "ab") as log:
                process = subprocess.Popen(servers.redis_command(port, folder), stdout=log, stderr=log)
            stop.wait(rng.uniform(0.2, 1.2))
            process.send_signal(signal.SIGKILL)
            process.wait()
            killed += 1
            stop.wait(rng.uniform(0.0, 0.3))

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        while killed < wanted:
            project = clone(work / f"kills-{builds}")
            line, environment = command(project, [*options, "--remote", f"redis://127.0.0.1:{port}/0|timeout=2"])
            done = subprocess.run(line, capture_output=True, text=True, env=environment, cwd=project)
            builds += 1
            failed += done.returncode != 0
            wrong += products(project) != expected
            shutil.rmtree(project)
            shutil.rmtree(f"{project}-store")
            print(f"{killed} kills, {builds} builds, {failed} failed, {wrong} wrong", file=sys.stderr, flush=True)
    finally:
        stop.set()
        thread.join()
    return {"kills": killed, "builds": builds, "artifacts_each": len(expected) // 3, "failed": failed, "wrong": wrong,
            "ok": not failed and not wrong}  # fmt: skip


def together(work: Path, options: list[str], builders: int = 8) -> dict[str, Any]:
    """Concurrent builders, each with its own clone and store, on one remote of each kind."""
    rows: list[dict[str, Any]] = []
    for kind in ("redis", "s3", "webdav"):
        with served(kind, work / kind) as (url, names):
            projects = [clone(work / f"{kind}-{number}") for number in range(builders)]
            start = time.perf_counter()
            running: list[subprocess.Popen[str]] = []
            for project in projects:
                line, environment = command(project, [*options, *patient(url)], MODULE)
                running.append(
                    subprocess.Popen(
                        line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment | names, cwd=project
                    )
                )
            reports = [json.loads(process.communicate()[0]) for process in running]
            seconds = time.perf_counter() - start
            if any(process.returncode for process in running):
                sys.exit("a builder failed")
            built: dict[str, int] = {}
            for report in reports:
                for item in report["artifacts"]:
                    built[f"{item['name']} {item['arch']}"] = built.get(f"{item['name']} {item['arch']}", 0) + (
                        item["status"] == "built"
                    )
            every = [counts(project) for project in projects]
            rows.append(
                {
                    "remote": kind, "builders": builders, "artifacts": len(built), "seconds": seconds,
                    "made": sum(built.values()), "more_than_once": sum(count > 1 for count in built.values()),
                    "told_twice": sum(one.get(url, {}).get("twice", 0) for one in every),
                    "waited": sum(one["local"].get("waited", 0) for one in every),
                    "same_bytes": len({json.dumps(products(project)) for project in projects}) == 1,
                    "gave_up": sum(map(gave_up, projects)),
                }
            )  # fmt: skip
            print(rows[-1], file=sys.stderr, flush=True)
    return {"rows": rows, "ok": together_is_right(rows)}


def together_is_right(rows: list[dict[str, Any]]) -> bool:
    """Whether all builders have the same products, and nothing was made twice where a server lends."""
    lending = [row for row in rows if row["remote"] != "webdav"]
    return all(not row["more_than_once"] for row in lending) and all(not row["gave_up"] and row["same_bytes"] for row in rows)


class _Lying:
    """A layer that returns a mutant."""

    def __init__(self) -> None:
        self.reply = b""

    def get(self, key: str, limit: int) -> bytes | None:
        return self.reply[: limit + 1]

    def close(self) -> None:
        """Nothing to close."""


def poison(work: Path, options: list[str], count: int = 700) -> dict[str, Any]:
    """Mutants of real entries, read as builds do, with their check of products; and through builds."""
    with served("redis", work / "redis") as (url, _):
        first = clone(work / "first")
        build(first, [*options, *patient(url)])
        layer = open_layer(Address(url))
        with contextlib.closing(Store(Path(f"{first}-store"))) as store:
            entries = {key: (record["label"], store.lookup(key)) for key, record in store.records()}
        stored = {key: layer.get(key, 1 << 26) for key in entries}
        shared = sorted(key for key, data in stored.items() if data is not None)
        kinds: dict[str, dict[str, int]] = {}
        for signed in (True, False):
            _check_mutants(shared, entries, count // 2, signed, kinds)
        expected = products(first)
        rebuilt = _through_builds(work, options, url, layer, shared, expected)
    used = sum(found["used"] for found in kinds.values())
    tried = sum(sum(found.values()) for found in kinds.values())
    return {"mutants": tried, "used": used, "kinds": kinds, "builds": rebuilt, "ok": not used and not rebuilt["wrong"]}


def _check_mutants(
    keys: list[str], entries: dict[str, Any], count: int, signed: bool, kinds: dict[str, dict[str, int]]
) -> None:
    """Serve mutants one by one; an accepted one must equal the entry byte for byte."""
    signer = Secret(b"the team's secret " * 2) if signed else Unsigned()
    secret = b"the team's secret " * 2 if signed else b""
    lying = _Lying()
    address = parse_address("redis://lying" + PATIENT)  # a late answer would count as a failure, and a rest as a refusal
    remote = Remote(Settings((address,), secret))
    layer: Any = lying
    remote.guards[0] = Guard(address, lambda _: layer)
    rng = random.Random(signed)
    chosen = rng.sample(keys, min(10, len(keys)))
    for key in chosen:
        outputs = entries[key][1].outputs
        data = pack(key, outputs, 1, signer)
        other = rng.choice([one for one in keys if one != key])
        strange = [pack(other, entries[other][1].outputs, 1, signer), pack(key, entries[other][1].outputs, 1, signer)]
        if signed:
            strange += [pack(key, outputs, 1, Secret(b"of somebody else's " * 2)), pack(key, outputs, 1, Unsigned())]
        assert data is not None

        def check(found: Received, key: str = key) -> None:
            decode(key, found.outputs, found.digests)

        others = [one for one in strange if one is not None]
        for kind, mutant in mutants(data, others, max(count // len(chosen), 1), rng.randrange(99)):
            lying.reply = mutant
            try:
                found = remote.fetch(key, "", check)
            except ProductError:
                found = None
            verdict = "refused" if found is None else "harmless" if found.outputs == outputs else "used"
            if kind.startswith("another's") and signed and mutant in strange and found is not None:
                verdict = "used"
            kinds.setdefault(kind, {"refused": 0, "harmless": 0, "used": 0})[verdict] += 1


def _through_builds(
    work: Path, options: list[str], url: str, layer: Layer, keys: list[str], expected: dict[str, str]
) -> dict[str, int]:
    """Poison every entry of a server, and build: everything is rebuilt, and the remote is repaired."""
    wrong = refused = 0
    for number, spoil in enumerate((_flipped, _cut, _swapped)):
        spoil(layer, keys)
        project = clone(work / f"poisoned-{number}")
        build(project, [*options, *patient(url)])
        wrong += products(project) != expected
        refused += counts(project)[url]["refused"]
        repaired = clone(work / f"repaired-{number}")
        _, report = build(repaired, [*options, *patient(url)])
        wrong += products(repaired) != expected or any(item["status"] != "hit" for item in report["artifacts"])
    return {"builds": 6, "refused": refused, "wrong": wrong}


def _flipped(layer: Layer, keys: list[str]) -> None:
    rng = random.Random(3)
    for key in keys:
        data = bytearray(layer.get(key, 1 << 26) or b"")
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        layer.put(key, bytes(data), replace=True)


def _cut(layer: Layer, keys: list[str]) -> None:
    for key in keys:
        data = layer.get(key, 1 << 26) or b""
        layer.put(key, data[: len(data) * 2 // 3], replace=True)


def _swapped(layer: Layer, keys: list[str]) -> None:
    found = [layer.get(key, 1 << 26) or b"" for key in keys]
    for key, data in zip(keys, found[1:] + found[:1], strict=True):
        layer.put(key, data, replace=True)


def table(record: dict[str, Any]) -> str:
    """The results as Markdown."""
    lines = [f"`judges.py remote_cache` on {record['cores']} cores; servers and builders share them."]
    lines += [
        "Seconds are figures, which a loaded machine changes. No verdict depends on time: where servers live, builds have"
    ]
    lines += ["limits that no load reaches, and a remote given up for an entry is a failure."]
    if "second" in record:
        lines += ["", "## A second clone", ""]
        names = {
            "remote": "remote", "artifacts": "artifacts", "cold_seconds": "cold build, s", "seconds": "second clone, s",
            "made": "made there", "compiler_stages_run": "compiler stages run", "same_bytes": "same bytes",
            "received": "bytes received", "entries_written": "entries written", "written": "bytes written",
            "gave_up": "given up",
        }  # fmt: skip
        lines += _rows(names, record["second"]["rows"])
    if "kills" in record:
        row = record["kills"]
        lines += ["", "## The server is killed", ""]
        lines += [
            f"{row['kills']} kills of Redis (SIGKILL, its memory lost) during {row['builds']} builds of "
            f"{row['artifacts_each']} artifacts: {row['failed']} builds failed, {row['wrong']} had other bytes."
        ]
    if "together" in record:
        lines += ["", "## Builders at once", ""]
        names = {
            "remote": "remote", "builders": "builders", "artifacts": "artifacts", "made": "made in all",
            "more_than_once": "made more than once", "told_twice": "told by `stats`", "waited": "waits", "seconds": "seconds",
            "same_bytes": "same bytes", "gave_up": "given up",
        }  # fmt: skip
        lines += _rows(names, record["together"]["rows"])
        lines += ["", "WebDAV servers lend nothing: what is made twice there is counted. `stats` counts entries of stages too."]
    if "poison" in record:
        row = record["poison"]
        lines += ["", "## Poisoned entries", ""]
        lines += [
            f"{row['mutants']} mutants of entries, signed and not: {row['used']} used. On a server, "
            f"{row['builds']['refused']} poisoned entries were refused in {row['builds']['builds']} builds, of which "
            f"{row['builds']['wrong']} had other bytes."
        ]
        lines += ["", "| kind | refused | harmless | used |", "|---|--:|--:|--:|"]
        for kind, found in sorted(row["kinds"].items()):
            lines.append(f"| {kind} | {found['refused']} | {found['harmless']} | {found['used']} |")
        lines += [
            "",
            "Harmless: every product was the right one, byte for byte (an unsigned record whose cost was changed, say).",
        ]
    return "\n".join(lines) + "\n"


def _rows(names: dict[str, str], rows: list[dict[str, Any]]) -> list[str]:
    lines = [f"| {' | '.join(names.values())} |", f"|---|{'--:|' * (len(names) - 1)}"]
    for row in rows:
        cells = [f"{value:.1f}" if isinstance(value, float) else str(value) for value in (row.get(name, "-") for name in names)]
        lines.append(f"| {' | '.join('yes' if cell == 'True' else cell for cell in cells)} |")
    return lines


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the case."""
    parser.add_argument("--parts", type=names, default=[*PARTS])
    parser.add_argument("--kernel", action="append", default=[], help="kernels of kills, together and poison")
    parser.add_argument("--arch", default="sm_90")


def measure(options: argparse.Namespace) -> Iterator[Outcome]:
    """Run the parts; status 1 if one fails."""
    fast_options = ["--jobs", str(options.jobs), "--arch", options.arch]
    fast_options += [option for name in options.kernel or ["add", "rms_norm", "gather_row"] for option in ("--kernel", name)]
    runs: dict[str, Callable[[Path], dict[str, Any]]] = {
        "second": lambda work: second(work, ["--jobs", str(options.jobs)]),
        "kills": lambda work: kills(work, fast_options),
        "together": lambda work: together(work, [*fast_options[2:], "--jobs", "1"]),
        "poison": lambda work: poison(work, fast_options),
    }
    return by_part(
        options, {part: runs[part] for part in options.parts}, PARTS, lambda record: {"remote_cache.md": table(record)}
    )
