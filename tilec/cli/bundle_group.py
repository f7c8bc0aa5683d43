"""`tilec bundle` and its options."""

from __future__ import annotations

from typing import Final

import click

from tilec.cli.options import ARCH, BUNDLE_EPILOG, CACHES, GPUS, JOBS, JSON, PROJECT, WEIGHTS, cores
from tilec.cli.project import UsageError


@click.group(epilog=BUNDLE_EPILOG)
def bundle() -> None:
    """Pack the artifacts of a model, or of some kernels, into one file, and look into such files; reading them needs no
    compiler."""


BUNDLE: Final = click.argument("file", type=click.Path())
DIGEST: Final = click.option(
    "--digest", "--sha256", "digest", metavar="HEX", help="Refuse a file whose sha256 (of the whole file) is not this one."
)  # fmt: skip
TRUST: Final = click.option(
    "--trust", metavar="FILE", help="Trust policy for signatures, or `none`. Default: TILEC_TRUST, or the user's.",
)  # fmt: skip
_RELEASE: Final = click.option(
    "--release", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True,
    help="Number of this release; a policy can refuse older ones.",
)  # fmt: skip
_BUILDER: Final = click.option("--builder", metavar="URI", help="Who built it. Default: urn:tilec:builder:local.")
_SOURCE_PROJECT: Final = click.option(
    "--project", metavar="PATH", help="Folder with the build.toml it was packed from: its files are compared, and named too."
)


@bundle.command("pack", epilog=BUNDLE_EPILOG)
@PROJECT
@click.option("--model", "-m", "models", multiple=True, metavar="NAME", help="A model of build.toml, or all (the default).")
@click.option(
    "--kernel", "-k", "kernels", multiple=True, metavar="NAME",
    help="Instead of models, every specialisation of this kernel, or of all; may be repeated.",
)  # fmt: skip
@click.option(
    "--name", metavar="NAME", help="With --kernel: the name of the bundle. Default: the names of the kernels, with `-` between."
)
@WEIGHTS
@CACHES
@GPUS
@ARCH
@click.option("--output", "-o", type=click.Path(file_okay=False), help="Folder to write to. Default: artifacts/bundles.")
@JOBS
@JSON
def bundle_pack(
    project: str, models: tuple[str, ...], kernels: tuple[str, ...], name: str | None, arch: str | None, output: str | None,
    jobs: int | None, as_json: bool, weights: str | None, caches: str | None, gpus: str | None,
) -> int:  # fmt: skip
    """Build what models need and write one bundle per model, formats of weights and of caches, number of GPUs and
    architecture. With --kernel, write one bundle of these kernels per architecture instead: it needs no model, and has no step
    for the engine to run.

    \b
    Examples:
      tilec bundle pack --model qwen3-4b --arch sm_90 -o out
      tilec bundle pack --model qwen3-4b --weights fp8                     qwen3-4b-fp8-sm_90a.bundle, ...
      tilec bundle pack --model qwen3-4b --cache fp8                       qwen3-4b-cache-fp8-sm_90a.bundle, ...
      tilec bundle pack --model qwen3-4b --gpus 2                          qwen3-4b-2-gpus-sm_90a.bundle, ...
      tilec bundle pack --kernel rms_norm --kernel softmax --name norms    norms-sm_90a.bundle, ...
      tilec bundle pack --kernel all --name mine                           every kernel of the project
    """
    from tilec.cli.pack_command import pack_command, pack_kernels_command

    if kernels:
        if models:
            raise UsageError("a bundle is of a model or of kernels: leave out `--model` or `--kernel`")
        if weights is not None:
            raise UsageError("`--weights` is for bundles of models; a bundle of kernels has no weights")
        if caches is not None:
            raise UsageError("`--cache` is for bundles of models; a bundle of kernels has no caches")
        if gpus is not None:
            raise UsageError("`--gpus` is for bundles of models; a bundle of kernels has no step to share")
        return pack_kernels_command(project, kernels, name, arch, output, jobs or cores(), as_json=as_json)
    if name is not None:
        raise UsageError("`--name` is for bundles of kernels (`--kernel`); a model's bundle has the name of the model")
    return pack_command(project, models, arch, output, jobs or cores(), weights, caches, gpus, as_json=as_json)


