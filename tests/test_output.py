"""The writer of all commands: whole files, never through a link, whatever exists at the path and whenever it appears."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tilec.diagnostics.diagnostic import CompileError
from tilec.untrusted.output import Output, is_stream, write_named
from tilec.untrusted.output_tree import write_tree

SECRET = b"export PATH=/bin\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_bytes(SECRET)
    return tmp_path / "project"


def outside(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (root.parent / "outside").iterdir()}


WRITES: dict[str, Callable[[Output], object]] = {
    "write": lambda output: output.write("c/file", b"new"),
    "append": lambda output: output.append_line("c/file", b"new"),
    "remove": lambda output: output.remove("c/file"),
    "check": lambda output: output.check("c"),
}


@pytest.mark.parametrize("act", WRITES)
@pytest.mark.parametrize("link", ["a", "a/b", "a/b/c"])
def test_no_folder_is_a_link(root: Path, link: str, act: str) -> None:
    file = root / link
    file.parent.mkdir(parents=True, exist_ok=True)
    deep = root.parent / "outside"
    file.symlink_to(deep)
    with pytest.raises(CompileError) as caught:
        WRITES[act](Output(root / "a" / "b", root))
    (problem,) = caught.value.diagnostics
    assert (problem.code, f"`{file}` is a link" in problem.message) == ("E0702", True)
    assert "remove the link" in problem.hint
    assert outside(root) == {"file": SECRET}


@pytest.mark.parametrize("anchored", [True, False])
@pytest.mark.parametrize("act", ["write", "append"])
@pytest.mark.parametrize("kind", ["link", "dangling", "folder", "pipe"])
def test_nothing_but_a_file_is_replaced(root: Path, kind: str, act: str, anchored: bool) -> None:
    (root / "a/b/c").mkdir(parents=True)
    file = root / "a/b/c/file"
    if kind == "folder":
        file.mkdir()
    elif kind == "pipe":
        os.mkfifo(file)
    else:
        file.symlink_to(root.parent / "outside" / ("file" if kind == "link" else "new"))
    with pytest.raises(CompileError, match="E0702"):
        WRITES[act](Output(root / "a/b", root if anchored else None))
    assert outside(root) == {"file": SECRET}


def test_a_file_with_a_second_name_is_replaced_and_never_appended_to(root: Path) -> None:
    file, other = root / "lines", root.parent / "outside" / "file"
    os.link(other, file)
    with pytest.raises(CompileError) as caught:
        Output(root, root).append_line("lines", b"new")
    (problem,) = caught.value.diagnostics
    assert (problem.code, f"`{file}` is one of 2 names of one file" in problem.message) == ("E0702", True)
    assert "`cp`" in problem.hint and outside(root) == {"file": SECRET}
    Output(root, root).write("lines", b"new\n")
    assert outside(root) == {"file": SECRET}
    Output(root, root).append_line("lines", b"more")
    assert file.read_bytes() == b"new\nmore\n" and outside(root) == {"file": SECRET}


def spoken(path: Path) -> Callable[[], bytes]:
    """Creates a pipe there, and opens it for reading; returns its contents."""
    os.mkfifo(path)
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    def heard() -> bytes:
        data = os.read(handle, 1 << 16)
        os.close(handle)
        return data

    return heard


def test_a_pipe_or_device_that_was_named_is_written_to(root: Path) -> None:
    heard = spoken(root / "pipe")
    assert is_stream(str(root / "pipe")) and not write_named(str(root / "pipe"), b"\x1b[2J new\n")
    assert heard() == b"\x1b[2J new\n"  # other than a terminal gets the bytes
    assert not write_named("/dev/null", b"new")
    with pytest.raises(CompileError, match="No space left"):
        write_named("/dev/full", b"new")
    assert not is_stream(str(root / "none")) and write_named(str(root / "none"), b"new")
    assert (root / "none").read_bytes() == b"new"


def test_a_pipe_that_nobody_reads_from_is_not_waited_for(root: Path) -> None:
    os.mkfifo(root / "pipe")
    with pytest.raises(CompileError, match="nobody reads from the pipe"):
        write_named(str(root / "pipe"), b"new")


def test_a_slow_reader_is_waited_for(root: Path) -> None:
    data = bytes(range(256)) * 4096  # more than a pipe's capacity
    os.mkfifo(root / "pipe")
    code = "import sys; print(len(open(sys.argv[1], 'rb').read()))"
    with subprocess.Popen([sys.executable, "-c", code, str(root / "pipe")], stdout=subprocess.PIPE) as reader:
        known = os.open(root / "pipe", os.O_WRONLY)  # once it reads
        write_named(str(root / "pipe"), data)
        os.close(known)
        assert reader.communicate()[0] == b"%d\n" % len(data)


@pytest.mark.parametrize("name", ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "/dev/stderr"])
def test_a_descriptor_is_written_to_after_the_printed_text(root: Path, name: str) -> None:
    """Also if it is a file, which keeps its contents."""
    code = f"import sys; from tilec.untrusted.output import write_named; print('a'); print(write_named({name!r}, b'b'))"
    with (root / "out").open("wb") as out:
        out.write(b"before\n")
        out.flush()
        subprocess.run([sys.executable, "-P", "-c", code], stdout=out, stderr=out, check=True)
    assert (root / "out").read_bytes() == b"before\na\nbFalse\n"


def test_a_descriptor_of_our_own_is_none_that_the_user_has(root: Path) -> None:
    with (root / "own").open("wb") as own:
        with pytest.raises(CompileError, match="Bad file descriptor"):
            write_named(f"/dev/fd/{own.fileno()}", b"new")
        os.set_inheritable(own.fileno(), True)  # as if opened by a shell
        assert not write_named(f"/dev/fd/{own.fileno()}", b"new")
    with pytest.raises(CompileError, match="Bad file descriptor"):
        write_named("/dev/fd/99999", b"new")
    assert (root / "own").read_bytes() == b"new"


@pytest.mark.parametrize("link", ["file", "folder"])
def test_no_stream_is_reached_through_a_link(root: Path, link: str) -> None:
    heard = spoken(root.parent / "outside" / "pipe")
    if link == "file":
        named = root / "pipe"
        named.symlink_to(root.parent / "outside" / "pipe")
    else:
        (root / "out").symlink_to(root.parent / "outside")
        named = root / "out" / "pipe"
    with pytest.raises(CompileError) as caught:
        write_named(str(named), b"new")
    (problem,) = caught.value.diagnostics
    assert problem.code == "E0702" and "link" in problem.message and heard() == b""
    if link == "folder":
        assert f"`{(root.parent / 'outside' / 'pipe').resolve()}`" in problem.hint
    else:
        device = root / "null"
        device.symlink_to("/dev/null")
        with pytest.raises(CompileError, match="is a link"):
            write_named(str(device), b"new")


def test_a_terminal_is_shown_and_does_not_obey() -> None:
    reader, writer = os.openpty()
    assert not write_named(os.ttyname(writer), b"\x1b[2J\xff")
    shown = os.read(reader, 99)
    os.close(reader)
    os.close(writer)
    assert shown == b"\\x1b[2J\\xff"


def test_a_link_is_removed_and_not_what_it_leads_to(root: Path) -> None:
    (root / "file").symlink_to(root.parent / "outside" / "file")
    Output(root, root).remove("file")
    assert not os.path.lexists(root / "file") and outside(root) == {"file": SECRET}


@pytest.mark.parametrize("folder", ["..", "../outside", "a/../../outside", "/"])
def test_no_path_leaves_the_project(root: Path, folder: str) -> None:
    with pytest.raises(CompileError, match="lies outside of the project"):
        Output(root / folder, root).write("file", b"new")
    assert outside(root) == {"file": SECRET}


@pytest.mark.parametrize("name", ["", ".", "..", "a/../b", "/etc/x", "a//b", "nul\0", "n" * 5000, "\udfff"])
def test_names_that_are_none_are_one_error(root: Path, name: str) -> None:
    with pytest.raises(CompileError) as caught:
        Output(root, None).write(name, b"new")
    assert len(caught.value.diagnostics[0].message) < 600
    assert list(root.iterdir()) == []


@pytest.mark.parametrize("act", ["write", "append"])
@pytest.mark.parametrize("at", ["a", "b", "c"])
def test_a_folder_swapped_for_a_link_meanwhile_leads_nowhere(
    root: Path, monkeypatch: pytest.MonkeyPatch, at: str, act: str
) -> None:  # fmt: skip
    """The swap happens after the folder was opened, and before anything else is opened."""
    whole = root / "a/b/c"
    whole.mkdir(parents=True)
    swapped = {"a": root / "a", "b": root / "a/b", "c": whole}[at]
    known = os.open
    opened: list[Any] = []

    def swap(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if opened[-1:] == [at] and not swapped.is_symlink():
            swapped.rename(root / "moved")
            swapped.symlink_to(root.parent / "outside")
        opened.append(path)
        return known(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", swap)
    WRITES[act](Output(root / "a/b", root))
    assert swapped.is_symlink()
    assert outside(root) == {"file": SECRET}


def test_a_file_swapped_for_a_link_meanwhile_is_replaced_and_not_followed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = os.rename

    def swap(*names: Any, **more: Any) -> None:
        (root / "file").symlink_to(root.parent / "outside" / "file")
        known(*names, **more)

    monkeypatch.setattr(os, "rename", swap)
    Output(root, root).write("file", b"new")
    assert (root / "file").read_bytes() == b"new" and not (root / "file").is_symlink()
    assert outside(root) == {"file": SECRET}


def test_files_are_whole_and_those_that_are_right_stay(root: Path) -> None:
    output = Output(root / "a", root)
    assert output.write("b/file", b"one")
    before = (root / "a/b/file").stat().st_ino
    assert not output.write("b/file", b"one")
    assert (root / "a/b/file").stat().st_ino == before
    assert output.write("b/file", b"two") and output.read("b/file", 3) == b"two"
    output.append_line("lines", b"1")
    (root / "a/lines").write_bytes(b"1\n2")
    output.append_line("lines", b"3")
    assert (root / "a/lines").read_bytes() == b"1\n2\n3\n"
    assert sorted(path.name for path in root.rglob("*")) == ["a", "b", "file", "lines"]
    with pytest.raises(OSError, match="too large"):
        output.read("lines", 2)
    with pytest.raises(FileNotFoundError):
        output.read("none", 2)


def test_links_on_the_way_to_what_the_user_named_are_followed(root: Path) -> None:
    (root / "link").symlink_to(root.parent / "outside")
    Output(root / "link", None).write("other", b"new")
    assert outside(root)["other"] == b"new"


def test_a_tree_is_whole_or_not_there(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"a/b": b"1", "a/c": b"2", "d": b"3"}
    write_tree(root / "new", files)
    (root / "empty").mkdir()
    write_tree(root / "empty", files)
    for name in ("new", "empty"):
        file = root / name
        assert {path.relative_to(file).as_posix(): path.read_bytes() for path in file.rglob("*") if path.is_file()} == files
    (root / "link").symlink_to(root / "none")
    (root / "empty link").symlink_to(root.parent / "outside2")
    (root.parent / "outside2").mkdir()
    for name in ("new", "link", "empty link"):
        with pytest.raises(OSError):
            write_tree(root / name, files)
    assert list((root.parent / "outside2").iterdir()) == []
    known = os.rename

    def fail(source: Any, *rest: Any, **more: Any) -> None:
        if source == "d":
            raise OSError(5, "input/output error")
        known(source, *rest, **more)

    (root / "other").mkdir()
    monkeypatch.setattr(os, "rename", fail)
    with pytest.raises(OSError, match="input/output"):
        write_tree(root / "other", files)
    assert list((root / "other").iterdir()) == []
