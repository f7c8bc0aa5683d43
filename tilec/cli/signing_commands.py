"""`tilec bundle keygen|sign|attest|sbom`."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tilec.artifact.signature_format import (
    BUILDER,
    LOCAL_BUILDER,
    PREDICATES,
    decode_sidecar,
    encode_sidecar,
    pae,
    sidecar_path,
)
from tilec.cli.bundle_commands import opened
from tilec.cli.project import UsageError, open_project
from tilec.diagnostics.diagnostic import CompileError, Diagnostic
from tilec.runtime import Bundle, BundleError
from tilec.runtime.trust import Trust, TrustedKey
from tilec.runtime.trust import signing_keys as keys_module
from tilec.runtime.trust_location import NO_POLICY
from tilec.untrusted.output import Output

if TYPE_CHECKING:
    from tilec.artifact.signature_format import Envelope
    from tilec.artifact.signing_keys import FileSigner

PASSPHRASE: Final = "TILEC_KEY_PASSPHRASE"
PUBLIC: Final = ".pub"


def keygen_command(output: str, kind: str, *, encrypt: bool, as_json: bool) -> int:
    """Write a new key pair, OUTPUT (readable only by its owner) and OUTPUT.pub, and print the key's id."""
    keys = _keys_module()
    private, public = Path(output), Path(output + PUBLIC)
    for path in (private, public):
        if os.path.lexists(path):
            raise _unwritable(path, "it exists, and keys are never overwritten")
    passphrase = _passphrase(private, again=True) if encrypt else None
    signer: FileSigner = keys.generate(kind)
    written: list[str] = []
    try:
        with contextlib.closing(Output(private.parent, None).opened(create=False)) as folder:
            try:
                for path, data, mode in ((private, signer.pem(passphrase), 0o600), (public, signer.public_key.pem(), 0o644)):
                    folder.create(path.name, data, mode)
                    written.append(path.name)
            except BaseException:
                for name in written:
                    folder.remove(name)
                raise
    except OSError as error:
        raise _unwritable(private, error.strerror or str(error)) from None
    row = {"private": str(private), "public": str(public), "kind": kind, "keyid": signer.public_key.id}
    print(json.dumps(row, indent=1) if as_json else f"{public}: {kind}, key {row['keyid']}; keep `{private}` to yourself")
    return 0


def sign_command(
    paths: tuple[str, ...], key: str, release: int, builder: str | None, project: str | None, *, as_json: bool
) -> int:  # fmt: skip
    """Sign provenance and bill of materials of bundles, and write each next to its bundle. If one bundle is refused, nothing is
    written."""
    from tilec.ship.signing.sign import signed_envelopes, statements

    signer = _signer(Path(key))
    envelopes: list[tuple[Path, bytes, Bundle]] = []
    for path in paths:
        with opened(path, trust=NO_POLICY) as bundle:
            payloads = statements(bundle, release, _builder(builder), _files(bundle, project))
            sidecar = sidecar_path(bundle.path)
            try:
                data = encode_sidecar(signed_envelopes(bundle.digest, payloads.values(), signer, _existing_envelopes(sidecar)))
            except ValueError as error:
                raise CompileError(Diagnostic("E0714", f"the file of signatures `{sidecar}` {error}")) from None
            envelopes.append((sidecar, data, bundle))
    rows: list[dict[str, Any]] = []
    for sidecar, data, bundle in envelopes:
        output, name = Output.file(sidecar)
        output.write(name, data)
        _check(bundle, signer)
        rows.append({"file": str(bundle.path), "signatures": str(sidecar), "sha256": bundle.digest, "release": release})
        rows[-1] |= {"builder": _builder(builder), "keyid": signer.public_key.id}
        if not as_json:
            print(f"{sidecar}: {' and '.join(PREDICATES)} of release {release} signed by key {signer.public_key.id}")
    if as_json:
        print(json.dumps({"bundles": rows}, indent=1))
    return 0


def attest_command(path: str, release: int, builder: str | None, project: str | None, output: str | None) -> int:
    """Print the statements that `sign` would sign, or write them and the bytes under each signature into a folder."""
    from tilec.artifact.signature_format import PAYLOAD_TYPE
    from tilec.ship.signing.sign import statements

    with opened(path, trust=NO_POLICY) as bundle:
        payloads = statements(bundle, release, _builder(builder), _files(bundle, project))
        name = bundle.path.name
    if output is None:
        rows = [
            {
                "statement": json.loads(payload), "payloadType": PAYLOAD_TYPE, "payload_sha256": sha256(payload).hexdigest(),
                "signed_sha256": sha256(pae(PAYLOAD_TYPE, payload)).hexdigest(),
            }
            for payload in payloads.values()
        ]  # fmt: skip
        print(json.dumps({"unsigned": rows}, indent=1))
        return 0
    for kind, payload in payloads.items():
        for suffix, data in ((".json", payload), (".pae", pae(PAYLOAD_TYPE, payload))):
            file = f"{name}.{kind}{suffix}"
            Output(Path(output), None).write(file, data)
            print(Path(output) / file)
    return 0


