"""`python -m engine chat`: the conversation, a server or a model of this process that replies, and Ctrl-C at a terminal."""

from __future__ import annotations

import io
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from on_loopback import SENTENCE, THOUGHT, listening

from engine.api import Engine
from engine.chat.local import LocalSpeaker
from engine.chat.remote import RemoteSpeaker
from engine.chat.session import DIM, PLAIN, Session
from engine.chat.speaker import Message, Piece, Speaker
from engine.cli import run
from engine.errors import EngineError, UsageError
from engine.serving.protocol import Cancel, Submit

ROOT = Path(__file__).resolve().parents[3]
HANG_SECONDS = 60


class Parrot(Speaker):
    """Says what `says` returns for a conversation, or raises it."""

    name = "parrot"

    def __init__(self, says: Callable[[Sequence[Message]], list[Piece] | EngineError]) -> None:
        super().__init__()
        self._says = says

    def close(self) -> None: ...

    def _reply(self, messages: Sequence[Message]) -> Iterator[Piece]:
        found = self._says(messages)
        if isinstance(found, EngineError):
            raise found
        for piece in found:
            yield piece
            if self.interrupted:
                return


def echo(messages: Sequence[Message]) -> list[Piece]:
    return [Piece("thought", "hm"), Piece("content", messages[-1]["content"]), Piece("content", "!"), Piece("end", "stop")]


def talk(speaker: Speaker, *lines: str | type[BaseException], **options: Any) -> tuple[Session, str, str]:
    """A session of some lines, after which the input ends; what it wrote to both streams."""
    waiting = list(lines)
    prompts: list[str] = []

    def read(prompt: str) -> str:
        prompts.append(prompt)
        line = waiting.pop(0) if waiting else EOFError
        if isinstance(line, str):
            return line
        raise line

    out, notes = io.StringIO(), io.StringIO()
    session = Session(speaker, read, out, notes, **options)
    session.run()
    return session, out.getvalue(), notes.getvalue()


def contents(session: Session) -> list[str]:
    return [f"{message['role']}: {message['content']}" for message in session.messages]


def test_a_conversation() -> None:
    heard: list[list[Message]] = []

    def says(messages: Sequence[Message]) -> list[Piece]:
        heard.append(list(messages))
        return echo(messages)

    session, out, notes = talk(Parrot(says), "one", "", "two\\", "lines", system="be brief")
    assert (out, notes) == ("one!\ntwo\nlines!\n", "")
    assert contents(session) == [
        "system: be brief",
        "user: one",
        "assistant: one!",
        "user: two\nlines",
        "assistant: two\nlines!",
    ]
    assert [len(messages) for messages in heard] == [2, 4]


def test_commands() -> None:
    session, out, notes = talk(Parrot(echo), "one", "/reset", " /help ", "/nothing", "two", "/quit", "three", system="s")
    assert out == "one!\ntwo!\n" and contents(session) == ["system: s", "user: two", "assistant: two!"]
    assert "a new conversation" in notes and "/reset" in notes and "there is no command /nothing" in notes


def test_a_terminal_gets_the_thought_in_another_style() -> None:
    assert talk(Parrot(echo), "one", styled=True)[1] == f"{DIM}hm{PLAIN}\n\none!\n"
    cut = [Piece("thought", "hm"), Piece("end", "length")]
    session, out, notes = talk(Parrot(lambda _: cut), "one", styled=True)
    assert out == f"{DIM}hm{PLAIN}\n" and "most tokens" in notes
    assert session.messages == []  # nothing was said


def test_a_message_without_a_reply_is_taken_out() -> None:
    def says(messages: Sequence[Message]) -> list[Piece] | EngineError:
        return UsageError("it does not fit") if messages[-1]["content"] == "long" else echo(messages)

    session, _, notes = talk(Parrot(says), "one", "long", "two")
    assert notes == "error: it does not fit\n"
    assert contents(session) == ["user: one", "assistant: one!", "user: two", "assistant: two!"]


def test_ctrl_c_stops_a_reply_and_what_is_typed() -> None:
    def says(messages: Sequence[Message]) -> list[Piece]:
        if messages[-1]["content"] == "stop":
            signal.raise_signal(signal.SIGINT)
        return echo(messages)

    before = signal.getsignal(signal.SIGINT)
    session, out, notes = talk(Parrot(says), "one\\", KeyboardInterrupt, "stop", "two")
    assert signal.getsignal(signal.SIGINT) is before
    assert out.endswith("two!\n") and "stopped" in notes and contents(session) == ["user: two", "assistant: two!"]

    def says_first(messages: Sequence[Message]) -> list[Piece]:
        return [Piece("content", "so"), Piece("content", "never")]

    class Interrupted(Parrot):
        def _reply(self, messages: Sequence[Message]) -> Iterator[Piece]:
            for piece in super()._reply(messages):
                yield piece
                signal.raise_signal(signal.SIGINT)  # while the next piece is made
                if self.interrupted:
                    return

    session, out, _ = talk(Interrupted(says_first), "one")
    assert out == "so\n" and contents(session) == ["user: one", "assistant: so"]

    class Stuck(Parrot):
        def _reply(self, messages: Sequence[Message]) -> Iterator[Piece]:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            return iter(())

    with pytest.raises(KeyboardInterrupt):
        talk(Stuck(echo), "one")


