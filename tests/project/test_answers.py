"""Results from a farm's workers are checked: a changed one is never used, and a worker that sends one gets no more work."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.project import fake_farm, fake_stages, project
from tests.project.fake_farm import Client
from tilec.artifact.records import json_bytes
from tilec.diagnostics.diagnostic import CompileError
from tilec.project.build.contract import contract_difference
from tilec.project.build.worker import Began, Outcome, Task
from tilec.project.farm import answers, node, tasks
from tilec.project.farm.answers import MOST_EVENTS, Kind, check_reply
from tilec.project.farm.node import TaskReply
from tilec.workers.scheduler import Crashed, Finished, Report

pytestmark = pytest.mark.usefixtures("kept_workers")
PRODUCTS = ("cubin", "json", "ptx", "summary", "tir")


@pytest.fixture(scope="module")
def task_and_reply(tmp_path_factory: pytest.TempPathFactory) -> tuple[Task, TaskReply, bytes]:
    """A task, a right result of it, and the tile IR that it must have."""
    seen: list[bytes] = []
    root = project.make(tmp_path_factory.mktemp("project"), ("copy_a",))
    client = Client(["w"], lambda name, data: seen.append(data) or data)
    fake_farm.build(root, tmp_path_factory.mktemp("store"), client)
    parcel = node.unframed(next(iter(client.answers)))
    answer: TaskReply = node.unframed(client.answers[next(iter(client.answers))])
    task = parcel.task
    return task, answer, outcomes(answer)[0].products["tir"]


def outcomes(answer: TaskReply) -> list[Outcome]:
    return [event.message for event in answer.events if isinstance(event, Report) and isinstance(event.message, Outcome)]


def with_product(answer: TaskReply, name: str, data: bytes, *, digest: bool) -> TaskReply:
    """The result with a product of its first target changed; with `digest`, also its digests, as from a malicious worker."""

    def change(event: Any) -> Any:
        message = getattr(event, "message", None)
        if not isinstance(message, Outcome) or message.position:
            return event
        known = message.digests | ({name: hashlib.sha256(data).hexdigest()} if digest else {})
        message = dataclasses.replace(message, products=message.products | {name: data}, digests=known)
        return dataclasses.replace(event, message=message)

    return dataclasses.replace(answer, events=tuple(map(change, answer.events)))


def flips(data: bytes, count: int, rng: random.Random) -> Iterator[bytes]:
    for _ in range(count):
        index = rng.randrange(len(data))
        yield data[:index] + bytes([data[index] ^ 1 << rng.randrange(8)]) + data[index + 1 :]


def test_a_right_reply_is_used(task_and_reply: tuple[Task, TaskReply, bytes]) -> None:
    task, answer, tile_ir = task_and_reply
    assert check_reply(task, answer, tile_ir).kind is Kind.GOOD
    assert (
        check_reply(task, answer, None).kind is Kind.CORRUPT and check_reply(task, answer, tile_ir + b" ").kind is Kind.CORRUPT
    )


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_that_changed_in_transit_is_not_used(name: str, task_and_reply: tuple[Task, TaskReply, bytes]) -> None:
    task, answer, tile_ir = task_and_reply
    data, rng = outcomes(answer)[0].products[name], random.Random(name)
    for changed in [*flips(data, 60, rng), b"", data[:-1], data + b" ", data + b"\n"]:
        verdict = check_reply(task, with_product(answer, name, changed, digest=False), tile_ir)
        assert verdict.kind is Kind.CORRUPT and name in verdict.reason


def test_no_bit_of_a_reply_changes_in_transit(task_and_reply: tuple[Task, TaskReply, bytes]) -> None:
    data = node.framed(task_and_reply[1])
    for changed in [*flips(data, 300, random.Random(2)), b"", data[:31], data[:-1], data + b"x"]:
        with pytest.raises(ValueError, match="changed in transit"):
            node.unframed(changed)


BOUND = ("tensors", "scalars", "abi", "grid", "constants", "obligations", "launch_checks", "value_checks", "no_alias", "unsafe",
         "schedule", "kernel", "entry", "arch", "block", "cluster", "dependent_launch", "toolchain", "resources")  # fmt: skip
"""Fields of a manifest that another product repeats, or the key, or the manifest itself."""


def other(value: Any) -> Any:
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value ^ 1 if value > 1 else value + 1
    if isinstance(value, str):
        return f"{value}x"
    if isinstance(value, list):
        return [*value[:-1], other(value[-1])] if value else [["x", "out"]]  # pyright: ignore[reportUnknownArgumentType]
    if isinstance(value, dict):
        name = next(iter(value), "x")  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        return value | {name: other(value.get(name, 0))}  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return 1


@pytest.mark.parametrize("name", BOUND)
def test_a_manifest_that_a_worker_made_wrong_is_not_used(name: str, task_and_reply: tuple[Task, TaskReply, bytes]) -> None:
    task, answer, tile_ir = task_and_reply
    manifest = json.loads(outcomes(answer)[0].products["json"])
    changed = json_bytes(manifest | {name: other(manifest[name])})
    assert check_reply(task, with_product(answer, "json", changed, digest=True), tile_ir).kind is Kind.CORRUPT


def test_every_alignment_is_that_of_the_kernel(task_and_reply: tuple[Task, TaskReply, bytes]) -> None:
    task, answer, tile_ir = task_and_reply
    products = outcomes(answer)[0].products
    text = products["json"].decode()
    assert contract_difference(products) == "" and text.count('"align": 16') == 2
    changed = text.replace('"align": 16', '"align": 17', 1), text.replace('"align": 16', '"align": 8')
    for one in changed:
        assert "tensors" in check_reply(task, with_product(answer, "json", one.encode(), digest=True), tile_ir).reason


def test_malformed_replies_are_refused(task_and_reply: tuple[Task, TaskReply, bytes]) -> None:
    task, answer, tile_ir = task_and_reply
    first, last = outcomes(answer)[0], answer.events[-1]
    moved = Report(0, dataclasses.replace(first, position=-1))
    nothing = Report(0, dataclasses.replace(first, products=3))  # pyright: ignore[reportArgumentType]
    wrong: list[Any] = [
        (), (last,), answer.events[:-1], (Report(0, first), last), (Report(0, first), Report(0, first), last), (moved, last),
        (*reversed(answer.events[:-1]), last), (Report(0, None), last), (None,), (last, last), (Report(0, 1),) * 5000, 7, None,
        (nothing, last),
    ]  # fmt: skip
    for events in wrong:
        assert check_reply(task, dataclasses.replace(answer, events=events), tile_ir).kind is Kind.CORRUPT, events
    assert check_reply(task, TaskReply((Crashed(0, "x"),)), tile_ir).kind is Kind.FAILED
    assert last == Finished(0)


def with_outcome(answer: TaskReply, **changed: Any) -> TaskReply:
    """The result with fields of its first outcome changed."""
    events = list(answer.events)
    index = next(index for index, event in enumerate(events) if isinstance(getattr(event, "message", None), Outcome))
    events[index] = Report(0, dataclasses.replace(outcomes(answer)[0], **changed))
    return dataclasses.replace(answer, events=tuple(events))


def test_nothing_after_the_end_of_a_reply_is_used(task_and_reply: tuple[Task, TaskReply, bytes]) -> None:
    """A result is checked as a whole: an outcome beyond the expected events is refused."""
    task, answer, tile_ir = task_and_reply
    began = (Report(0, Began(0)),) * (MOST_EVENTS - len(answer.events))
    forged = Report(0, dataclasses.replace(outcomes(answer)[0], products={}))
    longest = dataclasses.replace(answer, events=(*began, *answer.events))
    assert check_reply(task, longest, tile_ir).kind is Kind.GOOD
    for more in ((forged,), (answer.events[-1],), (forged, answer.events[-1])):
        assert check_reply(task, dataclasses.replace(longest, events=longest.events + more), tile_ir).kind is Kind.CORRUPT


CHANGED_FIELDS: list[dict[str, Any]] = [
    {"milliseconds": {"ptx": "long"}}, {"milliseconds": {"ptx": math.nan}}, {"milliseconds": {3: 1.0}}, {"milliseconds": None},
    {"costs": {"ptx": 1.5}}, {"costs": {"ptx": -1}}, {"costs": {"ptx": 1 << 80}}, {"costs": ()}, {"hits": {"ptx": "yes"}},
    {"problems": (3,)}, {"problems": "many"}, {"problems": ("x" * 10_000_000,)}, {"problems": ("x",) * 100_000},
    {"counts": {"local": {"made": "x"}}}, {"counts": {"local": 3}}, {"counts": [1]}, {"fetched": 3}, {"digests": None},
    {"diagnostics": 0}, {"diagnostics": (3,)},
]  # fmt: skip
"""Data of a worker other than products that has a wrong type, or is huge."""


@pytest.mark.parametrize("changed", CHANGED_FIELDS, ids=lambda one: f"{one!r:.40}")
def test_what_a_worker_reports_with_its_products_is_checked_too(
    changed: dict[str, Any], task_and_reply: tuple[Task, TaskReply, bytes]
) -> None:
    task, answer, tile_ir = task_and_reply
    assert check_reply(task, with_outcome(answer, **changed), tile_ir).kind is Kind.CORRUPT


@pytest.mark.parametrize("seconds", ["x", math.inf, -1.0, None])
def test_the_time_of_a_reply_is_a_number(seconds: Any, task_and_reply: tuple[Task, TaskReply, bytes]) -> None:
    task, answer, tile_ir = task_and_reply
    assert check_reply(task, dataclasses.replace(answer, seconds=seconds), tile_ir).kind is Kind.CORRUPT


@pytest.mark.parametrize("position", [-1, 10**9, "x", None, 0.5])
def test_a_worker_begins_on_targets_of_its_task(position: Any, task_and_reply: tuple[Task, TaskReply, bytes]) -> None:
    task, answer, tile_ir = task_and_reply
    events = (Report(0, Began(position)), *answer.events)
    assert check_reply(task, dataclasses.replace(answer, events=events), tile_ir).kind is Kind.CORRUPT


NAMES = ("copy_a", "copy_b", "copy_c")
MOST = tasks.BROKEN + tasks.AHEAD
"""Tasks that a broken worker may get before it is excluded, and those already submitted."""


def built(root: Path, folder: Path, client: Client, messages: list[str]) -> list[str]:
    found = fake_farm.build(root, folder, client, messages)
    assert {path.suffix for path in (root / "artifacts").rglob("*.*")} == {".cubin", ".json", ".ptx"}
    return project.statuses(found)


def flipping(bad: Callable[[str], bool]) -> fake_farm.Tamper:
    """Flips a bit of the data of some workers, except their identity."""
    rng = random.Random(3)

    def tamper(name: str, data: bytes) -> bytes:
        return next(flips(data, 1, rng)) if bad(name) and len(data) > 3000 else data

    return tamper


def test_a_broken_worker_is_left_out_and_its_work_done_elsewhere(tmp_path: Path) -> None:
    root, messages = project.make(tmp_path / "p", NAMES), list[str]()
    client = Client(["good", "bad"], flipping(lambda name: name == "bad"))
    assert built(root, tmp_path / "store", client, messages) == ["built"] * 12
    assert client.done.count("bad") <= MOST and client.done.count("good") == 6
    assert sum("bad is not used: it returned 3 unusable results" in line for line in messages) == 1
    assert not any("built here" in line for line in messages)


def test_without_usable_workers_the_remaining_tasks_run_locally(tmp_path: Path) -> None:
    root, messages = project.make(tmp_path / "p", ("copy_a", "copy_b")), list[str]()
    client = Client(["one", "two"], flipping(lambda name: True))
    assert built(root, tmp_path / "store", client, messages) == ["built"] * 8
    assert len(client.done) <= 2 * MOST and "4 of 4 tasks are built here" in messages[-1]


def test_a_worker_that_cannot_work_is_left_out(tmp_path: Path) -> None:
    """It refuses, raises, or crashes the others' tasks."""
    root, messages = project.make(tmp_path / "p", NAMES), list[str]()

    def tamper(name: str, data: bytes) -> bytes:
        if name == "full" and len(data) > 3000:
            return node.framed(TaskReply(refused="OSError: no space left on device"))
        if name == "raises" and len(data) > 3000:
            raise MemoryError
        return data

    client = Client(["full", "good", "raises"], tamper)
    assert built(root, tmp_path / "store", client, messages) == ["built"] * 12
    assert client.done.count("full") <= MOST and client.done.count("raises") <= MOST
    assert any("no space left" in line or "MemoryError" in line for line in messages)


