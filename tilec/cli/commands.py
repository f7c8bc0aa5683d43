"""The commands and their options."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from tilec import __version__
from tilec.cli.project import UsageError, print_diagnostics, status_of
from tilec.defects import defect
from tilec.diagnostics import CompileError

EPILOG = "Exit status: 0 done, 1 a kernel was refused or a budget exceeded, 2 wrong usage or environment, 130 interrupted."
BUNDLE_EPILOG = (
    "Exit status: 0 done, 1 a bundle was refused or differs, or a kernel was refused, 2 wrong usage, a file that cannot be "
    "read or written, or the environment, 130 interrupted."
)
AUDIT_EPILOG = (
    "Exit status: 0 every obligation is confirmed and no launch has a fault, 1 something is refuted, faulty or not what its "
    "digest says, 2 wrong usage, a file that cannot be read or written, or the environment, 3 nothing is refuted but something "
    "is unknown, 130 interrupted."
)
_PROJECT = click.option(
    "--project", default=".", metavar="PATH", help="Folder with the build.toml, or the file. Default: here."
)  # fmt: skip
_ARCH = click.option("--arch", metavar="LIST", help="Architectures, such as sm_90,sm_100. Default: those of build.toml.")
_JSON = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on stdout.")
_JOBS = click.option("--jobs", "-j", type=click.IntRange(1, 1024), help="Worker processes. Default: one per core.")
_STAGES = ("tir", "proofs", "mlir", "ptx", "cubin")


def _cores() -> int:
    return len(os.sched_getaffinity(0))


@click.group(epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tilec", message="%(prog)s %(version)s")
def tilec() -> None:
    """Compile GPU tile kernels ahead of time, and prove them safe.

    \b
    Examples:
      tilec build --arch sm_100        build every kernel of build.toml
      tilec check rms_norm --proofs    prove one kernel, show what discharged each access
      tilec explain E0302              what an error means, with a wrong and a right kernel
      tilec build --explain            say why each artifact was rebuilt
      tilec bundle pack -m qwen3-4b    write a model's artifacts into one file per architecture
    """


@tilec.command(epilog=EPILOG)
@_PROJECT
@_ARCH
@click.option("--kernel", "-k", "kernels", multiple=True, metavar="NAME", help="Only this kernel; may be repeated.")
@_JOBS
@_JSON
@click.option("--explain", is_flag=True, help="Say why each artifact was rebuilt.")
@click.option("--plan", is_flag=True, help="Show what the models need, from which operation, and build nothing.")
@click.option("--dump-stage", nargs=2, type=str, metavar="STAGE DIR", help="Write tir, proofs, mlir, ptx or cubin to DIR.")
def build(
    project: str, arch: str | None, kernels: tuple[str, ...], jobs: int | None, as_json: bool, explain: bool,
    plan: bool, dump_stage: tuple[str, str] | None,
) -> int:  # fmt: skip
    """Build the kernels of build.toml into artifacts/build/.

    An artifact that the step of a model can ask for, and that build.toml does not have, fails the build (E0807).

    \b
    Examples:
      tilec build
      tilec build --arch sm_90,sm_100 --kernel rms_norm
      tilec build --plan --json
      tilec build --dump-stage ptx /tmp/ptx
    """
    from tilec.cli.build_command import build_command, plan_command

    if plan:
        return plan_command(project, arch, kernels, as_json=as_json)

    if dump_stage is not None and dump_stage[0] not in _STAGES:
        raise UsageError(f"no stage `{dump_stage[0]}`; the stages are {', '.join(_STAGES)}")
    return build_command(project, arch, kernels, jobs or _cores(), as_json=as_json, explain=explain, dump=dump_stage)


@tilec.command(epilog=EPILOG)
@click.argument("kernels", nargs=-1)
@_PROJECT
@click.option("--proofs", is_flag=True, help="Per access, the rung of the ladder that discharged it.")
@_JOBS
@_JSON
def check(kernels: tuple[str, ...], project: str, proofs: bool, jobs: int | None, as_json: bool) -> int:
    """Prove kernels safe without building them.

    \b
    Examples:
      tilec check
      tilec check matmul --proofs
    """
    from tilec.cli.check_command import check_command

    return check_command(project, kernels, jobs or _cores(), proofs=proofs, as_json=as_json)


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
@click.option("--stage", type=click.Choice(_STAGES), default="tir", show_default=True, help="Which product to print.")
@_PROJECT
@_ARCH
@click.option("--constants", "-c", multiple=True, metavar="NAME=VALUE", help="Which specialisation. Default: the first.")
@click.option("--output", "-o", type=click.Path(dir_okay=False), help="Write here instead of stdout.")
def dump(kernel: str, stage: str, project: str, arch: str | None, constants: tuple[str, ...], output: str | None) -> int:
    """Print what a stage makes of a kernel.

    \b
    Examples:
      tilec dump rms_norm --stage mlir --arch sm_90
      tilec dump matmul --stage ptx -c E=f16
    """
    from tilec.cli.inspect_commands import dump_command

    return dump_command(project, kernel, stage, arch, constants, output)


@tilec.command(epilog=EPILOG)
@click.argument("kernel")
@_PROJECT
@click.option("--constants", "-c", multiple=True, metavar="NAME=VALUE", help="Which specialisation. Default: the first.")
@click.option("--output", "-o", type=click.Path(dir_okay=False), required=True, help="The SVG file to write.")
def graph(kernel: str, project: str, constants: tuple[str, ...], output: str) -> int:
    """Draw a kernel's dataflow, its obligations and who owns what, as SVG.

    \b
    Example:
      tilec graph rms_norm -o rms_norm.svg
    """
    from tilec.cli.inspect_commands import graph_command

    return graph_command(project, kernel, constants, output)


@tilec.command(
    epilog="Exit status: 0 nothing found, 1 faults found or the kernel was refused, 2 wrong usage, PTX that the emulator "
    "does not know, or the environment, 130 interrupted."
)
@click.argument("kernel")
@_PROJECT
@_ARCH
@click.option("--constants", "-c", multiple=True, metavar="NAME=VALUE", help="Which specialisation. Default: the first.")
@click.option("--dims", metavar="LIST", help="Launch values, such as N=1000,eps=1e-6. Default: small ones that are allowed.")
@click.option("--schedule-seed", default=0, show_default=True, help="0: in lock step; others: a random order of warps.")
@_JSON
def emulate(
    kernel: str, project: str, arch: str | None, constants: tuple[str, ...], dims: str | None, schedule_seed: int,
    as_json: bool,
) -> int:  # fmt: skip
    """Run a kernel's PTX on the emulator with random inputs, and report what it does wrong.

    \b
    Examples:
      tilec emulate rms_norm --arch sm_90
      tilec emulate add --dims N=5000 --schedule-seed 3
    """
    from tilec.cli.emulate_command import emulate_command

    return emulate_command(project, kernel, arch, constants, dims, schedule_seed, as_json=as_json)


@tilec.group(epilog=BUNDLE_EPILOG)
def bundle() -> None:
    """Pack a model's artifacts into one file, and look into such files; reading them needs no compiler."""


