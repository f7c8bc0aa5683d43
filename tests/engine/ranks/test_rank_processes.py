"""Processes of ranks: started and ended together, one error for whatever ends one of them; and GPUs that cannot be shared."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.cli import run
from engine.errors import DeviceError, EngineError, UsageError
from engine.ranks import load
from engine.ranks.peers import DriverCalls, open_rank
from engine.ranks.processes import RankEnded, RankProcesses

RANK = """
import json, os, signal, socket, sys, threading
rank, connection = int(sys.argv[1]), socket.socket(fileno=int(sys.argv[2]))
def say(**message):
    connection.sendall(json.dumps(message).encode() + b"\\n")
def hear():
    return json.loads(connection.makefile().readline() or "null")
"""


def ranks_that(*bodies: str) -> RankProcesses:
    """A rank for each body, in Python."""
    return RankProcesses(len(bodies), lambda rank, fd: [sys.executable, "-c", RANK + bodies[rank], str(rank), str(fd)])


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


SLEEP = "threading.Event().wait()"
"""A rank that never ends by itself, not even when its socket closes: as one that waits on its GPU."""
READY = "say(kind='ready', rank=rank); hear()"


def test_messages_of_all_ranks_come_in_order() -> None:
    with ranks_that(READY, READY, "import time; time.sleep(0.2);" + READY) as ranks:
        assert [message["rank"] for message in ranks.gather()] == [0, 1, 2]
        ranks.send([{"go": rank} for rank in range(3)])
        pids = ranks.pids
    assert not any(map(is_running, pids))


@pytest.mark.parametrize("guilty", [0, 1])
@pytest.mark.parametrize(
    ("death", "message"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "ended by SIGKILL, so the other rank is stopped too"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "ended by SIGSEGV, so the other rank is stopped too"),
        ("os._exit(3)", "ended with status 3, so the other rank is stopped too"),
        ("os._exit(0)", "ended with status 0, so the other rank is stopped too"),
    ],
)
def test_a_rank_that_dies_ends_the_other(guilty: int, death: str, message: str) -> None:
    """The other one neither reads its socket nor ends by itself: it is killed as soon as the first is dead."""
    bodies = [SLEEP, SLEEP]
    bodies[guilty] = death
    with ranks_that(*bodies) as ranks:
        with pytest.raises(RankEnded) as caught:
            ranks.gather()
        assert f"rank {guilty} (process {ranks.pids[guilty]}) {message}" in str(caught.value)
        assert not any(map(is_running, ranks.pids))


def test_a_rank_that_is_killed_while_nobody_asks_ends_the_other() -> None:
    with ranks_that(*["say(kind='ready'); " + SLEEP] * 2) as ranks:
        ranks.gather()
        os.kill(ranks.pids[1], signal.SIGKILL)
        ranks._processes[0].wait(60)  # the watcher kills it, with no call of this thread
        with pytest.raises(RankEnded, match=r"rank 1 \(process \d+\) ended by SIGKILL"):
            ranks.send([{}, {}])
            ranks.gather()


def test_three_ranks_end_together() -> None:
    with ranks_that(SLEEP, "os._exit(9)", SLEEP) as ranks:
        with pytest.raises(RankEnded, match=r"rank 1 .* with status 9, so all other ranks are stopped too"):
            ranks.gather()
        assert not any(map(is_running, ranks.pids))


def test_what_a_rank_refuses_is_the_one_error() -> None:
    refuse = "say(kind='refused', what='no room', where='GPU 1', fix='buy one', status=5)"
    for body in (f"{refuse}; os._exit(5)", f"{refuse}; {SLEEP}"):
        with ranks_that(SLEEP, body) as ranks:
            with pytest.raises(DeviceError) as caught:
                ranks.gather()
            assert str(caught.value) == "GPU 1: no room; buy one"
    with ranks_that(f"{refuse}; os._exit(5)", f"{refuse}; os._exit(5)") as ranks, pytest.raises(DeviceError):
        ranks.gather()


def test_ranks_that_ignore_the_end_are_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.ranks.processes.LAST_SECONDS", 0.1)
    ranks = ranks_that(SLEEP, SLEEP)
    pids = ranks.pids
    ranks.end()
    ranks.end()
    assert not any(map(is_running, pids))


def test_a_rank_that_cannot_be_started_ends_those_that_were(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []
    original = subprocess.Popen

    def recorded(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(original(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", recorded)
    with pytest.raises(OSError, match="nothing-of-this-name"):
        RankProcesses(2, lambda rank, _: [sys.executable, "-c", "input()"] if rank == 0 else ["nothing-of-this-name"])
    assert len(started) == 1 and started[0].poll() is not None


def test_a_rank_ends_when_the_process_that_started_it_is_gone() -> None:
    """The real worker: its socket closes, as that of a killed parent does."""
    with RankProcesses(1, load.worker_command) as ranks:
        ranks._sockets[0].close()
        assert ranks._processes[0].wait(60) in (0, 1)


class Gpus:
    """A driver of some GPUs; `apart` are pairs that do not reach each other's memory."""

    def __init__(self, count: int, *apart: tuple[int, int]) -> None:
        self.count, self.apart, self.current, self.retained = count, apart, -1, list[int]()
        self.CUresult = SimpleNamespace(CUDA_SUCCESS=0)

    def cuInit(self, flags: int) -> tuple[int]:
        return (0,)

    def cuDeviceGetCount(self) -> tuple[int, int]:
        return 0, self.count

    def cuDeviceGet(self, number: int) -> tuple[int, int]:
        return 0, number

    def cuDeviceCanAccessPeer(self, device: int, peer: int) -> tuple[int, int]:
        return 0, int((device, peer) not in self.apart)

    def cuDevicePrimaryCtxRetain(self, device: int) -> tuple[int, int]:
        self.retained.append(device)
        return 0, 100 + device

    def cuCtxSetCurrent(self, context: int) -> tuple[int]:
        self.current = context
        return (0,)

    def cuGetErrorName(self, code: int) -> tuple[int, bytes]:
        return 0, b"CUDA_ERROR_UNKNOWN"

    def cuGetErrorString(self, code: int) -> tuple[int, bytes]:
        return 0, b"a text"


