"""Times artifacts of a bundle that can serve the same launch: the choices that are left without a compiler.

A bundle has several artifacts of a kernel where `[[tuning]]` of its project declares choices, such as tiles of a product.
`groups` finds launches of the model that several of them accept; `tuned` times these alternately, as `tilec tune` does. The
records are in its format (`tilec.tuning.records`), under the digests of the machine code, so `tilec tune` on the project reads
them as its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tilec.artifact.records import Manifest
from tilec.qualify.arena import Staging
from tilec.qualify.side_file import Launch, SideFile
from tilec.qualify.timing import times
from tilec.qualify.trial import refusal
from tilec.runtime import Bundle, Device

MOST: Final = 12
"""Launches of one kernel that are tuned."""
Group = dict[str, Any]


def groups(bundle: Bundle, side: SideFile, right: Mapping[str, bool]) -> list[Group]:
    """The launches of the model that several right artifacts of a kernel accept: `kernel`, `launch` (an artifact and the
    number of its launch in the side file), `artifacts`. Kernels without choices have none."""
    found: list[Group] = []
    for kernel in sorted(bundle.tuning.choices):
        own = [one for one in bundle.kernels if one.manifest.kernel == kernel and right.get(one.name, False)]
        seen: set[str] = set()
        for one in own:
            for number, launch in enumerate(side.entries[one.name].launches):
                fitting = [other.name for other in own if _accepts(other.manifest, one.manifest, launch)]
                key = repr((sorted(launch.values.items()), one.manifest.constants.get("E")))
                if launch.timed and len(fitting) > 1 and key not in seen and len(seen) < MOST:
                    seen.add(key)
                    found.append({"kernel": kernel, "launch": [one.name, number], "artifacts": fitting})
    return found


def _accepts(manifest: Manifest, own: Manifest, launch: Launch) -> bool:
    """Whether an artifact accepts the launch of another of its kernel: same tensors, and every launch check holds."""
    tensors = [(spec.name, spec.access, spec.dtype, tuple(map(str, spec.dims))) for spec in manifest.tensors]
    if tensors != [(spec.name, spec.access, spec.dtype, tuple(map(str, spec.dims))) for spec in own.tensors]:
        return False
    try:
        return all(check.condition.evaluate(launch.values) for check in manifest.launch_checks)
    except (KeyError, ZeroDivisionError):
        return False


def tuned(bundle: Bundle, device: Device, staging: Staging, side: SideFile, group: Group) -> dict[str, list[float]]:
    """Microseconds (median, 10th and 90th percentile) of each artifact of a group; empty if its launch cannot be tried here."""
    name, number = group["launch"]
    launch = side.entries[name].launches[int(number)]
    if refusal(bundle.kernel(name).manifest, device.driver, launch):
        return {}
    kernels = [bundle.load(one, device) for one in group["artifacts"]]
    try:
        found = times(kernels, staging, [launch] * len(kernels))
    finally:
        for kernel in kernels:
            kernel.close()
    return {one: list(time) for one, time in zip(group["artifacts"], found, strict=True)}
