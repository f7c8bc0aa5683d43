"""Commands that check what was compiled: in the emulator, by an audit, and against the golden files."""

from __future__ import annotations

from typing import Final

import click

from tilec.cli.bundle_group import BUNDLE, DIGEST, TRUST
from tilec.cli.options import ARCH, AUDIT_EPILOG, CONSTANTS, ENDED, EPILOG, JOBS, JSON, PROJECT, a_number, cores

_WRITTEN: Final = click.Path(dir_okay=False, readable=False)


@click.command(
    epilog="Exit status: 0 no fault and the interpreter's results, 1 faults (with --deny notes, notes too), other results, or "
    f"the kernel was refused, 2 wrong usage, PTX that the emulator does not know, or the environment, {ENDED}."
)
@click.argument("kernel")
@PROJECT
@click.option(
    "--arch",
    metavar="LIST",
    help="Architectures, such as sm_90,sm_100. Default: the first of the kernel's in build.toml.",
)
@CONSTANTS
@click.option("--dims", metavar="LIST", help="Launch values, such as N=1000,eps=1e-6. Default: small ones that are allowed.")
@click.option(
    "--schedule-seed", type=click.IntRange(0), default=0, show_default=True,
    help="0: in lock step; others: a random order of warps.",
)  # fmt: skip
@click.option("--deny", type=click.Choice(["notes"]), help="Exit with status 1 if there is a note.")
@click.option("--no-compare", is_flag=True, help="Do not compare the results with the interpreter's.")
@JSON
def emulate(
    kernel: str, project: str | None, arch: str | None, constants: tuple[str, ...], dims: str | None, schedule_seed: int,
    deny: str | None, no_compare: bool, as_json: bool,
) -> int:  # fmt: skip
    """Run a kernel's PTX on the emulator with random inputs, or those of `KERNEL_inputs` (see `tilec run`), report what it does
    wrong, and compare its results with the interpreter's.

    Results may differ as far as rounding and the order of sums allow. Threads that write the same value to one address without
    an order are a fault of their own kind, listed apart. A note is a departure from the text of the PTX ISA that programs in
    use make, and that changes no result here.

    \b
    Examples:
      tilec emulate rms_norm --arch sm_90
      tilec emulate add --dims N=5000 --schedule-seed 3
    """
    from tilec.cli.emulate_command import emulate_command

    return emulate_command(
        project, kernel, arch, constants, dims, schedule_seed, as_json=as_json, deny=deny, compare=not no_compare
    )


@click.command(epilog=AUDIT_EPILOG)
@BUNDLE
@DIGEST
@TRUST
@click.option("--json", "json_file", metavar="FILE", type=_WRITTEN, help="Write the report there, ready to be signed.")
@click.option(
    "--time-limit", type=click.FloatRange(0, 1e9), callback=a_number, metavar="S",
    help="Stop after S seconds; remaining verdicts are `unknown`. Default: no limit.",
)  # fmt: skip
@JOBS
@click.option("--kernel", "-k", "kernels", multiple=True, metavar="NAME", help="Only this kernel or artifact; may be repeated.")
@click.option(
    "--launches", type=click.IntRange(0, 100), default=5, show_default=True, help="Launches per artifact in the emulator."
)
@click.option("--seeds", type=click.IntRange(0, 100), default=2, show_default=True, help="Schedules per launch.")
@click.option(
    "--rebuild/--no-rebuild", default=True, show_default=True,
    help="Assemble the PTX again and compare the CUBINs. Where no assembler is installed they are not checked (status 3).",
)  # fmt: skip
@click.option(
    "--cache/--no-cache", "use_cache", default=True, show_default=True,
    help="Use verdicts of earlier audits from the cache, and keep new ones there.",
)  # fmt: skip
def audit(
    file: str, digest: str | None, trust: str | None, json_file: str | None, time_limit: float | None, jobs: int | None,
    kernels: tuple[str, ...], launches: int, seeds: int, rebuild: bool, use_cache: bool,
) -> int:  # fmt: skip
    """Check a bundle independently: its proofs and machine code, without the compiler.

    Every obligation is derived anew from the tile IR in the bundle and proven with z3, the PTX of every artifact is run in the
    emulator on launches at the edges of its contract, its arguments and tensor maps are compared with both, and the PTX is
    assembled again. Claims that are not confirmed are listed with the reason. Budgets count steps of the solver and of the
    emulator, so no verdict depends on the load of the machine.

    \b
    Examples:
      tilec audit qwen3-4b-sm_90a.bundle
      tilec audit qwen3-4b-sm_90a.bundle --kernel matmul --json report.json
      tilec audit qwen3-4b-sm_90a.bundle --launches 0          proofs only
    """
    from tilec.cli.audit_command import audit_command

    workers = jobs or cores()
    return audit_command(
        file, digest=digest, trust=trust, json_file=json_file, time_limit=time_limit, jobs=workers, kernels=kernels,
        launches=launches, seeds=seeds, rebuild=rebuild, use_cache=use_cache,
    )  # fmt: skip


@click.command(epilog=EPILOG)
@PROJECT
@ARCH
@click.option("--golden", metavar="DIR", help="Folder of the golden files. Default: tests/golden of the project.")
@click.option("--update", is_flag=True, help="Write the golden files anew, on purpose.")
@JOBS
def ratchet(project: str | None, arch: str | None, golden: str | None, update: bool, jobs: int | None) -> int:
    """Hold proofs and resources to the golden files: a weaker rung, a new launch check or a spill is status 1.

    The first specialisation of every entry of build.toml is built and compared.

    \b
    Examples:
      tilec ratchet
      tilec ratchet --update
    """
    from tilec.cli.ratchet_command import ratchet_command

    return ratchet_command(project, arch, golden, jobs or cores(), update=update)


COMMANDS: Final = (emulate, audit, ratchet)
