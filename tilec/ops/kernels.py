"""Where the kernels of an op come from: constants and a device go in, a loaded kernel comes out.

A bundle or a folder of artifacts, where the op or `TILEC_PREBUILT` names one: then from there and from nowhere else. Otherwise
compiled as needed, where the compiler is installed; else from bundles that are installed or were pulled (`tilec.finder`). The
trust policy that holds judges all that is prebuilt: a folder, which nobody signs, is none for it.
"""

from __future__ import annotations

import importlib
import itertools
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tilec.frontend import Interface
from tilec.ir.types import DTYPES
from tilec.ops.declaration import Value, refuse
from tilec.runtime import Bundle, BundleError, Device, Kernel, load_artifact, open_bundle
from tilec.runtime.trust_place import find_trust
from tilec.toolchain import PACKAGES, is_installed

PREBUILT: Final = "TILEC_PREBUILT"
"""The variable that names a bundle or a folder of artifacts for every op that names none."""
MAX_ARTIFACTS: Final = 4096
"""Files of a folder that are looked at for one kernel."""


class Kernels:
    """The loaded kernels of one op. `path` is the kernel's file, `prebuilt` a bundle's file or a folder of artifacts."""

    def __init__(self, interface: Interface, path: Path, prebuilt: str | Path | None) -> None:
        self._interface, self._path = interface, path
        self._prebuilt = prebuilt
        self._loaded: dict[Any, Kernel] = {}
        self._lock = threading.Lock()

    @property
    def loaded(self) -> tuple[Kernel, ...]:
        """Those that were asked for."""
        return tuple(self._loaded.values())

    def get(self, constants: Mapping[str, Value], device: Device) -> Kernel:
        """The kernel at these constants. CompileError where it is refused; BundleError E0707, E0735 where what is prebuilt has
        none, E0714 where the trust policy refuses it; LaunchError E0919 where it is of another kernel than the op."""
        key = (tuple((name, type(value), value) for name, value in constants.items()), device.ordinal)
        with self._lock:
            found = self._loaded.get(key)
            if found is None:
                found = self._loaded[key] = self._load(dict(constants), device)
                self._compare(found)
            return found

    def _load(self, constants: dict[str, Value], device: Device) -> Kernel:
        place = self._prebuilt or os.environ.get(PREBUILT)
        if place:
            path = Path(place)
            if os.path.isdir(path):
                return self._of_folder(path, constants, device)
            return self._of_bundle(open_bundle(path, arch=device.architecture), constants, device)
        if all(is_installed(package) for package in PACKAGES):
            # By name, so that reading this file does not read the compiler.
            just_in_time: Any = importlib.import_module("tilec.project.just_in_time")
            return just_in_time.compile(self._path, constants, device.architecture, device=device)
        from tilec.finder import find_kernel

        return self._of_bundle(find_kernel(self._interface.kernel, constants, device.architecture), constants, device)

    def _of_bundle(self, bundle: Bundle, constants: dict[str, Value], device: Device) -> Kernel:
        with bundle:
            return bundle.load(bundle.find(self._interface.kernel, **constants), device)

    def _of_folder(self, folder: Path, constants: dict[str, Value], device: Device) -> Kernel:
        """As `tilec build` writes it: artifacts in a folder for each architecture, or those of one in the folder itself."""
        policy = find_trust()
        if policy is not None:
            message = f"`{folder}` is a folder of artifacts, which nobody signs, and `{policy.source}` asks for signatures"
            hint = "name a signed bundle instead (`tilec bundle pack` and `sign`), or leave the policy out: `TILEC_TRUST=none`"
            raise BundleError("E0714", message, hint=hint)
        own = folder / device.architecture
        kernel = self._interface.kernel
        named = (
            path for path in (own if os.path.isdir(own) else folder).glob("*.json") if path.stem.partition("-")[0] == kernel
        )
        for path in sorted(itertools.islice(named, MAX_ARTIFACTS)):
            manifest, cubin = load_artifact(path)
            if manifest.kernel == kernel and manifest.arch == device.architecture and manifest.constants == constants:
                return Kernel(manifest, cubin, device)
        wanted = ", ".join([f"`{kernel}`", *(f"{name} = {value}" for name, value in constants.items()), device.architecture])
        raise BundleError("E0707", f"`{folder}` has no kernel for {wanted}", hint="build it with `tilec build`")

    def _compare(self, kernel: Kernel) -> None:
        """E0919 where parameters are not those of the kernel that the op was made of: prebuilt from another source."""
        manifest = kernel.manifest
        tensors = [(one.name, one.access) for one in self._interface.parameters if one.access]
        scalars = [(one.name, one.dtype) for one in self._interface.parameters if not one.access]
        found = [(spec.name, spec.access) for spec in manifest.tensors], [(spec.name, spec.dtype) for spec in manifest.scalars]
        if found != (tensors, scalars) or any(dtype not in DTYPES for _, dtype in scalars):
            shown = ", ".join(f"{name}: {kind}" for name, kind in (*found[0], *found[1]))
            raise refuse(
                manifest.kernel, "what is prebuilt is another kernel of this name", given=shown,
                required=", ".join(f"{name}: {kind}" for name, kind in (*tensors, *scalars)),
            )  # fmt: skip


_devices: dict[int, Device] = {}


def current_device() -> Device:
    """The device of the current context; always the same object for the same device."""
    made = Device()
    return _devices.setdefault(made.ordinal, made)
