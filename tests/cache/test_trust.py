"""Content that somebody else wrote, or could have written, into the store: it is never followed, waited for or trusted."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tilec.cache import Store, key_of, location, store_root
from tilec.cache.maintain import clean, prune, size, verify
from tilec.cache.seal import Sealer
from tilec.cli import commands
from tilec.diagnostics.diagnostic import CompileError

KEY = key_of("ptx", {"input": "x"})
LATER = 10_000.0


def code_of(action: Callable[[], object]) -> tuple[str, str]:
    """Code and message of the one error that `action` raises."""
    with pytest.raises(CompileError) as caught:
        action()
    (only,) = caught.value.diagnostics
    return only.code, only.message


def in_time(action: Callable[[], object]) -> None:
    """Fails if `action` runs for more than twenty seconds."""
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive(), "it waits for ever"


def test_the_default_store_is_not_in_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    assert store_root() == tmp_path / "home" / "tilec"
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")  # a relative path could come from a clone: XDG says to ignore it
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    assert store_root() == tmp_path / "me" / ".cache" / "tilec"
    monkeypatch.setenv("TILEC_CACHE_DIR", "here")
    assert store_root() == tmp_path / "here"


def test_cache_dir_option_precedes_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path / "a"))
    assert commands.run(["--cache-dir", str(tmp_path / "b"), "cache", "dir"]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "b")


def test_a_new_store_is_for_the_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        store = Store(tmp_path / "deep" / "store")
        store.put(KEY, {"a": b"1"})
        store.set_texts({"a": "b"})
        store.make(key_of("b", {}), lambda: {"a": b"2"})
    finally:
        os.umask(before)
    found = [tmp_path / "deep", *(tmp_path / "deep").rglob("*")]
    assert len(found) > 8
    for path in found:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


@pytest.mark.parametrize("folder_name", ["store", "store/v2", "store/v2/blobs", "store/v2/entries", "store/v2/notes", "."])
@pytest.mark.parametrize("mode", [0o777, 0o775, 0o702])
def test_a_store_that_others_may_write_to_is_refused(tmp_path: Path, folder_name: str, mode: int) -> None:
    Store(tmp_path / "store").close()
    (tmp_path / folder_name).chmod(mode)
    code, message = code_of(lambda: Store(tmp_path / "store"))
    assert code == "E0711"
    assert "may be written by" in message
    (tmp_path / folder_name).chmod(0o755)
    Store(tmp_path / "store").close()


def test_a_sticky_folder_above_is_accepted_and_a_sticky_store_is_not(tmp_path: Path) -> None:
    (tmp_path / "above").mkdir()
    (tmp_path / "above").chmod(0o1777)
    Store(tmp_path / "above" / "store").close()
    assert code_of(lambda: Store(tmp_path / "above"))[0] == "E0711"


def test_the_target_of_a_link_is_checked_the_same_way(tmp_path: Path) -> None:
    (tmp_path / "open" / "store").mkdir(parents=True)
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "link").symlink_to("open/../open")
    assert code_of(lambda: Store(tmp_path / "link" / "store"))[0] == "E0711"
    (tmp_path / "open").chmod(0o755)
    Store(tmp_path / "link" / "store").close()
    (tmp_path / "loop").symlink_to("loop")
    assert code_of(lambda: Store(tmp_path / "loop" / "store"))[0] == "E0701"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
@pytest.mark.parametrize("folder_name", ["store", "above", "store/v2/entries"])
def test_a_store_of_another_user_is_refused(tmp_path: Path, folder_name: str) -> None:
    root = tmp_path / "above" / "store"
    Store(root).close()
    os.chown(tmp_path / "above" if folder_name == "above" else tmp_path / "above" / folder_name, 4321, 4321)
    code, message = code_of(lambda: Store(root))
    assert code == "E0711"
    assert "4321" in message


def test_who_owns_a_folder_is_asked_without_being_root_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Store(tmp_path / "store").close()
    other = os.geteuid() + 1
    monkeypatch.setattr(location.os, "geteuid", lambda: other)
    assert code_of(lambda: Store(tmp_path / "store"))[0] == "E0711"


def links(path: Path, outside: Path) -> None:
    path.symlink_to(outside)


def loops(path: Path, outside: Path) -> None:
    path.symlink_to(path.name)


def fifo(path: Path, outside: Path) -> None:
    os.mkfifo(path)


def folder(path: Path, outside: Path) -> None:
    path.mkdir()
    (path / "in it").write_bytes(b"")


def device(path: Path, outside: Path) -> None:
    path.symlink_to("/dev/zero")


def sparse(path: Path, outside: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


STRANGE = [links, loops, fifo, folder, device, sparse]


@pytest.mark.parametrize("strange", STRANGE)
@pytest.mark.parametrize("path_name", ["blob", "entry", "note", "locks", "blobs", "entries", "notes", "v2"])
def test_what_is_no_file_of_the_store_is_a_miss_and_leads_nowhere(
    tmp_path: Path, path_name: str, strange: Callable[[Path, Path], None]
) -> None:
    data = b"x" * 1000
    store = Store(tmp_path / "store")
    entry = store.put(KEY, {"a": data}, "the one")
    store.set_texts({"n": "text"})
    store.close()
    outside = tmp_path / "outside"
    # The links lead to valid blobs, entries or notes, or to a whole valid store: they are still not followed.
    base = tmp_path / "store" / "v2"
    path = {
        "blob": base / "blobs" / entry.digests["a"], "entry": base / "entries" / KEY, "locks": base / "locks", "v2": base,
        "note": base / "notes" / hashlib.sha256(b"n").hexdigest(),
    }.get(path_name, base / path_name)  # fmt: skip
    if path.exists():
        path.rename(outside)
    else:
        outside.write_bytes(b"")
    strange(path, outside)
    before = {item: item.read_bytes() for item in [outside, *outside.rglob("*")] if item.is_file()}

    def use() -> None:
        with_problems = Store(tmp_path / "store")
        if path_name != "note" and path_name != "locks" and path_name != "notes":
            assert with_problems.lookup(KEY) is None
        if path_name in ("note", "notes", "v2"):
            assert with_problems.get_text("n") is None
        verify(with_problems)
        size(with_problems)
        assert with_problems.make(KEY, lambda: {"a": data}).outputs == {"a": data}
        assert with_problems.make(KEY, lambda: {"a": b"wrong"}).hit
        with_problems.set_texts({"n": "new"})
        assert with_problems.get_text("n") == "new"
        prune(with_problems, now=time.time() + LATER)
        verify(with_problems)
        assert verify(with_problems) == []
        prune(with_problems, 0, now=time.time() + LATER)
        with_problems.close()
        clean(tmp_path / "store")
        done.append(True)

    done: list[bool] = []
    in_time(use)
    assert done
    assert {item: item.read_bytes() for item in [outside, *outside.rglob("*")] if item.is_file()} == before
    remaining = {str(item.relative_to(tmp_path / "store")) for item in (tmp_path / "store").rglob("*")}
    assert remaining == ({"v2", "v2/in it"} if (path_name, strange) == ("v2", folder) else set())


def test_prune_and_verify_remove_no_file_that_a_forged_entry_names(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for number, name in enumerate(("../../../victim", str(victim), "victim")):
        body = f"tilec entry\nlabel x\noutput a {name} 8\n".encode()
        key = key_of("forged", {"number": number})
        data = body + f"seal {Sealer().seal('entry', key, body)}\n".encode()
        (store.base / "entries" / key).write_bytes(data)
    (store.base / "blobs" / "link").symlink_to(victim)
    (store.base / "blobs" / ("ab" * 32)).symlink_to(victim)
    assert len(verify(store)) >= 4
    prune(store, 0, now=time.time() + LATER)
    store.close()
    clean(store.root)
    assert victim.read_text() == "precious"


def test_folders_of_any_depth_are_removed(tmp_path: Path) -> None:
    """Deeper than the limits of descriptors, recursion or path length."""
    store = Store(tmp_path / "store")
    handle = os.open(store.base / "blobs", os.O_RDONLY)
    for _ in range(2500):
        os.mkdir("d", dir_fd=handle)
        inner = os.open("d", os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = inner
    os.symlink(tmp_path, "link", dir_fd=handle)
    os.close(handle)
    assert len(verify(store)) == 1
    prune(store, now=time.time() + LATER)
    assert list((store.base / "blobs").iterdir()) == []
    assert tmp_path.exists()


def test_clean_leaves_what_is_not_the_store_s(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    store.put(KEY, {"a": b"1"})
    (store.base / "mine").write_text("")
    (store.root / "v10").mkdir()
    (store.root / "v1").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "index").mkdir(parents=True)
    clean(store.root)
    assert sorted(path.name for path in store.root.iterdir()) == ["v1", "v10", "v2"]
    assert [path.name for path in store.base.iterdir()] == ["mine"]
    assert (tmp_path / "elsewhere" / "index").exists()


@pytest.fixture
def keyed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A key file, which the first store creates."""
    monkeypatch.setenv("TILEC_CACHE_KEY_FILE", str(tmp_path / "config" / "key"))
    return tmp_path / "config" / "key"