_BUNDLE = click.argument("file", type=click.Path())


@bundle.command("pack", epilog=BUNDLE_EPILOG)
@_PROJECT
@click.option("--model", "-m", "models", multiple=True, metavar="NAME", help="A model of build.toml, or all (the default).")
@_ARCH
@click.option("--output", "-o", type=click.Path(file_okay=False), help="Folder to write to. Default: artifacts/bundles.")
@_JOBS
@_JSON
def bundle_pack(
    project: str, models: tuple[str, ...], arch: str | None, output: str | None, jobs: int | None, as_json: bool
) -> int:  # fmt: skip
    """Build what models need and write one bundle per model and architecture.

    \b
    Example:
      tilec bundle pack --model qwen3-4b --arch sm_90 -o out
    """
    from tilec.cli.bundle_commands import pack_command

    return pack_command(project, models, arch, output, jobs or _cores(), as_json=as_json)


@bundle.command("list", epilog=BUNDLE_EPILOG)
@_BUNDLE
@_JSON
def bundle_list(file: str, as_json: bool) -> int:
    """Print the kernels of a bundle: resources, proofs by rung, the operations that use each."""
    from tilec.cli.bundle_commands import list_command

    return list_command(file, as_json=as_json)


@bundle.command("verify", epilog=BUNDLE_EPILOG)
@click.argument("files", nargs=-1, required=True, type=click.Path())
@click.option("--arch", metavar="ARCH", help="Refuse a bundle for another architecture.")
@click.option("--sha256", metavar="HEX", help="Refuse a bundle that has another digest than this one.")
@_JSON
def bundle_verify(files: tuple[str, ...], arch: str | None, sha256: str | None, as_json: bool) -> int:
    """Check every byte of bundles: format, bounds, digests, manifests, machine code."""
    from tilec.cli.bundle_commands import verify_command

    return verify_command(files, arch, sha256, as_json=as_json)


@bundle.command("show", epilog=BUNDLE_EPILOG)
@_BUNDLE
@click.argument("kernel")
@_JSON
def bundle_show(file: str, kernel: str, as_json: bool) -> int:
    """Print one kernel's launch contract, resources, proofs and digests.

    \b
    Example:
      tilec bundle show qwen3-4b-sm_90a.bundle rms_norm
    """
    from tilec.cli.bundle_commands import show_command

    return show_command(file, kernel, as_json=as_json)


