"""`python -m engine`: runs one of its commands and returns the exit status. Errors are one line on stderr.

Imports what one command needs, and only once that command was named: a start takes longer with each module.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import click

from engine.entry import fail, missing
from engine.errors import DeviceError, EngineError, Interrupted, UsageError


def graph_command() -> click.Command:
    """`python -m engine graph`."""
    from engine.tools.graph_command import graph_command

    return graph_command


def serve_command() -> click.Command:
    """`python -m engine serve`."""
    from engine.serving.command import serve_command

    return serve_command


def chat_command() -> click.Command:
    """`python -m engine chat`."""
    from engine.chat.command import chat_command

    return chat_command


def generate_command() -> click.Command:
    """`python -m engine` without the name of a command."""
    from engine.generate_command import command

    return command


NAMED: dict[str, Callable[[], click.Command]] = {"graph": graph_command, "serve": serve_command, "chat": chat_command}


def run(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    command_line = sys.argv[1:] if arguments is None else arguments
    named = NAMED.get(command_line[0]) if command_line else None
    try:
        if named is None:
            generate_command().main(command_line, prog_name="python -m engine", standalone_mode=False)
        else:
            shown = f"python -m engine {command_line[0]}"
            named().main(command_line[1:], prog_name=shown, standalone_mode=False)
    except click.exceptions.Abort:
        return fail(Interrupted("interrupted"))
    except click.ClickException as error:
        return fail(UsageError(error.format_message()))
    except KeyboardInterrupt:
        return fail(Interrupted("interrupted"))
    except EngineError as error:
        return fail(error)
    except ModuleNotFoundError as error:
        return fail(missing(error))
    except MemoryError:
        return fail(DeviceError("the host has too little memory", fix="use a smaller model"))
    except OSError as error:
        return fail(EngineError(f"cannot write the output: {error.strerror or error}"))
    except SystemExit:  # click raises it when stdout is a closed pipe
        return EngineError.exit_code
    return 0