@bundle.command("list", epilog=BUNDLE_EPILOG)
@BUNDLE
@DIGEST
@TRUST
@JSON
def bundle_list(file: str, digest: str | None, trust: str | None, as_json: bool) -> int:
    """Print the kernels of a bundle: resources, proofs by rung, the operations that use each; and its digest."""
    from tilec.cli.bundle_commands import list_command

    return list_command(file, digest, trust, as_json=as_json)


@bundle.command("verify", epilog=BUNDLE_EPILOG)
@click.argument("files", nargs=-1, required=True, type=click.Path())
@click.option("--arch", metavar="ARCH", help="Refuse a bundle for another architecture.")
@DIGEST
@TRUST
@click.option("--key", "keys", multiple=True, metavar="PUB", help="Public key that must have signed; may be repeated.")
@click.option("--rebuild", is_flag=True, help="Build again from the sources of the project, and compare every product.")
@PROJECT
@JOBS
@JSON
def bundle_verify(
    files: tuple[str, ...], arch: str | None, digest: str | None, trust: str | None, keys: tuple[str, ...], rebuild: bool,
    project: str | None, jobs: int | None, as_json: bool,
) -> int:  # fmt: skip
    """Check that bundles are intact: format, bounds, digests, manifests, architecture and entries of the machine code. Check
    signatures too where a policy or `--key` requires them.

    An intact bundle may come from anyone. Its signatures, in the file .intoto.jsonl next to it, show who made it: they are
    checked against keys that you trust. `--digest` compares it with a digest that you received another way. `--rebuild` shows
    that its sources build it: every artifact is built again, without the cache and without a GPU, and manifests, tile IR, PTX
    and CUBINs are compared bit for bit (status 1 if any differs).

    \b
    Examples:
      tilec bundle verify qwen3-4b-sm_90a.bundle --key release.pub
      tilec bundle verify qwen3-4b-sm_90a.bundle --trust trust.toml
      tilec bundle verify qwen3-4b-sm_90a.bundle --digest 91c0...
      tilec bundle verify qwen3-4b-sm_90a.bundle --rebuild --project .
    """
    from tilec.cli.verify_command import policy_of, verify_command

    rebuild_from = (project, jobs or cores()) if rebuild else None
    return verify_command(files, arch, digest, policy_of(trust, keys), rebuild_from, as_json=as_json)


@bundle.command("show", epilog=BUNDLE_EPILOG)
@BUNDLE
@click.argument("kernel", required=False)
@DIGEST
@TRUST
@JSON
def bundle_show(file: str, kernel: str | None, digest: str | None, trust: str | None, as_json: bool) -> int:
    """Print one kernel's launch contract, resources, proofs and digests, and the digest of the bundle. Without KERNEL: which
    artifact serves which lengths of a prompt, and by what that was decided.

    \b
    Examples:
      tilec bundle show qwen3-4b-sm_90a.bundle rms_norm
      tilec bundle show qwen3-4b-sm_90a.bundle
    """
    from tilec.cli.bundle_commands import show_command

    return show_command(file, kernel, digest, trust, as_json=as_json)


