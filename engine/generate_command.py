"""`python -m engine`: generates text for one prompt. Text goes to stdout, progress and errors to stderr.

What takes time to import is imported once the command line is known to be right, and while the GPU's driver starts.
"""

from __future__ import annotations

import codecs
import json
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from engine.early_device import one_blas_thread, wake_device
from engine.entry import argument_text
from engine.errors import UsageError
from engine.garbage import without_collections
from engine.options import CACHE_FORMATS, DEFAULT_SEQUENCE, WEIGHT_FORMATS, BackendName
from engine.phases import PHASES
from engine.text.messages import PROMPT_LIMIT
from engine.text.text_process import TextProcess
from tilec.diagnostics.visible import unguarded

if TYPE_CHECKING:
    from engine.api import Engine, Prompt

PROFILE_COLUMNS: Final = 128

STDIN_BYTES: Final = 4 * PROMPT_LIMIT
"""Maximum bytes of a prompt on stdin."""

EPILOG = """`python -m engine serve --help`: serve a model to OpenAI's clients. `python -m engine chat --help`: talk with a
model or a server. `python -m engine graph --help`: draw the steps of a model.

Exit status: 0 done, 1 the output cannot be written, 2 wrong usage or a package that is not installed, 3 a model file is absent,
damaged or asks for too much, 4 the bundle is absent, damaged or for another GPU, 5 the GPU or its memory, 130 interrupted."""


