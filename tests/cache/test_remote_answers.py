"""Invalid server responses: whatever a layer receives, the entry is a miss and made locally, and the build continues."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any, Final

import pytest

from tests.cache.raw_server import Respond, raw_server
from tests.cache.test_remote import attach, build, entry, small
from tests.project import project
from tilec.cache import Store, products
from tilec.cache.remote import fsspec_layer
from tilec.cache.remote import guard as guard_module
from tilec.cache.remote.address import Address
from tilec.cache.remote.envelope import LARGEST, unpack
from tilec.cache.remote.http_layer import HttpLayer
from tilec.cache.remote.layer import Nonsense, Unusable
from tilec.cache.remote.redis_layer import RedisLayer
from tilec.cache.remote.signer import Unsigned

pytestmark = pytest.mark.usefixtures("kept_workers")

RESP: Final[dict[str, bytes]] = {
    "array": b"*2\r\n$1\r\na\r\n$1\r\nb\r\n",
    "empty array": b"*0\r\n",
    "null array": b"*-1\r\n",
    "array of arrays": b"*1\r\n" * 50 + b"*0\r\n",
    "arrays without end": b"*1\r\n" * 5000,
    "integer": b":12\r\n",
    "number of many digits": b":" + b"9" * 6000 + b"\r\n",
    "simple text": b"+hello\r\n",
    "error": b"-ERR no\r\n",
    "another type": b"-WRONGTYPE Operation against a key holding the wrong kind of value\r\n",
    "nothing": b"$-1\r\n",
    "null": b"_\r\n",
    "true": b"#t\r\n",
    "double": b",3.25\r\n",
    "big number": b"(3492890328409238509324850943850943825024385\r\n",
    "verbatim": b"=15\r\ntxt:Some string\r\n",
    "map": b"%1\r\n$1\r\na\r\n:1\r\n",
    "set": b"~2\r\n:1\r\n:2\r\n",
    "push": b">2\r\n$7\r\nmessage\r\n:1\r\n",
    "attribute": b"|1\r\n+a\r\n:1\r\n$1\r\nx\r\n",
    "size below nothing": b"$-7\r\nabc\r\n",
    "size that is none": b"$abc\r\nabc\r\n",
    "size of a gigabyte": b"$1000000000\r\nabc",
    "array of a billion": b"*1000000000\r\n:1\r\n",
    "no type": b"?what\r\n",
    "no line": b"$5",
    "HTML": b"<html></html>\r\n",
    "bytes": bytes(range(256)),
}


@pytest.mark.parametrize("kind", RESP)
def test_any_reply_of_a_redis_is_a_miss(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard_module, "PAUSE", 0.0)
    """At once, or in response to a command after a valid greeting."""
    later = commanded(dict.fromkeys(("GETRANGE", "SET", "EVAL"), RESP[kind]))
    for number, respond in enumerate((lambda data: RESP[kind], later)):  # pyright: ignore[reportUnknownLambdaType]
        with raw_server(respond, closing=not number) as port:
            hit, remote = entry(
                tmp_path / f"store-{number}", f"redis://127.0.0.1:{port}/0", seconds=20.0 if not number else 0.5
            )
        assert not hit and all(line.isprintable() for line in [*remote.problems, *remote.troubles()])


def commanded(replies: dict[str, bytes]) -> Respond:
    """Responses by command name; to commands with which a client may begin, those of a valid server."""
    replies = {"HELLO": b"%1\r\n$5\r\nproto\r\n:3\r\n", **replies}

    def respond(data: bytes) -> bytes:
        found = b""
        for part in data.split(b"\r\n*"):
            fields = part.split(b"\r\n")
            name = fields[2 if fields[0].lstrip(b"*").isdigit() else 1].decode().upper() if len(fields) > 2 else ""
            found += replies.get(name, b"+OK\r\n")
        return found

    return respond


@pytest.mark.parametrize("kind", ["array", "empty array", "integer", "map", "set", "true", "double"])
def test_a_redis_with_a_malformed_reply_to_one_command(kind: str) -> None:
    names = {"GETRANGE": RESP[kind], "SET": RESP[kind], "EVAL": RESP["array"]}
    with raw_server(commanded(names), closing=False) as port, contextlib.closing(
        RedisLayer(Address(f"redis://127.0.0.1:{port}/0", False, 20.0))
    ) as layer:  # fmt: skip
        for send_command in (
            lambda: layer.get("a" * 64, 100),
            lambda: layer.put("a" * 64, b"x", replace=True),
            lambda: layer.claim("a" * 64, "me", 1.0),
        ):
            with pytest.raises(Nonsense):
                send_command()


def test_a_value_of_another_type_is_replaced() -> None:
    with raw_server(commanded({"GETRANGE": RESP["another type"]}), closing=False) as port:
        layer = RedisLayer(Address(f"redis://127.0.0.1:{port}/0", False, 20.0))
        with pytest.raises(Unusable, match="another type"):
            layer.get("a" * 64, 100)
        layer.close()


OK: Final = b"HTTP/1.1 200 OK\r\n"
HTTP: Final[dict[str, bytes]] = {
    "empty": b"",
    "no HTTP": b"hello\r\n\r\n",
    "no version": b"HTTP/x 200 OK\r\n\r\n",
    "no status": b"HTTP/1.1 abc OK\r\n\r\n",
    "status 99": b"HTTP/1.1 99 OK\r\n\r\n",
    "status of 9 digits": b"HTTP/1.1 999999999 OK\r\n\r\n",
    "interim": b"HTTP/1.1 100 Continue\r\n\r\n" * 50,
    "no content": b"HTTP/1.1 204 No Content\r\n\r\n",
    "part": b"HTTP/1.1 206 Partial\r\nContent-Length: 1\r\n\r\nx",
    "redirect": b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
    "unauthorized": b"HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n",
    "error": b"HTTP/1.1 500 No\r\nContent-Length: 2\r\n\r\nno",
    "HTML": OK + b"Content-Type: text/html\r\n\r\n<html></html>",
    "length below nothing": OK + b"Content-Length: -5\r\n\r\nabc",
    "length that is none": OK + b"Content-Length: abc\r\n\r\nabc",
    "length of a terabyte": OK + b"Content-Length: 1000000000000\r\n\r\nabc",
    "longer than its length": OK + b"Content-Length: 1\r\n\r\nabcdef",
    "shorter than its length": OK + b"Content-Length: 10\r\n\r\nabc",
    "chunk": OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    "chunk below nothing": OK + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n" + b"x" * 100_000,
    "chunk that is none": OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nabc",
    "chunk without end": OK + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 5000,
    "trailers": OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"a: b\r\n" * 5000,
    "many headers": OK + b"a: b\r\n" * 500 + b"\r\n",
    "a long header": OK + b"a: " + b"x" * 100_000 + b"\r\n\r\n",
    "gzip": OK + b"Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc",
    "bytes": bytes(range(256)),
}


@pytest.mark.parametrize("kind", HTTP)
def test_any_reply_of_a_server_is_a_miss(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard_module, "PAUSE", 0.0)
    with raw_server(lambda data: HTTP[kind]) as port:
        hit, remote = entry(tmp_path / "store", f"http://127.0.0.1:{port}/cache")
    assert not hit and all(line.isprintable() for line in [*remote.problems, *remote.troubles()])


def test_a_chunk_of_minus_one_bytes_is_not_read_to_the_end() -> None:
    """Given a length of -1, Python's client would read everything that arrives."""
    endless = OK + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n" + b"x" * (1 << 22)
    with raw_server(lambda data: endless) as port:
        layer = HttpLayer(Address(f"http://127.0.0.1:{port}/cache", False, 20.0))
        with pytest.raises(Unusable):
            layer.get("a" * 64, 1 << 19)
        layer.close()


