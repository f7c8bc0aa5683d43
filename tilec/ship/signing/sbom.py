"""Builds a bill of materials of a verified bundle: a CycloneDX 1.6 document as plain data.

Components are the packages that built the code (scope `excluded`: none of them runs with the bundle), by name and version, and
each CUBIN as a file with its sha256. A manifest has the digest of a package's files if they are the same on every Python. That
is a digest of many files, not of a distribution, so it is a property and not a hash. The document is deterministic for a bundle
and a version of tilec: its serial number is derived from the bundle's digest, and it has no date.
"""

from __future__ import annotations

import uuid
from typing import Any, Final

from tilec import __version__
from tilec.runtime import Bundle

SPEC: Final = "1.6"
_NAMESPACE: Final = uuid.uuid5(uuid.NAMESPACE_URL, "https://cyclonedx.org/bom")


def toolchain_of(bundle: Bundle) -> list[tuple[str, str, str]]:
    """Name, version and digest (empty if there is none) of every package that built a kernel of the bundle, sorted."""
    found = {(name, text) for kernel in bundle.kernels for name, text in kernel.manifest.toolchain.items()}
    packages: list[tuple[str, str, str]] = []
    for name, text in sorted(found):
        version, _, digest = text.partition(" sha256:")
        packages.append((name, version, digest))
    return packages


def package_url(name: str, version: str) -> str:
    """The package URL of a PyPI distribution, or of this project, which is built from its checkout."""
    return f"pkg:{'generic' if name == 'tilec' else 'pypi'}/{name.lower().replace('_', '-')}@{version.replace('+', '%2B')}"


def bill_of_materials(bundle: Bundle, name: str) -> dict[str, Any]:
    """The document for a bundle with the file name `name`."""
    packages = [_package(*one) for one in toolchain_of(bundle)]
    kernels: list[dict[str, Any]] = [
        {
            "type": "file", "bom-ref": f"kernel:{kernel.name}", "name": f"{kernel.name}.cubin",
            "mime-type": "application/x-elf", "scope": "required", "hashes": [{"alg": "SHA-256", "content": kernel.blob}],
            "properties": [{"name": "tilec:arch", "value": kernel.manifest.arch}],
        }
        for kernel in bundle.kernels
    ]  # fmt: skip
    bundle_component: dict[str, Any] = {
        "type": "file", "bom-ref": "bundle", "name": name, "hashes": [{"alg": "SHA-256", "content": bundle.digest}],
        "properties": [{"name": "tilec:model", "value": bundle.model}, {"name": "tilec:arch", "value": bundle.arch}],
    }  # fmt: skip
    return {
        "bomFormat": "CycloneDX",
        "specVersion": SPEC,
        "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMESPACE, bundle.digest)}",
        "version": 1,
        "metadata": {
            "tools": {"components": [{"type": "application", "name": "tilec", "version": __version__}]},
            "component": bundle_component,
        },
        "components": [*packages, *kernels],
        "dependencies": [
            {"ref": "bundle", "dependsOn": [one["bom-ref"] for one in kernels]},
            *({"ref": one["bom-ref"], "dependsOn": []} for one in (*packages, *kernels)),
        ],
    }


def _package(name: str, version: str, digest: str) -> dict[str, Any]:
    url = package_url(name, version)
    found: dict[str, Any] = {
        "type": "library", "bom-ref": f"{url}#{digest[:12]}" if digest else url, "name": name, "version": version,
        "scope": "excluded", "purl": url,
    }  # fmt: skip
    if digest:
        found["properties"] = [{"name": "tilec:sha256-of-its-files", "value": digest}]
    return found
