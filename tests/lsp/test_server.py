"""The language server from an editor's view: the real process, unsaved texts, positions in UTF-16, and every way to end."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Generator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from lsprotocol import types

from tests.lsp.client import Editor, at, editor

HEAD = '''"""Swap the first two axes: rows of heads become heads of rows."""
from typing import Literal

import tilec
from tilec import Const, Dim, In, Out, bf16, bid, grid, load, requires, store


class D(Dim):
    """elements of a head"""


class HEADS(Dim):
    """number of heads"""


class M(Dim):
    """number of rows"""


@tilec.kernel
def head_permute(x: In[bf16, M, HEADS, D], out: Out[bf16, Literal["HEADS * M"], D], *, HEADS: Const, D: Const):
    grid(M, HEADS)
    requires(M <= 4096)
    m, h = bid(0), bid(1)
    v = load(x, (m, h, 0), shape=(1, 1, D))
'''
WRONG = HEAD + "    store(out, (m * M + h, 0), v.reshape((1, D)))\n"
RIGHT = HEAD + "    store(out, (h * M + m, 0), v.reshape((1, D)))\n"
BUILD = """[build]
kernels = "."
arch = ["sm_90"]

[[kernel]]
name = "head_permute"
constants = { HEADS = [8, 32], D = 128 }
"""


@pytest.fixture(scope="module")
def loop() -> Generator[asyncio.Runner]:
    """The event loop of this file's tests, so that they can share a server."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def server(loop: asyncio.Runner, tmp_path_factory: pytest.TempPathFactory) -> Generator[Editor]:
    """One server for all tests that do not test its start."""
    stack = AsyncExitStack()
    yield loop.run(stack.enter_async_context(editor(tmp_path_factory.mktemp("server"))))
    loop.run(stack.aclose())


@pytest.fixture(scope="module")
def particular(loop: asyncio.Runner, tmp_path_factory: pytest.TempPathFactory) -> Generator[Editor]:
    """A second server, for an editor that counts columns in bytes and has constants for files without a project."""
    general = types.GeneralClientCapabilities(position_encodings=[types.PositionEncodingKind.Utf8])
    constants: dict[str, Any] = {"HEADS": [8], "D": 128, "OTHER": 1, "WRONG": {}}
    stack = AsyncExitStack()
    started = editor(
        tmp_path_factory.mktemp("particular"),
        options={"constants": constants},
        capabilities=types.ClientCapabilities(general=general),
    )
    yield loop.run(stack.enter_async_context(started))
    loop.run(stack.aclose())


@pytest.fixture
def vi(server: Editor, loop: asyncio.Runner) -> Generator[Editor]:
    """The editor of that server, without open files."""
    server.forget()
    yield server
    loop.run(server.close_all())


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "build.toml").write_text(BUILD)
    (tmp_path / "head_permute.py").write_text(RIGHT)
    return tmp_path


def codes(found: list[types.Diagnostic]) -> list[Any]:
    return [item.code for item in found]


def test_unsaved_text_is_checked_and_the_counterexample_shown(project: Path, vi: Editor, loop: asyncio.Runner) -> None:
    async def test() -> None:
        uri = vi.open(project / "head_permute.py", WRONG)
        found = await vi.diagnostics_of(uri, 1, lambda found: len(found) >= 3)
        assert codes(found) == ["E0302", "E0401", "E0403"]
        first = found[0]
        assert first.severity is types.DiagnosticSeverity.Error and first.source == "tilec"
        assert "may write past the end of axis 0" in first.message
        assert "counterexample: M = " in first.message and "element `out[" in first.message
        assert "hint: pass `mask=True`" in first.message
        line, start = at(WRONG, "store(out")
        assert first.range == types.Range(types.Position(line, start), types.Position(line, start + 45))
        (related,) = first.related_information or ()
        assert related.location.uri == uri and "axis 0 of `out` has" in related.message
        assert related.location.range.start == types.Position(*at(WRONG, "out: Out"))
        assert first.code_description is not None and first.code_description.href.endswith("/explain/E0302.md")
        assert isinstance(first.data, dict)
        assert first.data["counterexample"]["tensor"] == "out"
        vi.change(uri, RIGHT, 2)
        assert await vi.diagnostics_of(uri, 2) == []
        vi.change(uri, WRONG, 3)
        assert codes(await vi.diagnostics_of(uri, 3, lambda found: len(found) >= 3)) == ["E0302", "E0401", "E0403"]
        vi.close(uri)
        assert await vi.diagnostics_of(uri, 3, lambda found: not found) == []
        assert (project / "head_permute.py").read_text() == RIGHT

    loop.run(test())