def test_a_key_file_is_made_for_the_user_alone(tmp_path: Path, keyed: Path) -> None:
    store = Store(tmp_path / "store")
    assert stat.S_IMODE(keyed.stat().st_mode) == 0o600
    assert len(keyed.read_text().strip()) == 64
    store.put(KEY, {"a": b"1"})
    assert Store(tmp_path / "store").lookup(KEY) is not None
    assert keyed.read_text().strip() not in repr(vars(store.sealer)["suffix"])


def test_processes_that_make_a_key_file_together_share_its_secret(
    tmp_path: Path, keyed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Store(tmp_path / "store").put(KEY, {"a": b"1"})
    with monkeypatch.context() as patch:
        patch.setattr("tilec.cache.seal.os.path.lexists", lambda path: False)  # as the second process saw it a moment ago
        assert Store(tmp_path / "store").lookup(KEY) is not None
    assert list(keyed.parent.iterdir()) == [keyed]


@pytest.mark.parametrize("bad", ["open", "short", "long", "fifo", "folder", "inside", "owner"])
def test_a_key_file_that_is_no_secret_is_refused(
    tmp_path: Path, keyed: Path, monkeypatch: pytest.MonkeyPatch, bad: str
) -> None:
    keyed.parent.mkdir()
    keyed.write_text("k" * {"short": 31, "long": 5000}.get(bad, 64))
    keyed.chmod(0o640 if bad == "open" else 0o600)
    if bad in ("fifo", "folder"):
        keyed.unlink()
        os.mkfifo(keyed, 0o600) if bad == "fifo" else keyed.mkdir(0o700)
    if bad == "inside":
        monkeypatch.setenv("TILEC_CACHE_KEY_FILE", str(tmp_path / "store" / "key"))
    if bad == "owner":
        monkeypatch.setattr(os, "geteuid", lambda: 4321)
        os.chown(keyed, 1234, 1234) if os.getuid() == 0 else None
    in_time(lambda: code_of(lambda: Store(tmp_path / "store")))
    assert code_of(lambda: Store(tmp_path / "store"))[0] == "E0712"


def test_an_entry_without_the_right_seal_is_a_miss_and_verify_reports_it(
    tmp_path: Path, keyed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keyed_store = Store(tmp_path / "store")
    keyed_store.put(KEY, {"a": b"proven"}, "mine")
    keyed_store.set_texts({"n": "mine"})
    # An attacker who knows everything except the secret: seals with another key of his own, and without one, and writes both to
    # the user's paths.
    forgeries: list[tuple[bytes, bytes]] = []
    for secret in (str(tmp_path / "his"), ""):
        monkeypatch.setenv("TILEC_CACHE_KEY_FILE", secret)
        his = Store(tmp_path / "store")
        assert his.lookup(KEY) is None
        assert his.problems == []
        his.put(KEY, {"a": b"forged"}, "his")
        his.set_texts({"n": "his"})
        note = hashlib.sha256(b"n").hexdigest()
        forgeries.append(((his.entries.path / KEY).read_bytes(), (his.notes.path / note).read_bytes()))
        assert keyed_store.lookup(KEY).outputs == {"a": b"proven"}  # type: ignore[union-attr]
    for entry, text in forgeries:
        (keyed_store.entries.path / KEY).write_bytes(entry)
        (keyed_store.notes.path / hashlib.sha256(b"n").hexdigest()).write_bytes(text)
        assert keyed_store.get_text("n") is None
        assert ["not sealed by your key" in line for line in verify(keyed_store)] == [True]
        (keyed_store.entries.path / KEY).write_bytes(entry)
        assert keyed_store.lookup(KEY) is None
        assert keyed_store.make(KEY, lambda: {"a": b"proven"}).outputs == {"a": b"proven"}


def test_a_keyed_store_may_be_shared(tmp_path: Path, keyed: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o2770)
    store = Store(shared)
    store.put(KEY, {"a": b"1"})
    assert stat.S_IMODE((shared / "v2" / "blobs").stat().st_mode) == 0o2770
    assert stat.S_IMODE(store.blob_path(hashlib.sha256(b"1").hexdigest()).stat().st_mode) == 0o660


def test_prune_keeps_what_another_key_s_entries_name(tmp_path: Path, keyed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keyed_store = Store(tmp_path / "store")
    keyed_store.put(KEY, {"a": b"mine"})
    monkeypatch.delenv("TILEC_CACHE_KEY_FILE")
    plain = Store(tmp_path / "store")
    plain.put(KEY, {"a": b"plain"})
    assert prune(plain, now=time.time() + LATER) == (0, 0)
    assert keyed_store.lookup(KEY) is not None
    assert prune(plain, 0, now=time.time() + LATER) == (2, 9)


_IMPORTS = """
import sys
import tilec.cache, tilec.cache.maintain, tilec.project.build.driver
print([name for name in ("pickle", "sqlite3", "diskcache", "shelve") if name in sys.modules])
"""


def test_the_store_loads_nothing_that_unpickles() -> None:
    """The scheduler's `multiprocessing` pickles between our own processes, so the test searches only the store's modules."""
    code = _IMPORTS.replace(", tilec.project.build.driver", "")
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_store_of_the_former_format_is_not_read(tmp_path: Path) -> None:
    """The database of the former format executed its rows when loaded; whatever is there is left alone."""
    index = tmp_path / "store" / "v1" / "index"
    index.mkdir(parents=True)
    (tmp_path / "store").chmod(0o700)
    (index / "cache.db").write_bytes(b"whatever")
    store = Store(tmp_path / "store")
    assert store.lookup(KEY) is None
    verify(store)
    prune(store)
    assert (index / "cache.db").read_bytes() == b"whatever"


def test_labels_of_a_terminal_are_kept_out(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    store.put(KEY, {"a": b"1"}, "x\x1b[2J\nseal \ud800" + "y" * 1000)
    ((_, record),) = store.records()
    assert record["label"].isprintable()
    assert len(record["label"]) <= 300
    assert json.dumps(record)
    shutil.rmtree(store.blobs.path)
    assert store.lookup(KEY, "k") is None
