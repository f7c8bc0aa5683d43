"""`tilec bundle` and its options."""

from __future__ import annotations

from typing import Final

import click

from tilec.cli.options import ARCH, BUNDLE_EPILOG, JOBS, JSON, PROJECT, cores


@click.group(epilog=BUNDLE_EPILOG)
def bundle() -> None:
    """Pack a model's artifacts into one file, and look into such files; reading them needs no compiler."""


BUNDLE: Final = click.argument("file", type=click.Path())
DIGEST: Final = click.option(
    "--digest", "--sha256", "digest", metavar="HEX", help="Refuse a file of another sha256 (of the whole file) than this one."
)  # fmt: skip


@bundle.command("pack", epilog=BUNDLE_EPILOG)
@PROJECT
@click.option("--model", "-m", "models", multiple=True, metavar="NAME", help="A model of build.toml, or all (the default).")
@ARCH
@click.option("--output", "-o", type=click.Path(file_okay=False), help="Folder to write to. Default: artifacts/bundles.")
@JOBS
@JSON
def bundle_pack(
    project: str, models: tuple[str, ...], arch: str | None, output: str | None, jobs: int | None, as_json: bool
) -> int:  # fmt: skip
    """Build what models need and write one bundle per model and architecture.

    \b
    Example:
      tilec bundle pack --model qwen3-4b --arch sm_90 -o out
    """
    from tilec.cli.bundle_commands import pack_command

    return pack_command(project, models, arch, output, jobs or cores(), as_json=as_json)


@bundle.command("list", epilog=BUNDLE_EPILOG)
@BUNDLE
@DIGEST
@JSON
def bundle_list(file: str, digest: str | None, as_json: bool) -> int:
    """Print the kernels of a bundle: resources, proofs by rung, the operations that use each; and its digest."""
    from tilec.cli.bundle_commands import list_command

    return list_command(file, digest, as_json=as_json)


@bundle.command("verify", epilog=BUNDLE_EPILOG)
@click.argument("files", nargs=-1, required=True, type=click.Path())
@click.option("--arch", metavar="ARCH", help="Refuse a bundle for another architecture.")
@DIGEST
@click.option("--rebuild", is_flag=True, help="Build again from the sources of the project, and compare every product.")
@PROJECT
@JOBS
@JSON
def bundle_verify(
    files: tuple[str, ...], arch: str | None, digest: str | None, rebuild: bool, project: str, jobs: int | None, as_json: bool
) -> int:  # fmt: skip
    """Check that bundles are intact: format, bounds, digests, manifests, architecture and entries of the machine code.

    Intact is what a damaged file is not. Who made a bundle is shown by its digest, where that came another way (`--digest`);
    that it is what its sources build is shown by `--rebuild`, which builds every artifact again, without the cache and without
    a GPU, and compares manifests, tile IR, PTX and CUBINs bit for bit (status 1, and what differs, where they are not equal).

    \b
    Examples:
      tilec bundle verify qwen3-4b-sm_90a.bundle --digest 91c0...
      tilec bundle verify qwen3-4b-sm_90a.bundle --rebuild --project .
    """
    from tilec.cli.verify_command import verify_command

    where = (project, jobs or cores()) if rebuild else None
    return verify_command(files, arch, digest, where, as_json=as_json)


@bundle.command("show", epilog=BUNDLE_EPILOG)
@BUNDLE
@click.argument("kernel")
@DIGEST
@JSON
def bundle_show(file: str, kernel: str, digest: str | None, as_json: bool) -> int:
    """Print one kernel's launch contract, resources, proofs and digests, and the digest of the bundle.

    \b
    Example:
      tilec bundle show qwen3-4b-sm_90a.bundle rms_norm
    """
    from tilec.cli.bundle_commands import show_command

    return show_command(file, kernel, digest, as_json=as_json)


@bundle.command("diff", epilog=BUNDLE_EPILOG)
@click.argument("old", type=click.Path())
@click.argument("new", type=click.Path())
@click.option("--old-digest", metavar="HEX", help="Refuse an OLD of another sha256 than this one.")
@click.option("--new-digest", metavar="HEX", help="Refuse a NEW of another sha256 than this one.")
@JSON
def bundle_diff(old: str, new: str, old_digest: str | None, new_digest: str | None, as_json: bool) -> int:
    """Print what changed from OLD to NEW: kernels, resources, proofs between rungs, contracts, sizes (status 1 if anything)."""
    from tilec.cli.bundle_commands import diff_command

    return diff_command((old, old_digest), (new, new_digest), as_json=as_json)