def test_a_refusal_by_a_worker_is_confirmed_locally(tmp_path: Path) -> None:
    root = project.make(tmp_path / "p", ("copy_a", "copy_b"))
    (root / "kernels_src" / "copy_b.py").write_text(project.KERNEL.format(name="copy_b") + "#! refuse\n")
    client, messages = Client(["w"], lambda name, data: data), list[str]()
    found = fake_farm.build(root, tmp_path / "store", client, messages)
    assert project.statuses(found) == ["built"] * 4 + ["failed"] * 4 and {item.code for item in found.diagnostics} == {"E0301"}
    assert "2 of 4 tasks are built here" in messages[-1]


def test_a_scheduler_that_falls_silent_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("SILENT", 0.2), ("LOOK", 0.0)):
        monkeypatch.setattr(tasks, name, value)
    client = Client(["w"], lambda name, data: data)

    def tamper(name: str, data: bytes) -> bytes:
        client.silent = True
        return data

    client.tamper = tamper
    with pytest.raises(CompileError, match="E0753") as caught:
        fake_farm.build(project.make(tmp_path / "p"), tmp_path / "store", client)
    assert "silent" in str(caught.value)


def test_local_tasks_end_with_the_build(tmp_path: Path, task_and_reply: tuple[Task, TaskReply, bytes]) -> None:
    root = project.make(tmp_path, ("copy_a",))
    (root / "kernels_src" / "copy_a.py").write_text(project.KERNEL.format(name="copy_a") + "#! spin\n")
    request = dataclasses.replace(task_and_reply[0].request, root=str(root), sources={"kernels_src/copy_a.py": "0" * 64})
    expected = answers.Expected(fake_stages.run)
    expected.begin(0, dataclasses.replace(task_and_reply[0], request=request))
    expected.begin(1, task_and_reply[0])
    expected.close()
    assert expected.of(0) is None and expected.of(1) is None


@pytest.mark.parametrize("leaves", [True, False])
def test_a_worker_that_is_lost_before_its_reply_is_fetched(leaves: bool, tmp_path: Path) -> None:
    root = project.make(tmp_path / "p", ("copy_a",))
    client = Client(["good", "gone"], lambda name, data: data)

    def tamper(name: str, data: bytes) -> bytes:
        if name == "gone" and len(data) > 3000:
            if leaves:
                client.workers = ["good"]
            return fake_farm.LOST_WORKER
        return data

    client.tamper = tamper
    assert built(root, tmp_path / "store", client, []) == ["built"] * 4
