"""Builds the Python wheel of a verified bundle and its sidecar.

`qwen3-4b` for `sm_90a` is the distribution `tilec-kernels-qwen3-4b-sm-90a`. It has a package of the same name with the bundle
and its attestations, no code, and an entry point in the group `tilec.kernels`, named `qwen3-4b-sm_90a`, by which
`tilec.ship.finder` finds it without importing anything. The tag is `py3-none-any`: GPU code runs with every Python on every
host.

Builds are reproducible: members have a fixed order, the earliest time stamp of zip (SOURCE_DATE_EPOCH is ignored), and are
stored uncompressed, because compressed output depends on the version of the compressor. Formats: the binary distribution format
(PyPA, "wheel" 1.0), core metadata 2.1, entry points.
"""

from __future__ import annotations

import base64
import hashlib
import io
import re
import zipfile
from dataclasses import dataclass
from typing import Final

from tilec.artifact.bundle_format import SUFFIX
from tilec.artifact.signature_format import SIDECAR
from tilec.runtime import Bundle
from tilec.ship.finder import GROUP

PREFIX: Final = "tilec_kernels_"
EARLIEST: Final = (1980, 1, 1, 0, 0, 0)
MODE: Final = 0o100644
_NUMBER: Final = r"(0|[1-9][0-9]{0,8})"
VERSION: Final = re.compile(
    rf"{_NUMBER}(\.{_NUMBER}){{0,5}}((a|b|rc){_NUMBER})?(\.post{_NUMBER})?(\.dev{_NUMBER})?(\+[a-z0-9]+(\.[a-z0-9]+)*)?",
    re.ASCII,
)
"""A normalised version of the version specifiers (PyPA), without an epoch."""


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel's file name and bytes."""

    name: str
    data: bytes


def package_name(model: str, arch: str) -> str:
    """The package name of a bundle: `tilec_kernels_qwen3_4b_sm_90a`."""
    return PREFIX + re.sub(r"[-_.]+", "_", f"{model}_{arch}")


def make_wheel(bundle: Bundle, data: bytes, attestations: bytes, version: str, generator: str) -> Wheel:
    """The wheel of a bundle whose file has the bytes `data`. `generator` is the version of tilec."""
    package = package_name(bundle.model, bundle.arch)
    name = f"{bundle.model}-{bundle.arch}"
    info = f"{package}-{version}.dist-info"
    title = f"CUBINs of {bundle.model} for {bundle.arch}"
    members = {f"{package}/__init__.py": f'"""{title}, found by tilec through its metadata; nothing to import."""\n'.encode()}
    members[f"{package}/{name}{SUFFIX}"] = data
    if attestations:
        members[f"{package}/{name}{SUFFIX}{SIDECAR}"] = attestations
    members[f"{info}/METADATA"] = _metadata(package, version, title, bundle, attested=bool(attestations)).encode()
    wheel = f"Wheel-Version: 1.0\nGenerator: tilec ({generator})\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    members[f"{info}/WHEEL"] = wheel.encode()
    members[f"{info}/entry_points.txt"] = f"[{GROUP}]\n{name} = {package}\n".encode()
    members[f"{info}/RECORD"] = _record(members, f"{info}/RECORD")
    return Wheel(f"{package}-{version}-py3-none-any.whl", _zip(members))


def _metadata(package: str, version: str, title: str, bundle: Bundle, *, attested: bool) -> str:
    lines = ["Metadata-Version: 2.1", f"Name: {package.replace('_', '-')}", f"Version: {version}", f"Summary: {title}"]
    lines += ["Classifier: Environment :: GPU :: NVIDIA CUDA", "Requires-Python: >=3.11", "Requires-Dist: tilec"]
    lines += ["Description-Content-Type: text/plain", ""]
    lines += [f"{title}, proven and built ahead of time by tilec. With this package installed, tilec's engine finds them by"]
    lines += [f"itself. {len(bundle.kernels)} kernels, {bundle.size} bytes, {'with' if attested else 'without'} attestations."]
    return "\n".join([*lines, f"The bundle's sha256 is {bundle.digest}.", ""])


def _record(members: dict[str, bytes], record_name: str) -> bytes:
    """The RECORD file: every member with digest and size, its own line without. No name in it needs quoting."""
    rows: list[str] = []
    for name, data in members.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode("ascii")
        rows.append(f"{name},sha256={digest},{len(data)}\n")
    return ("".join(rows) + f"{record_name},,\n").encode()


def _zip(members: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for name, data in members.items():
            entry = zipfile.ZipInfo(name, EARLIEST)
            entry.create_system = 3  # Unix, so that `external_attr` is read as a mode
            entry.external_attr = MODE << 16
            archive.writestr(entry, data)
    return out.getvalue()
