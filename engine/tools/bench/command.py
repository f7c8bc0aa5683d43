"""The command line: prints a table to stdout, writes JSON and a plot to files; progress and errors go to stderr."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from engine.backends.cuda import CudaBackend
from engine.backends.load import load_on_gpu
from engine.checkpoint.json_file import read_object
from engine.checkpoint.weights import WeightPlan, Weights
from engine.errors import BundleRefused, DeviceError, EngineError, Interrupted, ModelError, UsageError
from engine.models.config import ModelConfig
from engine.models.families import read_config
from engine.options import CACHE_FORMATS, WEIGHT_FORMATS
from engine.ranks.gpus import GpuRanks
from engine.ranks.load import load_ranks
from engine.tools.bench.files import check_writable, write_atomically
from engine.tools.bench.machine import machine_facts
from engine.tools.bench.measure import measure
from engine.tools.bench.plot import check_plot, draw
from engine.tools.bench.policy import GENERATIONS, PROMPTS, Policy
from engine.tools.bench.result import Bandwidth, Report
from engine.tools.bench.table import print_table
from engine.tools.dummy_weights import dummy_weights as make_dummy_weights
from engine.tools.head_read import HeadRead
from tilec.diagnostics.visible import unguarded
from tilec.runtime import BundleError, LaunchError
from tilec.step.formats import SIXTEEN_BIT

EPILOG: Final = """The roofline is the bandwidth over the bytes that a decode step has to move: all weights, one row of the
embedding, the filled part of the cache; of several GPUs it is that of one of them, with its part of the weights.

Exit status: 0 done, 1 a result cannot be written, 2 wrong usage (also: --plot without matplotlib), 3 a model file is absent
or damaged, 4 the bundle is absent, damaged or for another GPU, 5 the GPU or its memory, 6 the process of one of several GPUs
ended, 130 interrupted."""

WIDTH: Final = 200
"""Maximum width of the table in columns; a narrower terminal wraps its lines, so that no number is truncated."""

LIMIT_BYTES: Final = 64 << 20
"""Maximum bytes of a result that is read back."""


@click.command(epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--model", metavar="FOLDER", help="Model folder: config.json, and the safetensors unless --dummy-weights.")
@click.option("--bundle", metavar="FILE", help="Bundle of the model for this GPU, from `tilec bundle pack`.")
@click.option("--dummy-weights", is_flag=True, help="Random weights from config.json alone.")
@click.option("--dtype", type=click.Choice(["bf16", "f16"]), default="bf16", show_default=True, help="Of the weights.")
@click.option(
    "--weights", "weight_format", type=click.Choice(WEIGHT_FORMATS),
    help="Format of the linear layers' weights on the device. Default: the folder's; 16bit with --dummy-weights.",
)  # fmt: skip
@click.option(
    "--cache", "cache_format", type=click.Choice(CACHE_FORMATS), help="Format of the cache. Default: that of --bundle."
)
@click.option("--gpus", type=click.IntRange(1), default=1, show_default=True, help="GPUs that share the model.")
@click.option("--pp", default=",".join(map(str, PROMPTS)), show_default=True, help="Prompt lengths in tokens.")
@click.option("--tg", default=",".join(map(str, GENERATIONS)), show_default=True, help="Generation lengths in tokens.")
@click.option("--batch", default=1, show_default=True, help="Batch size, in sequences: 1, 2, 4 or 8.")
@click.option("--full", is_flag=True, help="Every pair. Default: all of --tg with the first of --pp, and the reverse.")
@click.option("--reps", default=5, show_default=True, help="Repetitions that count.")
@click.option("--warmup-reps", default=2, show_default=True, help="Repetitions before them that do not.")
@click.option("--seed", default=0, show_default=True, help="Seed of prompts and of --dummy-weights.")
@click.option("--max-seq-len", type=int, help="Capacity of the KV cache in tokens. Default: what the longest generation needs.")
@click.option("--nominal-tbs", default=4.8, show_default=True, help="The GPU's nominal bandwidth, 10^12 bytes per second.")
@click.option("--json", "json_path", metavar="FILE", help="Write everything that was measured.")
@click.option("--plot", "plot_path", metavar="FILE", help="Draw it, .svg or .png; needs the extra `bench`.")
@click.option("--from-json", metavar="FILE", help="Show and draw what --json wrote, without measuring.")
@click.pass_context
def command(
    context: click.Context, model: str | None, bundle: str | None, dummy_weights: bool, dtype: str, pp: str, tg: str,
    batch: int, full: bool, reps: int, warmup_reps: int, seed: int, max_seq_len: int | None, nominal_tbs: float,
    json_path: str | None, plot_path: str | None, from_json: str | None, weight_format: str | None,
    cache_format: str | None, gpus: int,
) -> None:  # fmt: skip
    """Measure tokens per second, end to end and decode only, with the rooflines of this GPU's memory."""
    plot = Path(plot_path) if plot_path is not None else None
    if plot is not None:
        check_plot(plot)
        check_writable(plot)
    if from_json is not None:
        for name, parameter in {option.name: option for option in context.command.params}.items():
            from_command_line = context.get_parameter_source(name or "") is click.core.ParameterSource.COMMANDLINE
            if from_command_line and name not in ("from_json", "plot_path"):
                raise UsageError("nothing is measured with --from-json", where=parameter.opts[0], fix="drop it")
        _show(_read(Path(from_json)), plot)
        return
    if model is None or bundle is None:
        raise UsageError("there is nothing to measure", fix="give --model and --bundle, or --from-json")
    policy = Policy(_numbers("--pp", pp), _numbers("--tg", tg), full, reps, warmup_reps, seed, batch)
    policy.check()
    if not 0 < nominal_tbs < math.inf:
        raise UsageError(f"{nominal_tbs} is not a bandwidth", where="--nominal-tbs")
    target = Path(json_path) if json_path is not None else None
    if target is not None:
        check_writable(target)
        if plot is not None and plot.resolve() == target.resolve():
            raise UsageError("--json and --plot name the same file", where=target)
    config = read_config(model)
    capacity = _cache_capacity(policy, config, max_seq_len)
    dummy = seed if dummy_weights else None
    asked = Asked(model, config, bundle, dtype, capacity, dummy, weight_format, cache_format, gpus)
    report = _measured(asked, policy, nominal_tbs * 1e12)
    _show(report, None)
    if target is not None:
        write_atomically(target, (json.dumps(report.to_json(), indent=1) + "\n").encode())
    if plot is not None:
        write_atomically(plot, draw(report, plot.suffix))