class Files:
    """An object store whose library returns, or raises, one thing."""

    def __init__(self, found: Any) -> None:
        self.found = found

    def _do(self, *_: Any, **__: Any) -> Any:
        if isinstance(self.found, BaseException):
            raise self.found
        return self.found

    cat_file = exists = pipe_file = rm_file = mv = makedirs = open = _do


GIVEN: Final[dict[str, Any]] = {
    "number": 7, "large number": 1 << 40, "text": "abc", "list": [1, 2], "dict": {}, "nothing": None, "true": True,
    "other bytes": bytearray(b"abc"), "KeyError": KeyError("x"), "RecursionError": RecursionError(),
    "MemoryError": MemoryError(), "cancelled": asyncio.CancelledError(), "exit": SystemExit(3),
    "no permission": PermissionError("no"), "a folder": IsADirectoryError(),
}  # fmt: skip


@pytest.mark.parametrize("kind", GIVEN)
def test_whatever_a_library_gives_is_a_miss(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard_module, "PAUSE", 0.0)
    monkeypatch.setattr(fsspec_layer.fsspec, "url_to_fs", lambda url, **_: (Files(GIVEN[kind]), "team/cache"))  # pyright: ignore
    hit, remote = entry(tmp_path / "store", "s3://team/cache")
    assert not hit and all(line.isprintable() for line in [*remote.problems, *remote.troubles()])
    assert remote.leases.claim("a" * 64) in (True, False)


def test_an_unforeseen_error_of_a_reader_is_a_miss(tmp_path: Path) -> None:
    """A check that fails with an unforeseen exception counts as a refusal."""
    url = f"file://{tmp_path}/shared"
    entry(tmp_path / "store1", url)
    key = next(path.name for path in (tmp_path / "shared").iterdir())

    def check(found: Any) -> None:
        raise IndexError

    with contextlib.closing(Store(tmp_path / "store2")) as store:
        remote = attach(store, url)
        assert remote.fetch(key, "out", check) is None and "cannot be read" in remote.problems[0]


def test_entries_that_workers_were_refused_are_replaced(tmp_path: Path) -> None:
    url, shared = f"file://{tmp_path}/shared", tmp_path / "shared"
    assert project.statuses(build(small(tmp_path / "one"), tmp_path / "store1", url)) == ["built"] * 4
    entries = _entries(shared)
    for path in entries:
        path.write_bytes(path.read_bytes()[:-1])
    found = build(small(tmp_path / "two"), tmp_path / "store2", url)
    assert project.statuses(found) == ["built"] * 4 and found.problems
    assert entries and _entries(shared) == entries
    for path in entries:
        unpack(path.name, path.read_bytes(), Unsigned())  # each is intact again


def _entries(shared: Path) -> list[Path]:
    """Without leases, which a loaded machine may release late or leave to expire."""
    return sorted(path for path in shared.iterdir() if not path.name.startswith("lease-"))


def test_entries_that_are_none_are_replaced(tmp_path: Path) -> None:
    url, shared = f"file://{tmp_path}/shared", tmp_path / "shared"
    entry(tmp_path / "store0", url)
    (path,) = shared.iterdir()
    good = path.read_bytes()
    other = good.replace(b"key ", b"key 0", 1)
    for number, bad in enumerate((b"", b"x", good[:-1], bytes(len(good)), other, b"x" * (LARGEST + 1))):
        path.write_bytes(bad)
        assert not entry(tmp_path / f"store-{number}", url)[0]
        assert products.SEAL in unpack(path.name, path.read_bytes(), Unsigned()).outputs
