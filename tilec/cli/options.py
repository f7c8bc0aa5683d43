"""Options shared by commands: project, exit status in the help, and colour.

`--color` can precede the command or follow it anywhere.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import Any

import click

from tilec.diagnostics.terminal import CHOICES, choose

ENDED = "130 interrupted, 129 and 143 ended by SIGHUP and SIGTERM"
EPILOG = f"Exit status: 0 done, 1 a kernel was refused or a budget exceeded, 2 wrong usage or environment, {ENDED}."
BUNDLE_EPILOG = (
    "Exit status: 0 done, 1 a bundle was refused or differs, or a kernel was refused, 2 wrong usage, a file that cannot be "
    f"read or written, or the environment, {ENDED}."
)
AUDIT_EPILOG = (
    "Exit status: 0 every obligation is confirmed and no launch has a fault, 1 something is refuted, faulty or does not "
    "match its digest, 2 wrong usage, a file that cannot be read or written, or the environment, 3 nothing is refuted but "
    f"something is unknown, was not checked, or was left by --time-limit, {ENDED}."
)
TUNE_EPILOG = (
    "Exit status: 0 all is measured, 1 a candidate is wrong or refused, or shapes are left, 2 wrong usage or environment, "
    f"such as no GPU, {ENDED}."
)
BENCH_EPILOG = (
    "Exit status: 0 measured, 1 the kernel is refused, or differs from its reference or baseline, 2 wrong usage or "
    f"environment, 3 no GPU: nothing was measured, {ENDED}."
)
ARCH = click.option("--arch", metavar="LIST", help="Architectures, such as sm_90,sm_100. Default: those of build.toml.")
WEIGHTS = click.option(
    "--weights", metavar="LIST",
    help="Formats of the models' linear weights, such as 16bit,fp8; or `all` of build.toml. Default: 16bit.",
)  # fmt: skip
CACHES = click.option(
    "--cache", "caches", metavar="LIST",
    help="Formats of the models' caches, such as 16bit,fp8; or `all` of build.toml. Default: 16bit.",
)  # fmt: skip
GPUS = click.option(
    "--gpus", metavar="LIST",
    help="Numbers of GPUs that share a model, such as 1,2; or `all` of build.toml. Default: 1.",
)  # fmt: skip
CONSTANTS = click.option(
    "--constants", "-c", multiple=True, metavar="NAME=VALUE",
    help="Specialisations to use; for a file, the values of its constants. May be repeated.",
)  # fmt: skip
DENY = click.option("--deny", type=click.Choice(["notes"]), help="Exit with status 1 if there is a performance note.")
JSON = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on stdout.")
WATCH = click.option(
    "--watch", is_flag=True, help="Run again whenever a file that is read changes, until interrupted (exit status 130)."
)
JOBS = click.option("--jobs", "-j", type=click.IntRange(1, 1024), help="Worker processes. Default: one per core.")

REMOTE = click.option(
    "--remote", "remotes", multiple=True, metavar="URL",
    help="A remote cache, in addition to TILEC_REMOTE_CACHE; `project`: those of build.toml; `off`: none. May be repeated.",
)  # fmt: skip


def a_number(context: click.Context, parameter: click.Parameter, value: float | None) -> float | None:
    """Reject `nan` as the value of an option: click accepts it in every range."""
    if value is not None and math.isnan(value):
        raise click.BadParameter(f"{value} is not a number", context, parameter)
    return value


def cores() -> int:
    """Number of cores that this process may use: the default of `--jobs`."""
    return len(os.sched_getaffinity(0))


PROJECT = click.option(
    "--project", metavar="PATH", help="Folder with the build.toml, or the file. Default: the nearest one, here or above."
)


def _colour(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value is not None:
        choose(value)


def add_colour(group: click.Group) -> None:
    """Add the option `--color` to a group and every command below it."""
    for command in (group, *_below(group)):
        option = click.Option(
            ["--color"], type=click.Choice(CHOICES), metavar="WHEN", expose_value=False, is_eager=True, callback=_colour,
            help="Colour on the terminal: auto (the default, NO_COLOR counts), always, never.",
        )  # fmt: skip
        command.params.append(option)


def _below(group: click.Group) -> Iterator[click.Command]:
    for command in group.commands.values():
        yield command
        if isinstance(command, click.Group):
            yield from _below(command)
