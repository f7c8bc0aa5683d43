"""The commands and their options."""

from __future__ import annotations

import errno
import os
import sys
from typing import Any

import click

from tilec import __version__
from tilec.cli.author_commands import COMMANDS as AUTHOR
from tilec.cli.bundle_group import bundle
from tilec.cli.cache_group import cache
from tilec.cli.checking_commands import COMMANDS as CHECKING
from tilec.cli.ending import status_of_end
from tilec.cli.options import ARCH as _ARCH
from tilec.cli.options import CACHES as _CACHES
from tilec.cli.options import CONSTANTS as _CONSTANTS
from tilec.cli.options import DENY as _DENY
from tilec.cli.options import EPILOG, add_colour
from tilec.cli.options import GPUS as _GPUS
from tilec.cli.options import JOBS as _JOBS
from tilec.cli.options import JSON as _JSON
from tilec.cli.options import PROJECT as _PROJECT
from tilec.cli.options import REMOTE as _REMOTE
from tilec.cli.options import WATCH as _WATCH
from tilec.cli.options import WEIGHTS as _WEIGHTS
from tilec.cli.options import cores as _cores
from tilec.cli.project import UsageError, print_diagnostics, print_line, status_of
from tilec.cli.qualify_command import qualify as QUALIFY
from tilec.diagnostics.diagnostic import CompileError, Diagnostic
from tilec.diagnostics.internal_errors import internal_error
from tilec.diagnostics.spelling import or_mean

_STAGES = ("tir", "proofs", "schedule", "mlir", "ptx", "cubin")
_WRITTEN = click.Path(dir_okay=False, readable=False)