@bundle.command("diff", epilog=BUNDLE_EPILOG)
@click.argument("old", type=click.Path())
@click.argument("new", type=click.Path())
@click.option("--old-digest", metavar="HEX", help="Refuse an OLD whose sha256 is not this one.")
@click.option("--new-digest", metavar="HEX", help="Refuse a NEW whose sha256 is not this one.")
@TRUST
@JSON
def bundle_diff(
    old: str, new: str, old_digest: str | None, new_digest: str | None, trust: str | None, as_json: bool
) -> int:  # fmt: skip
    """Print what changed from OLD to NEW: kernels, resources, proofs between rungs, contracts, sizes (status 1 if anything)."""
    from tilec.cli.bundle_commands import diff_command

    return diff_command((old, old_digest), (new, new_digest), trust, as_json=as_json)


@bundle.command("keygen", epilog=BUNDLE_EPILOG)
@click.argument("output", type=click.Path())
@click.option("--kind", type=click.Choice(["ed25519", "ecdsa-p256"]), default="ed25519", show_default=True, help="Algorithm.")
@click.option("--encrypt", is_flag=True, help="Encrypt with a passphrase, from TILEC_KEY_PASSPHRASE or a prompt.")
@JSON
def bundle_keygen(output: str, kind: str, encrypt: bool, as_json: bool) -> int:
    """Make a key pair: OUTPUT signs and is for you alone, OUTPUT.pub verifies and is for everybody. Nothing is overwritten.

    \b
    Example:
      tilec bundle keygen release.key
    """
    from tilec.cli.signing_commands import keygen_command

    return keygen_command(output, kind, encrypt=encrypt, as_json=as_json)


@bundle.command("sign", epilog=BUNDLE_EPILOG)
@click.argument("files", nargs=-1, required=True, type=click.Path())
@click.option("--key", required=True, metavar="FILE", help="Private key, as `tilec bundle keygen` or openssl makes it.")
@_RELEASE
@_BUILDER
@_SOURCE_PROJECT
@JSON
def bundle_sign(
    files: tuple[str, ...], key: str, release: int, builder: str | None, project: str | None, as_json: bool
) -> int:  # fmt: skip
    """Sign how bundles were made (SLSA provenance) and what is in them (CycloneDX), into FILE.intoto.jsonl next to each.

    The bundles stay as they are. Signatures of other keys stay too; what this key signed of a bundle before is replaced.

    \b
    Example:
      tilec bundle sign qwen3-4b-sm_90a.bundle --key release.key --release 7
    """
    from tilec.cli.signing_commands import sign_command

    return sign_command(files, key, release, builder, project, as_json=as_json)


@bundle.command("attest", epilog=BUNDLE_EPILOG)
@BUNDLE
@_RELEASE
@_BUILDER
@_SOURCE_PROJECT
@click.option("--output", "-o", type=click.Path(file_okay=False), help="Folder to write statements and signed bytes to.")
def bundle_attest(file: str, release: int, builder: str | None, project: str | None, output: str | None) -> int:
    """Print what `sign` would sign of a bundle, unsigned: the statements, and the sha256 of the bytes under each signature."""
    from tilec.cli.signing_commands import attest_command

    return attest_command(file, release, builder, project, output)


@bundle.command("sbom", epilog=BUNDLE_EPILOG)
@BUNDLE
@TRUST
def bundle_sbom(file: str, trust: str | None) -> int:
    """Print a bundle's bill of materials (CycloneDX 1.6, JSON): packages that made it, and every CUBIN with its sha256."""
    from tilec.cli.signing_commands import sbom_command

    return sbom_command(file, trust)


PLAIN_HTTP: Final = click.option(
    "--plain-http", is_flag=True, help="Speak http without TLS, and without password, to a registry on another machine."
)


@bundle.command("push", epilog=BUNDLE_EPILOG)
@click.argument("files", nargs=-1, required=True, type=click.Path())
@click.argument("destination", metavar="oci://HOST/REPOSITORY:TAG")
@TRUST
@PLAIN_HTTP
@JSON
def bundle_push(files: tuple[str, ...], destination: str, trust: str | None, plain_http: bool, as_json: bool) -> int:
    """Push bundles, each with the attestations next to it, to an OCI registry, as one index under a tag.

    What two bundles share is stored once, and what the registry has is not sent again. The tag afterwards names these bundles
    and no others. Credentials are those of `docker login`.

    \b
    Example:
      tilec bundle push artifacts/bundles/*.bundle oci://registry.example.com/team/kernels:v1
    """
    from tilec.cli.registry_commands import push_command

    return push_command(files, destination, trust, plain_http=plain_http, as_json=as_json)


