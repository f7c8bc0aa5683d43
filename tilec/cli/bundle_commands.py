"""`tilec bundle list|diff|show`, and what every command that opens a bundle shares."""

from __future__ import annotations

import contextlib
import hashlib
import json
from typing import TYPE_CHECKING

from tilec.cli.project import UsageError, chosen_targets
from tilec.diagnostics.diagnostic import CompileError, Diagnostic
from tilec.runtime import Bundle, BundleError, open_bundle

if TYPE_CHECKING:
    from tilec.runtime.trust import TrustSource


def opened(path: str, arch: str | None = None, digest: str | None = None, trust: TrustSource = None) -> Bundle:
    """Open and verify a bundle under the policy `trust`. CompileError with the code of the refusal."""
    targets = chosen_targets(arch)
    if targets is not None and len(targets) != 1:
        raise UsageError("a bundle is for one architecture; name one with `--arch`")
    try:
        return open_bundle(path, arch=targets[0].name if targets else None, digest=digest, trust=trust)
    except BundleError as error:
        raise CompileError(Diagnostic(error.code, error.message, hint=error.hint)) from None


def with_sidecar(bundle: Bundle) -> tuple[bytes, bytes]:
    """The bytes of a verified bundle's file and of its attestations (empty if it has none). CompileError E0703 if they cannot
    be read, E0705 if the file has changed meanwhile."""
    from tilec.artifact.bundle_format import MAX_FILE
    from tilec.artifact.signature_format import MAX_SIDECAR, sidecar_path
    from tilec.untrusted.regular_file import read_regular

    try:
        data, attestations = read_regular(bundle.path, MAX_FILE), b""
        with contextlib.suppress(FileNotFoundError):
            attestations = read_regular(sidecar_path(bundle.path), MAX_SIDECAR)
    except OSError as error:
        message = f"`{error.filename or bundle.path}` cannot be read: {error.strerror}"
        raise CompileError(Diagnostic("E0703", message)) from None
    except ValueError as error:
        raise CompileError(Diagnostic("E0703", f"`{bundle.path}`, or its attestations, {error}")) from None
    if hashlib.sha256(data).hexdigest() != bundle.digest:
        raise CompileError(Diagnostic("E0705", f"`{bundle.path}` changed while it was read"))
    return data, attestations


def list_command(path: str, digest: str | None, trust: str | None, *, as_json: bool) -> int:
    """Print the kernels of a bundle."""
    from tilec.ship.bundle.describe import summary

    with opened(path, digest=digest, trust=trust) as bundle:
        data = summary(bundle)
    if as_json:
        print(json.dumps(data, indent=1))
        return 0
    header = ("kernel", "registers", "spills", "shared", "bytes", "proofs", "used by")
    rows = [
        (
            one["name"],
            str(one["registers"]),
            str(one["spill_bytes"]),
            str(one["shared_bytes"]),
            str(one["cubin_bytes"]),
            " ".join(f"{rung}:{count}" for rung, count in one["proofs"].items()),
            " ".join(one["steps"]),
        )
        for one in data["kernels"]
    ]
    widths = [max(len(line[i]) for line in (header, *rows)) for i in range(len(header))]
    for line in (header, *rows):
        cells = [text.rjust(widths[i]) if 1 <= i <= 4 else text.ljust(widths[i]) for i, text in enumerate(line)]
        print("  ".join(cells).rstrip())
    front = f"{data['model']} for {data['arch']}: {len(rows)} kernels"
    print(f"{front}, {data['cubin_bytes']} bytes of code in {data['blobs']} blobs, {data['bytes']} in all")
    print(f"sha256 {data['sha256']}")
    of = "the model's numbers and its step" if data["has_step"] else "the names of its kernels, as it has no step"
    print(f"model digest {data['model_digest']}, of {of}, for a trust policy")
    return 0


def show_command(path: str, kernel: str | None, digest: str | None, trust: str | None, *, as_json: bool) -> int:
    """Print the contract, resources and proofs of one kernel of a bundle, or the choices of the bundle's tuning."""
    from tilec.ship.bundle.describe import kernel_json, kernel_lines, tuning_json, tuning_lines
    from tilec.step.expressions import StepError

    with opened(path, digest=digest, trust=trust) as bundle:
        if kernel is None:
            if not bundle.has_step:
                names = ", ".join(dict.fromkeys(one.manifest.kernel for one in bundle.kernels))
                raise UsageError(f"`{path}` has no step, so nothing chooses between its kernels; name one of them: {names}")
            try:
                print(json.dumps(tuning_json(bundle), indent=1) if as_json else "\n".join(tuning_lines(bundle)))
            except StepError as error:
                raise BundleError("E0705", f"`{path}` is damaged: its step: {error}"[:500]) from None
            return 0
        names = [one.name for one in bundle.kernels if kernel in (one.name, one.manifest.kernel)]
        if len(names) != 1:
            reason = f"has several kernels `{kernel}`: {', '.join(names)}" if names else f"has no kernel `{kernel}`"
            raise CompileError(Diagnostic("E0707", f"`{path}` {reason}", hint=f"`tilec bundle list {path}` shows all"))
        one = bundle.kernel(names[0])
        print(json.dumps(kernel_json(bundle, one), indent=1) if as_json else "\n".join(kernel_lines(bundle, one)))
    return 0


def diff_command(
    old_file: tuple[str, str | None], new_file: tuple[str, str | None], trust: str | None, *, as_json: bool
) -> int:  # fmt: skip
    """Print the differences of two bundles (path and required digest). Returns 1 if there are any."""
    from tilec.ship.bundle.compare import as_json as to_json
    from tilec.ship.bundle.compare import bundle_changes

    with (
        opened(old_file[0], digest=old_file[1], trust=trust) as old,
        opened(new_file[0], digest=new_file[1], trust=trust) as new,
    ):
        changes = bundle_changes(old, new)
        same = old.digest == new.digest
        if as_json:
            print(json.dumps(to_json(old, new, changes), indent=1))
            return int(not same)
        if same:
            print("the bundles are the same")
            return 0
        for property_name, old_value, new_value in (("model", old.model, new.model), ("architecture", old.arch, new.arch)):
            if old_value != new_value:
                print(f"{property_name} {old_value} -> {new_value}")
        name = ""
        for change in changes:
            if change.kind in ("added", "removed"):
                print(f"{'+' if change.kind == 'added' else '-'} {change.name}")
                continue
            if change.name != name:
                print(f"  {change.name}")
                name = change.name
            print(f"  {'!' if change.worse else ' '} {change.text}")
        worse = sum(change.worse for change in changes)
        print(f"size {old.size} -> {new.size} bytes; {len(changes)} changes, {worse} for the worse (marked !)")
    return 1