# A server


def pieces(speaker: Speaker, *messages: str) -> list[tuple[str, str]]:
    """The pieces of a reply, those of one kind joined."""
    found: list[tuple[str, str]] = []
    for piece in speaker.reply([{"role": "user", "content": text} for text in messages]):
        if found and found[-1][0] == piece.kind:
            found[-1] = piece.kind, found[-1][1] + piece.text
        else:
            found.append((piece.kind, piece.text))
    return found


WHOLE = [("thought", THOUGHT), ("content", SENTENCE), ("end", "stop")]


def test_a_server_replies(talker: Path) -> None:
    with listening(talker, keys=["a key"]) as server:
        for url in (server.url, f"{server.url}/v1/", f"127.0.0.1:{server.port}"):
            assert RemoteSpeaker(url, key="a key").name == "talker"
        speaker = RemoteSpeaker(server.url, key="a key", temperature=0.5, max_tokens=100)
        assert pieces(speaker, "Why?") == WHOLE == pieces(speaker, "Why?")
        fields = server.asked[-1].fields
        assert fields == {
            "model": "talker", "messages": [{"role": "user", "content": "Why?"}], "stream": True, "temperature": 0.5,
            "max_tokens": 100,
        }  # fmt: skip
        with pytest.raises(UsageError, match=r"refuses it with status 400: .*4096"):
            pieces(RemoteSpeaker(server.url, key="a key", max_tokens=5000), "Why?")
        with pytest.raises(UsageError, match="the API key is missing or wrong"):
            RemoteSpeaker(server.url, key="wrong")
        with pytest.raises(UsageError, match="not served here"):
            pieces(RemoteSpeaker(server.url, key="a key", model="other"), "Why?")


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://127.0.0.1:99999", "http://x:y", "http://127.0.0.1?a=b"])
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(UsageError, match="no URL of a server"):
        RemoteSpeaker(url)


def test_a_server_that_is_not_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(UsageError, match=r"no server at .*: Connection refused"):
        RemoteSpeaker(f"http://127.0.0.1:{port}")


@contextmanager
def responding(body: bytes) -> Generator[int]:
    """A server that sends one response and closes the connection; its port."""

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            received = b""
            while not received.endswith(b"}"):
                received += connection.recv(1 << 16)
            connection.sendall(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + body)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        thread.join()


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (b'data: {"choices": [{"delta": {"content": "so"}}]}\n\n', "closed the connection in the middle"),
        (b"", "closed the connection in the middle"),
        (b'data: {"error": {"message": "it broke"}}\n\ndata: [DONE]\n\n', "could not finish the reply: it broke"),
        (b'data: {"error": "it broke"}\n\n', "could not finish the reply: it broke"),
    ],
)
def test_a_reply_that_is_cut_is_an_error(body: bytes, what: str) -> None:
    with responding(body) as port, pytest.raises(EngineError, match=what):
        pieces(RemoteSpeaker(f"http://127.0.0.1:{port}", model="x"), "Why?")


def test_what_other_servers_send() -> None:
    """Comments, other names of thoughts, chunks without a choice, and lines that are no JSON."""
    body = (
        b': ping\n\ndata: {"choices": [{"delta": {"reasoning": "hm"}}]}\n\ndata: {"choices": []}\n\ndata: what\n\ndata: 3\n\n'
        b'data: {"choices": [{"delta": {"content": "so", "role": "assistant"}, "finish_reason": "length"}]}\n\ndata: [DONE]\n\n'
    )
    with responding(body) as port:
        found = pieces(RemoteSpeaker(f"http://127.0.0.1:{port}", model="x"), "Why?")
    assert found == [("thought", "hm"), ("content", "so"), ("end", "length")]


# A model in this process


def test_a_model_replies_as_the_engine_generates(tiny: Path) -> None:
    with Engine.from_pretrained(tiny, backend="interpreter", max_seq_len=256) as engine:
        speaker = LocalSpeaker(engine, "tiny", max_tokens=6, sampling={"temperature": 0.0})
        session, out, _ = talk(speaker, "the sky", "a wheel")
        asked = {"role": "user", "content": "the sky"}
        first = "".join(engine.generate([asked], max_new_tokens=6))
        second = [asked, {"role": "assistant", "content": first}, {"role": "user", "content": "a wheel"}]
        assert out == f"{first}\n{''.join(engine.generate(second, max_new_tokens=6))}\n"
        assert session.messages[:3] == second
        with pytest.raises(UsageError, match="2015 tokens do not fit max-seq-len 256"):
            pieces(speaker, "x" * 2000)
        drawn = [pieces(LocalSpeaker(engine, "t", max_tokens=6, seed=3, sampling={"temperature": 2.0}), "x") for _ in range(2)]
        speaker = LocalSpeaker(engine, "t", max_tokens=6, seed=3, sampling={"temperature": 2.0})
        assert drawn[0] == drawn[1] == pieces(speaker, "x") != pieces(speaker, "x")
        assert drawn[0][-1] == ("end", "length")


