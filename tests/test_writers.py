"""tilec and its engine write to the file system only through `tilec.untrusted.output`, and through the exceptions listed here
with a reason.

Every call that can create, change, move or remove a file is found in the sources by its name, whatever object it is called on.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1]
WRITER: Final = (
    "tilec/untrusted/folder.py",
    "tilec/untrusted/output.py",
    "tilec/untrusted/output_tree.py",
    "tilec/untrusted/temporary_files.py",
)
"""The writer itself: folders by descriptor, whole files, whole trees, and the names of partial files."""

MODULES: Final = frozenset({"shutil", "tempfile", "tarfile", "zipfile"})
"""Modules whose every call counts."""
ATTRIBUTES: Final = frozenset(
    {
        "write_text", "write_bytes", "mkdir", "makedirs", "rename", "renames", "symlink", "symlink_to", "hardlink_to",
        "unlink", "rmdir", "removedirs", "touch", "chmod", "fchmod", "lchmod", "truncate", "ftruncate", "mknod", "mkfifo",
        "utime", "savez", "savez_compressed", "savetxt", "tofile", "memmap", "save_file", "savefig", "copyfile", "copytree",
        "rmtree", "open_memmap",
    }
)  # fmt: skip
"""Names of methods and functions that write, of whatever module or object."""
OF_OS: Final = frozenset({"replace", "remove", "link"})
"""Names that write only in `os`; text has a `replace`, a list a `remove`, and a kernel is linked."""
FLAGS: Final = ("O_WRONLY", "O_RDWR", "O_CREAT", "O_TRUNC", "O_APPEND", "O_TMPFILE")

ALLOWED: Final[dict[tuple[str, str], str]] = {
    ("tilec/ship/registry/pull.py", "mkdir"): "the folder that the user named, or the one in his cache",
    ("tilec/ship/registry/pull.py", "locked"): "a new file (O_EXCL) for what comes in parts, renamed once it is right",
    ("tilec/ship/registry/pull.py", "os.ftruncate"): "of that open file",
    ("tilec/ship/registry/pull.py", "replace"): "the rename of that file and its sidecar, which replaces a link",
    ("tilec/ship/registry/pull.py", "unlink"): "of those names, of which the link goes and not what it leads to",
    ("tilec/cache/location.py", "mkdir"): "the user's store, for the user alone",
    ("tilec/cache/lock.py", "os.open"): "the locks of the store, by descriptor and without following a link",
    ("tilec/cache/store.py", "touch"): "times of files of the store, by descriptor",
    ("tilec/cache/maintain.py", "os.rmdir"): "the store's own folder, by descriptor",
    ("tilec/cache/seal.py", "mkdir"): "the folder of the key file that the user named",
    ("tilec/cache/remote/fsspec_layer.py", "makedirs"): "a folder that the user named as a team's cache",
    ("tilec/cache/remote/lease_files.py", "mkdir"): "the folder that the user named as a team's cache",
    ("tilec/cache/remote/lease_files.py", "write_text"): "a lease of that cache, under a random name",
    ("tilec/cache/remote/lease_files.py", "hardlink_to"): "the lease's own name for it, if there is none",
    ("tilec/cache/remote/lease_files.py", "replace"): "the rename of that file, which replaces a link",
    ("tilec/cache/remote/lease_files.py", "unlink"): "of those names, of which the link goes and not what it leads to",
    ("tilec/cli/commands.py", "os.open"): "the null device, in place of a stdout that was closed",
    ("tilec/cli/ending.py", "os.open"): "the null device, in place of a stream that was closed",
    ("tilec/cli/ending.py", "os.fdopen"): "the stream of errors, which is open",
    ("tilec/lsp/serve.py", "os.fdopen"): "the stream to the editor, which is open",
    ("tilec/project/trial/device_child.py", "os.fdopen"): "the stream of answers, which is open",
    ("engine/tools/bench/plot.py", "savefig"): "in memory",
    ("tilec/tuning/bench_report.py", "savefig"): "in memory",
    ("engine/tools/quantize/checkpoint.py", "os.rename"): "by descriptor, from the writer's temporary folder to a free name",
    ("engine/tools/quantize/shards.py", "save_file"): "the library's file, in that folder, whose name is random",
    ("engine/tools/quantize/shards.py", "os.chmod"): "of that file",
    ("engine/entry.py", "os.open"): "the null device, in place of a stdout that was closed",
    ("tilec/workers/server.py", "os.unlink"): "what a killed worker had half written: a random name, no link followed",
    ("tilec/ship/registry/credentials.py", "shutil.which"): "reads",
    ("tilec/ship/bundle/wheel.py", "zipfile.ZipFile"): "in memory",
    ("tilec/ship/bundle/wheel.py", "zipfile.ZipInfo"): "in memory",
    ("tilec/ship/signing/provenance.py", "tempfile.TemporaryDirectory"): "a new folder for this process alone (mkdtemp)",
    ("tilec/project/farm/node.py", "tempfile.TemporaryDirectory"): "the same",
    ("tilec/project/build/just_in_time.py", "tempfile.TemporaryDirectory"): "the same",
    ("tilec/cli/verify_command.py", "tempfile.TemporaryDirectory"): "the same",
    ("tilec/cli/bench_command.py", "tempfile.TemporaryDirectory"): "the same",
    ("tilec/cli/dump_command.py", "tempfile.TemporaryDirectory"): "the same",
    ("tilec/cli/run_command.py", "tempfile.TemporaryDirectory"): "the same",
    ("tilec/project/trial/cases.py", "savez"): "in memory",
    ("tilec/assemble/sass.py", "tempfile.TemporaryDirectory"): "the same",
    ("tilec/assemble/ptxas.py", "tempfile.TemporaryDirectory"): "the same; ptxas writes there, by a name without a path",
    ("tilec/assemble/sass.py", "write_bytes"): "a file of that folder; the writer would enter the key of each CUBIN",
    ("tilec/assemble/ptxas.py", "write_bytes"): "a file of that folder; the writer would enter the key of each CUBIN",
}  # fmt: skip


def writes(tree: ast.AST) -> Iterator[str]:
    """The calls in a source that can write, by their names in `ALLOWED`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in {*MODULES, "os"}:
            names = {alias.name for alias in node.names}
            wanted = names if node.module in MODULES else names & (ATTRIBUTES | OF_OS | {"open", "fdopen"})
            yield from (f"from {node.module} import {name}" for name in sorted(wanted))
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        name = function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""
        base = function.value.id if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) else ""
        shown = f"{base}.{name}" if base in ("os", *MODULES) else name
        opens = name in ("open", "fdopen", "FileIO") and (base != "os" or name == "fdopen")
        keywords = {one.arg for one in node.keywords}
        if (
            base in MODULES
            or (opens and _for_writing(node))
            or (base == "os" and name == "open" and _flags_write(node))
            or name in ATTRIBUTES
            or (base == "os" and name in OF_OS)
            or (name == "locked" and "temporary" in ast.unparse(node))
            or (name == "replace" and base != "os" and len(node.args) == 1 and not keywords and not _is_text(node))
            or (base in ("np", "numpy") and name == "save")
        ):  # fmt: skip
            yield shown


