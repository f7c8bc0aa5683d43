"""A conversation: reads lines, prints replies, keeps the messages.

A line is a message of the user; one that ends with a backslash goes on in the next line. Lines that begin with `/` are
commands. Ctrl-C ends the reply in progress, whose text so far stays in the conversation; a second one ends the program. A
message that gets no reply is taken out of the conversation, so that it can be said again.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, Final, TextIO

from engine.chat.speaker import Message, Speaker
from engine.errors import EngineError

PROMPT: Final = "> "
GOES_ON: Final = ". "
DIM, PLAIN = "\x1b[2m", "\x1b[0m"
STYLES: Final = ("2", "0")
"""The styles of `DIM` and `PLAIN`, which a guarded terminal must pass."""

HELP: Final = """/help        these lines
/reset       begin a new conversation
/quit        end, as Ctrl-D does
A line that ends with a backslash goes on in the next one. Ctrl-C stops a reply.
"""

ReadLine = Callable[[str], str]
"""Reads a line after a prompt; EOFError at the end, KeyboardInterrupt for Ctrl-C."""


class Session:
    """A conversation with a speaker. Replies go to `out`, `styled` if it is a terminal; all else goes to `notes`. Thoughts are
    printed to a terminal only."""

    def __init__(
        self, speaker: Speaker, read: ReadLine, out: TextIO, notes: TextIO, *, system: str | None = None, styled: bool = False
    ) -> None:
        self._speaker, self._read, self._out, self._notes, self._styled = speaker, read, out, notes, styled
        self._begin: list[Message] = [{"role": "system", "content": system}] if system else []
        self.messages = list(self._begin)

    def run(self) -> None:
        """Talk until the input ends."""
        for line in self._lines():
            command = line.strip()
            if command == "/quit":
                return
            if command == "/reset":
                self.messages = list(self._begin)
                self._note("a new conversation")
            elif command.startswith("/"):
                self._note(HELP.rstrip() if command == "/help" else f"there is no command {command}; /help lists them")
            elif command:
                self._say(line)

    def _lines(self) -> Iterator[str]:
        """Messages and commands; Ctrl-C drops what was typed."""
        parts: list[str] = []
        while True:
            try:
                part = self._read(GOES_ON if parts else PROMPT)
            except KeyboardInterrupt:
                parts = []
                self._note("")
                continue
            except EOFError:
                if parts:
                    yield "\n".join(parts)
                return
            if part.endswith("\\"):
                parts.append(part[:-1])
                continue
            yield "\n".join([*parts, part])
            parts = []

    def _say(self, line: str) -> None:
        """Send a message and print the reply."""
        self.messages.append({"role": "user", "content": line})
        text, end = "", "stop"
        try:
            with interrupting(self._speaker):
                text, end = self._printed()
        except EngineError as error:
            self._note(f"error: {error}")
            end = "error"
        if end == "interrupted":
            self._note("stopped")
        elif end == "length":
            self._note("the reply reached its most tokens")
        if text and end != "error":
            self.messages.append({"role": "assistant", "content": text})
        else:
            self.messages.pop()

    def _printed(self) -> tuple[str, str]:
        """Print a reply; returns its content, and why it ended."""
        text, end, last, trailing = "", "interrupted", "", "\n"
        for piece in self._speaker.reply(self.messages):
            if piece.kind == "end":
                end = piece.text
                continue
            if piece.kind == "thought" and not self._styled:
                continue
            if self._styled and piece.kind != last:
                self._out.write(DIM if piece.kind == "thought" else f"{PLAIN}\n\n" if last else "")
            last = piece.kind
            text += piece.text if piece.kind == "content" else ""
            self._out.write(piece.text)
            self._out.flush()
            trailing = piece.text[-1:]
        if self._styled and last == "thought":
            self._out.write(PLAIN)
        if trailing != "\n":
            self._out.write("\n")
        self._out.flush()
        return text, end

    def _note(self, text: str) -> None:
        self._notes.write(text + "\n")
        self._notes.flush()


@contextmanager
def interrupting(speaker: Speaker) -> Generator[None]:
    """The first Ctrl-C inside interrupts the speaker, whose code it cannot break off anywhere else; a second one is
    KeyboardInterrupt."""

    def handle(*_: Any) -> None:
        if speaker.interrupted:
            raise KeyboardInterrupt
        speaker.interrupt()

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
