"""Looking after the store: eviction, verification, removal."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import pytest

from tilec.cache import Store, key_of
from tilec.cache import store as store_module
from tilec.cache.maintain import clean, prune, size, verify
from tilec.untrusted.folder import Folder

KEY = key_of("ptx", {"input": "x"})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def test_prune_drops_the_least_recently_used(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [key_of("s", {"i": i}) for i in range(4)]
    for index, key in enumerate(keys):
        monkeypatch.setattr(store_module.time, "time", lambda index=index: 1000.0 + index)
        store.put(key, {"a": bytes([index]) * 100, "shared": b"s" * 50})
    monkeypatch.setattr(store_module.time, "time", lambda: 100_000.0)
    assert store.lookup(keys[0]) is not None
    monkeypatch.undo()
    prune(store, 260)
    kept = [store.lookup(key) is not None for key in keys]
    assert kept == [True, False, False, True]
    assert size(store) == (3, 250)


def test_prune_keeps_fresh_files_no_entry_names_yet(store: Store) -> None:
    store.blobs.write("ab" * 32, b"on its way")
    assert prune(store, 1 << 30) == (0, 0)
    assert prune(store, 1 << 30, now=time.time() + 10_000) == (1, 10)


def test_verify_names_and_drops_damage(store: Store) -> None:
    store.put(KEY, {"a": b"good"}, "ptx of add")
    entry = store.put(key_of("s", {}), {"a": b"bad"}, "ptx of mul")
    assert verify(store) == []
    store.blob_path(entry.digests["a"]).write_bytes(b"bax")
    found = "\n".join(verify(store))
    assert "ptx of mul" in found
    assert "ptx of add" not in found
    assert verify(store) == []


def test_clean_removes_every_format(store: Store) -> None:
    store.put(KEY, {"a": b"1"})
    store.close()
    (store.root / "keep").write_text("")
    (store.root / "v1" / "index").mkdir(parents=True)
    (store.root / "v2" / "entries-0123456789abcdef").mkdir()
    clean(store.root)
    assert [item.name for item in store.root.iterdir()] == ["keep"]
    clean(store.root)
    clean(store.root / "nowhere")


@pytest.mark.parametrize("after", ["entries", "blobs"])
def test_what_is_pruned_while_a_cache_is_verified_is_no_damage(
    store: Store, monkeypatch: pytest.MonkeyPatch, after: str
) -> None:  # fmt: skip
    """The prune happens when the names are listed, and when the first entry was read."""
    for number in range(4):
        store.put(f"{number:064x}", {"a": b"%d" % number, "b": b"same"}, f"entry {number}")
    known = Folder.read if after == "blobs" else Folder.open_plain
    pruned: list[tuple[int, int]] = []

    def prune_first(folder: Folder, name: str, *rest: Any) -> Any:
        found = known(folder, name, *rest) if after == "blobs" else None
        if not pruned and (after == "entries" or folder.path.name == "entries"):
            pruned.append((0, 0))
            with contextlib.closing(Store(store.root)) as other:
                pruned.append(prune(other, 0))
        return known(folder, name, *rest) if after == "entries" else found

    monkeypatch.setattr(Folder, known.__name__, prune_first)
    assert verify(store) == []
    assert pruned[1][0] == 5
    monkeypatch.undo()
    assert [name for folder in (store.entries, store.blobs) for name, _ in folder.names()] == []


def test_an_entry_without_its_blob_is_damaged(store: Store) -> None:
    store.put(KEY, {"a": b"1"}, "one")
    (name,) = (name for name, _ in store.blobs.names())
    store.blobs.remove(name)
    assert verify(store) == ["cache entry one: a is missing; it will be rebuilt"]
