"""The store: keys, damage, many processes, builders that die, read-only folders."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tilec.cache import FileDigests, Store, files, key_of, reasons
from tilec.cache.maintain import prune
from tilec.cache.record import entry_text, parse_entry
from tilec.cache.seal import Sealer
from tilec.diagnostics.diagnostic import CompileError
from tilec.untrusted.folder import Folder
from tilec.untrusted.output import Output
from tilec.untrusted.temporary_files import sweep

KEY = key_of("ptx", {"input": "x"})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def test_key_depends_on_every_field_its_type_and_its_limits() -> None:
    variants = [
        ("ptx", {"a": 1, "b": "x"}), ("cubin", {"a": 1, "b": "x"}), ("ptx", {"a": 2, "b": "x"}), ("ptx", {"a": "1", "b": "x"}),
        ("ptx", {"a": 1.0, "b": "x"}), ("ptx", {"a": True, "b": "x"}), ("ptx", {"a": 1, "b": b"x"}), ("ptx", {"a": 1}),
        ("ptx", {"a": 1, "bx": ""}), ("ptx", {"a": 1, "b": None}), ("ptxa", {"": 1, "b": "x"}), ("ptx", {"a": -0.0, "b": "x"}),
        ("ptx", {"a": 0.0, "b": "x"}),
    ]  # fmt: skip
    assert len({key_of(stage, fields) for stage, fields in variants}) == len(variants)
    assert key_of("s", {"a": 1, "b": 2}) == key_of("s", {"b": 2, "a": 1})


def test_make_runs_once(store: Store) -> None:
    calls: list[int] = []

    def run() -> dict[str, bytes]:
        calls.append(1)
        return {"ptx": b"text", "empty": b""}

    first, second = store.make(KEY, run), store.make(KEY, run)
    assert (first.hit, second.hit, len(calls)) == (False, True, 1)
    assert first.outputs == second.outputs == {"ptx": b"text", "empty": b""}


def test_error_is_not_kept(store: Store) -> None:
    def refuse() -> dict[str, bytes]:
        raise ValueError

    with pytest.raises(ValueError):
        store.make(KEY, refuse)
    assert store.make(KEY, lambda: {"a": b"1"}).outputs == {"a": b"1"}


@pytest.mark.parametrize("damage", ["truncate", "flip", "grow", "remove"])
def test_every_damage_is_a_reported_miss(store: Store, damage: str) -> None:
    entry = store.put(KEY, {"cubin": bytes(range(200))}, "cubin of k")
    path = store.blob_path(entry.digests["cubin"])
    data = bytearray(path.read_bytes())
    if damage == "remove":
        path.unlink()
    else:
        data[100] ^= damage == "flip"
        path.write_bytes(data[:150] if damage == "truncate" else data + b"x" * (damage == "grow"))
    assert store.lookup(KEY, "cubin of k") is None
    assert "cubin of k" in store.problems[-1]
    assert not store.make(KEY, lambda: {"cubin": bytes(range(200))}).hit
    assert store.lookup(KEY) is not None


GOOD = entry_text(Sealer(), KEY, {"a": hashlib.sha256(b"1").hexdigest()}, {"a": 1}, "a label")


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", GOOD[:-1], GOOD[:-2], GOOD + b"x", GOOD.replace(b"a label", b"b label"), GOOD.replace(b" 1\n", b" 2\n"),
        GOOD.replace(b"seal ", b"steal "), b"\xff" * 300, GOOD * 2, b"tilec entry\nlabel \n" * 9000, b"[" * 60_000,
    ],
)  # fmt: skip
def test_damaged_entry_is_a_miss(store: Store, data: bytes) -> None:
    store.put(KEY, {"a": b"1"}, "a label")
    (store.base / "entries" / KEY).write_bytes(data)
    assert store.lookup(KEY) is None
    assert store.problems
    assert not store.make(KEY, lambda: {"a": b"1"}).hit
    assert store.lookup(KEY) is not None


@pytest.mark.parametrize(
    "body",
    [
        "tilec entry\nlabel x\noutput a {d} 01\n", "tilec entry\nlabel x\noutput ../a {d} 1\n",
        "tilec entry\nlabel x\noutput a {d} 1", "tilec entry\nlabel \x1b[2J\noutput a {d} 1\n", "tilec entry\nlabel x",
        "tilec entry\nlabel x\noutput a {d} 999999999\n", "tilec entry\nlabel x\noutput a ../../etc/passwd 1\n",
        "tilec entry\nlabel x\n" + "output a {d} 1\n" * 65, "tilec entry\nlabel x\noutput a {d} 1\noutput a {d} 1\n",
    ],
)  # fmt: skip
def test_entry_that_is_sealed_and_malformed_is_a_miss(store: Store, body: str) -> None:
    data = body.replace("{d}", hashlib.sha256(b"1").hexdigest()).encode()
    assert parse_entry(Sealer(), KEY, GOOD) is not None
    (store.base / "entries" / KEY).write_bytes(data + f"seal {Sealer().seal('entry', KEY, data)}\n".encode())
    assert store.lookup(KEY) is None
    assert store.problems


def test_entry_and_note_of_another_name_are_misses(store: Store) -> None:
    other = key_of("ptx", {"input": "y"})
    store.put(KEY, {"a": b"1"})
    store.put(other, {"a": b"2"})
    store.set_texts({"one": "1", "two": "2"})
    shutil.copy(store.base / "entries" / other, store.base / "entries" / KEY)
    one, two = (store.base / "notes" / hashlib.sha256(name).hexdigest() for name in (b"one", b"two"))
    shutil.copy(two, one)
    assert store.lookup(KEY) is None
    assert store.problems
    assert store.lookup(other) is not None
    assert (store.get_text("one"), store.get_text("two")) == (None, "2")


def test_an_entry_that_is_written_while_it_is_looked_for_is_kept(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    read = store.entries.read

    def late(name: str, longest: int) -> Any:
        monkeypatch.setattr(store.entries, "read", read)
        found = read(name, longest)
        store.put(KEY, {"a": b"1"})
        return found

    monkeypatch.setattr(store.entries, "read", late)
    found = store.lookup(KEY)
    assert found is not None and found.outputs == {"a": b"1"} and not store.problems


def _race(root: Path, number: int, marker_folder: Path) -> None:
    store = Store(root)
    for index in range(20):
        key = key_of("race", {"index": index})

        def run(index: int = index) -> dict[str, bytes]:
            (marker_folder / f"{index}-{number}").touch()
            time.sleep(0.005)
            return {"a": bytes([index]) * 5000}

        assert store.make(key, run).outputs == {"a": bytes([index]) * 5000}


def test_one_process_makes_a_key_and_all_get_it(tmp_path: Path) -> None:
    marker_folder = tmp_path / "made"
    marker_folder.mkdir()
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_race, args=(tmp_path / "store", n, marker_folder)) for n in range(6)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(600)
        assert process.exitcode == 0
    assert len(list(marker_folder.iterdir())) == 20


_LOCK_HOLDER = """
import sys, time
from pathlib import Path
from typing import Any
from tilec.cache import Store
def run():
    Path(sys.argv[2]).touch()
    time.sleep(3600)