def test_hover_shows_ranges_proofs_names_and_codes(project: Path, vi: Editor, loop: asyncio.Runner) -> None:
    text = RIGHT.replace("    v = load", "    # E0302 is what this must not be\n    v = load")

    async def test() -> None:
        uri = vi.open(project / "head_permute.py", text)
        early = await vi.hover(uri, *at(text, "m, h = bid"))
        assert "`i32`" in early and "`0 <= m <= 4095`" in early
        assert await vi.diagnostics_of(uri, 1) == []
        assert "`0 <= m <= 4095`" in await vi.hover(uri, *at(text, "m, h = bid"))
        both = await vi.hover(uri, *at(text, "h * M"))
        assert "With `HEADS=8`" in both and "`0 <= h <= 7`" in both
        assert "With `HEADS=32`" in both and "`0 <= h <= 31`" in both
        assert "`0 <= v <= 28672`" in await vi.hover(uri, *at(text, "* M + m"))
        value = await vi.hover(uri, *at(text, "v.reshape"))
        assert "`bf16[1, 1, 128]`" in value
        store = await vi.hover(uri, *at(text, "store(out"))
        assert "bounds of store to `out`" in store and "**set** (by integer sets)" in store
        assert "race of `out`" in store and "store(tensor: Tensor" in store and "elements outside the tensor" in store
        load = await vi.hover(uri, *at(text, "load(x"))
        assert "bounds of load from `x`" in load and "`bf16[1, 1, 128]`" in load
        dim = await vi.hover(uri, *at(text, "M + m"))
        assert "number of rows" in dim and "`1 <= M <= 4096`" in dim
        assert "# E0302: a store may write outside its tensor" in await vi.hover(uri, *at(text, "E0302"))
        assert "tensor bf16[M, 8, 128]" in await vi.hover(uri, *at(text, "x, (m"))
        assert await vi.hover(uri, *at(text, "is what this", 0)) == ""
        vi.change(uri, WRONG, 2)
        await vi.diagnostics_of(uri, 2, lambda found: len(found) >= 3)
        wrong = await vi.hover(uri, *at(WRONG, "store(out"))
        assert "**E0401" in wrong and "Proven" not in wrong

    loop.run(test())


@pytest.mark.campaign
def test_columns_count_utf16_or_what_the_client_prefers(
    project: Path, vi: Editor, particular: Editor, loop: asyncio.Runner
) -> None:
    prefix = '    "𝔽é"; '
    text = WRONG.replace("    store(out", prefix + "store(out")

    async def test() -> None:
        for each, column in ((vi, 11), (particular, 14)):
            uri = each.open(project / "head_permute.py", text)
            found = await each.diagnostics_of(uri, 1, lambda found: len(found) >= 3)
            line = at(text, "store(out")[0]
            assert found[0].range.start == types.Position(line, column)
            assert found[0].range.end == types.Position(line, column + 45)
            assert "store(tensor" in await each.hover(uri, line, column)
            assert "store(tensor" not in await each.hover(uri, line, column - 2)

    assert len(prefix) == 10
    loop.run(test())


def test_definitions_lead_to_functions_of_other_files_dims_and_parameters(
    tmp_path: Path, vi: Editor, loop: asyncio.Runner
) -> None:
    helpers = "import tilec\nfrom tilec import exp\n\nTWO = 2\n\n\n@tilec.function\ndef twice(v):\n    return exp(v) * TWO\n"
    kernel = (
        "import tilec\nfrom helpers import twice as double\n"
        "from tilec import Dim, In, Out, bid, cdiv, f32, grid, load, store\n\n\n"
        'class N(Dim):\n    """elements"""\n\n\n@tilec.kernel\ndef scaled(x: In[f32, N], out: Out[f32, N]):\n'
        "    grid(cdiv(N, 256))\n    v = load(x, bid(0), shape=256, pad=0)\n    store(out, bid(0), double(v), mask=True)\n"
    )
    (tmp_path / "helpers.py").write_text(helpers)
    (tmp_path / "scaled.py").write_text(kernel)

    async def test() -> None:
        uri = vi.open(tmp_path / "scaled.py", kernel)
        assert codes(await vi.diagnostics_of(uri, 1)) == []
        found = await vi.defined(uri, *at(kernel, "double(v)"))
        assert found is not None and found.uri == (tmp_path / "helpers.py").as_uri()
        assert found.range == types.Range(types.Position(7, 4), types.Position(7, 9))
        dim = await vi.defined(uri, *at(kernel, "N, 256"))
        assert dim is not None and (dim.uri, dim.range.start) == (uri, types.Position(*at(kernel, "N(Dim)")))
        parameter = await vi.defined(uri, *at(kernel, "x, bid"))
        assert parameter is not None and parameter.range.start == types.Position(*at(kernel, "x: In"))
        assert await vi.defined(uri, *at(kernel, "store(out")) is None
        other = vi.open(tmp_path / "helpers.py", helpers)
        assert "`f32[256]`" in await vi.hover(other, *at(helpers, "v) * TWO"))
        # A text typed in the file of the function is diagnosed there, because of the kernel that calls it.
        vi.change(other, helpers.replace("exp(v)", "epx(v)"), 2)
        assert codes(await vi.diagnostics_of(other, 2, lambda found: bool(found))) == ["E0108"]
        vi.change(other, helpers, 3)
        assert await vi.diagnostics_of(other, 3, lambda found: not found) == []

    loop.run(test())


