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
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from tilec.artifact.records import Manifest
from tilec.diagnostics.diagnostic import CompileError
from tilec.frontend import Interface
from tilec.ir.aligned import ALIGNED, read_aligned, without_aligned
from tilec.ir.types import DTYPES
from tilec.ops.declaration import Value, refuse
from tilec.runtime import Bundle, BundleError, Device, Kernel, LaunchError, load_artifact, open_bundle
from tilec.runtime.trust_location import find_trust
from tilec.target.chips import running_on
from tilec.toolchain import PACKAGES, is_installed

PREBUILT: Final = "TILEC_PREBUILT"
"""Environment variable with a bundle or a folder of artifacts, for every op that names none."""
LaunchValues = Callable[[Manifest], Mapping[str, int]]
"""The dims, strides and integers of a launch by name; LaunchError if it fits no kernel of this manifest."""
MAX_ARTIFACTS: Final = 4096
"""Maximum number of files of a folder that are read for one kernel."""


class Kernels:
    """The loaded kernels of one op. `path` is the kernel's file, `prebuilt` a bundle file or a folder of artifacts."""

    def __init__(self, interface: Interface, path: Path, prebuilt: str | Path | None) -> None:
        self._interface, self._path = interface, path
        self._prebuilt = prebuilt
        self._loaded: dict[Any, _Versions] = {}
        self._lock = threading.Lock()

    @property
    def loaded(self) -> tuple[Kernel, ...]:
        """The kernels loaded so far."""
        return tuple(kernel for versions in self._loaded.values() for kernel in versions.loaded)

    def get(self, constants: Mapping[str, Value], device: Device, launch_values: LaunchValues | None = None) -> Kernel:
        """The kernel for these constants: the aligned version (`tilec.ir.aligned`) if there is one and `launch_values` satisfy
        its precondition, else the general one. CompileError if it is rejected; BundleError E0707, E0735 if it is not among the
        prebuilt ones, E0714 if the trust policy rejects them; LaunchError E0919 if it belongs to another kernel than the op."""
        key = (tuple((name, type(value), value) for name, value in constants.items()), device.ordinal)
        with self._lock:
            versions = self._loaded.get(key)
            if versions is None:
                versions = self._load(dict(constants), device)
                self._compared(versions.general)
                self._loaded[key] = versions  # last, so that no later call gets a kernel that was refused
            if launch_values is None or not versions.multiples:
                return versions.general
            with suppress(LaunchError):  # the general version says what is wrong with the launch
                values = launch_values(versions.general.manifest)
                if all(values.get(name, 1) % number == 0 for name, number in versions.multiples.items()):
                    return self._aligned(versions)
            return versions.general

    def _aligned(self, versions: _Versions) -> Kernel:
        """The aligned version, loaded by the first launch that it fits; the general one if it cannot be compiled, or wants a
        tensor to be aligned more."""
        if versions.aligned is None:
            try:
                kernel = self._compared(versions.load_aligned())
            except CompileError:
                versions.multiples = {}
                return versions.general
            pairs = zip(kernel.manifest.tensors, versions.general.manifest.tensors, strict=True)
            if any(spec.align > general.align for spec, general in pairs):
                kernel.close()
                versions.multiples = {}
                return versions.general
            versions.aligned = kernel
        return versions.aligned

    def _load(self, constants: dict[str, Value], device: Device) -> _Versions:
        source = self._prebuilt or os.environ.get(PREBUILT)
        if source:
            path = Path(source)
            if os.path.isdir(path):
                return self._from_folder(path, constants, device)
            return self._from_bundle(open_bundle(path, chip=device.architecture, proofs=False), constants, device)
        if all(is_installed(package) for package in PACKAGES):
            # Imported by name, so that importing this module does not import the compiler.
            just_in_time: Any = importlib.import_module("tilec.project.build.just_in_time")
            kernel, text = just_in_time.compile_general(self._path, constants, device)
            return _versions(
                kernel, text, partial(just_in_time.compile, self._path, constants | {ALIGNED: text}, device=device)
            )
        from tilec.ship.finder import find_kernel

        return self._from_bundle(find_kernel(self._interface.kernel, constants, device.architecture), constants, device)

    def _from_bundle(self, bundle: Bundle, constants: dict[str, Value], device: Device) -> _Versions:
        with bundle:
            kernel = bundle.load(bundle.find(self._interface.kernel, **constants), device)
            candidates = (one for one in bundle.kernels if one.manifest.kernel == self._interface.kernel)
            aligned = next((one for one in candidates if _is_aligned(one.manifest, constants)), None)
            if aligned is None:
                return _versions(kernel)
            load_aligned = partial(Kernel, aligned.manifest, bundle.cubin(aligned), device)
        return _versions(kernel, aligned.manifest.constants[ALIGNED], load_aligned)

    def _from_folder(self, folder: Path, constants: dict[str, Value], device: Device) -> _Versions:
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
            general: tuple[Manifest, bytes] | None = None
            aligned: tuple[Manifest, bytes] | None = None
            for path in sorted(itertools.islice(candidates, MAX_ARTIFACTS)):
                artifact = load_artifact(path)
                manifest = artifact[0]
                if manifest.kernel == kernel and manifest.arch == arch:
                    general = artifact if general is None and manifest.constants == constants else general
                    aligned = artifact if aligned is None and _is_aligned(manifest, constants) else aligned
            if general is not None and aligned is not None:
                return _versions(Kernel(*general, device), aligned[0].constants[ALIGNED], partial(Kernel, *aligned, device))
            if general is not None:
                return _versions(Kernel(*general, device))
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


@dataclass(slots=True)
class _Versions:
    """The kernels of one specialisation: the general one, what launch values are multiples of in its aligned version (empty: it
    has none), what loads that, and it, once loaded."""

    general: Kernel
    multiples: Mapping[str, int]
    load_aligned: Callable[[], Kernel]
    aligned: Kernel | None = None

    @property
    def loaded(self) -> tuple[Kernel, ...]:
        return (self.general,) if self.aligned is None else (self.general, self.aligned)


def _versions(general: Kernel, text: Any = "", load_aligned: Callable[[], Kernel] | None = None) -> _Versions:
    """The versions, of which `text` is the precondition of the aligned one; a text that is none counts as no such version."""
    multiples: Mapping[str, int] = {}
    if load_aligned is not None:
        with suppress(ValueError):
            multiples = read_aligned(text)
    return _Versions(general, multiples, load_aligned or (lambda: general))


def _is_aligned(manifest: Manifest, constants: Mapping[str, Value]) -> bool:
    """Whether a manifest is of the aligned version of a specialisation."""
    return ALIGNED in manifest.constants and without_aligned(manifest.constants) == constants


_devices: dict[int, Device] = {}


def current_device() -> Device:
    """The device of the current context; always the same object for the same device, whose properties are asked for once."""
    known = next(iter(_devices.values()), None)
    if known is not None and (device := _devices.get(known.driver.open_device())) is not None:
        return device
    device = Device()
    return _devices.setdefault(device.ordinal, device)