@bundle.command("pull", epilog=BUNDLE_EPILOG)
@click.argument("source", metavar="oci://HOST/REPOSITORY[:TAG|@DIGEST]")
@click.option("--arch", metavar="ARCH", help="Only the bundle for this architecture, such as sm_90.")
@click.option("--model", "-m", metavar="NAME", help="Only the bundle of this model.")
@click.option("--output", "-o", type=click.Path(file_okay=False), help="Folder to write to. Default: where the engine looks.")
@TRUST
@PLAIN_HTTP
@JSON
def bundle_pull(
    source: str, arch: str | None, model: str | None, output: str | None, trust: str | None, plain_http: bool, as_json: bool
) -> int:  # fmt: skip
    """Pull bundles, and the attestations that refer to them, from an OCI registry; every byte is compared before it is used.

    By digest, the registry can serve nothing else; under a tag it can serve an older index. A bundle that is refused hides no
    other: it is named, and the exit status is 1.

    \b
    Examples:
      tilec bundle pull oci://registry.example.com/team/kernels:v1 --model qwen3-4b --arch sm_90
      tilec bundle pull oci://registry.example.com/team/kernels@sha256:91c0... -o out
    """
    from tilec.cli.registry_commands import pull_command

    return pull_command(source, arch, model, output, trust, plain_http=plain_http, as_json=as_json)


@bundle.command("wheel", epilog=BUNDLE_EPILOG)
@BUNDLE
@DIGEST
@TRUST
@click.option("--output", "-o", type=click.Path(file_okay=False), help="Folder to write to. Default: the current one.")
@click.option("--version", metavar="VERSION", help="Of the package. Default: that of tilec.")
@JSON
def bundle_wheel(
    file: str, digest: str | None, trust: str | None, output: str | None, version: str | None, as_json: bool
) -> int:  # fmt: skip
    """Write a bundle, and the attestations next to it, as a Python package that the engine finds once it is installed.

    The same bundle and version give the same bytes.

    \b
    Example:
      tilec bundle wheel qwen3-4b-sm_90a.bundle -o dist && pip install dist/tilec_kernels_qwen3_4b_sm_90a-*.whl
    """
    from tilec.cli.wheel_command import wheel_command

    return wheel_command(file, digest, trust, output, version, as_json=as_json)


@bundle.command("launcher", epilog=BUNDLE_EPILOG)
@BUNDLE
@click.option("--kernel", "-k", "kernels", multiple=True, metavar="NAME", help="Only kernels of this name; may be repeated.")
@DIGEST
@TRUST
@click.option("--output", "-o", type=click.Path(file_okay=False), help="Folder to write to. Default: the current one.")
@click.option("--prefix", metavar="NAME", help="Prefix of the names of functions and files. Default: the model's name.")
@JSON
def bundle_launcher(
    file: str, kernels: tuple[str, ...], digest: str | None, trust: str | None, output: str | None, prefix: str | None,
    as_json: bool,
) -> int:  # fmt: skip
    """Write a C header and source that launch a bundle's kernels: a typed function for each, with its contract checked.

    They hold the machine code, and need a C11 compiler and the driver's library. The same bundle gives the same bytes.

    \b
    Example:
      tilec bundle launcher qwen3-4b-sm_90a.bundle -k rms_norm -o src && cc -std=c11 -c src/qwen3_4b.c
    """
    from tilec.cli.launcher_command import launcher_command

    return launcher_command(file, kernels, digest, trust, output, prefix, as_json=as_json)