def test_symbols(project: Path, vi: Editor, loop: asyncio.Runner) -> None:
    async def test() -> None:
        uri = vi.open(project / "head_permute.py", RIGHT)
        found = await vi.text_document_document_symbol_async(types.DocumentSymbolParams(types.TextDocumentIdentifier(uri)))
        assert found is not None
        symbols = [one for one in found if isinstance(one, types.DocumentSymbol)]
        assert [(one.name, one.detail) for one in symbols] == [
            ("D", "dim"), ("HEADS", "dim"), ("M", "dim"), ("head_permute", "kernel"),
        ]  # fmt: skip
        kernel = symbols[-1]
        assert [one.name for one in kernel.children or ()] == ["x", "out", "HEADS", "D"]
        assert kernel.selection_range.start == types.Position(*at(RIGHT, "head_permute("))
        assert kernel.range.end.line == RIGHT.count("\n") - 1

    loop.run(test())


def test_half_typed_text_and_files_that_are_no_kernels(project: Path, vi: Editor, loop: asyncio.Runner) -> None:
    half = HEAD + "    store(out, (h * M + m, 0"

    async def test() -> None:
        uri = vi.open(project / "head_permute.py", RIGHT)
        assert await vi.diagnostics_of(uri, 1) == []
        vi.change(uri, half, 2)
        assert codes(await vi.diagnostics_of(uri, 2, lambda found: bool(found))) == ["E0101"]
        line, column = at(half, "store(out")
        assert await vi.defined(uri, line, column + 16) is not None  # M, by the last text that could be parsed
        assert await vi.hover(uri, 10_000, 10_000) == ""
        vi.change(uri, "", 3)
        assert await vi.diagnostics_of(uri, 3, lambda found: not found) == []
        for name, text in (
            ("plain.py", "def f(:\n"),
            ("program.py", "import tilec\nfrom tilec import op, nothing\nprint(tilec.op)\n"),
            ("text.py", 'import tilec\nKERNEL = """\n@tilec.kernel\ndef f(): pass\n"""\n'),
            ("half.py", "import tilec\ndef f(:\n"),
        ):
            other = vi.open(project / name, text)
            assert await vi.hover(other, 0, 0) == ""
            assert not any(params.diagnostics for params in vi.published.values())
        assert await vi.hover(uri.replace(".py", "%00.py"), 0, 0) == ""
        vi.change(uri, WRONG, 4)
        await vi.diagnostics_of(uri, 4, lambda found: len(found) >= 3)
        assert [at for at, params in vi.published.items() if params.diagnostics] == [uri]
        assert vi.messages == []

    loop.run(test())


@pytest.mark.campaign
def test_a_file_without_a_project_takes_its_constants_from_the_editor(
    tmp_path: Path, vi: Editor, particular: Editor, loop: asyncio.Runner
) -> None:
    path = tmp_path / "head_permute.py"

    async def test() -> None:
        uri = vi.open(path, WRONG)  # there is no such file on disk
        (found,) = await vi.diagnostics_of(uri, 1, lambda found: bool(found))
        assert found.code == "E0804" and found.severity is types.DiagnosticSeverity.Warning
        assert "no value for `HEADS`, `D` of kernel `head_permute`" in found.message
        assert found.range.start == types.Position(*at(WRONG, "head_permute("))
        particular.open(path, WRONG)
        assert codes(await particular.diagnostics_of(uri, 1, lambda found: len(found) >= 3)) == ["E0302", "E0401", "E0403"]

    loop.run(test())


