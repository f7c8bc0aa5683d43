"""A kernel loaded from an artifact, and its checked launches.

`Kernel.plan` enforces the contract and packs the arguments; `Plan.launch` is one driver call and may run inside a CUDA graph
capture. A plan keeps its tensors alive; a captured graph does not, so keep the plan as long as the graph.
"""

from __future__ import annotations

import ctypes
import hashlib
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tilec.artifact.cubin_image import check_image
from tilec.artifact.manifest_reader import manifest_from_json
from tilec.artifact.records import Manifest
from tilec.ir.facts.tensor_maps import MAP_ALIGNMENT, MAP_BYTES
from tilec.runtime.contract import Checked, Launch, check_launch
from tilec.runtime.device import Device
from tilec.runtime.driver import Driver
from tilec.runtime.errors import LaunchError
from tilec.runtime.scalars import pack_scalar
from tilec.runtime.tensor_maps import TensorMaps
from tilec.runtime.values import TRUSTED, Evidence, check_evidence, read_back
from tilec.target.chips import built_with
from tilec.target.families import TMA
from tilec.target.schedule import PAIR
from tilec.untrusted.regular_file import read_regular
from tilec.untrusted.strict_json import LARGEST_OF_MANIFEST, parse

DEFAULT_DYNAMIC_SHARED: Final = 48 * 1024
"""Dynamic shared memory in bytes that a launch may use without opting in."""

SHARED_SIZES: Final = tuple(1024 * size for size in (0, 8, 16, 32, 64, 100, 132, 164, 196, 228))
"""Possible shared memory sizes of a multiprocessor in bytes, up to the maximum of a device; the rest of the same memory is L1
cache (CUDA programming guide, compute capability 9.0 and later)."""

BLOCK_SHARED: Final = 1024
"""Shared memory in bytes that the system reserves per block."""

MAX_MANIFEST: Final = 8 << 20
MAX_CUBIN: Final = 256 << 20
"""Maximum bytes of the manifest and the CUBIN of an artifact."""

ARGUMENT_FORMATS: Final = {"pointer": "Q", "dim": "i4x", "stride": "q", "tensor_map": "8x"}
"""`struct` format of an argument's eight bytes, by the kind of its slot. Scalars are packed as bytes; tensor maps are stored
separately."""


class Plan:
    """One checked launch. `launch` enqueues it; `trusted` names the tensors whose values the caller vouched for."""

    def __init__(self, kernel: Kernel, launch: Launch, keep: tuple[Any, ...], trusted: tuple[str, ...]) -> None:
        self.kernel = kernel
        self.grid = kernel.launched(launch.grid)
        self.env = launch.env
        self.checked = launch
        self.trusted = trusted
        self._keep = keep
        # Layout: eight bytes per argument, then the array of their addresses for the driver, then tensor maps.
        abi = kernel.manifest.abi
        values = packed_arguments(kernel.manifest, launch)
        maps = kernel.maps.of_launch(launch.views)
        argument_bytes = 8 * max(1, len(abi))
        self.storage_bytes = ctypes.create_string_buffer(2 * argument_bytes + MAP_ALIGNMENT + len(maps))
        self.storage = base = ctypes.addressof(self.storage_bytes)
        struct.pack_into(kernel.argument_format, self.storage_bytes, 0, *values)
        self.maps = base + 2 * argument_bytes + -(base + 2 * argument_bytes) % MAP_ALIGNMENT
        ctypes.memmove(self.maps, maps, len(maps))
        struct.pack_into(
            f"<{len(abi)}Q", self.storage_bytes, argument_bytes, *addresses(kernel.manifest, base, base, self.maps)
        )
        self.parameters = base + argument_bytes
        self._driver: Driver = kernel.device.driver

    def launch(self, stream: Any = 0, *, overlap: bool = False) -> None:
        """Enqueue on `stream`: an integer handle, or an object with `cuda_stream` or `__cuda_stream__`.

        `overlap` uses programmatic dependent launch (CUDA programming guide): blocks of this launch may start while the
        previous kernel on the stream still runs, and wait for its completion before they access memory. They do not wait for
        tensors that the manifest marks `resident`, so no overlapped kernel may write those. The previous kernel must be one of
        tilec's too, or must not trigger early completion. A device before compute capability 9.0 has no such launches, and
        this one then starts once the previous kernel has ended. Raises E0917 if the artifact does not wait by itself.
        """
        kernel = self.kernel
        handle = stream if type(stream) is int else stream_handle(stream)
        overlaps = overlap and kernel.may_overlap()
        self._driver.launch(kernel.function, self.grid, kernel.block, kernel.shared, handle, self.parameters, overlaps)


