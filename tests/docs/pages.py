"""Runs the snippets of the pages in `docs/`: the fenced blocks of a page, in order, in one folder.

| block | use |
|---|---|
| `python` or `toml` with `title="FILE"` | written to that file; a later command must name each kernel |
| `python` | executed, with a driver that records launches and a stub of PyTorch for `tilec.ops` |
| `text` | the output of the `python` block above it |
| `console` | each line after `$ ` is run and must print the lines below it; `...` matches anything |
| `sh` | read, not run, as it needs a GPU, a network or minutes: commands, options and extras must exist |
| `json` | must be JSON |
| any, after a line `<!-- not run: WHY -->` | nothing |

Any other block is an error, so that none is skipped. `cd` into a folder that the page has not made goes into a copy of the
repository's. A kernel that `tilec run` runs is also compared with a reference: the page's, or that of `references.py`.
"""

from __future__ import annotations

import contextlib
import doctest
import functools
import io
import json
import math
import os
import re
import shlex
import shutil
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from engine.cli import NAMED, generate_command
from tests.files import ROOT
from tilec.cli.commands import run, tilec

PAGES: Final = ROOT / "docs"
FENCE: Final = re.compile(
    r"(?P<excuse>^ *<!-- not run: [^\n]+ -->\n+)?"
    r"^(?P<indent> *)```(?P<kind>\w*)(?P<rest>[^\n]*)\n(?P<body>.*?)^(?P=indent)```[ \t]*$",
    re.MULTILINE | re.DOTALL,
)
TITLE: Final = re.compile(r'title="([^"]+)"')
MEAN: Final = re.compile(r"\bmean (-?[\d.]+\d(?:e-?\d+)?)")
KERNEL: Final = re.compile(r"^@(?:tilec|tl)\.kernel\ndef (\w+)", re.MULTILINE)
REFERENCES: Final = ROOT / "tests/docs/references.py"
_SAME: Final = doctest.OutputChecker()


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: `start` and `end` delimit its body in the text of the page."""

    kind: str
    title: str
    body: str
    line: int
    start: int
    end: int
    indent: str


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a page, in order."""
    found: list[Block] = []
    for match in FENCE.finditer(text):
        if match["excuse"]:
            continue
        title = TITLE.search(match["rest"])
        line = text.count("\n", 0, match.start("indent")) + 1
        indent, (start, end) = match["indent"], match.span("body")
        body = textwrap.dedent(match["body"]) if indent else match["body"]
        found.append(Block(match["kind"], title[1] if title else "", body, line, start, end, indent))
    return found


def is_same(expected: str, actual: str) -> bool:
    """Whether a command printed what a page shows. Means near zero, of sums that processors add in different orders, may differ
    by a hundredth."""
    shown, found = ([float(number) for number in MEAN.findall(text)] for text in (expected, actual))
    if len(shown) == len(found) and all(map(functools.partial(math.isclose, rel_tol=0.01), shown, found)):
        expected, actual = MEAN.sub("mean", expected), MEAN.sub("mean", actual)
    return _SAME.check_output(expected, actual, doctest.ELLIPSIS)


class Runner:
    """Runs the blocks of a page in `folder`. `text` is the page with the actual output of its commands; `wrong` lists
    differences from the page."""

    def __init__(self, page: Path, folder: Path) -> None:
        self.page, self.folder, self.here = page, folder, folder
        self.names: dict[str, Any] = {"__name__": "__page__"}
        self.text = page.read_text(encoding="utf-8")
        self.wrong: list[str] = []
        self.kernels: dict[str, int] = {}
        self._new: list[tuple[Block, str]] = []
        self._printed = ""

    def run(self) -> None:
        """All blocks."""
        steps = {"console": self._console, "python": self._python, "text": self._text, "toml": self._write, "sh": self._sh}
        for block in blocks(self.text):
            if block.kind == "json":
                json.loads(block.body)
            elif block.kind not in steps:
                self.wrong.append(f"{self._at(block)}: no test knows what to do with a block of `{block.kind}`")
            elif block.title:
                self._write(block)
            else:
                steps[block.kind](block)
        for kernel, line in self.kernels.items():
            self.wrong.append(f"{self.page.name}:{line}: no command of the page looks at the kernel `{kernel}`")
        for block, body in reversed(self._new):
            self.text = self.text[: block.start] + textwrap.indent(body, block.indent) + self.text[block.end :]

    def _at(self, block: Block) -> str:
        return f"{self.page.name}:{block.line}"

    def _write(self, block: Block) -> None:
        if not block.title:
            self.wrong.append(f"{self._at(block)}: a block of `{block.kind}` has no title, so no command can look at it")
            return
        path = self.here / block.title
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.body, encoding="utf-8")
        self.kernels |= dict.fromkeys(KERNEL.findall(block.body), block.line)

    def _python(self, block: Block) -> None:
        self._looked_at(block.body)
        # Line numbers of a traceback are those of the page.
        code = compile("\n" * block.line + block.body, str(self.page), "exec")
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(code, self.names)
        self._printed = output.getvalue()

    def _text(self, block: Block) -> None:
        if not is_same(block.body, self._printed):
            self.wrong.append(f"{self._at(block)}: printed\n{self._printed}\nwhere the page has\n{block.body}")
            self._new.append((block, self._printed))

    def _console(self, block: Block) -> None:
        parts = re.split(r"^\$ (.*)\n", block.body, flags=re.MULTILINE)
        assert not parts[0].strip(), f"{self._at(block)}: begins with no command"
        messages: list[str] = []
        for command, expected in zip(parts[1::2], parts[2::2], strict=True):
            actual = self._command(command, block)
            if not is_same(expected, actual):
                self.wrong.append(f"{self._at(block)}: `{command}` printed\n{actual}\nwhere the page has\n{expected}")
                expected = actual
            messages.append(f"$ {command}\n{expected}")
        self._new.append((block, "".join(messages)))

    def _command(self, command: str, block: Block) -> str:
        words = shlex.split(command, comments=True)
        self._looked_at(command)
        if words[0] == "cd":
            self.here = (self.here / words[1]).resolve()
            assert self.here.is_relative_to(self.folder)
            if not self.here.exists():
                shutil.copytree(ROOT / words[1], self.here, ignore=shutil.ignore_patterns("artifacts", "__pycache__"))
            os.chdir(self.here)
            return ""
        if words[0] == "cat":
            return "".join((self.here / name).read_text(encoding="utf-8") for name in words[1:])
        assert words[0] == "tilec", f"{self._at(block)}: `{words[0]}` cannot be run here"
        output = io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            run(words[1:])
        if words[1] == "run":
            self._compare(words[2:], block)
        return output.getvalue().replace(f"{self.folder}/", "")

    def _looked_at(self, text: str) -> None:
        """Records the kernels that a command or a program names; commands of a whole project name all."""
        if text.split()[:2] in (["tilec", "test"], ["tilec", "check"]) and ".py" not in text:
            self.kernels.clear()
        self.kernels = {name: line for name, line in self.kernels.items() if not re.search(rf"\b{name}\b", text)}

    def _compare(self, words: list[str], block: Block) -> None:
        """Runs the command again with the reference, which the page need not show."""
        if not words[0].endswith(".py") or list((self.here / words[0]).parent.glob("reference*.py")):
            return
        reference = f"{REFERENCES}:{Path(words[0]).stem}"
        output = io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            status = run(["run", *words, "--reference", reference])
        if status:
            self.wrong.append(f"{self._at(block)}: `{words[0]}` is not what its reference is: {output.getvalue()}")

    def _sh(self, block: Block) -> None:
        for line in block.body.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            for problem in problems(words):
                self.wrong.append(f"{self._at(block)}: `{line}`: {problem}")


