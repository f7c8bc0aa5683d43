"""How the language server ends and recovers: during a proof, without its editor, without its workers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests import campaign
from tests.lsp.client import Editor, at, editor
from tests.lsp.test_server import BUILD, RIGHT, WRONG, codes

LONG = "".join(
    f"        for j{i} in range(n // {i + 3}):\n            s = s + (i * {i + 5} + j{i}) % (n + {i})\n" for i in range(400)
)
ENDLESS = RIGHT.replace(
    "    v = load", f"    n = M * M\n    s = 0\n    for i in range(n):\n{LONG}    requires(M * M <= 100000)\n    v = load"
).replace("store(out, (h * M + m, 0)", "store(out, ((h * M + m) * (s * s + n) // (s * s + n), 0)")
"""A kernel whose proof takes minutes, whatever its budget is."""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "build.toml").write_text(BUILD.replace('arch = ["sm_90"]', 'arch = ["sm_90"]\nstage_seconds = 100000'))
    (tmp_path / "head_permute.py").write_text(RIGHT)
    return tmp_path


def family(pid: int) -> list[int]:
    """Descendants of a process, nearer generations first."""
    parents: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat") as file:
            parents.setdefault(int(file.read().rpartition(")")[2].split()[1]), []).append(int(name))
    found = [pid]
    for each in found:
        found += parents.get(each, [])
    return found[1:]


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


async def wait_until_exited(pids: list[int]) -> None:
    """Waits until processes are gone."""
    while any(map(alive, pids)):
        await asyncio.sleep(0.01)


@asynccontextmanager
async def proving(project: Path) -> AsyncGenerator[tuple[Editor, str, list[int]]]:
    """An editor whose server stays in the middle of a proof: its file, and the server's descendants, the workers' server
    first."""
    async with editor(project) as vi:
        uri = vi.open(project / "head_permute.py", ENDLESS)
        assert await vi.hover(uri, *at(ENDLESS, "Literal[")) == ""  # answered after the front end, before the proof
        below = family(vi.process.pid)
        assert len(below) >= 2, "a server of workers, and a worker"
        for worker in below[1:]:
            os.kill(worker, signal.SIGSTOP)
        yield vi, uri, below


def run(test: Callable[[], Coroutine[None, None, None]]) -> None:
    asyncio.run(test())


@pytest.mark.campaign
def test_the_editor_ends_the_server_during_a_proof(project: Path) -> None:
    async def test() -> None:
        async with proving(project) as (_, _, below):
            pass  # shutdown and exit, and status 0
        await wait_until_exited(below)

    run(test)


@pytest.mark.parametrize("how", campaign.first(1, ["it is killed", "the editor goes", "it is asked to exit"]))
def test_no_process_remains(project: Path, how: str) -> None:
    async def test() -> None:
        async with proving(project) as (vi, _, below):
            match how:
                case "the editor goes":
                    assert vi.process.stdin is not None
                    vi.process.stdin.close()
                    status = 1
                case "it is killed":
                    vi.process.kill()
                    status = -signal.SIGKILL
                case _:
                    vi.process.terminate()
                    status = 128 + signal.SIGTERM
            await vi.ended.wait()
            assert vi.process.returncode == status
            await wait_until_exited(below)

    run(test)


@pytest.mark.campaign
def test_a_change_ends_the_proof_of_the_previous_text(project: Path) -> None:
    async def test() -> None:
        async with proving(project) as (vi, uri, below):
            vi.change(uri, WRONG, 2)
            assert codes(await vi.diagnostics_of(uri, 2, lambda found: len(found) >= 3)) == ["E0302", "E0401", "E0403"]
            await wait_until_exited(below[1:])
            assert alive(below[0])  # and its loaded modules serve the next worker

    run(test)


@pytest.mark.campaign
def test_another_file_does_not_wait_for_a_resumed_proof(project: Path) -> None:
    (project / "build.toml").write_text(
        (project / "build.toml").read_text() + '\n[[kernel]]\nname = "second"\nconstants = { HEADS = 8, D = 128 }\n'
    )
    text = WRONG.replace("def head_permute", "def second")
    (project / "second.py").write_text(text)

    async def test() -> None:
        async with proving(project) as (vi, uri, below):
            other = vi.open(project / "second.py", text)
            assert len(await vi.diagnostics_of(other, 1, lambda found: len(found) >= 3)) == 3
            await wait_until_exited(below[1:])
            vi.change(uri, RIGHT, 2)
            assert await vi.diagnostics_of(uri, 2) == []

    run(test)


@pytest.mark.campaign
def test_a_worker_that_dies_is_reported_and_does_not_end_the_server(project: Path) -> None:
    async def test() -> None:
        async with proving(project) as (vi, uri, below):
            for worker in below[1:]:
                os.kill(worker, signal.SIGKILL)
            found = await vi.diagnostics_of(uri, 1, lambda found: bool(found))
            assert codes(found)[0] == "E0813" and "was killed (SIGKILL)" in found[0].message
            vi.change(uri, WRONG, 2)
            assert codes(await vi.diagnostics_of(uri, 2, lambda found: len(found) >= 3)) == ["E0302", "E0401", "E0403"]

    run(test)


@pytest.mark.campaign
def test_the_server_of_workers_that_dies_is_started_again(project: Path) -> None:
    async def test() -> None:
        async with editor(project) as vi:
            uri = vi.open(project / "head_permute.py", RIGHT)
            assert await vi.diagnostics_of(uri, 1) == []
            workers, *_ = family(vi.process.pid)  # a worker below it that has reported its proof may be about to end
            os.kill(workers, signal.SIGKILL)
            vi.change(uri, WRONG, 2)
            assert codes(await vi.diagnostics_of(uri, 2, lambda found: len(found) >= 3)) == ["E0302", "E0401", "E0403"]

    run(test)