class Kernel:
    """A CUBIN on a device, with its contract. Loading checks the architecture and sets the shared memory limit."""

    def __init__(self, manifest: Manifest, cubin: bytes, device: Device) -> None:
        self.manifest = manifest
        self.device = device
        _check_architecture(manifest, device)
        self.block = manifest.block
        self.shared = manifest.resources.dynamic_shared_bytes
        total = self.shared + manifest.resources.static_shared_bytes
        if total > device.shared_memory_bytes:
            raise LaunchError(
                "E0916", "needs more shared memory than the device has", kernel=manifest.kernel,
                given=f"{total} bytes per block", required=f"at most {device.shared_memory_bytes} on {device.name}",
            )  # fmt: skip
        schedule, cluster = manifest.schedule, manifest.cluster
        at_once = max(cluster, device.multiprocessors * (schedule["blocks"] or 1) // cluster * cluster)
        self.at_once = at_once if schedule.get("persistent") else None
        self.checked = Checked()
        self.maps = TensorMaps(manifest, device.driver)
        self.argument_format = "<" + "".join(ARGUMENT_FORMATS.get(slot.kind, "8s") for slot in manifest.abi)
        self._module = device.driver.load_module(cubin)
        self.function = device.driver.function(self._module, manifest.entry)
        if self.shared > DEFAULT_DYNAMIC_SHARED:
            device.driver.set_dynamic_shared(self.function, self.shared)
        percent = preferred_shared(manifest, device.shared_memory_bytes)
        if percent is not None:
            device.driver.prefer_shared(self.function, percent)

    def may_overlap(self) -> bool:
        """Whether a launch may overlap the previous kernel: False on a device that overlaps none; E0917 if it would have to
        wait and does not."""
        if not self.device.overlaps_launches:
            return False
        if not self.manifest.dependent_launch:
            raise LaunchError("E0917", "cannot overlap the previous kernel", kernel=self.manifest.kernel)
        return True

    def launched(self, grid: tuple[int, int, int]) -> tuple[int, int, int]:
        """The launched grid: `cluster` blocks on the first axis for each of the kernel's; of persistent blocks, at most as many
        as the device runs at once. The code itself states the size of its clusters (PTX ISA, `.reqnctapercluster`), so that
        the driver needs no launch attribute."""
        first = grid[0] * self.manifest.cluster
        return (first if self.at_once is None else min(first, self.at_once)), *grid[1:]

    def plan(
        self,
        arguments: Mapping[str, Any],
        *,
        values: Mapping[str, Evidence] | None = None,
        check_values: bool = False,
        dims: Mapping[str, int] | None = None,
        stream: Any = 0,
    ) -> Plan:
        """Check the contract for these arguments (tensors and scalars by parameter name).

        `values` is the caller's evidence about integers stored in tensors; `check_values` copies them back on `stream`
        instead; `dims` gives extents that no shape determines. Raises `LaunchError` at the first broken clause.
        """
        manifest, evidence_of = self.manifest, values or {}
        device = self.device
        launch = check_launch(manifest, arguments, dims=dims, device=device.ordinal, owner=device.owner, checked=self.checked)
        checked = {check.tensor for check in manifest.value_checks}
        for name in evidence_of:
            if name not in checked:
                raise LaunchError("E0903", "has no value obligation", kernel=manifest.kernel, argument=name)
        copy = read_back(self.device.driver, stream_handle(stream)) if check_values else None
        for check in manifest.value_checks:
            view, stated = launch.views[check.tensor], evidence_of.get(check.tensor)
            check_evidence(check, launch.env, view, stated, kernel=manifest.kernel, read_back=copy)
        trusted = tuple(name for name in evidence_of if evidence_of[name] is TRUSTED)
        return Plan(self, launch, tuple(arguments.values()), trusted)

    def __call__(self, arguments: Mapping[str, Any], *, stream: Any = 0, **options: Any) -> Plan:
        """Plan and launch once; returns the plan, which can be launched again."""
        plan = self.plan(arguments, stream=stream, **options)
        plan.launch(stream)
        return plan

    def close(self) -> None:
        """Unload the CUBIN; its plans are invalid afterwards."""
        self.device.driver.unload_module(self._module)


def load(path: str | Path, device: Device | None = None) -> Kernel:
    """Load an artifact from disk on the current device; `path` as in `load_artifact`."""
    manifest, cubin = load_artifact(path)
    return Kernel(manifest, cubin, Device() if device is None else device)


def load_artifact(path: str | Path) -> tuple[Manifest, bytes]:
    """Manifest and CUBIN of `path`: the manifest file `NAME.json` (with `NAME.cubin` in the same folder) or `NAME.cubin`.

    Raises E0901 if a file is missing, too large or malformed, or if the CUBIN differs from what the manifest describes: its
    sha256, architecture and entry are compared.
    """
    artifact_path = Path(path)
    manifest_path, cubin_path = artifact_path.with_suffix(".json"), artifact_path.with_suffix(".cubin")
    text = _file(manifest_path, MAX_MANIFEST)
    try:
        manifest = manifest_from_json(parse(text, limit=MAX_MANIFEST, largest=LARGEST_OF_MANIFEST))
    except ValueError as error:
        raise LaunchError("E0901", f"`{manifest_path}` is not a manifest", given=str(error)) from None
    cubin = _file(cubin_path, MAX_CUBIN)
    recorded = manifest.digests.get("cubin", "")
    actual = hashlib.sha256(cubin).hexdigest()
    if recorded != actual:
        raise LaunchError(
            "E0901", f"`{cubin_path}` is not the CUBIN of its manifest", kernel=manifest.kernel,
            given=f"sha256 {actual[:16]}", required=f"sha256 {recorded[:16] or '(none recorded)'}",
        )  # fmt: skip
    try:
        check_image(cubin, manifest.arch, manifest.entry)
    except ValueError as error:
        raise LaunchError("E0901", f"`{cubin_path}` {error}", kernel=manifest.kernel) from None
    return manifest, cubin


def _file(path: Path, limit: int) -> bytes:
    try:
        return read_regular(path, limit)
    except OSError as error:
        raise LaunchError("E0901", f"cannot read `{path}`", given=str(error.strerror)) from None
    except ValueError as error:
        raise LaunchError("E0901", f"`{path}` {error}") from None


def stream_handle(stream: Any) -> int:
    """The driver's handle of a stream object, as an integer."""
    if stream is None:
        return 0
    protocol: Any = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        pair: Any = protocol() if callable(protocol) else protocol
        return int(pair[1])
    return int(getattr(stream, "cuda_stream", stream))


def preferred_shared(manifest: Manifest, max_shared: int) -> int | None:
    """Preferred shared memory carve-out, in percent of the maximum on a device whose blocks have at most `max_shared` bytes:
    the smallest size with room for the blocks that the schedule wants resident at once. The rest is L1 cache for loads, also
    for other kernels on the multiprocessor. None leaves the choice to the driver: if the schedule does not set the number of
    blocks, or if operands are copied by TMA, which bypasses L1."""
    blocks = manifest.schedule.get("blocks")
    if not blocks or any(loop["copy"] == TMA for loop in manifest.schedule["pipelines"]):
        return None
    resources, capacity = manifest.resources, max_shared + BLOCK_SHARED
    needed = blocks * (resources.dynamic_shared_bytes + resources.static_shared_bytes + BLOCK_SHARED)
    return -(-100 * next((size for size in SHARED_SIZES if needed <= size <= capacity), capacity) // capacity)


def _check_architecture(manifest: Manifest, device: Device) -> None:
    if not device.runs(manifest.arch):
        raise LaunchError(
            "E0902", "the CUBIN is for another architecture", kernel=manifest.kernel, given=f"`{manifest.arch}`",
            required=f"`{device.architecture}` ({device.name}); {built_with(device.architecture)}",
        )  # fmt: skip
    if manifest.cluster not in (1, PAIR):
        raise LaunchError(
            "E0916", "clusters of that size are not supported", kernel=manifest.kernel, given=f"{manifest.cluster} blocks",
            required=f"1 or {PAIR}",
        )  # fmt: skip


def packed_arguments(manifest: Manifest, launch: Launch) -> list[int | bytes]:
    """The values that `argument_format` packs."""
    return [argument(manifest, launch, slot.kind, slot.name) for slot in manifest.abi if slot.kind != "tensor_map"]


def addresses(manifest: Manifest, pointers: int, values_base: int, maps: int) -> Iterator[int]:
    """The address of each argument: its eight bytes in one of two storages, or the next tensor map."""
    for index, slot in enumerate(manifest.abi):
        if slot.kind == "tensor_map":
            yield maps
            maps += MAP_BYTES
        else:
            yield (pointers if slot.kind == "pointer" else values_base) + 8 * index


def argument(manifest: Manifest, launch: Launch, kind: str, name: str) -> int | bytes:
    """An argument in the form for `argument_format`."""
    if kind == "pointer":
        return launch.views[name].pointer
    if kind in ("dim", "stride"):
        return launch.env[name]
    if kind == "scalar":
        dtype = next(spec.dtype for spec in manifest.scalars if spec.name == name)
        return pack_scalar(dtype, launch.scalars[name])
    raise LaunchError("E0901", f"unknown argument kind `{kind}` in the manifest", kernel=manifest.kernel, argument=name)