@click.command(epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--model", required=True, metavar="FOLDER", help="Model folder: config.json, tokenizer, safetensors.")
@click.option("--bundle", metavar="FILE", help="Bundle of the model for this GPU. Default: the one found installed or pulled.")
@click.option("--bundle-digest", metavar="HEX", help="Refuse a bundle whose sha256 is not this one.")
@click.option("--trust", metavar="FILE", help="Trust policy for the bundle's signatures. Default: TILEC_TRUST, or the user's.")
@click.option(
    "--backend", type=click.Choice(["cuda", "interpreter"]), default="cuda", show_default=True,
    help="The GPU, or the interpreter in NumPy, for tiny models without GPU and bundle.",
)  # fmt: skip
@click.option("--prompt", required=True, help="Text of the prompt; `-` reads it from stdin.")
@click.option("--raw-prompt", is_flag=True, help="Continue the prompt as it is, without the chat template.")
@click.option(
    "--allow-control-tokens", is_flag=True,
    help="Treat <|im_end|>, <think> and the like in the prompt as control tokens. Default: as text.",
)  # fmt: skip
@click.option("--thinking/--no-thinking", default=True, help="Let the model think first (chat template). Default: yes.")
@click.option("--max-new-tokens", default=128, show_default=True, help="Maximum number of generated tokens.")
@click.option(
    "--max-seq-len",
    default=DEFAULT_SEQUENCE,
    show_default=True,
    help="Maximum number of tokens of prompt and generation together.",
)
@click.option("--sample", is_flag=True, help="Draw tokens at random. Default: the most likely one.")
@click.option("--temperature", type=float, help="With --sample, above 0. Default: generation_config.json.")
@click.option(
    "--top-k", type=int, help="With --sample, 1 to 64 tokens to draw from. Default: generation_config.json, 64 at most."
)
@click.option("--top-p", type=float, help="With --sample, the probability to draw from. Default: generation_config.json.")
@click.option("--device-argmax", is_flag=True, help="Choose the most likely token on the GPU, as always without --sample.")
@click.option("--profile", is_flag=True, help="Time every operation of a decode step afterwards; a table on stderr.")
@click.option("--stream/--no-stream", default=None, help="Print text as it is generated. Default: at a terminal.")
@click.option(
    "--weights", "weight_format", type=click.Choice(WEIGHT_FORMATS),
    help="Format of the linear layers' weights on the device; 16bit dequantises those of the folder. Default: the folder's.",
)  # fmt: skip
@click.option(
    "--cache", "cache_format", type=click.Choice(CACHE_FORMATS),
    help="Format of keys and values in the cache. Default: that of --bundle, else 16bit.",
)  # fmt: skip
@click.option(
    "--gpus", type=click.IntRange(1), default=1, show_default=True,
    help="GPUs that share the model, with a bundle for as many; --backend interpreter runs them as threads.",
)  # fmt: skip
@click.option("--dummy-weights", is_flag=True, help="Random weights from config.json alone, to measure without the files.")
@click.option("--seed", default=0, show_default=True, help="Seed of --sample and of --dummy-weights.")
@click.option("--json", "as_json", is_flag=True, help="Print text, token ids and times as JSON.")
def command(
    model: str, bundle: str | None, backend: BackendName, prompt: str, raw_prompt: bool, allow_control_tokens: bool,
    thinking: bool, max_new_tokens: int, max_seq_len: int, sample: bool, temperature: float | None, top_k: int | None,
    top_p: float | None, device_argmax: bool, profile: bool, stream: bool | None, dummy_weights: bool, seed: int, as_json: bool,
    bundle_digest: str | None, trust: str | None, weight_format: str | None, cache_format: str | None,
    gpus: int,
) -> None:  # fmt: skip
    """Generate text for a prompt with a Qwen3 or Llama 3 model, on the prebuilt CUBINs of a bundle, or without a GPU on the
    kernels' sources."""
    _check_backend(backend, bundle, profile, bundle_digest, trust)
    if profile and gpus > 1:
        raise UsageError("--profile times the kernels of one GPU, and others would wait for it", fix="leave out --gpus")
    values = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    chosen = {name: value for name, value in values.items() if value is not None}
    _check_sampling(sample, device_argmax, chosen, seed)
    text = _read_stdin() if prompt == "-" else argument_text(prompt)
    prompt_input: Prompt = text if raw_prompt else [{"role": "user", "content": text}]
    start = time.perf_counter()
    dummy = seed if dummy_weights else None
    if backend == "cuda":
        one_blas_thread()
    with (
        _other_text(model, backend) as other,
        _load(
            model, bundle, backend, max_seq_len, dummy, weight_format, cache_format, bundle_digest, trust, gpus, other
        ) as engine,
    ):
        loaded = time.perf_counter()
        ids = engine.tokens(prompt_input, thinking=thinking, allow_control_tokens=allow_control_tokens)
        sampling = engine.sampling(seed=seed, **chosen) if sample else None
        if as_json:
            arrivals = [(token, time.perf_counter()) for token in engine.generate_ids(ids, max_new_tokens, sampling=sampling)]
            ended = time.perf_counter()
            found = [token for token, _ in arrivals]
            first = arrivals[0][1] if arrivals else ended
            record: dict[str, Any] = {
                "text": engine.decode(found), "ids": found, "prompt_tokens": len(ids), "load_seconds": loaded - start,
                "kernel_load_seconds": engine.backend.kernel_seconds, "first_token_seconds": first - loaded,
                "generate_seconds": ended - loaded, "phases": PHASES.rounded(),
            }  # fmt: skip
            click.echo(json.dumps(record, ensure_ascii=_only_ascii()))
        else:
            pieces = engine.generate(
                prompt_input, max_new_tokens=max_new_tokens, thinking=thinking, sampling=sampling,
                allow_control_tokens=allow_control_tokens,
            )  # fmt: skip
            _print(pieces, stream)
        if profile:
            _print_profile(engine)


def _print_profile(engine: Engine) -> None:
    """The table of a decode step's operations, on stderr."""
    from rich.console import Console

    from engine.tools.profile import table

    Console(stderr=True, width=PROFILE_COLUMNS).print(table(engine.profile()))


def _print(pieces: Iterator[str], stream: bool | None) -> None:
    """Print piece by piece if `stream` is set (default: at a terminal), otherwise the whole text at the end."""
    if stream if stream is not None else sys.stdout.isatty():
        for piece in pieces:
            click.echo(piece, nl=False)
            sys.stdout.flush()
        click.echo()
    else:
        click.echo("".join(pieces))


def _only_ascii() -> bool:
    """Whether stdout's encoding cannot represent every character; JSON then writes escapes."""
    return codecs.lookup(sys.stdout.encoding or "ascii").name not in ("utf-8", "utf-16", "utf-32")


def _check_backend(
    backend: BackendName, bundle: str | None, profile: bool, digest: str | None, trust: str | None
) -> None:  # fmt: skip
    """UsageError for options that the backend does not support."""
    options = {"--bundle": bundle, "--bundle-digest": digest, "--trust": trust}
    option = next((name for name, value in options.items() if value is not None), None)
    if backend == "interpreter" and option is not None:
        raise UsageError(f"{option} changes nothing with --backend interpreter", fix="leave it out")
    if backend == "interpreter" and profile:
        raise UsageError("--profile times kernels on a GPU, but --backend interpreter uses none", fix="leave it out")


def _check_sampling(sample: bool, device_argmax: bool, chosen: dict[str, Any], seed: int) -> None:
    """UsageError for bad sampling values, before the weights are loaded."""
    if sample and device_argmax:
        raise UsageError("--device-argmax selects the most likely token, but --sample draws one", fix="give one of them")
    if sample:
        from engine.sampling import SamplingParams

        SamplingParams(seed=seed, **chosen)
    elif chosen:
        raise UsageError(f"--{next(iter(chosen)).replace('_', '-')} has no effect without --sample", fix="give --sample too")


def _read_stdin() -> str:
    if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison]  # None in a process that was started without stdin
        raise UsageError("stdin is closed", fix="give the prompt after --prompt")
    try:
        text = sys.stdin.buffer.read(STDIN_BYTES + 1)
        if len(text) > STDIN_BYTES:
            raise UsageError(f"stdin holds over {STDIN_BYTES} bytes", fix="shorten the prompt")
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"stdin is not UTF-8 at byte {error.start}", fix="give it as UTF-8") from None
    except OSError as error:
        raise UsageError(f"stdin cannot be read: {error.strerror}", fix="give the prompt after --prompt") from None


