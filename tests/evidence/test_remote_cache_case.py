"""The case of a team's cache: no time decides a verdict, and builds wait for the remote as long as it takes."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from ci.bench.judges import clones, patient_tilec, remote_cache
from tests.cache.test_remote import KEY, OUTPUTS
from tilec.cache.remote import guard, lease
from tilec.cache.remote.address import parse
from tilec.cache.remote.guard import LATE, Guard
from tilec.cache.remote.remote import Remote, Settings
from tilec.project.build import job

SECOND = {"remote": "redis", "artifacts": 9, "cold_seconds": 1.0, "seconds": 1.0, "made": 0, "same_bytes": True, "gave_up": 0}
TOGETHER = {"remote": "s3", "builders": 8, "seconds": 1.0, "more_than_once": 0, "same_bytes": True, "gave_up": 0}


def test_seconds_decide_nothing() -> None:
    assert remote_cache.second_is_right([SECOND, SECOND | {"seconds": 1e6, "cold_seconds": 1e6}])
    assert remote_cache.together_is_right([TOGETHER, TOGETHER | {"seconds": 1e6}])


@pytest.mark.parametrize("fault", [{"made": 1}, {"same_bytes": False}, {"gave_up": 1}])
def test_a_second_clone_must_receive_everything(fault: dict[str, Any]) -> None:
    assert not remote_cache.second_is_right([SECOND, SECOND | fault])


@pytest.mark.parametrize("fault", [{"more_than_once": 1}, {"same_bytes": False}, {"gave_up": 1}])
def test_builders_at_once_must_share(fault: dict[str, Any]) -> None:
    assert not remote_cache.together_is_right([TOGETHER, TOGETHER | fault])


def test_a_server_without_leases_lets_work_be_done_twice() -> None:
    twice = TOGETHER | {"remote": "webdav", "more_than_once": 9}
    assert remote_cache.together_is_right([TOGETHER, twice])
    assert not remote_cache.together_is_right([TOGETHER, twice | {"same_bytes": False}])


class Slow:
    """A layer whose server answers a write when an event is set."""

    def __init__(self) -> None:
        self.released = threading.Event()

    def put(self, key: str, data: bytes, *, replace: bool) -> bool:
        """Write."""
        self.released.wait()
        return True

    def close(self) -> None:
        """Nothing to close."""


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits of this process are restored after a test."""
    for module, name in ((guard, "OPENING"), (lease, "LEASE"), (job, "PATIENCE")):
        monkeypatch.setattr(module, name, getattr(module, name))
    monkeypatch.setattr(Remote.close, "__defaults__", Remote.close.__defaults__)


def closed(seconds: float, answers_at_close: bool) -> dict[str, int]:
    """The counts of a build with this limit that ends before the server has answered its write."""
    slow, address = Slow(), parse("redis://slow" + patient_tilec.PATIENT)
    patient_tilec.lengthen(seconds)
    remote = Remote(Settings((address,)), lambda _: (OUTPUTS, 1))
    layer: Any = slow
    remote.guards[0] = Guard(address, lambda _: layer)
    remote.publish([KEY])
    if answers_at_close:
        waits: Any = remote._idle  # pyright: ignore[reportPrivateUsage]
        real = waits.wait_for

        def wait_for(*arguments: Any) -> Any:
            slow.released.set()
            return real(*arguments)

        waits.wait_for = wait_for
    remote.close()
    slow.released.set()
    return remote.statistics.counts.get(address.shown, {})


@pytest.mark.usefixtures("limits")
def test_an_entry_that_is_written_last_is_waited_for() -> None:
    assert closed(patient_tilec.LIMIT, answers_at_close=True)["stored"] == 1
    assert closed(0.0, answers_at_close=False) == {}


@pytest.mark.usefixtures("limits")
def test_limits_of_a_build_are_far_from_what_a_load_reaches() -> None:
    patient_tilec.lengthen(patient_tilec.LIMIT)
    assert min(guard.OPENING, lease.LEASE, job.PATIENCE, LATE * parse("redis://a" + patient_tilec.PATIENT).seconds) >= 300
    assert Remote.close.__defaults__ == (patient_tilec.LIMIT,)


def test_builds_of_the_judge_have_these_limits(tmp_path: Path) -> None:
    line, environment = clones.command(tmp_path, [], patient_tilec.MODULE)
    position = line.index("build")
    done = subprocess.run([*line[:position], "--version"], capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0 and done.stdout.startswith("tilec"), done.stderr


def test_every_build_of_a_living_server_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[Any, ...]] = []

    def record(*arguments: Any) -> None:
        given.append(arguments)

    monkeypatch.setattr(clones, "build", record)
    remote_cache.build(Path("project"), remote_cache.patient("redis://a"), {})
    assert given == [(Path("project"), ["--remote", "redis://a|timeout=600"], {}, patient_tilec.MODULE)]
