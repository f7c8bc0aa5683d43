"""Files of a model folder that are not regular files, or that lead out of it."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from engine.checkpoint.folder_file import open_file, read_bytes
from engine.errors import ModelError


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "outside").write_text("secret")
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "real").write_text("ours")
    return folder


def refusal(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        read_bytes(path, 100, "download it")
    assert "secret" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    "target", ["../outside", "/etc/passwd", "/proc/self/environ", "/dev/zero", "/dev/tty", "../model/../outside"]
)
def test_a_link_that_leads_out(place: Path, target: str) -> None:
    (place / "file").symlink_to(target)
    said = refusal(place / "file")
    assert "is a link to a file outside its folder" in said or "cannot be read" in said or "no such file" in said


def test_a_link_within_the_folder(place: Path) -> None:
    (place / "file").symlink_to("real")
    (place / "again").symlink_to(place / "file")
    assert read_bytes(place / "again", 100, "") == b"ours"


def test_a_linked_folder(place: Path) -> None:
    (place.parent / "link").symlink_to(place)
    assert read_bytes(place.parent / "link" / "real", 100, "") == b"ours"


def test_the_cache_of_hugging_faces_tools(tmp_path: Path) -> None:
    model = tmp_path / "models--Qwen--Qwen3-4B"
    snapshot = model / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    (model / "blobs").mkdir()
    (model / "blobs" / "abcd").write_text("blob")
    (model / "refs").write_text("secret")
    (snapshot / "config.json").symlink_to("../../blobs/abcd")
    (snapshot / "other.json").symlink_to("../../refs")
    assert read_bytes(snapshot / "config.json", 100, "") == b"blob"
    assert "outside its folder" in refusal(snapshot / "other.json")


def test_links_that_the_user_names(place: Path) -> None:
    (place / "file").symlink_to("../outside")
    with open_file(place / "file", "", links=True) as file:
        assert file.read() == b"secret"


def test_what_is_no_regular_file(place: Path) -> None:
    os.mkfifo(place / "pipe")
    (place / "folder").mkdir()
    (place / "to_pipe").symlink_to("pipe")
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(place / "socket")[:107])
    for name in ("pipe", "folder", "to_pipe", "socket"):
        if (place / name).exists():
            assert "is not a regular file" in refusal(place / name)
    server.close()


@pytest.mark.parametrize("name", ["circle", "nul\0", "x" * 300, "real/inside", "absent"])
def test_names_that_are_none(place: Path, name: str) -> None:
    (place / "circle").symlink_to("circle")
    refusal(place / name)


def test_a_long_file(place: Path) -> None:
    (place / "long").write_bytes(b"x" * 101)
    assert "is over 100 bytes" in refusal(place / "long")
