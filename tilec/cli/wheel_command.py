"""`tilec bundle wheel`."""

from __future__ import annotations

import json
from pathlib import Path

from tilec import __version__
from tilec.cli.bundle_commands import opened, with_sidecar
from tilec.cli.project import UsageError
from tilec.untrusted.output import Output


def wheel_command(
    path: str, digest: str | None, trust: str | None, output: str | None, version: str | None, *, as_json: bool
) -> int:  # fmt: skip
    """Write a bundle as a wheel, and print its path and digest."""
    import hashlib

    from tilec.ship.bundle.wheel import VERSION, make_wheel

    chosen = version or __version__
    if not VERSION.fullmatch(chosen):
        raise UsageError(f"`{chosen:.80}` is not a normalised version of a Python package, such as `1.2.0` or `1.2.0.post1`")
    with opened(path, digest=digest, trust=trust) as bundle:
        data, attestations = with_sidecar(bundle)
        wheel = make_wheel(bundle, data, attestations, chosen, __version__)
    folder = Output(Path(output or "."), None)
    folder.write(wheel.name, wheel.data)
    wheel_path = folder.path(wheel.name)
    sha256 = hashlib.sha256(wheel.data).hexdigest()
    if as_json:
        print(
            json.dumps({"file": str(wheel_path), "bytes": len(wheel.data), "sha256": sha256, "bundle": bundle.digest}, indent=1)
        )
    else:
        print(f"{wheel_path}  {len(wheel.data)} bytes  sha256 {sha256}")
    return 0
