"""Finds the kernels of an op: takes constants and a device, returns a loaded kernel.

If the op or `TILEC_PREBUILT` names a bundle or a folder of artifacts, kernels come only from there. Otherwise they are compiled
on demand if the compiler is installed, else they come from installed or pulled bundles (`tilec.ship.finder`). The trust policy
in effect applies to everything prebuilt; it rejects a folder, which has no signature.
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
from tilec.target.chips import running_on
from tilec.toolchain import PACKAGES, is_installed

PREBUILT: Final = "TILEC_PREBUILT"
"""Environment variable with a bundle or a folder of artifacts, for every op that names none."""
MAX_ARTIFACTS: Final = 4096
"""Maximum number of files of a folder that are read for one kernel."""


class Kernels:
    """The loaded kernels of one op. `path` is the kernel's file, `prebuilt` a bundle file or a folder of artifacts."""

    def __init__(self, interface: Interface, path: Path, prebuilt: str | Path | None) -> None:
        self._interface, self._path = interface, path
        self._prebuilt = prebuilt
        self._loaded: dict[Any, Kernel] = {}
        self._lock = threading.Lock()

    @property
    def loaded(self) -> tuple[Kernel, ...]:
        """The kernels loaded so far."""
        return tuple(self._loaded.values())

    def get(self, constants: Mapping[str, Value], device: Device) -> Kernel:
        """The kernel for these constants. CompileError if it is rejected; BundleError E0707, E0735 if it is not among the
        prebuilt ones, E0714 if the trust policy rejects them; LaunchError E0919 if it belongs to another kernel than the op."""
        key = (tuple((name, type(value), value) for name, value in constants.items()), device.ordinal)
        with self._lock:
            kernel = self._loaded.get(key)
            if kernel is None:
                kernel = self._compared(self._load(dict(constants), device))
                self._loaded[key] = kernel  # last, so that no later call gets a kernel that was refused
            return kernel

    def _load(self, constants: dict[str, Value], device: Device) -> Kernel:
        source = self._prebuilt or os.environ.get(PREBUILT)
        if source:
            path = Path(source)
            if os.path.isdir(path):
                return self._from_folder(path, constants, device)
            return self._from_bundle(open_bundle(path, chip=device.architecture), constants, device)
        if all(is_installed(package) for package in PACKAGES):
            # Imported by name, so that importing this module does not import the compiler.
            just_in_time: Any = importlib.import_module("tilec.project.build.just_in_time")
            return just_in_time.compile(self._path, constants, device.architecture, device=device)
        from tilec.ship.finder import find_kernel

        return self._from_bundle(find_kernel(self._interface.kernel, constants, device.architecture), constants, device)

    def _from_bundle(self, bundle: Bundle, constants: dict[str, Value], device: Device) -> Kernel:
        with bundle:
            return bundle.load(bundle.find(self._interface.kernel, **constants), device)

    def _from_folder(self, folder: Path, constants: dict[str, Value], device: Device) -> Kernel:
        """A folder as `tilec build` writes it: artifacts in a subfolder per architecture, or those of one architecture directly
        in the folder. Of several that the device runs, one for exactly its own architecture."""
        policy = find_trust()
        if policy is not None:
            message = f"`{folder}` is a folder of unsigned artifacts, but `{policy.source}` requires signatures"
            hint = "name a signed bundle instead (`tilec bundle pack` and `sign`), or leave the policy out: `TILEC_TRUST=none`"
            raise BundleError("E0714", message, hint=hint)
        kernel = self._interface.kernel
        for arch in running_on(device.architecture):
            inner = folder / arch
            candidates = (
                path
                for path in (inner if os.path.isdir(inner) else folder).glob("*.json")
                if path.stem.partition("-")[0] == kernel
            )
            for path in sorted(itertools.islice(candidates, MAX_ARTIFACTS)):
                manifest, cubin = load_artifact(path)
                if manifest.kernel == kernel and manifest.arch == arch and manifest.constants == constants:
                    return Kernel(manifest, cubin, device)
        requested = ", ".join([f"`{kernel}`", *(f"{name} = {value}" for name, value in constants.items()), device.architecture])
        raise BundleError("E0707", f"`{folder}` has no kernel for {requested}", hint="build it with `tilec build`")

    def _compared(self, kernel: Kernel) -> Kernel:
        """The kernel. E0919, and the kernel is unloaded, if its parameters differ from those of the op's: it was built from
        another source."""
        manifest = kernel.manifest
        tensors = [(parameter.name, parameter.access) for parameter in self._interface.parameters if parameter.access]
        scalars = [(parameter.name, parameter.dtype) for parameter in self._interface.parameters if not parameter.access]
        built = [(spec.name, spec.access) for spec in manifest.tensors], [(spec.name, spec.dtype) for spec in manifest.scalars]
        if built != (tensors, scalars) or any(dtype not in DTYPES for _, dtype in scalars):
            kernel.close()
            shown = ", ".join(f"{name}: {kind}" for name, kind in (*built[0], *built[1]))
            raise refuse(
                manifest.kernel, "the prebuilt kernel of this name has other parameters", given=shown,
                required=", ".join(f"{name}: {kind}" for name, kind in (*tensors, *scalars)),
            )  # fmt: skip
        return kernel


_devices: dict[int, Device] = {}


def current_device() -> Device:
    """The device of the current context; always the same object for the same device, whose properties are asked for once."""
    known = next(iter(_devices.values()), None)
    if known is not None and (device := _devices.get(known.driver.open_device())) is not None:
        return device
    device = Device()
    return _devices.setdefault(device.ordinal, device)