@pytest.mark.parametrize(
    ("gpus", "ranks", "message"),
    [
        (Gpus(1), 2, "2 GPUs are asked for, and CUDA shows 1 on this machine; ask for as many as there are"),
        (Gpus(3), 4, "4 GPUs are asked for, and CUDA shows 3 on this machine"),
        (Gpus(2, (0, 1)), 2, "GPU 0 cannot reach the memory of GPU 1; take GPUs that NVLink or one PCIe root joins"),
        (Gpus(4, (3, 2)), 4, "GPU 3 cannot reach the memory of GPU 2"),
    ],
)
def test_gpus_that_cannot_be_shared(gpus: Gpus, ranks: int, message: str) -> None:
    for rank in range(ranks):
        with pytest.raises(DeviceError) as caught:
            open_rank(rank, ranks, DriverCalls(gpus))
        assert message in str(caught.value)
        assert gpus.current == -1, "nothing was opened"


def test_a_rank_opens_its_own_gpu_and_no_other() -> None:
    """A context on each GPU would take memory of the ranks there."""
    gpus = Gpus(4, (3, 0))
    assert open_rank(1, 3, DriverCalls(gpus)) == 1
    assert (gpus.current, gpus.retained) == (101, [1])


def test_calls_that_fail_are_named() -> None:
    gpus = Gpus(2)
    gpus.cuDevicePrimaryCtxRetain = lambda device: (999, 0)  # pyright: ignore
    with pytest.raises(DeviceError, match="cuDevicePrimaryCtxRetain"):
        open_rank(0, 2, DriverCalls(gpus))


WITH_GPUS = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from engine.ranks import worker
from engine.ranks.peers import DriverCalls
from test_rank_processes import Gpus
gpus = Gpus(int(sys.argv[2]), *([(0, 1)] if sys.argv[3] == "apart" else []))
worker.DriverCalls = lambda: DriverCalls(gpus)
worker.run(int(sys.argv[1]))
"""


@pytest.mark.parametrize(
    ("count", "joined", "message"),
    [
        (1, "joined", "2 GPUs are asked for, and CUDA shows 1 on this machine"),
        (2, "apart", "GPU 0 cannot reach the memory of GPU 1"),
    ],
)
def test_gpus_that_cannot_be_shared_are_one_error_of_the_command(
    count: int, joined: str, message: str, tiny_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def command(_: int, descriptor: int) -> list[str]:
        return [sys.executable, "-c", WITH_GPUS, str(descriptor), str(count), joined]

    original = load.load_gpus
    monkeypatch.setattr(load, "load_gpus", lambda *given, **named: original(*given, **named, command=command))
    assert run(["--model", str(tiny_folder()), "--prompt", "a", "--gpus", "2"]) == DeviceError.exit_code
    printed = capsys.readouterr().err
    assert message in printed and printed.count("error:") == 1


def test_a_model_that_cannot_be_shared_starts_no_process(
    tiny_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "RankProcesses", lambda *_: pytest.fail("a process was started"))
    from engine.models.families import read_config

    with pytest.raises(UsageError, match="3 GPUs cannot share this model"):
        load.load_ranks(tiny_folder(), read_config(tiny_folder()), 3, "cuda", 128)


def test_the_worker_s_messages_are_lines_of_json() -> None:
    """As the other end reads them: one object a line, nothing between."""
    with RankProcesses(1, load.worker_command) as ranks:
        ranks.send([{"rank": 0, "ranks": 2}])
        with pytest.raises(EngineError) as caught:
            ranks.gather()
        assert json.dumps(str(caught.value)).count("\\n") == 0


def test_progress_comes_between_replies_and_counts_as_none() -> None:
    body = "say(kind='progress', done=rank); say(kind='progress', done=rank + 10); say(kind='done', rank=rank); hear()"
    heard: list[tuple[int, int]] = []
    with ranks_that(body, body) as ranks:
        replies = ranks.gather(lambda rank, message: heard.append((rank, message["done"])))
        assert [reply["rank"] for reply in replies] == [0, 1]
    assert sorted(heard) == [(0, 0), (0, 10), (1, 1), (1, 11)]