def test_a_broken_build_file_is_reported_in_place_and_cleared_when_fixed(
    project: Path, vi: Editor, loop: asyncio.Runner
) -> None:
    (project / "build.toml").write_text(BUILD.replace("arch", "arhc"))

    async def test() -> None:
        uri = vi.open(project / "head_permute.py", WRONG)
        (found,) = await vi.diagnostics_of(uri, 1, lambda found: bool(found))
        assert "nothing is proven: `build.toml` is refused" in found.message
        build = (project / "build.toml").as_uri()
        assert "E0802" in codes(await vi.diagnostics_of(build, None, lambda found: bool(found)))
        (project / "build.toml").write_text(BUILD)
        vi.workspace_did_change_watched_files(types.DidChangeWatchedFilesParams([]))
        assert codes(await vi.diagnostics_of(uri, 1, lambda found: len(found) >= 3)) == ["E0302", "E0401", "E0403"]
        assert await vi.diagnostics_of(build, None, lambda found: not found) == []

    loop.run(test())


def test_only_the_last_of_many_edits_counts(project: Path, vi: Editor, loop: asyncio.Runner) -> None:
    async def test() -> None:
        uri = vi.open(project / "head_permute.py", RIGHT)
        for version in range(2, 200):
            vi.change(uri, (WRONG if version % 2 else RIGHT) + f"# {version}\n", version)
        vi.change(uri, WRONG, 200)
        assert codes(await vi.diagnostics_of(uri, 200, lambda found: len(found) >= 3)) == ["E0302", "E0401", "E0403"]
        assert vi.count < 100  # most were never checked

    loop.run(test())


def test_a_very_large_file_is_refused_in_a_line(project: Path, vi: Editor, loop: asyncio.Runner) -> None:
    large = RIGHT + "#" * (1 << 20)

    async def test() -> None:
        uri = vi.open(project / "head_permute.py", RIGHT)
        assert await vi.diagnostics_of(uri, 1) == []
        vi.change(uri, large, 2)
        assert codes(await vi.diagnostics_of(uri, 2, lambda found: bool(found))) == ["E0513"]
        vi.change(uri, RIGHT, 3)
        assert await vi.diagnostics_of(uri, 3, lambda found: not found) == []

    loop.run(test())


def test_certain_fixes_are_actions_on_the_text_that_is_typed(project: Path, vi: Editor, loop: asyncio.Runner) -> None:
    misspelt = RIGHT.replace("    v = load", "    # not on the disk\n    v = laod")

    def applied(text: str, edits: list[Any]) -> str:
        lines = text.split("\n")
        for edit in sorted(edits, key=lambda edit: (edit.range.start.line, edit.range.start.character), reverse=True):
            start, end = edit.range.start, edit.range.end
            assert start.line == end.line
            line = lines[start.line]
            lines[start.line] = line[: start.character] + edit.new_text + line[end.character :]
        return "\n".join(lines)

    async def test() -> None:
        uri = vi.open(project / "head_permute.py", misspelt)
        (found,) = await vi.diagnostics_of(uri, 1, lambda found: bool(found))
        assert found.code == "E0108"

        async def actions(line: int) -> list[types.CodeAction]:
            here = types.Range(types.Position(line, 0), types.Position(line, 80))
            params = types.CodeActionParams(types.TextDocumentIdentifier(uri), here, types.CodeActionContext([]))
            given = await vi.text_document_code_action_async(params)
            return [one for one in given or () if isinstance(one, types.CodeAction)]

        (action,) = await actions(found.range.start.line)
        assert action.title == "write `load`" and action.kind == types.CodeActionKind.QuickFix
        assert [(one.code, one.range) for one in action.diagnostics or ()] == [(found.code, found.range)]
        assert action.edit is not None and action.edit.changes is not None
        assert applied(misspelt, list(action.edit.changes[uri])) == misspelt.replace("laod", "load")
        assert await actions(0) == []
        vi.change(uri, WRONG, 2)
        wrong = (await vi.diagnostics_of(uri, 2, lambda found: len(found) >= 3))[0]
        mask = next(one for one in await actions(wrong.range.start.line) if "mask=True" in one.title)
        assert mask.edit is not None and mask.edit.changes is not None
        assert "v.reshape((1, D)), mask=True)" in applied(WRONG, list(mask.edit.changes[uri]))

    loop.run(test())


@pytest.mark.campaign
def test_stdin_that_is_no_pipe_is_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "tilec", "lsp"], stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: stdin is not a pipe: editors start this command and communicate through stdin and stdout\n"
