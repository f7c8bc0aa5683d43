"""Writes a folder of files atomically: takes the path of a missing or empty folder and its files; either all of them appear or
none. The files stay under a temporary name until they are complete; no link is followed from the folder's parent on."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Mapping
from pathlib import Path

from tilec.untrusted.output import OpenOutput, Output, write_all


def write_tree(folder: Path, files: Mapping[str, bytes]) -> None:
    """Writes `files`, by their path below `folder`. OSError on failure or if the folder is not empty; InTheWay if a link or a
    file has its name."""
    absolute = folder.absolute()
    if absolute.name in ("", ".."):
        absolute = absolute.resolve()
    with contextlib.closing(Output(absolute.parent, None).opened()) as parent:
        try:
            existing = parent.sub(absolute.name, create=False)
        except FileNotFoundError:
            _make(parent, absolute.name, files)
            return
        with contextlib.closing(existing):
            if os.listdir(existing.handle):
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(folder))
            _fill(existing, files)  # it may be the current folder of a process, so it is not replaced


def _make(parent: OpenOutput, name: str, files: Mapping[str, bytes]) -> None:
    staged = parent.temporary()
    try:
        _write(parent, staged, files)
        os.rename(staged, name, src_dir_fd=parent.handle, dst_dir_fd=parent.handle)
    except BaseException:
        parent.remove_tree(staged)
        raise


def _fill(folder: OpenOutput, files: Mapping[str, bytes]) -> None:
    staged = folder.temporary()
    moved: list[str] = []
    try:
        _write(folder, staged, files)
        with contextlib.closing(folder.sub(staged, create=False)) as source:
            for name in sorted(os.listdir(source.handle)):
                if folder.has(name):
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
                os.rename(name, name, src_dir_fd=source.handle, dst_dir_fd=folder.handle)
                moved.append(name)
        os.rmdir(staged, dir_fd=folder.handle)
    except BaseException:
        for name in (*moved, staged):
            folder.remove_tree(name)
        raise


def _write(folder: OpenOutput, staged: str, files: Mapping[str, bytes]) -> None:
    for path, data in files.items():
        *names, last = (staged, *path.split("/"))
        with contextlib.ExitStack() as stack:
            current = folder
            for name in names:
                current = stack.enter_context(contextlib.closing(current.sub(name)))
            with current.new(last) as file:
                write_all(file, data)
