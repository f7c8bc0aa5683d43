"""The process that checks grammars: what it makes is what the engine's makes; what ends it is an error of one request."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from asking import ask, chat
from in_process import Received, Server, says, server

from engine.errors import DeviceError, UsageError
from engine.serving.grammar_compiler import Compiler
from engine.serving.grammar_process import KEPT, GrammarEnded, GrammarProcess

ROOT = Path(__file__).resolve().parents[3]
HARMFUL = str(Path(__file__).with_name("harmful_worker.py"))
CRASH = {"type": "integer", "minimum": -(2**63), "maximum": -(2**63)}
"""llguidance 1.9 recurses without end (`engine.serving.grammar_depth`)."""
SLOW = {"type": "integer", "multipleOf": 99999989}
HANG_SECONDS = 60


def process_of(one: Server, folder: Path, **options: Any) -> GrammarProcess:
    """Another process that checks grammars for a server's model; takes the place of its own."""
    model = one.model
    found = GrammarProcess(folder, model.vocabulary, model.generation.eos_token_id, **options)
    model._grammars.close()
    model._grammars = found
    return found


@pytest.fixture
def harmed(talker: Path) -> Iterator[Server]:
    """A server whose grammars are checked without bounds, each for half a second of processor time."""
    one = server(talker, says(talker, "<think>\nhm\n</think>\n\nBecause."))
    process_of(one, talker, worker=HARMFUL, cpu_seconds=0.5)
    yield one
    one.model.close()