def problems(words: list[str]) -> list[str]:
    """The errors in a command that is not run."""
    if "&&" in words:
        joint = words.index("&&")
        return problems(words[:joint]) + problems(words[joint + 1 :])
    words = [words[0].removeprefix(".venv/bin/"), *words[1:]] if words else []
    if words[:1] == ["tilec"]:
        return _of_tilec(words[1:])
    if "pip" in words[:3]:
        extras = {name for word in words for found in re.findall(r"\[([\w,]+)\]", word) for name in found.split(",")}
        project = (ROOT / "pyproject.toml").read_text(encoding="utf-8").partition("[project.optional-dependencies]")[2]
        return [f"no extra `{name}`" for name in sorted(extras) if f"\n{name} = [" not in project]
    if words[:3] == ["python", "-m", "engine"]:
        return _of_engine(words[3:])
    if words[:1] == ["python"] and words[1:] and words[1].endswith(".py"):
        return _of_module(words[1].removesuffix(".py").replace("/", "."), words[2:])
    if words[:2] == ["python", "-m"]:
        return _of_module(words[2], words[3:])
    known = (".", "cd", "export", "git", "docker", "python3", "pytest", "mkdocs", "cc", "curl")
    return [] if not words or words[0] in known else [f"no test knows `{words[0]}`"]


def _of_module(name: str, words: list[str]) -> list[str]:
    """Checks a module of this project, whose options are in its source or in that of the command that it enters."""
    joint = ROOT / name.replace(".", "/")
    files = [path for path in (*joint.glob("*.py"), joint.with_suffix(".py")) if path.is_file()]
    source = "".join(path.read_text(encoding="utf-8") for path in files)
    for entered in re.findall(r'enter\(f"\{__package__\}\.([\w.]+)"\)', source):
        command = ROOT / name.partition(".")[0] / f"{entered.replace('.', '/')}.py"
        source += command.read_text(encoding="utf-8")
    options = [word.partition("=")[0] for word in words if word.startswith("--")]
    return [f"`{option}` is no option" for option in options if f'"{option}"' not in source] if files else ["no such module"]


def _of_tilec(words: list[str]) -> list[str]:
    command: click.Command = tilec
    context = click.Context(command, info_name="tilec")
    while isinstance(command, click.Group):
        if not words or words[0] not in command.commands:
            return [f"`{context.command_path}` has no command `{words[0] if words else ''}`"]
        command = command.commands[words[0]]
        context = click.Context(command, parent=context, info_name=words[0])
        words = words[1:]
    return _of_command(command, context, words)


def _of_engine(words: list[str]) -> list[str]:
    """Checks `python -m engine`, with the name of one of its commands or without."""
    named = NAMED.get(words[0]) if words else None
    command = named() if named else generate_command()
    return _of_command(command, click.Context(command, info_name="engine"), words[1:] if named else words)


def _of_command(command: click.Command, context: click.Context, words: list[str]) -> list[str]:
    """Checks options and arguments: none is unknown, without its value, too many or missing."""
    try:
        values, left, _ = command.make_parser(context).parse_args(list(words))
    except click.UsageError as error:
        return [error.format_message()]
    given = {name for name, value in values.items() if isinstance(value, str | tuple) and value}
    missing = [one.human_readable_name for one in command.params if one.required and one.name not in given]
    return [f"no argument `{word}` is expected" for word in left] + [f"`{name}` is missing" for name in missing]
