"""Files of a model folder that are not regular files, or that lead out of it."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from engine.checkpoint.folder_file import open_file, read_bytes
from engine.errors import ModelError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "outside").write_text("secret")
    model_folder = tmp_path / "model"
    model_folder.mkdir()
    (model_folder / "real").write_text("ours")
    return model_folder


def refusal(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        read_bytes(path, 100, "download it")
    assert "secret" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    "target", ["../outside", "/etc/passwd", "/proc/self/environ", "/dev/zero", "/dev/tty", "../model/../outside"]
)
def test_a_link_that_leads_out(folder: Path, target: str) -> None:
    (folder / "file").symlink_to(target)
    message = refusal(folder / "file")
    assert "is a link to a file outside its folder" in message or "cannot be read" in message or "no such file" in message


def test_a_link_within_the_folder(folder: Path) -> None:
    (folder / "file").symlink_to("real")
    (folder / "again").symlink_to(folder / "file")
    assert read_bytes(folder / "again", 100, "") == b"ours"


def test_a_linked_folder(folder: Path) -> None:
    (folder.parent / "link").symlink_to(folder)
    assert read_bytes(folder.parent / "link" / "real", 100, "") == b"ours"


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


def test_links_that_the_user_names(folder: Path) -> None:
    (folder / "file").symlink_to("../outside")
    with open_file(folder / "file", "", links=True) as file:
        assert file.read() == b"secret"


def test_irregular_files_are_refused(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    (folder / "folder").mkdir()
    (folder / "to_pipe").symlink_to("pipe")
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(folder / "socket")[:107])
    for name in ("pipe", "folder", "to_pipe", "socket"):
        if (folder / name).exists():
            assert "is not a regular file" in refusal(folder / name)
    server.close()


@pytest.mark.parametrize("name", ["circle", "nul\0", "x" * 300, "real/inside", "absent"])
def test_invalid_names_are_refused(folder: Path, name: str) -> None:
    (folder / "circle").symlink_to("circle")
    refusal(folder / name)


def test_a_long_file(folder: Path) -> None:
    (folder / "long").write_bytes(b"x" * 101)
    assert "is over 100 bytes" in refusal(folder / "long")