def _numbers(option: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"{text!r:.80} is not a list of numbers", where=option, fix="write it as 18,128") from None


def _cache_capacity(policy: Policy, config: ModelConfig, max_seq_len: int | None) -> int:
    """Slots of the cache; UsageError if the longest generation does not fit the cache or the model."""
    longest = policy.longest()
    capacity = longest if max_seq_len is None else max_seq_len
    if not 1 <= capacity <= config.max_position_embeddings:
        what = f"{capacity} tokens are not from 1 to {config.max_position_embeddings}, the positions that the model knows"
        raise UsageError(what, fix="shorten --pp, --tg or --max-seq-len")
    if longest > capacity:
        raise UsageError(
            f"a cell has {longest} tokens, and --max-seq-len is {capacity}", fix="raise it or shorten --pp and --tg"
        )
    return capacity


@dataclass(frozen=True, slots=True)
class Asked:
    """The model to measure: its folder and config, and how it is loaded, as of `engine.api.Engine.from_pretrained`."""

    folder: str
    config: ModelConfig
    bundle: str
    dtype: str
    capacity: int
    dummy: int | None
    weight_format: str | None
    cache_format: str | None
    gpus: int

    def load(self, progress: Callable[[int, int], None]) -> CudaBackend | GpuRanks:
        """The model on its GPU, or GPUs; `progress` gets bytes done and total."""
        if self.gpus > 1:
            found, _ = load_ranks(
                self.folder, self.config, self.gpus, "cuda", self.capacity, dtype=self.dtype, dummy=self.dummy,
                progress=progress, bundle=self.bundle, weight_format=self.weight_format, cache_format=self.cache_format,
            )  # fmt: skip
            assert isinstance(found, GpuRanks)  # of the backend `cuda`
            return found
        weights = self._weights()
        return load_on_gpu(
            self.bundle, self.config, weights, self.capacity, weights.dtype, progress=progress,
            weight_format=self.weight_format, cache_format=self.cache_format,
        )  # fmt: skip

    def _weights(self) -> Weights:
        """The weights of the folder, or random ones."""
        if self.dummy is not None:
            return make_dummy_weights(self.config, self.dtype, self.dummy, self.weight_format or SIXTEEN_BIT)
        return WeightPlan.for_model(self.config, self.folder, self.dtype, weight_format=self.weight_format)


