"""Attacks on the results of a farm's workers: on the wire, and by a worker that recomputes the digests of what it changed.

In: a kind, a seed, a task with the right result, and results of other tasks. Out: the outcome; AssertionError if a result was
accepted that detectably differs from the right one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.fuzz import wire
from tests.project import project
from tests.project.fake_farm import Client, build
from tilec.artifact.records import json_bytes
from tilec.project.build.worker import Outcome, Task
from tilec.project.farm import node
from tilec.project.farm.answers import Kind, check_reply
from tilec.project.farm.node import TaskReply
from tilec.workers.scheduler import Report

Attempt = Callable[[str, int, Path], str]
"""A kind, a seed and a folder; returns the outcome."""
FARM_KINDS: Final = (
    "bits on the wire", "a cut on the wire", "bits of a product", "a product exchanged", "a product left out",
    "one more product", "targets exchanged",
    "a target left out", "a target twice", "another task's", "no answer", "a field of the manifest",
)  # fmt: skip
UNTOLD: Final = ("resources", "tensor_maps", "digests")
"""Fields of a manifest that such a worker can change undetected, because no other product repeats them."""


def on_a_farm(kind: str, seed: int, right: tuple[Task, TaskReply], others: list[TaskReply]) -> str:
    """Changes a result, and its digests to match. It must be refused, or be right."""
    rng, (task, answer) = random.Random(seed), right
    outcomes = [event.message for event in answer.events if isinstance(event, Report) and isinstance(event.message, Outcome)]
    tile_ir = outcomes[0].products["tir"]
    if kind.endswith("on the wire"):
        data = node.framed(answer)
        changed = wire.flip(data, rng)[0] if kind.startswith("bits") else data[: rng.randrange(len(data))]
        try:
            found = node.unframed(changed)
        except ValueError:
            return "refused"
        assert changed == data and isinstance(found, TaskReply)
        return "right"
    at = rng.randrange(len(outcomes))
    one = outcomes[at]
    name = rng.choice(sorted(one.products))
    known = dict(one.products)
    field = ""
    if kind == "bits of a product":
        known[name] = wire.flip(known[name], rng)[0]
    elif kind == "a product exchanged":
        other = rng.choice(others)
        more = rng.choice([e.message for e in other.events if isinstance(e, Report) and isinstance(e.message, Outcome)])
        known[name] = more.products[name]
    elif kind == "a product left out":
        del known[name]
    elif kind == "one more product":
        known["x"] = b"x"
    elif kind == "a field of the manifest":
        manifest = json.loads(known["json"])
        field = rng.choice(sorted(manifest))
        manifest[field] = _other(manifest[field], rng)
        known["json"] = json_bytes(manifest)
    one = dataclasses.replace(one, products=known, digests={name: hashlib.sha256(b).hexdigest() for name, b in known.items()})
    forged = [*outcomes[:at], one, *outcomes[at + 1 :]]
    if kind == "targets exchanged":
        forged = [dataclasses.replace(o, position=len(forged) - 1 - o.position) for o in reversed(forged)]
    elif kind == "a target left out":
        del forged[at]
    elif kind == "a target twice":
        forged.insert(at, forged[at])
    events: Any = (*(Report(0, outcome) for outcome in forged), answer.events[-1])
    if kind == "another task's":
        events = rng.choice(others).events
    elif kind == "no answer":
        none: list[Any] = [(), None, 5, (None,), events[::-1], (Report(0, b"x"), events[-1]), ((),), {}, "x" * 9]
        events = rng.choice(none)
    verdict = check_reply(task, dataclasses.replace(answer, events=events), tile_ir)
    if verdict.kind is not Kind.GOOD:
        assert verdict.reason.isprintable() and len(verdict.reason) < 1000
        return "refused"
    assert verdict.reply is not None
    for was, now in zip(outcomes, [e.message for e in verdict.reply.events if isinstance(e, Report)], strict=True):
        for product, data in was.products.items():
            assert data == now.products[product] or _harmless(product, data, now.products[product], kind), (product, field)
    return "right"


def _harmless(product: str, was: bytes, now: bytes, kind: str) -> bool:
    """Whether a change cannot be detected: it is in a build's summary, or in fields of `UNTOLD` only."""
    if product == "summary":  # of a build's table
        return True
    if product == "ptx":  # its digest is in the manifest, which was not changed
        return False
    one, other = json.loads(was), json.loads(now)
    return product == "json" and all(one[name] == other.get(name) for name in one if name not in UNTOLD)


def _other(value: Any, rng: random.Random) -> Any:
    """A copy with one value changed somewhere."""
    if isinstance(value, dict) and value:
        table: dict[str, Any] = dict(value)  # pyright: ignore[reportUnknownArgumentType]
        name = rng.choice(sorted(table))
        return table | {name: _other(table[name], rng)} if rng.random() < 0.9 else {k: v for k, v in table.items() if k != name}
    if isinstance(value, list) and value:
        items: list[Any] = list(value)  # pyright: ignore[reportUnknownArgumentType]
        at = rng.randrange(len(items))
        return [*items[:at], _other(items[at], rng), *items[at + 1 :]] if rng.random() < 0.8 else items[:at] + items[at + 1 :]
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int):
        return rng.choice([value ^ (1 << rng.randrange(12)), -value - 1, value + 1, float(value), str(value), 1 << 70])
    if isinstance(value, str):
        return rng.choice([value + "x", value[:-1] + "\0", value[1:] + "y", "", 7, None])
    return rng.choice([1, "x", [1]])


def farm_answers(folder: Path) -> Attempt:
    """Attempts on results of a farm's worker for tasks of a small project."""
    client = Client(["w"], lambda name, data: data)
    build(project.make(folder / "project", ("copy_a", "copy_b")), folder / "farm store", client)
    known = [(node.unframed(data).task, node.unframed(answer)) for data, answer in client.answers.items()]

    def attempt(kind: str, seed: int, _: Path) -> str:
        right = known[seed % len(known)]
        others = [answer for task, answer in known if task is not right[0]]
        return on_a_farm(kind, seed, right, others)

    return attempt
