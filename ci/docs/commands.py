"""Generates the page of the commands from the command line itself: usage, help, arguments, options and exit statuses of
each."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click

from tilec.cli.commands import tilec
from tilec.cli.options import EPILOG


def commands() -> str:
    """The page of all commands."""
    parts = [
        "# Commands\n",
        f"{_ABOUT}\n",
        f"{EPILOG} Where a command has others, they stand below it.\n",
        "## tilec {: #tilec }\n",
        _options(click.Context(tilec, info_name="tilec")),
    ]
    parts += [_command(context) for context in _below(click.Context(tilec, info_name="tilec"))]
    return "\n".join(parts)


_ABOUT = (
    "Every command answers `--help`. Data goes to stdout, diagnostics to stderr; `--json`, where a command has it, writes the "
    "result as JSON on stdout. A command that works on a project finds the `build.toml` of the folder that it runs in, or of "
    "one above."
)


def _below(context: click.Context) -> Iterator[click.Context]:
    group = context.command
    assert isinstance(group, click.Group)
    for name in sorted(group.commands):
        inner = click.Context(group.commands[name], parent=context, info_name=name)
        yield inner
        if isinstance(inner.command, click.Group):
            yield from _below(inner)


def _command(context: click.Context) -> str:
    path, command = context.command_path, context.command
    level = "##" if path.count(" ") == 1 else "###"
    usage = " ".join([path, *command.collect_usage_pieces(context)])
    epilog = command.epilog if command.epilog and command.epilog != EPILOG else ""
    parts = [f"{level} {path} {{: #{path.replace(' ', '-')} }}\n", f"```text\n{usage}\n```\n", _help(command.help or "")]
    return "\n".join([*parts, _options(context), f"{epilog}\n" if epilog else ""])


def _help(text: str) -> str:
    """Help as Markdown: paragraphs that click must not rewrap become code blocks."""
    parts: list[str] = []
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if paragraph.startswith("\b"):
            title, _, body = paragraph.removeprefix("\b\n").partition("\n")
            parts.append(f"{title}\n\n```text\n{inspect.cleandoc(body)}\n```")
        else:
            parts.append(re.sub(r"<(\w+)>", r"`<\1>`", paragraph))
    return "\n\n".join(parts) + "\n"


def _options(context: click.Context) -> str:
    rows = [record for one in context.command.get_params(context) if (record := one.get_help_record(context)) is not None]
    rows = [(names, described) for names, described in rows if described and not names.startswith(("-h,", "--help", "--color"))]
    if not rows:
        return ""
    cells = [f"| `{_cell(names)}` | {_cell(described)} |" for names, described in rows]
    return "\n".join(["| option | what |", "|---|---|", *cells]) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