def test_the_command_reads_messages_of_a_pipe(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["chat", str(tiny), "--backend", "interpreter", "--max-new-tokens", "4", "--temperature", "0", "--no-thinking"]
    monkeypatch.setattr("sys.stdin", io.StringIO("the sky\n/reset\nthe sky"))
    assert run(options) == 0
    out, notes = capsys.readouterr()
    first, second = out.splitlines()
    assert first == second and notes.count("most tokens") == 2


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ([], "give either a model folder or --url"),
        (["folder", "--url", "x"], "give either a model folder or --url"),
        (["--url", "x", "--bundle", "b"], "--bundle has no effect with --url"),
        (["--url", "x", "--weights", "fp8"], "--weights has no effect with --url"),
        (["folder", "--model-name", "x"], "--model-name has no effect without --url"),
        (["folder", "--temperature", "3"], "temperature"),
    ],
)
def test_wrong_usage(arguments: list[str], what: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["chat", *arguments]) == 2
    out, error = capsys.readouterr()
    assert out == "" and error.startswith("error: ") and what in error and error.count("\n") == 1


# A terminal


class Terminal:
    """`python -m engine chat` at a pseudo-terminal, whose output is kept."""

    def __init__(self, *arguments: str) -> None:
        self._ours, its = pty.openpty()
        environment = os.environ | {"TERM": "dumb", "PYTHONIOENCODING": "utf-8"}
        command = [sys.executable, "-m", "engine", "chat", *arguments]
        self.process = subprocess.Popen(
            command, stdin=its, stdout=its, stderr=its, cwd=ROOT, env=environment, start_new_session=True,
            preexec_fn=lambda: os.close(os.open(os.ttyname(0), os.O_RDWR)),  # its controlling terminal
        )  # fmt: skip
        os.close(its)
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def type_until(self, key: str, text: str) -> None:
        """Type a key again until a text appears: Python's `input` does not notice a signal that comes after its prompt and
        before it waits for keys."""
        self.type(key)
        while not select.select([self._ours], [], [], 1)[0]:
            assert self.process.poll() is None
            self.type(key)
        self.wait(text)

    def wait(self, text: str) -> str:
        """What was written until a text appears, which later calls see no more."""
        while text not in self.seen:
            assert select.select([self._ours], [], [], HANG_SECONDS)[0], self.seen
            self.seen += os.read(self._ours, 1 << 16).decode()
        before, found, self.seen = self.seen.partition(text)
        return before + found

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def at(*arguments: str) -> Terminal:
        opened.append(Terminal(*arguments))
        return opened[-1]

    yield at
    for one in opened:
        one.close()


def test_ctrl_c_at_a_terminal_frees_the_request(talker: Path, terminal: Callable[..., Terminal]) -> None:
    silent: list[Submit] = []

    def nothing(work: Submit) -> None:
        silent.append(work)

    with listening(talker, tokens=nothing) as server:
        one = terminal("--url", server.url)
        assert "talker: /help lists commands" in one.wait("> ")
        one.type("Why?\n")
        while not silent:
            assert one.process.poll() is None
        one.type("\x03")
        one.wait("stopped")
        one.wait("> ")
        while Cancel(0) not in server.client.sent:
            assert one.process.poll() is None
        one.type_until("\x03", "> ")  # at the prompt it drops what was typed
        one.type("\x04")
        assert one.process.wait(HANG_SECONDS) == 0


def test_a_terminal_sees_no_control_characters_of_the_model(talker: Path, terminal: Callable[..., Terminal]) -> None:
    with listening(talker, tokens=None) as plain:
        one = terminal("--url", plain.url)
        one.wait("> ")
        one.type("Why?\n")
        assert f"{DIM}{THOUGHT}{PLAIN}\r\n\r\n{SENTENCE}" in one.wait(SENTENCE)
    title = "a\x1b]0;title\x07b\x1b[8mc"

    def tokens(work: Submit) -> list[int]:
        return [*text.encode(title), end]

    from engine.serving.served_model import ServedModel

    model = ServedModel(talker, 256, "talker")
    text, end = model.text, model.generation.eos_token_id[0]
    with listening(talker, tokens=tokens) as server:
        one = terminal("--url", server.url)
        one.wait("> ")
        one.type("Why?\n")
        assert "a\\x1b]0;title\\x07b\\x1b[8mc" in one.wait("c\r\n")
