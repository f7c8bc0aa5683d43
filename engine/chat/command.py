"""`python -m engine chat`: options, and what replies. Replies go to stdout, all else to stderr."""

from __future__ import annotations

import io
import os
import secrets
import sys
from functools import partial
from pathlib import Path
from typing import Any, Final, TextIO

import click

from engine.api import Engine
from engine.chat.local import LocalSpeaker
from engine.chat.remote import RemoteSpeaker
from engine.chat.session import STYLES, Session
from engine.chat.speaker import Speaker
from engine.entry import argument_text
from engine.errors import UsageError
from engine.options import CACHE_FORMATS, DEFAULT_SEQUENCE, WEIGHT_FORMATS, BackendName, check_backend
from engine.sampling import SEED_LIMIT
from tilec.diagnostics.visible import Guarded, unguarded, visible_line

KEY_VARIABLE: Final = "TILEC_API_KEY"
NAME_CHARACTERS: Final = 80
LOCAL: Final = {
    "bundle": "--bundle", "bundle_digest": "--bundle-digest", "trust": "--trust", "weight_format": "--weights",
    "cache_format": "--cache", "dummy_weights": "--dummy-weights", "gpus": "--gpus",
}  # fmt: skip
"""Options of a model in this process that have no default."""

EPILOG = """Lines of stdin are messages. /help lists commands, Ctrl-C stops a reply, Ctrl-D ends.

Exit status: 0 the input has ended, 2 wrong usage or no server at --url, 3 a model file is absent, damaged or asks for too much,
4 the bundle is absent, damaged or for another GPU, 5 the GPU or its memory, 130 interrupted."""


@click.command(epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.argument("model", required=False)
@click.option(
    "--url", metavar="URL", help=f"Server to talk to, in place of MODEL; its API key is in the variable {KEY_VARIABLE}."
)
@click.option("--model-name", metavar="NAME", help="With --url, the model.  [default: the first that the server lists]")
@click.option("--system", metavar="TEXT", help="Message of the system, before all others.")
@click.option("--thinking/--no-thinking", default=True, help="Let the model think first (chat template).")
@click.option("--max-new-tokens", type=click.IntRange(1), help="Most tokens of a reply.  [default: what fits]")
@click.option("--temperature", type=click.FloatRange(0, 2), help="0: the most likely token.  [default: the model's]")
@click.option("--top-k", type=click.IntRange(1), help="Tokens to draw from.  [default: the model's]")
@click.option("--top-p", type=click.FloatRange(0, 1, min_open=True), help="Probability to draw from.  [default: the model's]")
@click.option("--seed", type=int, help="Seed of the first reply; each has the next one.  [default: drawn]")
@click.option("--bundle", metavar="FILE", help="As of `python -m engine`, like the options that follow.")
@click.option("--bundle-digest", metavar="HEX")
@click.option("--trust", metavar="FILE")
@click.option("--backend", type=click.Choice(["cuda", "interpreter"]), default="cuda")
@click.option("--weights", "weight_format", type=click.Choice(WEIGHT_FORMATS))
@click.option("--cache", "cache_format", type=click.Choice(CACHE_FORMATS))
@click.option("--gpus", type=click.IntRange(1))
@click.option("--dummy-weights", type=int, metavar="SEED", help="Random weights of a seed.")
@click.option("--max-seq-len", type=click.IntRange(2), default=DEFAULT_SEQUENCE, help="Most tokens of a conversation.")
def chat_command(
    model: str | None, url: str | None, model_name: str | None, system: str | None, thinking: bool, max_new_tokens: int | None,
    temperature: float | None, top_k: int | None, top_p: float | None, seed: int | None, backend: BackendName,
    max_seq_len: int, **others: Any,
) -> None:  # fmt: skip
    """Talk with the model of a folder in this process, or with a server."""
    if (model is None) == (url is None):
        raise UsageError("give either a model folder or --url")
    values = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    sampling = {name: value for name, value in values.items() if value is not None}
    if url is not None:
        unused = next((option for name, option in LOCAL.items() if others[name] is not None), None)
        if unused is not None:
            raise UsageError(f"{unused} has no effect with --url", fix="leave it out")
        speaker = _remote(url, model_name, thinking, max_new_tokens, seed, sampling)
    else:
        if model_name is not None:
            raise UsageError("--model-name has no effect without --url", fix="leave it out")
        assert model is not None  # one of the two is there
        check_backend(backend, others["bundle"], others["bundle_digest"], others["trust"])
        others |= {"dummy": others.pop("dummy_weights"), "gpus": others["gpus"] or 1}
        engine = Engine.from_pretrained(model, backend=backend, max_seq_len=max_seq_len, **others)
        first = secrets.randbelow(SEED_LIMIT) if seed is None else seed
        speaker = LocalSpeaker(
            engine, Path(model).resolve().name, max_tokens=max_new_tokens, think=thinking, seed=first, sampling=sampling
        )
    try:
        _talk(speaker, system)
    finally:
        speaker.close()


def _remote(
    url: str, model: str | None, thinking: bool, max_tokens: int | None, seed: int | None, sampling: dict[str, Any]
) -> RemoteSpeaker:
    """The speaker of a server; fields are sent only if they ask for something."""
    fields: dict[str, Any] = dict(sampling)
    if not thinking:
        fields["chat_template_kwargs"] = {"enable_thinking": False}
    if max_tokens is not None:
        fields["max_tokens"] = max_tokens
    if seed is not None:
        fields["seed"] = seed
    return RemoteSpeaker(url, key=os.environ.get(KEY_VARIABLE), model=model, **fields)


def _talk(speaker: Speaker, system: str | None) -> None:
    """Run a session on the streams of this process."""
    if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison]  # None in a process that was started without stdin
        raise UsageError("stdin is closed", fix="give messages on it")
    styled = sys.stdout.isatty()
    out: Any = Guarded(unguarded(sys.stdout), STYLES) if styled else sys.stdout
    notes: Any = sys.stderr or io.StringIO()  # None in a process that was started without stderr
    read = _line
    if sys.stdin.isatty():
        notes.write(f"{visible_line(speaker.name, NAME_CHARACTERS)}: /help lists commands\n")
        read = input if styled else partial(_asked, notes)
        _edit_lines()
    text = argument_text(system) if system is not None else None
    Session(speaker, read, out, notes, system=text, styled=styled).run()


def _asked(notes: TextIO, prompt: str) -> str:
    """A line of a terminal when stdout is none: `input` would write the prompt among the replies."""
    notes.write(prompt)
    notes.flush()
    return _line(prompt)


def _line(_: str) -> str:
    """A line of stdin, without a prompt."""
    try:
        line = sys.stdin.readline()
    except UnicodeDecodeError as error:
        raise UsageError(f"stdin is not UTF-8 at byte {error.start}", fix="give it as UTF-8") from None
    if not line:
        raise EOFError
    return line.removesuffix("\n")


def _edit_lines() -> None:
    """Let `input` edit lines and go back to earlier ones, where Python has that."""
    try:
        import readline
    except ImportError:
        return
    readline.set_auto_history(True)
