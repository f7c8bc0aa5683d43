"""`python -m engine`: one prompt, one answer. Text goes to stdout, progress and errors to stderr."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from engine.api import DEFAULT_SEQUENCE, Engine, Prompt
from engine.errors import EngineError, Interrupted, UsageError

EPILOG = """Exit status: 0 done, 2 wrong usage, 3 a model file is absent or damaged, 4 the bundle is absent, damaged or for
another GPU, 5 the GPU or its memory, 130 interrupted."""


@click.command(epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--model", required=True, metavar="FOLDER", help="Model folder: config.json, tokenizer, safetensors.")
@click.option("--bundle", required=True, metavar="FILE", help="Bundle of the model for this GPU, from `tilec bundle pack`.")
@click.option("--prompt", required=True, help="What to answer; `-` reads it from stdin.")
@click.option("--raw-prompt", is_flag=True, help="Continue the prompt as it is, without the chat template.")
@click.option("--thinking/--no-thinking", default=True, help="Let the model think first (chat template). Default: yes.")
@click.option("--max-new-tokens", default=128, show_default=True, help="Tokens of the answer at most.")
@click.option("--max-seq-len", default=DEFAULT_SEQUENCE, show_default=True, help="Tokens of prompt and answer together.")
@click.option("--stream/--no-stream", default=None, help="Print pieces as they come. Default: at a terminal.")
@click.option("--dummy-weights", is_flag=True, help="Random weights from config.json alone, to measure without the files.")
@click.option("--seed", default=0, show_default=True, help="Seed of the random weights.")
@click.option("--json", "as_json", is_flag=True, help="Print text, token ids and times as JSON.")
def command(
    model: str, bundle: str, prompt: str, raw_prompt: bool, thinking: bool, max_new_tokens: int, max_seq_len: int,
    stream: bool | None, dummy_weights: bool, seed: int, as_json: bool,
) -> None:  # fmt: skip
    """Answer a prompt with a Qwen3 model, on nothing but the prebuilt CUBINs of a bundle."""
    text = sys.stdin.read() if prompt == "-" else prompt
    given: Prompt = text if raw_prompt else [{"role": "user", "content": text}]
    began = time.perf_counter()
    with _load(model, bundle, max_seq_len, seed if dummy_weights else None) as engine:
        loaded = time.perf_counter()
        ids = engine.tokens(given, thinking=thinking)
        if as_json:
            found = list(engine.generate_ids(ids, max_new_tokens))
            ended = time.perf_counter()
            record: dict[str, Any] = {
                "text": engine.text.decode(found), "ids": found, "prompt_tokens": len(ids), "load_seconds": loaded - began,
                "generate_seconds": ended - loaded,
            }  # fmt: skip
            click.echo(json.dumps(record, ensure_ascii=False))
            return
        pieces = engine.generate(given, max_new_tokens=max_new_tokens, thinking=thinking)
        if stream if stream is not None else sys.stdout.isatty():
            for piece in pieces:
                click.echo(piece, nl=False)
                sys.stdout.flush()
            click.echo()
        else:
            click.echo("".join(pieces))


def _load(model: str, bundle: str, max_seq_len: int, dummy: int | None) -> Engine:
    """Load with a bar at a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("loading"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("weights", total=None)

        def progress(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        return Engine.from_pretrained(Path(model), bundle=Path(bundle), max_seq_len=max_seq_len, dummy=dummy, progress=progress)


def run(arguments: list[str] | None = None) -> int:
    """Run the command; the exit status."""
    try:
        command.main(arguments, prog_name="python -m engine", standalone_mode=False)
    except click.exceptions.Abort:
        return _fail(Interrupted("interrupted"))
    except click.ClickException as error:
        return _fail(UsageError(error.format_message()))
    except KeyboardInterrupt:
        return _fail(Interrupted("interrupted"))
    except EngineError as error:
        return _fail(error)
    return 0


def _fail(error: EngineError) -> int:
    click.echo(f"error: {error}", err=True)
    return error.exit_code
