"""Leases in a shared folder: of builders that claim one at the same time, exactly one gets it, also where it has expired."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tilec.cache.remote import lease_files
from tilec.cache.remote.lease_files import claim, lease_text, release

BUILDERS = ("one", "two", "three")
ROUNDS = 300


def at_once(act: Callable[[str], bool | None]) -> list[bool | None]:
    """What `act` returns for each builder, called in threads that start together."""
    found: dict[str, bool | None] = {}
    start = threading.Barrier(len(BUILDERS))

    def run(name: str) -> None:
        start.wait()
        found[name] = act(name)

    threads = [threading.Thread(target=run, args=(name,)) for name in BUILDERS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[name] for name in BUILDERS]


@pytest.mark.parametrize(
    "before", ["", "unreadable", "other 1.0", "other 1e12"], ids=["new", "damaged", "expired", "too far ahead"]
)
def test_exactly_one_of_several_gets_a_lease(tmp_path: Path, before: str) -> None:
    for round_ in range(ROUNDS):
        path = tmp_path / f"lease-{round_}"
        if before:
            path.write_text(before)
        assert sorted(map(bool, at_once(lambda name, path=path: claim(path, name, 30.0)))) == [False, False, True]
    assert len(list(tmp_path.iterdir())) == ROUNDS  # no temporary file is left


def test_a_lease_that_is_renewed_is_never_free(tmp_path: Path) -> None:
    path = tmp_path / "lease"
    assert claim(path, "one", 30.0)
    for _ in range(ROUNDS):
        assert at_once(lambda name: claim(path, name, 30.0)) == [True, False, False]
    release(path, "two")
    assert claim(path, "two", 30.0) is False
    release(path, "one")
    assert not list(tmp_path.iterdir()) and claim(path, "two", 30.0) is True


@pytest.mark.parametrize("act", ["claim", "release"])
def test_a_lease_that_was_replaced_after_it_was_read_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: str) -> None:
    path = tmp_path / "lease"
    path.write_text("one 1.0")
    read = lease_files._read  # pyright: ignore[reportPrivateUsage]

    def replaced_after(asked: Path) -> str | None:
        text = read(asked)
        monkeypatch.setattr(lease_files, "_read", read)
        path.write_text(lease_text("two", 30.0))
        return text

    monkeypatch.setattr(lease_files, "_read", replaced_after)
    if act == "claim":
        assert claim(path, "three", 30.0) is False
    else:
        release(path, "one")
    assert path.read_text().startswith("two ") and [path] == list(tmp_path.iterdir())


def test_a_file_system_without_hard_links_has_no_leases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, target: Path) -> None:
        raise PermissionError(1, "Operation not permitted", str(target))

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    assert claim(tmp_path / "lease", "one", 30.0) is None and not list(tmp_path.iterdir())