def _load(
    model: str, bundle: str | None, backend: BackendName, max_seq_len: int, dummy: int | None, weight_format: str | None,
    cache_format: str | None,
    digest: str | None, trust: str | None, gpus: int, text: TextProcess | None,
) -> Engine:  # fmt: skip
    """Load the model, with a progress bar if stderr is a terminal."""
    if backend == "cuda" and gpus == 1:
        wake_device()
    with without_collections(tidy=False), _progress() as progress:
        from engine.api import Engine

        PHASES.ended("imports")
        return Engine.from_pretrained(
            Path(model), bundle=bundle, backend=backend, max_seq_len=max_seq_len, dummy=dummy, progress=progress,
            weight_format=weight_format, cache_format=cache_format, bundle_digest=digest, trust=trust, gpus=gpus,
            once=True, text=text,
        )  # fmt: skip


@contextmanager
def _other_text(model: str, backend: BackendName) -> Generator[TextProcess | None]:
    """A process that reads the tokenizer until the block ends. The interpreter runs tiny models, whose tokenizers are small."""
    if backend != "cuda":
        yield None
        return
    text = TextProcess(model)
    try:
        yield text
    finally:
        text.close()


@contextmanager
def _progress() -> Generator[Callable[[int, int], None] | None]:
    """What shows the bytes loaded so far and the total as a bar on stderr; None if that is no terminal."""
    stream = unguarded(sys.stderr)
    if stream is None or not stream.isatty():  # pyright: ignore[reportUnnecessaryComparison]  # None: started without stderr
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("loading"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(file=stream), transient=True) as bar:
        task = bar.add_task("weights", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
