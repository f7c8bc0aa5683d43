"""A client's protocol error gives a line in the server's log, never a traceback, and the next message is processed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tilec.lsp.log import MAX_LINE, line_of


def message(**fields: Any) -> bytes:
    """A protocol message."""
    return framed(json.dumps({"jsonrpc": "2.0"} | fields).encode())


def framed(body: bytes) -> bytes:
    return b"Content-Length: %d\r\n\r\n" % len(body) + body


BEGIN = message(id=1, method="initialize", params={"capabilities": {}, "processId": None, "rootUri": None})
BEGIN += message(method="initialized", params={})
END = message(id=99, method="shutdown") + message(method="exit")
LOCATION = {"textDocument": {"uri": "file:///x.py"}, "position": {"line": 0, "character": 0}}
FAULTS = {
    "no JSON": framed(b"hello"),
    "no UTF-8": framed(b"\xff\xfe"),
    "a list": framed(b"[1,2]"),
    "no version": framed(b"{}"),
    "deep": framed(b"[" * 100_000),
    "a long number": framed(b'{"jsonrpc":"2.0","id":1,"method":"x","params":' + b"9" * 5000 + b"}"),
    "parameters of a request": message(id=7, method="textDocument/hover", params={"textDocument": 5}),
    "parameters of a notification": message(method="textDocument/didOpen", params={"textDocument": {"uri": "\x1b[2J"}}),
    "an unknown request": message(id=8, method="no/such", params={}),
    "an unknown request without parameters": message(id=9, method="no/such"),
    "an unknown notification": message(method="no/such\x1b[2J", params={}),
    "a request to cancel what is answered": message(method="$/cancelRequest", params={"id": 77}),
    "an answer to no question": message(id=1234, result=None),
}
CANCELLED = message(id=5, method="textDocument/hover", params=LOCATION) + message(method="$/cancelRequest", params={"id": 5})


def served(given: bytes, folder: Path, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """A server that receives all messages at once, until it ends."""
    command, environment = [sys.executable, "-P", "-m", "tilec", "lsp"], os.environ | {"TILEC_CACHE_DIR": str(folder / "store")}
    streams = {"stdout": subprocess.PIPE} | options
    return subprocess.run(command, input=given, stderr=subprocess.PIPE, check=False, env=environment, cwd=folder, **streams)


def test_each_fault_is_a_line(tmp_path: Path) -> None:
    ended = served(BEGIN + b"".join(FAULTS.values()) + CANCELLED + END, tmp_path)
    lines = ended.stderr.decode().splitlines()
    assert ended.returncode == 0 and len(lines) == len(FAULTS), lines
    assert all(line.startswith("tilec lsp: ") and line.isprintable() and len(line) <= MAX_LINE for line in lines)
    assert b'"id": 99, "jsonrpc": "2.0", "result": null' in ended.stdout


@pytest.mark.parametrize("header", [b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n", b"X" * 200_000 + b"\r\n"])
def test_a_malformed_header_ends_the_server(tmp_path: Path, header: bytes) -> None:
    ended = served(BEGIN + header + END, tmp_path)
    assert ended.returncode == 1 and ended.stderr.startswith(b"tilec lsp: error: the header of a message is malformed")
    assert ended.stderr.count(b"\n") == 1


def test_an_editor_that_does_not_read(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    ended = served(BEGIN + message(id=5, method="textDocument/hover", params=LOCATION) + END, tmp_path, stdout=writing)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (1, b"tilec lsp: error: the editor stopped reading: Broken pipe\n")


def test_lines_are_bounded() -> None:
    error = ValueError("a\nb\x1b[2J" + "c" * 9999)
    line = line_of("ERROR", "first\nsecond" + "d" * 9999, error)
    assert line.startswith("tilec lsp: error: first: ValueError: a b?[2Jccc") and len(line) == MAX_LINE + 1
    assert line_of("WARNING", "", None) == "tilec lsp: warning: \n"