Store(Path(sys.argv[1])).make(sys.argv[3], run)
"""


def test_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    process = subprocess.Popen([sys.executable, "-c", _LOCK_HOLDER, str(tmp_path / "store"), str(flag), KEY])
    try:
        deadline = time.monotonic() + 600
        while not flag.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(600)
    assert not Store(tmp_path / "store").make(KEY, lambda: {"a": b"1"}).hit  # returns only if the lock is free


_WRITE = """
import os, sys
from pathlib import Path
from typing import Any
from tilec.cache import Store, key_of
store = Store(Path(sys.argv[1]))
for i in range(100000):
    store.put(key_of("w", {"i": i}), {"a": os.urandom(64) * 2000})
    if i == 0:
        print("ready", flush=True)
"""


def test_writer_killed_at_any_point_leaves_sound_entries(tmp_path: Path) -> None:
    root = tmp_path / "store"
    for attempt in range(5):
        process = subprocess.Popen([sys.executable, "-c", _WRITE, str(root)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.05 + 0.017 * attempt)
        process.kill()
        process.wait(600)
        process.stdout.close()
    store = Store(root)
    keys = [key for key, _ in store.records()]
    assert keys
    for key in keys:
        assert store.lookup(key) is not None
    assert store.problems == []
    (store.base / "holders").mkdir(exist_ok=True)
    (leftover := store.base / "holders" / f".tmp-{'0' * 16}").touch()  # as left by a killed holder of a lock
    prune(store, 1 << 40)
    assert leftover.exists()  # it may be in use
    prune(store, 1 << 40, now=time.time() + 10_000)
    assert not list(store.base.rglob(".tmp-*"))


def test_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CompileError, match="E0701"):
        Store(tmp_path / "file")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_full_or_read_only_folder_is_one_error(store: Store, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def fail(folder: Folder, name: str, data: bytes, **_: object) -> None:
        raise OSError(code, os.strerror(code), name)

    monkeypatch.setattr(Folder, "write", fail)
    with pytest.raises(CompileError) as caught:
        store.make(KEY, lambda: {"a": b"1"})
    (problem,) = caught.value.diagnostics
    assert problem.code == "E0701"
    assert os.strerror(code) in problem.message


def test_failed_write_leaves_the_old_bytes_and_no_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, output = tmp_path / "f", Output(tmp_path, None)
    output.write("f", b"old")

    def fail(handle: int) -> None:
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(CompileError, match=r"E0702.*input/output error"):
        output.write("f", b"new")
    assert path.read_bytes() == b"old"
    assert [item.name for item in tmp_path.iterdir()] == ["f"]


def test_a_sweep_removes_what_a_killed_writer_left_and_nothing_else(tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    writers = (ended.pid, ended.pid, os.getpid())
    sidecar = tmp_path / f".tmp-{ended.pid}-{'c' * 16}.intoto.jsonl"
    leftover, locked, ours = (tmp_path / f".tmp-{writer}-{'0' * 15}{k}" for k, writer in enumerate(writers))
    odd = [tmp_path / name for name in ("k.cubin", ".tmp-1", f".tmp-{ended.pid}-{'0' * 16}.x", f".tmp--{ended.pid}-{'0' * 16}")]
    for path in (leftover, locked, ours, sidecar, *odd):
        path.write_bytes(b"x")
    (link := tmp_path / f".tmp-{ended.pid}-{'a' * 16}").symlink_to(tmp_path / "k.cubin")
    os.mkfifo(fifo := tmp_path / f".tmp-{ended.pid}-{'b' * 16}")
    with locked.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        sweep(tmp_path)
    assert set(tmp_path.iterdir()) == {locked, ours, link, fifo, *odd}
    sweep(tmp_path)
    assert locked not in set(tmp_path.iterdir())
    sweep(tmp_path / "none")


def test_digest_memory_sees_edits_of_equal_size(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"one")
    os.utime(path, ns=(1, 1))
    digests = FileDigests(store, "memory")
    first = digests.digest(path)
    digests.save()
    path.write_bytes(b"two")
    assert FileDigests(store, "memory").digest(path) != first
    for text in ('{"x": 3, "y": []}', "[" * 100_000, "1e999", json.dumps({str(path): [[]] * 6})):
        store.set_texts({"memory": text})
        assert FileDigests(store, "memory").digest(path) != first


def test_digest_memory_sees_an_edit_that_keeps_size_inode_and_time_of_modification(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "SETTLED_NS", -1)  # cached at once
    path = tmp_path / "f"
    path.write_bytes(b"one")
    digests = FileDigests(store, "memory")
    first, before = digests.digest(path), path.stat()
    digests.save()
    assert json.loads(store.get_text("memory") or "")[str(path)][-1] == first
    time.sleep(0.02)  # one tick of the file system's clock
    path.write_bytes(b"two")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (after.st_size, after.st_mtime_ns, after.st_ino) == (before.st_size, before.st_mtime_ns, before.st_ino)
    assert FileDigests(store, "memory").digest(path) != first


def test_digest_of_what_is_no_file_is_an_error_and_not_for_ever(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", Path("/dev/zero"), tmp_path):
        with pytest.raises(OSError):
            FileDigests().digest(path)


def test_reasons() -> None:
    old = {"source k.py": "a", "constant H": "int 1", "toolchain ptxas": "13.2 sha256:a", "compiler mlir": "x"}
    assert reasons(None, old) == ["not built before"]
    assert reasons(old, old) == []
    assert reasons(old, old | {"source k.py": "b"}) == ["source of k.py changed"]
    assert reasons(old, old | {"constant H": "int 2"}) == ["constant H changed: 1 -> 2"]
    assert reasons(old, old | {"toolchain ptxas": "13.3 sha256:b"}) == ["toolchain changed: ptxas 13.2 -> 13.3"]
    assert reasons(old, old | {"toolchain ptxas": "13.2 sha256:b"}) == ["toolchain changed: ptxas 13.2 (other binary) -> 13.2"]
    assert reasons(old, old | {"compiler mlir": "y"}) == ["tilec's mlir stage changed"]