def _is_text(node: ast.Call) -> bool:
    """Whether a `replace` of one argument is not a rename: `dataclasses.replace(value)` changes nothing, and is not used."""
    return isinstance(node.func, ast.Name)


def _for_writing(node: ast.Call) -> bool:
    """Whether the mode of an `open` writes, or is not a literal; for `path.open("w")` it is the first argument."""
    modes = [one.value for one in node.keywords if one.arg == "mode"]
    modes += node.args[0 if isinstance(node.func, ast.Attribute) and not _is_module(node.func) else 1 :][:1]
    if isinstance(node.func, ast.Attribute):
        modes += node.args[1:2]
    texts = [one.value for one in modes if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    return any(set(text) & set("wax+") and len(text) <= 4 for text in texts)


def _is_module(function: ast.Attribute) -> bool:
    return isinstance(function.value, ast.Name) and function.value.id in ("io", "os", "codecs", "gzip", "bz2", "lzma")


def _flags_write(node: ast.Call) -> bool:
    """Whether an `os.open` can write: its flags contain a writing one, or a name defined elsewhere, which is checked there."""
    text = ast.unparse(node)
    return any(flag in text for flag in FLAGS) or "O_RDONLY" not in text


def _sources() -> list[Path]:
    return sorted(path for top in ("tilec", "engine") for path in (ROOT / top).rglob("*.py"))


def test_nothing_else_writes() -> None:
    found: Counter[tuple[str, str]] = Counter()
    for path in _sources():
        name = path.relative_to(ROOT).as_posix()
        if name not in WRITER:
            found.update((name, call) for call in writes(ast.parse(path.read_text(encoding="utf-8"))))
    # Flags that are a name or are combined before the call, in readers.
    readers = {
        ("tilec/untrusted/regular_file.py", "os.open"): "flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY",
    }
    for (name, call), words in readers.items():
        assert words in (ROOT / name).read_text(encoding="utf-8")
        del found[name, call]
    assert set(found) == set(ALLOWED), "write by `tilec.untrusted.output`, or say here why not"


@pytest.mark.parametrize(
    "text",
    [
        "open(p, 'w')", "open(p, mode='ab')", "p.open('x')", "io.open(p, 'r+')", "os.fdopen(n, 'wb')", "os.open(p, os.O_RDWR)",
        "os.open(p, flags)", "p.write_text('')", "p.write_bytes(b'')", "p.mkdir()", "os.makedirs(p)", "os.replace(a, b)",
        "os.rename(a, b)", "a.rename(b)", "a.replace(b)", "shutil.copy(a, b)", "p.unlink()", "os.remove(p)", "os.symlink(a, b)",
        "p.symlink_to(a)", "np.save(p, a)", "np.savez(p, a)", "a.tofile(p)", "zipfile.ZipFile(p, 'w')", "tarfile.open(p, 'w')",
        "tempfile.mkstemp()", "os.mkfifo(p)", "subprocess.run(c, stdout=open(p, 'w'))", "p.touch()", "os.truncate(p, 0)",
        "os.link(a, b)",
        "from shutil import rmtree", "from os import replace", "figure.savefig(p)",
    ],
)  # fmt: skip
def test_each_way_to_write_is_seen(text: str) -> None:
    assert list(writes(ast.parse(text)))


@pytest.mark.parametrize(
    "text",
    ["open(p)", "open(p, 'rb')", "p.open()", "os.open(p, os.O_RDONLY)", "a.replace('a', 'b')", "replace(a, b=1)"],
)  # fmt: skip
def test_what_reads_is_not(text: str) -> None:
    assert not list(writes(ast.parse(text)))