@pytest.mark.parametrize(
    ("field", "value", "status", "message"),
    [
        ("guided_json", CRASH, 400, "it ended the process that checks it"),
        ("guided_json", SLOW, 400, "it takes over 0.5 seconds to compile"),
        ("guided_regex", "memory", 400, "it takes over 2048 MiB of memory to compile"),
        ("guided_regex", "error", 400, "it ended the process that checks it"),
        ("guided_regex", "lost", 503, "the process that checks grammars ended"),
    ],
)
def test_a_grammar_that_ends_the_process(harmed: Server, field: str, value: Any, status: int, message: str) -> None:
    """Others that were asked for at the same time get theirs."""

    async def run() -> list[Received]:
        def asked(**form: Any) -> Any:
            return harmed.ask("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], **form})

        return await asyncio.gather(asked(guided_regex="a+"), asked(**{field: value}), asked(guided_regex="b+"), asked())

    before, refused, after, without = asyncio.run(run())
    assert (before.status, after.status, without.status) == (200, 200, 200)
    assert refused.status == status and message in refused.error["message"]
    assert refused.error["param"] == (field if status == 400 else None)
    assert ("retry-after" in refused.headers) == (status == 503)
    assert {work.grammar.text for work in harmed.client.submitted if work.grammar} == {
        harmed.model._grammars.made("regex", text) for text in ("a+", "b+")
    }  # the engine never has what was refused


def test_a_tool_that_ends_the_process_is_tried_once(harmed: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    made = harmed.model._grammars.made

    def counted(kind: str, value: Any) -> str:
        asked.append(kind)
        return made(kind, value)

    monkeypatch.setattr(harmed.model._grammars, "made", counted)
    tools = [{"type": "function", "function": {"name": "a", "parameters": CRASH, "strict": True}}]
    found = chat(harmed, tools=tools)
    assert (found.status, found.error["code"], asked) == (400, "grammar_ended", ["whole"])


def test_it_makes_what_the_compiler_makes(talker: Path, speaker: Server) -> None:
    process = process_of(speaker, talker)
    compiler = Compiler(talker, speaker.model.vocabulary, speaker.model.generation.eos_token_id)
    for kind, value in (
        ("json", {"type": "object"}), ("choice", ["a", "\u00e9"]), ("regex", "a+"), ("grammar", 'start: "a"'),
        ("whole", 'start: <[3]> "a"\n'),
    ):  # fmt: skip
        assert process.made(kind, value) == compiler.made(kind, value)
    for kind, value in (("regex", "("), ("json", {"type": "no"}), ("whole", "start: x"), ("json", CRASH)):
        with pytest.raises(UsageError) as expected:
            compiler.made(kind, value)
        with pytest.raises(UsageError) as found:
            process.made(kind, value)
        assert found.value.what == expected.value.what and not isinstance(found.value, GrammarEnded)
    deep: Any = []
    for _ in range(sys.getrecursionlimit()):
        deep = [deep]
    with pytest.raises(UsageError, match="nested too deeply"):
        process.made("json", {"enum": deep})
    process.close()


def test_one_starts_with_the_first_grammar_and_one_grammar_is_made_once(talker: Path, speaker: Server) -> None:
    process = process_of(speaker, talker)
    assert ask(speaker, "/v1/completions", {"prompt": "a"}).status == 200
    assert process._process is None
    first = process.made("regex", "a+")
    number = process._process
    assert number is not None
    process.close()
    assert process.made("regex", "a+") == first
    assert process._process is None  # nobody was asked
    for count in range(KEPT):
        process.made("regex", f"a{{{count + 1}}}")
    assert len(process._kept) == KEPT
    process.close()


def test_none_can_be_started_or_read_the_vocabulary(talker: Path, speaker: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    process_of(speaker, talker / "absent")
    found = chat(speaker, guided_regex="a")
    assert (found.status, found.error["code"], found.headers["retry-after"]) == (503, "grammars_unavailable", "1")
    process = process_of(speaker, talker)

    def popen(*_: Any, **__: Any) -> None:
        raise OSError(11, "no more processes")

    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", popen)
        assert chat(speaker, guided_regex="a").error["code"] == "grammars_unavailable"
    assert chat(speaker, guided_regex="a").status == 200
    process.close()


def test_one_that_waits_too_long_is_killed(talker: Path, speaker: Server) -> None:
    process = process_of(speaker, talker, wall_seconds=0.0)
    with pytest.raises(DeviceError, match="took over 0 seconds"):
        process.made("regex", "a")
    assert process._process is None


@pytest.mark.parametrize(("times", "status"), [(1, 200), (2, 503)])
def test_one_that_is_killed_before_it_replies_is_asked_once_more(
    talker: Path, tmp_path: Path, times: int, status: int
) -> None:  # fmt: skip
    """`lost` kills its process, while a file says how often it still does."""
    left = tmp_path / "left"
    left.write_text("x" * times, encoding="utf-8")
    one = server(talker, says(talker, "x"))
    process = process_of(one, talker, worker=HARMFUL)
    assert chat(one, guided_regex=f"lost{left}").status == status
    assert left.read_text(encoding="utf-8") == ""
    assert (process._process is not None) == (status == 200)
    one.model.close()


def test_closing_ends_one_that_compiles(talker: Path) -> None:
    """Whoever waits for a reply gets an error, and does not delay the end of the server."""
    one = server(talker, says(talker, "x"))
    process = process_of(one, talker, worker=HARMFUL, cpu_seconds=10 * HANG_SECONDS)

    async def run() -> Received:
        asking = asyncio.ensure_future(chat_of(one, SLOW))
        while process._process is None or not _computes(process._process.pid):
            await asyncio.sleep(0.01)
        one.model.close()
        async with asyncio.timeout(HANG_SECONDS):
            return await asking

    found = asyncio.run(run())
    assert found.status == 503 and process._process is None


def chat_of(one: Server, schema: Any) -> Any:
    return one.ask("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "guided_json": schema})


def _computes(pid: int) -> bool:
    """Whether a process has used over a second of its processor, so that it is past its start."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12]) > os.sysconf("SC_CLK_TCK")


PARENT = """
import sys
from engine.serving.grammar_process import GrammarProcess
one = GrammarProcess(sys.argv[1], int(sys.argv[2]), [0])
one.made("regex", "a")
print(one._process.pid, flush=True)
sys.stdin.read()
"""


def test_it_ends_with_its_parent(talker: Path, speaker: Server) -> None:
    """Also when that is killed."""
    command = [sys.executable, "-c", PARENT, str(talker), str(speaker.model.vocabulary)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        watched = os.pidfd_open(int(parent.stdout.readline()))
        parent.send_signal(signal.SIGKILL)
    assert select.select([watched], [], [], HANG_SECONDS)[0] == [watched]
    os.close(watched)


def test_it_leaves_no_files_open(talker: Path, speaker: Server) -> None:
    process = process_of(speaker, talker, worker=HARMFUL)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(GrammarEnded):
            process.made("regex", "error")
    process.close()
    assert len(os.listdir("/proc/self/fd")) == before
