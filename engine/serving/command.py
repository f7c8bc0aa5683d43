"""`python -m engine serve`: serves a model to OpenAI's clients. Logs and errors go to stderr."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from engine.early_device import one_blas_thread
from engine.errors import UsageError
from engine.options import CACHE_FORMATS, DEFAULT_SEQUENCE, WEIGHT_FORMATS, BackendName, check_backend
from engine.serving.beginning import bound, engine_started
from engine.serving.options import (
    CHUNK_TOKENS,
    INTERPRETED_ROWS,
    TOOL_FORMS,
    Options,
    ServerLimits,
    ToolForm,
    guesses_of,
    keys_of,
)  # fmt: skip

if TYPE_CHECKING:
    from engine.serving.traces import Traces

KEY_VARIABLE: Final = "TILEC_API_KEY"
DEFAULTS: Final = ServerLimits()
KEY_FILE_BYTES: Final = 1 << 20

EPILOG = """Exit status: 0 ended by SIGTERM or Ctrl-C, after requests were done or --drain-seconds had passed; 2 wrong usage, an
address in use, or a package that is not installed; 3 a model file is absent, damaged or asks for too much; 4 the bundle is
absent, damaged or for another GPU; 5 the GPU or its memory; 6 the engine's process, or that of one of its GPUs, ended on its
own."""


@click.command(epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.argument("model")
@click.option("--model-name", metavar="NAME", help="Name of the model in requests.  [default: that of the folder]")
@click.option("--host", default="127.0.0.1", help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, help="Port to listen on; 0: a free one.")
@click.option("--bundle", metavar="FILE", help="Bundle of the model for this GPU. Default: the one found installed or pulled.")
@click.option("--bundle-digest", metavar="HEX", help="Refuse a bundle whose sha256 is not this one.")
@click.option("--trust", metavar="FILE", help="Trust policy for the bundle's signatures. Default: TILEC_TRUST, or the user's.")
@click.option(
    "--backend", type=click.Choice(["cuda", "interpreter"]), default="cuda",
    help="The GPU, or the interpreter in NumPy, for tiny models without GPU and bundle.",
)  # fmt: skip
@click.option("--weights", "weight_format", type=click.Choice(WEIGHT_FORMATS), help="As of `python -m engine`.")
@click.option("--cache", "cache_format", type=click.Choice(CACHE_FORMATS), help="As of `python -m engine`.")
@click.option("--gpus", type=click.IntRange(1), default=1, help="As of `python -m engine`.")
@click.option("--dummy-weights", type=int, metavar="SEED", help="Random weights of a seed, to measure without the files.")
@click.option(
    "--max-seq-len",
    type=click.IntRange(2),
    default=DEFAULT_SEQUENCE,
    help="Most tokens of a prompt and its generation together.",
)
@click.option(
    "--rows", type=click.IntRange(1, 256), metavar="N",
    help="Requests that decode together, 1 to 256; 2, 4 or 8 for a model without a step over pages.  [default: 256; there, and "
    "on the interpreter, 8]",
)  # fmt: skip
@click.option(
    "--pages", type=click.IntRange(1), metavar="N", help="Pages of 64 tokens for all requests.  [default: what fits the GPU]"
)  # fmt: skip
@click.option(
    "--chunk-tokens", type=click.IntRange(1), default=CHUNK_TOKENS,
    help="Most tokens of prompts that are computed between two tokens of other requests.",
)  # fmt: skip
@click.option(
    "--chunk-prompts", type=click.IntRange(1), metavar="N",
    help="Most prompts whose tokens are computed in one launch.  [default: 8, or 1 for a model without a step over pages]",
)  # fmt: skip
@click.option(
    "--speculate", metavar="ngram:K",
    help="Guess up to K next tokens of a request from its own text, and verify them in one step in rows that are free.",
)  # fmt: skip
@click.option(
    "--tool-form", type=click.Choice(TOOL_FORMS),
    help="Form in which the model writes calls of tools.  [default: what its chat template asks for]",
)  # fmt: skip
@click.option("--max-waiting", type=click.IntRange(0), default=256, help="Requests that wait beyond --rows; more get a 503.")
@click.option("--max-body-bytes", type=click.IntRange(1), default=DEFAULTS.body_bytes, help="Most bytes of a request's body.")
@click.option(
    "--request-seconds", type=click.FloatRange(0, min_open=True), default=DEFAULTS.request_seconds,
    help="How long a request may take, waiting included.",
)  # fmt: skip
@click.option(
    "--stall-seconds", type=click.FloatRange(0, min_open=True), default=DEFAULTS.stall_seconds,
    help="/health fails when there are requests and no step has ended for so long.",
)  # fmt: skip
@click.option("--drain-seconds", type=click.IntRange(0), default=30, help="How long requests may go on after SIGTERM.")
@click.option(
    "--restarts", type=click.IntRange(0), default=3,
    help="How often within ten minutes the model is loaded again after the engine's process ended; then the server ends.",
)  # fmt: skip
@click.option(
    "--api-key-file", metavar="FILE",
    help=f"File of API keys, one a line; requests then need one. Default: the variable {KEY_VARIABLE}, if it is set.",
)  # fmt: skip
@click.option(
    "--otlp-traces-endpoint",
    metavar="URL",
    help="OpenTelemetry collector that gets a span of each request, such as http://127.0.0.1:4318/v1/traces.",
)
def serve_command(
    model: str, model_name: str | None, host: str, port: int, bundle: str | None, bundle_digest: str | None, trust: str | None,
    backend: BackendName, weight_format: str | None, cache_format: str | None, dummy_weights: int | None, max_seq_len: int,
    rows: int | None, pages: int | None, chunk_tokens: int, chunk_prompts: int | None, speculate: str | None, max_waiting: int,
    max_body_bytes: int, request_seconds: float, stall_seconds: float, drain_seconds: int, restarts: int,
    api_key_file: str | None, otlp_traces_endpoint: str | None, gpus: int, tool_form: ToolForm | None,
) -> None:  # fmt: skip
    """Serve the model of a folder to OpenAI's clients, on the prebuilt CUBINs of a bundle, or without a GPU on the kernels'
    sources."""
    check_backend(backend, bundle, bundle_digest, trust)
    guesses = 0 if speculate is None else guesses_of(speculate)
    limits, keys = ServerLimits(max_body_bytes, request_seconds, stall_seconds=stall_seconds), _keys(api_key_file)
    if backend == "cuda":
        one_blas_thread()
    with (
        _sent_traces(otlp_traces_endpoint) as traces,
        bound(host, port) as listening,
        engine_started(wake=backend == "cuda" and gpus == 1) as engine,
    ):
        # The engine's process imports its modules now, so that this one's are imported from here on: first those of a message.
        from engine.serving.protocol import Load, encoded

        load = Load(
            model=str(Path(model).resolve()), backend=backend, rows=rows or (0 if backend == "cuda" else INTERPRETED_ROWS),
            max_seq_len=max_seq_len, chunk_tokens=chunk_tokens, bundle=bundle and str(Path(bundle).resolve()),
            bundle_digest=bundle_digest, trust=trust, weight_format=weight_format, cache_format=cache_format,
            dummy=dummy_weights, pages=pages, guesses=guesses, gpus=gpus, chunk_prompts=chunk_prompts,
        )  # fmt: skip
        engine.tell(encoded(load))
        from engine.models.families import read_config

        read_config(model)
        from engine.serving.server import serve

        options = Options(host, port, model_name, max_waiting, drain_seconds, restarts, keys, limits, traces, tool_form)
        serve(load, options, engine, listening)


@contextmanager
def _sent_traces(endpoint: str | None) -> Generator[Traces | None]:
    """What sends spans to a collector, if there is one, until the block ends."""
    if endpoint is None:
        yield None
        return
    from engine.serving.traces import Traces

    traces = Traces(endpoint)
    try:
        yield traces
    finally:
        traces.close()


def _keys(path: str | None) -> list[str]:
    """The API keys of a file, or of the environment; UsageError if the file has none."""
    if path is None:
        value = os.environ.get(KEY_VARIABLE)
        return [] if value is None else keys_of(value, KEY_VARIABLE)
    try:
        with open(path, "rb") as file:
            text = file.read(KEY_FILE_BYTES).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot be read: {getattr(error, 'strerror', None) or error}", where=path) from None
    return keys_of(text, path)
