"""The command line: prints a row for each weight to stdout when it is rounded, and errors to stderr."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Final

import click

from engine.checkpoint.json_file import show
from engine.entry import argument_text, fail
from engine.errors import DeviceError, EngineError, Interrupted, UsageError
from engine.tools.quantize.checkpoint import Quantising, calibrated, prepare, write_quantised
from engine.tools.quantize.fp8 import Fp8
from engine.tools.quantize.int4 import OBSERVERS, Int4
from engine.tools.quantize.int8 import Int8
from engine.tools.quantize.rounding import Errors, Format

EPILOG: Final = """Formats: `fp8` is that of Qwen3-*-FP8, e4m3 with a bf16 scale for each block of 128 x 128; `int4` and `int8`
are W4A16 and W8A16 of llm-compressor (compressed-tensors, pack-quantized), symmetric with a scale for each group of columns, or
in `int8` for each row. `--format` is an old name of `--to`.

The table has for each weight the root mean square of its errors, relative to that of the weights, and the largest error. With
`--calibration` weights err by more and outputs by less; the last column has the root mean square of the outputs' errors,
relative to that of the outputs, for the text.

Exit status: 0 done, 1 the output cannot be written, 2 wrong usage or a package that is not installed, 3 a model file is absent,
damaged or cannot be quantised so, 5 the host's memory, 130 interrupted, also by SIGTERM. On failure TARGET does not exist."""

FORMATS: Final = ("fp8", "int4", "int8")
GROUP: Final = 128
SIZE: Final = re.compile(r"([0-9]{1,12})(|[KMG]B)", re.IGNORECASE)
BYTES: Final = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}

ROW: Final = "{:<48} {:>14} {:>10} {:>14}"
OUTPUT: Final = " {:>13}"
"""One more column, if weights are calibrated."""


@click.command(epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("source")
@click.argument("target")
@click.option("--to", "--format", "name", type=click.Choice(FORMATS), required=True, help="Format of the quantised weights.")
@click.option(
    "--group-size", type=int, help="int4, int8: columns with one scale, a multiple of 8. Default: 128, and in int8 the row."
)
@click.option(
    "--observer", type=click.Choice(OBSERVERS),
    help="int4: scales of the least squared error, or those that clip nothing. Default: mse.",
)  # fmt: skip
@click.option(
    "--calibration", metavar="FILE",
    help="int4, int8: a text, for whose activations weights are rounded by GPTQ. Up to 32768 tokens of it are used.",
)  # fmt: skip
@click.option(
    "--ignore", multiple=True, metavar="MODULE",
    help="Keep a module in 16 bits: its name, or `re:` and an expression. Any number of times. The LM head always is.",
)  # fmt: skip
@click.option("--max-shard-size", default="5GB", show_default=True, help="Maximum size of a safetensors file.")
def command(
    source: str, target: str, name: str, group_size: int | None, observer: str | None, calibration: str | None,
    ignore: tuple[str, ...], max_shard_size: str,
) -> None:  # fmt: skip
    """Quantise the model folder SOURCE of 16 bits into the new folder TARGET, rounding to nearest, or for the
    activations of a text."""
    form = _format(name, group_size, observer)
    quantising = prepare(argument_text(source), form, [_expression(argument_text(one)) for one in ignore])
    if calibration is not None:
        if not isinstance(form, Int4 | Int8):
            raise UsageError("--calibration is of --to int4 and int8: fp8 is rounded to nearest", fix="leave it out")
        quantising = calibrated(quantising, form, Path(argument_text(calibration)))
    _quantise(quantising, Path(argument_text(target)), _bytes(max_shard_size))


def _quantise(quantising: Quantising, target: Path, shard_bytes: int) -> None:
    """Write the folder, and print the table and a line of sums."""
    total = Errors()

    def report(name: str, shape: tuple[int, int], errors: Errors) -> None:
        nonlocal total
        total += errors
        click.echo(_row(name, f"{shape[0]} x {shape[1]}", errors))

    more = OUTPUT.format("output error") if quantising.calibration is not None else ""
    click.echo(ROW.format("weight", "shape", "rms error", "largest error") + more)
    names = write_quantised(quantising, target, shard_bytes, report)
    click.echo(_row(f"all {len(quantising.quantised)}", "", total))
    before = sum(path.stat().st_size for path in {file.path for file in quantising.files.values()})
    after = sum((target / name).stat().st_size for name in names)
    click.echo(f"{target}: {len(names)} safetensors files, {after / 1e9:.3f} GB; {before / 1e9:.3f} GB before")


def _row(name: str, shape: str, errors: Errors) -> str:
    more = OUTPUT.format(f"{100 * errors.relative_output:.3f} %") if errors.outputs else ""
    return ROW.format(name, shape, f"{100 * errors.relative:.3f} %", f"{errors.largest_error:.4g}") + more


def _format(name: str, group_size: int | None, observer: str | None) -> Format:
    if observer is not None and name != "int4":
        raise UsageError("--observer is of --to int4: other formats clip nothing", fix="leave it out")
    if name == "fp8":
        if group_size is not None:
            raise UsageError("--group-size is of --to int4 and int8: fp8 has blocks of 128 x 128", fix="leave it out")
        return Fp8()
    if group_size is not None and (group_size < 8 or group_size % 8):
        raise UsageError(f"--group-size {group_size} is not a positive multiple of 8", fix=f"give {GROUP}")
    return Int8(group_size) if name == "int8" else Int4(group_size or GROUP, observer or OBSERVERS[0])


def _expression(pattern: str) -> str:
    try:
        re.compile(pattern.removeprefix("re:"))
    except (re.error, OverflowError, RecursionError) as error:
        raise UsageError(f"--ignore {show(pattern)} is no regular expression: {error}", fix="correct it") from None
    return pattern


def _bytes(size: str) -> int:
    found = SIZE.fullmatch(size)
    if found is None or int(found[1]) == 0:
        raise UsageError(f"--max-shard-size {size} is no size", fix="give one such as 5GB or 500MB")
    return int(found[1]) * BYTES[found[2].upper()]


def run(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # a terminated run removes what it wrote, too
    try:
        command.main(arguments, prog_name="python -m engine.quantize", standalone_mode=False)
    except (click.exceptions.Abort, KeyboardInterrupt):
        return fail(Interrupted())
    except click.ClickException as error:
        return fail(UsageError(error.format_message()))
    except EngineError as error:
        return fail(error)
    except MemoryError:
        return fail(DeviceError("the host has too little memory", fix="use a smaller model"))
    except OSError as error:
        return fail(EngineError(f"the table cannot be written: {error.strerror or error}"))
    except SystemExit:  # click raises it when stdout is a closed pipe
        return EngineError.exit_code
    finally:
        signal.signal(signal.SIGTERM, before)
    return 0