@bundle.command("diff", epilog=BUNDLE_EPILOG)
@click.argument("old", type=click.Path())
@click.argument("new", type=click.Path())
@_JSON
def bundle_diff(old: str, new: str, as_json: bool) -> int:
    """Print what changed from OLD to NEW: kernels, resources, proofs between rungs, contracts, sizes (status 1 if anything)."""
    from tilec.cli.bundle_commands import diff_command

    return diff_command(old, new, as_json=as_json)


@tilec.command(epilog=AUDIT_EPILOG)
@_BUNDLE
@click.option(
    "--json", "json_file", metavar="FILE", type=click.Path(dir_okay=False), help="Write the report there, ready to be signed."
)
@click.option(
    "--time-limit", type=click.FloatRange(1), default=600.0, show_default=True, metavar="S", help="Seconds for all of it."
)
@_JOBS
@click.option("--kernel", "-k", "kernels", multiple=True, metavar="NAME", help="Only this kernel or artifact; may be repeated.")
@click.option(
    "--launches", type=click.IntRange(0, 100), default=5, show_default=True, help="Launches per artifact in the emulator."
)
@click.option("--seeds", type=click.IntRange(0, 100), default=2, show_default=True, help="Schedules per launch.")
@click.option("--rebuild", is_flag=True, help="Assemble the PTX again and compare the CUBINs; needs the compiler.")
def audit(
    file: str, json_file: str | None, time_limit: float, jobs: int | None, kernels: tuple[str, ...], launches: int, seeds: int,
    rebuild: bool,
) -> int:  # fmt: skip
    """Give a second opinion on a bundle: proofs and machine code judged without the compiler.

    Every obligation is derived anew from the tile IR in the bundle and proven with z3, and the PTX of every artifact is run in
    the emulator on launches at the edges of its contract. What is not confirmed is listed with the reason.

    \b
    Examples:
      tilec audit qwen3-4b-sm_90a.bundle
      tilec audit qwen3-4b-sm_90a.bundle --kernel matmul --json report.json
      tilec audit qwen3-4b-sm_90a.bundle --launches 0          proofs only
    """
    from tilec.cli.audit_command import audit_command

    workers = jobs or _cores()
    return audit_command(
        file, json_file=json_file, time_limit=time_limit, jobs=workers, kernels=kernels, launches=launches, seeds=seeds,
        rebuild=rebuild,
    )  # fmt: skip


@tilec.command(epilog=EPILOG)
@_PROJECT
@_ARCH
@click.option("--golden", metavar="DIR", help="Folder of the golden files. Default: tests/golden of the project.")
@click.option("--update", is_flag=True, help="Write the golden files anew, on purpose.")
@_JOBS
def ratchet(project: str, arch: str | None, golden: str | None, update: bool, jobs: int | None) -> int:
    """Hold proofs and resources to the golden files: a weaker rung, a new launch check or a spill is status 1.

    The first specialisation of every entry of build.toml is built and compared.

    \b
    Examples:
      tilec ratchet
      tilec ratchet --update
    """
    from tilec.cli.ratchet_command import ratchet_command

    return ratchet_command(project, arch, golden, jobs or _cores(), update=update)


@tilec.group(epilog=EPILOG)
def cache() -> None:
    """Look after the store of stage products."""


@cache.command("dir")
@_PROJECT
def cache_dir(project: str) -> int:
    """Print the folder of the store (TILEC_CACHE_DIR overrides it)."""
    from tilec.cli.cache_commands import directory

    return directory(project)


@cache.command("size")
@_PROJECT
@_JSON
def cache_size(project: str, as_json: bool) -> int:
    """Print how many blobs the store holds, and their bytes."""
    from tilec.cli.cache_commands import size

    return size(project, as_json)


@cache.command("verify")
@_PROJECT
def cache_verify(project: str) -> int:
    """Hash every blob; drop damaged entries (exit status 1 where there are any)."""
    from tilec.cli.cache_commands import verify

    return verify(project)


@cache.command("prune")
@_PROJECT
@click.option("--max-size", default="4G", show_default=True, metavar="BYTES", help="Keep at most this much; K, M, G.")
def cache_prune(project: str, max_size: str) -> int:
    """Drop what no entry names, then the least recently used entries."""
    from tilec.cli.cache_commands import prune

    return prune(project, max_size)


@cache.command("clean")
@_PROJECT
def cache_clean(project: str) -> int:
    """Remove the whole store."""
    from tilec.cli.cache_commands import clean

    return clean(project)


def run(arguments: list[str] | None = None) -> int:
    """Run the command line; the exit status. Every expected failure is one message on stderr."""
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
        print(f"error: {error.format_message()}", file=sys.stderr)
        return 2
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except CompileError as error:
        print_diagnostics(error.diagnostics)
        return status_of(error.diagnostics)
    except (KeyboardInterrupt, click.Abort):
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our stdout left; keep the interpreter from failing again when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        print_diagnostics([defect("the command", error, lambda: None)])
        return 1