def _measured(asked: Asked, policy: Policy, nominal: float) -> Report:
    """The report of a model. Of several GPUs no bandwidth is measured; a step's bytes are then those of one of them."""
    with _bar("loading") as (_, show_bytes):
        backend = asked.load(show_bytes)
    try:
        head_read = HeadRead(backend) if isinstance(backend, CudaBackend) else None
        with _bar("measuring") as (show_status, _):
            bandwidth = None if head_read is None else head_read.sample
            cells, speeds = measure(backend, policy, bandwidth=bandwidth, progress=show_status)
        return Report(
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            machine=machine_facts(backend),
            model={
                "name": backend.bundle.model, "dtype": backend.step.dtype, "bundle_sha256": backend.bundle.digest,
                "weights": f"random, seed {asked.dummy}" if asked.dummy is not None else "of the model folder",
                "weight_format": backend.bundle.weight_format, "cache_format": backend.step.cache_format, "gpus": asked.gpus,
                "config": asdict(asked.config),
            },
            policy={
                "what": f"greedy, batch {policy.batch}, clocks as found, {policy.reps} repetitions after {policy.warmup_reps} "
                "of warm-up",
                "order": "repetitions outside, cells inside", "stop_tokens": "not heeded", "max_seq_len": asked.capacity,
                **asdict(policy),
            },
            nominal=nominal,
            cells=cells,
            bandwidth=Bandwidth(head_read.what, speeds) if head_read is not None and speeds is not None else None,
        )  # fmt: skip
    finally:
        try:
            backend.close()
        finally:
            backend.bundle.close()


@contextmanager
def _bar(title: str) -> Generator[tuple[Callable[[str], None], Callable[[int, int], None]]]:
    """A progress line at a terminal. Yields a function that shows a text, and one that shows bytes done and total. The line is
    drawn only when one of them is called: a refresh thread would take time from the measurement."""
    console = Console(file=unguarded(sys.stderr))
    bytes_shown = (BarColumn(), DownloadColumn(), TransferSpeedColumn()) if title == "loading" else ()
    columns = (TextColumn("{task.description}"), *bytes_shown)
    with Progress(*columns, console=console, transient=True, auto_refresh=False, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=None)

        def show_status(status: str) -> None:
            bar.update(task, description=f"{title}: {status}", refresh=True)

        def show_bytes(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total, refresh=True)

        yield show_status, show_bytes


def _read(path: Path) -> Report:
    try:
        return Report.from_json(read_object(path, LIMIT_BYTES, "give a file that --json wrote", links=True))
    except ModelError as error:
        raise UsageError(error.what, where=error.where, fix="give a file that --json wrote") from None
    except ValueError as error:
        what = f"is not a result of `python -m engine.bench`: {error}"
        raise UsageError(what, where=path, fix="give a file that --json wrote") from None


def _show(report: Report, plot: Path | None) -> None:
    """Print the table, and write the plot if `plot` is given."""
    print_table(report, Console(file=unguarded(sys.stdout), highlight=False, width=WIDTH))
    if plot is not None:
        write_atomically(plot, draw(report, plot.suffix))


def run(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    try:
        command.main(arguments, prog_name="python -m engine.bench", standalone_mode=False)
    except (click.exceptions.Abort, KeyboardInterrupt):
        return _fail(Interrupted())
    except click.ClickException as error:
        return _fail(UsageError(error.format_message()))
    except BundleError as error:
        return _fail(BundleRefused(error.message))
    except LaunchError as error:
        return _fail(DeviceError(f"{error.message} ({error.code})"))
    except EngineError as error:
        return _fail(error)
    except MemoryError:
        return _fail(DeviceError("the host has too little memory", fix="use a smaller model"))
    except OSError as error:
        return _fail(EngineError(f"the table cannot be written: {error.strerror or error}"))
    except SystemExit:  # click raises it when stdout is a closed pipe
        return EngineError.exit_code
    return 0


def _fail(error: EngineError) -> int:
    click.echo(f"error: {error}", err=True)
    return error.exit_code