def sbom_command(path: str, trust: str | None) -> int:
    """Print the bill of materials of a bundle."""
    from tilec.ship.signing.sbom import bill_of_materials

    with opened(path, trust=trust) as bundle:
        print(json.dumps(bill_of_materials(bundle, bundle.path.name), indent=1))
    return 0


def _builder(text: str | None) -> str:
    if text is None:
        return LOCAL_BUILDER
    if not BUILDER.fullmatch(text):
        raise UsageError(f"`{text:.80}` is not a URI; name a builder as `urn:example:builder` or by its address")
    return text


def _files(bundle: Bundle, project: str | None) -> dict[str, str]:
    from tilec.ship.signing.provenance import project_files

    return project_files(bundle, open_project(project)) if project is not None else {}


def _existing_envelopes(sidecar: Path) -> list[Envelope]:
    """The envelopes of an existing attestation file; CompileError E0714 if it is malformed."""
    from tilec.artifact.signature_format import MAX_SIDECAR
    from tilec.untrusted.regular_file import read_regular

    hint = "move it away to sign the bundle anew"
    try:
        return decode_sidecar(read_regular(sidecar, MAX_SIDECAR))
    except FileNotFoundError:
        return []
    except OSError as error:
        reason = f"cannot be read: {error.strerror or error}"
        raise CompileError(Diagnostic("E0714", f"the file of signatures `{sidecar}` {reason}", hint=hint)) from None
    except ValueError as error:
        raise CompileError(Diagnostic("E0714", f"the file of signatures `{sidecar}` {error}", hint=hint)) from None


def _check(bundle: Bundle, signer: FileSigner) -> None:
    """Verify the signed bundle as a user would; CompileError if that fails."""
    signing_key = TrustedKey(signer.public_key, "the key that signed")
    with opened(str(bundle.path), digest=bundle.digest, trust=Trust({signing_key.key.id: signing_key}, 1, {}, "--key")):
        pass


def _keys_module() -> Any:
    try:
        return keys_module()
    except BundleError as error:
        raise CompileError(Diagnostic(error.code, error.message, hint=error.hint)) from None


def _signer(path: Path) -> FileSigner:
    """The signer for a private key file; CompileError E0716 if it cannot be used."""
    from tilec.untrusted.regular_file import USED_BY_OTHERS, read_regular

    keys = _keys_module()

    def refused(reason: str, hint: str = "`tilec bundle keygen` makes a key") -> CompileError:
        return CompileError(Diagnostic("E0716", f"the private key `{path}` {reason}", hint=hint))

    try:
        pem = read_regular(path, keys.MAX_PEM, forbidden_mode=USED_BY_OTHERS)
    except OSError as error:
        raise refused(f"cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise refused(str(error), "make it readable by its owner only: `chmod 600`") from None
    try:
        return keys.read_private_key(pem)
    except keys.PassphraseNeeded:
        return _decrypted(pem, _passphrase(path), refused)
    except ValueError as error:
        raise refused(str(error)) from None


def _decrypted(pem: bytes, passphrase: bytes, refused: Callable[[str], CompileError]) -> FileSigner:
    try:
        return _keys_module().read_private_key(pem, passphrase)
    except ValueError as error:
        raise refused(str(error)) from None


def _passphrase(path: Path, *, again: bool = False) -> bytes:
    """The passphrase from the environment, or from a prompt on a terminal; CompileError E0716 without either."""
    passphrase = os.environ.get(PASSPHRASE)
    if passphrase is None and sys.stdin is not None and sys.stdin.isatty():  # pyright: ignore[reportUnnecessaryComparison]
        import click

        passphrase = click.prompt(f"Passphrase of {path}", hide_input=True, confirmation_prompt=again, err=True)
    if not passphrase:
        hint = f"set `{PASSPHRASE}`, or run the command at a terminal"
        raise CompileError(Diagnostic("E0716", f"the private key `{path}` needs a passphrase, but none is given", hint=hint))
    return os.fsencode(passphrase)


def _unwritable(path: Path, reason: str) -> CompileError:
    return CompileError(Diagnostic("E0702", f"`{path}` cannot be written: {reason}", hint="name another place"))
