"""Control characters of a hostile file are shown at a terminal, not executed."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import TextIO, cast

import pytest

from tests.project import project
from tilec.diagnostics.diagnostic import Counterexample, Diagnostic, Label, Span, render
from tilec.diagnostics.terminal import STYLES, coloured, painted
from tilec.diagnostics.visible import Guarded, visible, visible_line

TITLE, CLEAR, CLIPBOARD = "\x1b]0;owned\x07", "\x1b[2J\x1b[H", "\x1b]52;c;cm0gLXJm\x07"
MOVES = ("\x9b31m", "\x08\x08", "\r", "\x00", "\x7f", "\u202e", "\u2066", "\u2028", "\udc80", "\x1b[8m", "\x1b[1;8m")
BLACK = "\x1b[30m"
COLOURS = (BLACK, "\x1b[38;5;208m", "\x1b[7m", "\x1b[1;31m", "\x1b[0m", "\x1b[m", "\x1b[01;31m")
HOSTILE = (TITLE, CLEAR, CLIPBOARD, *MOVES, *COLOURS)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_that_a_terminal_obeys_is_left(text: str) -> None:
    for shown in (visible(f"a{text}b"), visible_line(f"a{text}b", 99)):
        assert shown.isprintable() and shown.startswith("a\\") and shown.endswith("b")
    terminal = Terminal()
    print(f"a{text}b", file=Guarded(terminal))
    assert terminal.getvalue().removesuffix("\n").isprintable()


def test_plain_text_and_our_colours_stay() -> None:
    plain = "größe 数 👩\u200d💻\tx\ny"
    assert visible(plain) == plain
    terminal = Terminal()
    guarded = coloured(cast("TextIO", Guarded(terminal)))
    ours = "".join(painted(role, role) for role in STYLES)
    guarded.write(ours + plain + "\x1b[38;5;208mx\x1b[m\x1b[8m\x1b[30m")
    assert terminal.getvalue() == ours + plain + "\\x1b[38;5;208mx\\x1b[m\\x1b[8m\\x1b[30m"
    assert guarded.isatty() and visible_line("abcdef", 5) == "ab..."
    assert coloured(terminal) is terminal


@pytest.mark.parametrize("text", HOSTILE)
def test_every_part_of_a_diagnostic_is_visible(text: str) -> None:
    span = Span(f"k{text}.py", 1, 4, 1, 6)
    found = Diagnostic(
        "E0001", f"m{text}", Label(span, f"l{text}"), (Label(Span(f"o{text}.py", 1, 0, 1, 1), text),), (f"n{text}",),
        Counterexample({f"N{text}": 1}, note=text), f"h{text}",
    )  # fmt: skip
    line = f"{text}xxxxyy".replace("\n", "")
    shown = render(found, {span.file: line, f"o{text}.py": line})
    assert all(part.isprintable() for part in shown.split("\n")), ascii(shown)


def test_carets_stand_under_what_is_shown() -> None:
    shown = render(Diagnostic("E0001", "m", Label(Span("k", 1, 2, 1, 4))), {"k": "\x1b_ab"}).split("\n")
    assert shown[3].index("\\x1b_ab") + 5 == shown[4].index("^^")


def _at_a_terminal(command: list[str], store: Path) -> str:
    reader, writer = pty.openpty()
    environment = os.environ | {"TILEC_CACHE_DIR": str(store), "TERM": "xterm"}
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=writer, stderr=writer, env=environment) as running:
        os.close(writer)
        parts: list[bytes] = []
        while True:
            try:
                part = os.read(reader, 65536)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            parts.append(part)
        running.wait()
    os.close(reader)
    return b"".join(parts).decode("utf-8", "surrogateescape")


def test_a_traceback_at_a_terminal_has_no_colour(tmp_path: Path) -> None:
    code = f"from tilec.diagnostics.visible import guard_streams; guard_streams(); raise ValueError('x{BLACK}y')"
    text = _at_a_terminal([sys.executable, "-P", "-c", code], tmp_path)
    assert "ValueError: x\\x1b[30my" in text and "\x1b" not in text and "\\x1b[0m" not in text, ascii(text)


def test_a_hostile_project_at_a_terminal(tmp_path: Path) -> None:
    """In a name, which a progress bar shows too, and in the source line of an error. Errors keep their color."""
    root = project.make(tmp_path / "p", ("copy_a",), arch='"sm_90"')
    build = (root / "build.toml").read_text().replace("[128, 256]", '"\\u001b]0;owned\\u0007"')
    (root / "build.toml").write_text(build)
    kernel = root / "kernels_src/copy_a.py"
    kernel.write_text(kernel.read_text().replace("bid(0), load", f"bid(0) + nothing, '{TITLE}{CLEAR}{BLACK}', load"))
    for arguments in (["check"], ["check", f"no{TITLE}thing"]):
        text = _at_a_terminal([sys.executable, "-P", "-m", "tilec", *arguments, "--project", str(root)], tmp_path / "store")
        assert "owned" in text, text
        assert not re.search(r"\x1b\](?!8;)|\x07|\x1b\[2J|\x1b\[30m", text), ascii(text)
        assert "\x1b[1;31merror" in text, ascii(text)