class _PassOption(click.Option):
    """An option that names a scheduling pass. Its help lists them; only then are the passes imported."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        from tilec.passes.schedule.passes import pass_names

        record = super().get_help_record(ctx)
        return record and (record[0], f"{record[1]} {', '.join(pass_names())}.")


@click.group(epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tilec", message="%(prog)s %(version)s")
@click.option(
    "--cache-dir", metavar="DIR", help="Folder of the store. Default: TILEC_CACHE_DIR, else tilec in the user's cache folder."
)
def tilec(cache_dir: str | None) -> None:
    """Compile GPU tile kernels ahead of time, and prove them safe.

    \b
    Examples:
      tilec build --arch sm_100        build the kernels of build.toml
      tilec check rms_norm --proofs    prove one kernel, show what discharged each access
      tilec explain E0302              what an error means, with a wrong and a right kernel
      tilec build --explain            say why each artifact was rebuilt
      tilec bundle pack -m qwen3-4b    write a model's artifacts into one file per architecture
    """
    if cache_dir is not None:
        os.environ["TILEC_CACHE_DIR"] = cache_dir


@tilec.command(epilog=EPILOG)
@click.argument("names", nargs=-1, metavar="[NAME]...")
@_PROJECT
@_ARCH
@click.option(
    "--kernel", "-k", "kernels", multiple=True, metavar="NAME", help="Only this kernel, as an argument does; may be repeated."
)
@click.option(
    "--model", "-m", "models", multiple=True, metavar="NAME",
    help="Only what the step of this model can ask for, or of all; may be repeated.",
)  # fmt: skip
@_WEIGHTS
@_CACHES
@_GPUS
@click.option(
    "--dtype", "dtypes", multiple=True, metavar="LIST",
    help="Dtypes of the models' steps, such as bf16,f16; or `all`; may be repeated. Default: bf16.",
)  # fmt: skip
@click.option("--all", "everything", is_flag=True, help="Everything in build.toml: each kernel, format and dtype.")
@_JOBS
@_JSON
@click.option("--explain", is_flag=True, help="Print why each artifact was rebuilt.")
@click.option("--table", "whole", is_flag=True, help="List every artifact. Default: those that were not up to date.")
@click.option("--plan", is_flag=True, help="Show what the models need, from which operation, and build nothing.")
@_DENY
@click.option("--dump-stage", nargs=2, type=str, metavar="STAGE DIR", help="Write tir, proofs, mlir, ptx or cubin to DIR.")
@_WATCH
@_REMOTE
@click.option("--on", "farm", metavar="URL", help="A Dask scheduler whose workers build: dask://HOST:PORT, or tls://HOST:PORT.")
def build(
    names: tuple[str, ...], project: str | None, arch: str | None, kernels: tuple[str, ...], jobs: int | None, as_json: bool,
    explain: bool, whole: bool, plan: bool, deny: str | None, dump_stage: tuple[str, str] | None, watch: bool,
    remotes: tuple[str, ...], farm: str | None, models: tuple[str, ...], weights: str | None, caches: str | None,
    gpus: str | None, dtypes: tuple[str, ...], everything: bool,
) -> int:  # fmt: skip
    """Build the kernels of build.toml, or only those of each NAME, into artifacts/build/.

    In a project with models, that is what their steps ask for in bf16, and kernels that no model asks for. --dtype f16 builds
    for steps in f16 instead, and --all whatever build.toml has. An artifact that the step of a model can ask for, and that
    build.toml does not have, fails the build (E0807). Kernels that are built on request only (`requested` in build.toml) are
    those of the models' weights in the formats of --weights and of their caches in those of --cache, on as many GPUs as --gpus
    says. With --model, the build has exactly what the step of that model can ask for, and earlier artifacts of others stay.

    \b
    Examples:
      tilec build
      tilec build --model qwen3-4b --arch sm_90           what one model needs, in bf16
      tilec build --model qwen3-4b --weights fp8          with FP8 weights
      tilec build --weights fp8                           and what models with FP8 weights need
      tilec build --dtype all                             for steps in f16 too
      tilec build --all                                   every specialisation of build.toml
      tilec build rms_norm softmax --arch sm_90,sm_100    two kernels, every specialisation
      tilec build --plan --json
      tilec build --dump-stage ptx /tmp/ptx
      tilec build --remote redis://cache:6379/0
    """
    from tilec.cli.build_command import build_command, plan_command
    from tilec.cli.selection import Selection
    from tilec.cli.watch import Reads, run_or_watch

    if plan and watch:
        raise UsageError("`--plan` builds nothing, so `--watch` cannot rebuild it; leave one out")
    kernels = (*names, *kernels)
    asked = Selection(kernels, models, weights, caches, gpus, dtypes, everything)
    asked.check(plan=plan)
    reads = Reads(project, kernels)
    if plan:
        return run_or_watch(
            lambda: plan_command(project, arch, asked, as_json=as_json), reads, as_json=as_json, watch=False
        )  # fmt: skip
    if dump_stage is not None and dump_stage[0] not in _STAGES:
        raise UsageError(f"no stage `{dump_stage[0]}`; the stages are {', '.join(_STAGES)}{or_mean(dump_stage[0], _STAGES)}")
    if farm is not None and dump_stage is not None:
        raise UsageError("`--dump-stage` writes here and `--on` runs elsewhere; leave one out")
    workers = jobs or _cores()
    return run_or_watch(
        lambda: build_command(
            project, arch, asked, workers, as_json=as_json, explain=explain, whole=whole, dump=dump_stage, deny=deny,
            remotes=remotes, farm=farm,
        ),
        reads, as_json=as_json, watch=watch,
    )  # fmt: skip


@tilec.command(epilog=EPILOG)
@click.argument("kernels", nargs=-1)
@_PROJECT
@_ARCH
@_CONSTANTS
@click.option("--proofs", is_flag=True, help="Per access, the rung of the ladder that discharged it.")
@_DENY
@click.option("--schedule", is_flag=True, help="Per architecture, how threads run it: warps, stages, instructions.")
@click.option(
    "--machine-code", is_flag=True,
    help="The same, and of what is built, what its machine code has of it. Status 1 if anything is missing.",
)  # fmt: skip
@_JOBS
@_JSON
@_WATCH
def check(
    kernels: tuple[str, ...], project: str | None, arch: str | None, constants: tuple[str, ...], proofs: bool, deny: str | None,
    schedule: bool, machine_code: bool, jobs: int | None, as_json: bool, watch: bool,
) -> int:  # fmt: skip
    """Prove kernels safe and lower them for each architecture, without building them; this needs no compiler.

    \b
    Examples:
      tilec check
      tilec check matmul --proofs --schedule
      tilec check matmul --machine-code --arch sm_100    after `tilec build`
      tilec check softmax.py -c E=bf16 -c N=1024    a file, without a project
    """
    from tilec.cli.check_command import check_command
    from tilec.cli.watch import Reads, run_or_watch

    return run_or_watch(
        lambda: check_command(
            project, arch, kernels, constants, jobs or _cores(), proofs=proofs, schedule=schedule or machine_code,
            machine_code=machine_code, as_json=as_json, deny=deny,
        ),
        Reads(project, kernels), as_json=as_json, watch=watch,
    )  # fmt: skip


@tilec.command(epilog=EPILOG)
@click.argument("code")
def explain(code: str) -> int:
    """Explain an error code: what it means, a wrong kernel and its right twin.

    \b
    Example:
      tilec explain E0302
    """
    from tilec.cli.inspect_commands import explain_command

    return explain_command(code)


@tilec.command(epilog=EPILOG)
@click.argument("kernel")
@click.option("--stage", type=click.Choice(_STAGES), help="Which product to print.  [default: tir]")
@click.option("--after", cls=_PassOption, metavar="PASS", help="Print the tile IR after this scheduling pass instead:")
@_PROJECT
@_ARCH
@_CONSTANTS
@click.option("--output", "-o", type=_WRITTEN, help="Write here instead of stdout.")
def dump(
    kernel: str, stage: str | None, after: str | None, project: str | None, arch: str | None, constants: tuple[str, ...],
    output: str | None,
) -> int:  # fmt: skip
    """Print what a stage makes of a kernel, or a scheduling pass. Lines in `.loc` of PTX are those of the tile IR, which
    `--stage tir` prints.

    \b
    Examples:
      tilec dump rms_norm --stage mlir --arch sm_90
      tilec dump matmul --stage ptx -c E=f16
      tilec dump matmul --after staging
    """
    from tilec.cli.dump_command import dump_command

    return dump_command(project, kernel, stage, after, arch, constants, output)


@tilec.command(epilog=EPILOG)
@click.argument("kernel")
@_PROJECT
@_CONSTANTS
@click.option("--output", "-o", type=_WRITTEN, required=True, help="The SVG file to write, or `-` for stdout.")
def graph(kernel: str, project: str | None, constants: tuple[str, ...], output: str) -> int:
    """Draw a kernel's dataflow, its obligations and who owns what, as SVG.

    \b
    Example:
      tilec graph rms_norm -o rms_norm.svg
    """
    from tilec.cli.inspect_commands import graph_command

    return graph_command(project, kernel, constants, output)


tilec.add_command(bundle)
tilec.add_command(cache)
for _command in (*AUTHOR, *CHECKING, QUALIFY):
    tilec.add_command(_command)


add_colour(tilec)


FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of writing to stdout. Failures to write a file have a file name and are reported where the file is written."""


def run(arguments: list[str] | None = None) -> int:
    """Run the command line. Returns the exit status. Every expected failure is one message on stderr."""
    try:
        status: Any = tilec.main(arguments, prog_name="tilec", standalone_mode=False)
        sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return 2
    except click.ClickException as error:
        print_line("error", error.format_message())
        return 2
    except UsageError as error:
        print_line("error", str(error))
        return 2
    except CompileError as error:
        print_diagnostics(error.diagnostics)
        return status_of(error.diagnostics)
    except click.Abort as error:
        if isinstance(error.__cause__, EOFError):  # click treats any EOFError as the end of the user's input
            print_diagnostics([internal_error("the command", error.__cause__, lambda: None)])
            return 1
        return status_of_end(KeyboardInterrupt())
    except KeyboardInterrupt as error:
        return status_of_end(error)
    except MemoryError:
        print("error: the command ran out of memory", file=sys.stderr)
        return 2
    except BrokenPipeError:
        _drop_stdout()  # the reader has closed the pipe
        return 0
    except Exception as error:
        if isinstance(error, OSError) and error.filename is None and error.errno in FULL:
            _drop_stdout()
            message = f"the output cannot be written: {error.strerror}"
            print_diagnostics([Diagnostic("E0702", message, hint="free space, or write elsewhere")])
            return 2
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            print_line("error", f"`{str(error.filename)[:80]}...` is too long for the name of a file; give a shorter one")
            return 2
        print_diagnostics([internal_error("the command", error, lambda: None)])
        return 1


def _drop_stdout() -> None:
    """Redirect stdout to the null device, so that the interpreter's final flush does not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
